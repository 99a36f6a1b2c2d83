// The paged cache of keys and values. Attention reads it as the products want it: of every 16 keys of a head the same
// number adjoins, so that they are 16 columns; a value's numbers lie together.
#pragma once

#include "rows.h"

namespace {

constexpr int KEYS = 128;  // that one tile of attention holds
constexpr int MAX_HEAD_DIM = 256;

constexpr int SKEW = 7;  // plus one: so many blocks that follow one another begin at pages of their own

// The cache of one layer. A block has a page of block_size rows for each layer, keys or values, and head, in this order,
// so that few sequences touch little memory. They are turned around by some pages from block to block: at equal places,
// a head's pages would take each other's place in the processor's caches. In a page of keys lie bundles of 16 (or
// block_size, if that is smaller): [head_dim][bundle], in bf16 [head_dim / 2][bundle][2].
struct LayerCache {
    int kind, block_size, head_dim, bundle;
    int num_pages, skew;  // of a block
    int first_page[2];    // of a block's keys, values
    uint8_t* numbers;
    float* scales;  // of the rows

    // Of keys (part 0) or values (1).
    int64_t row(int part, const int32_t* blocks, int head, int position) const {
        const int block = blocks[position / block_size];
        int page = first_page[part] + head + (block & skew);
        if (page >= num_pages) page -= num_pages;
        return ((int64_t)block * num_pages + page) * block_size + position % block_size;
    }
    int item_bytes() const { return kind == CACHE_FLOAT32 ? 4 : kind == CACHE_BF16 ? 2 : 1; }
    // Whether 16 keys from a multiple of 16 on lie together.
    bool has_columns() const { return bundle == 16; }
    // Whether products can read it as it is.
    bool is_direct() const { return kind == CACHE_BF16 && has_columns() && head_dim % 32 == 0; }
};

inline LayerCache layer_cache(const Model& model, int layer) {
    const int bundle = model.block_size % 16 ? model.block_size : 16;
    const int num_pages = 2 * model.num_layers * model.num_kv_heads, first = 2 * layer * model.num_kv_heads;
    return {model.cache_kind,
            model.block_size,
            model.head_dim,
            bundle,
            num_pages,
            num_pages > SKEW ? SKEW : 0,
            {first, first + model.num_kv_heads},
            (uint8_t*)model.cache,
            model.cache_scales};
}

// Round a key or value as the cache holds it; `out` has room for head_dim floats.
inline void round_cached(const LayerCache& cache, int64_t row, const float* x, void* out) {
    const int size = cache.head_dim;
    if (cache.kind == CACHE_FLOAT32) {
        memcpy(out, x, sizeof(float) * size);
    } else if (cache.kind == CACHE_BF16) {
        for (int i = 0; i < size; i += 16) store_bf16((uint16_t*)out + i, load(x + i));
    } else {
        F16 largest = set1(0.0f);
        for (int i = 0; i < size; i += 16) largest = max_bits(largest, magnitude_bits(load(x + i)));
        const float magnitude = reduce_max_bits(largest);
        const F16 inverse = set1(magnitude > 1e-30f ? 127.0f / magnitude : 0.0f);
        for (int i = 0; i < size; i += 16) store_int8((int8_t*)out + i, to_int(load(x + i) * inverse));
        cache.scales[row] = magnitude / 127.0f;
    }
}

// Spread `count` words of SIZE bytes over a bundle of so many: word i becomes out's word i * bundle.
template <int SIZE>
inline void spread(const uint8_t* words, int count, int bundle, uint8_t* out) {
    for (int i = 0; i < count; i++) memcpy(out + (int64_t)i * bundle * SIZE, words + i * SIZE, SIZE);
}

inline void write_key(const LayerCache& cache, int64_t row, const float* x) {
    alignas(64) uint8_t rounded[MAX_HEAD_DIM * sizeof(float)];
    round_cached(cache, row, x, rounded);
    const int64_t first = row / cache.bundle * cache.bundle * cache.head_dim, place = row % cache.bundle;
    const int size = cache.head_dim;
    if (cache.kind == CACHE_FLOAT32) {
        spread<4>(rounded, size, cache.bundle, cache.numbers + (first + place) * 4);
    } else if (cache.kind == CACHE_BF16) {
        spread<4>(rounded, size / 2, cache.bundle, cache.numbers + (first + place * 2) * 2);
    } else {
        spread<1>(rounded, size, cache.bundle, cache.numbers + first + place);
    }
}

inline void write_value(const LayerCache& cache, int64_t row, const float* x) {
    round_cached(cache, row, x, cache.numbers + row * cache.head_dim * cache.item_bytes());
}

// Number `i` of a key, wherever it lies.
inline float cached_key(const LayerCache& cache, int64_t row, int i) {
    const int64_t first = row / cache.bundle * cache.bundle * cache.head_dim, place = row % cache.bundle;
    if (cache.kind == CACHE_FLOAT32) return ((const float*)cache.numbers)[first + i * cache.bundle + place];
    if (cache.kind == CACHE_INT8)
        return (float)((const int8_t*)cache.numbers)[first + i * cache.bundle + place] * cache.scales[row];
    const uint32_t number = ((const uint16_t*)cache.numbers)[first + i / 2 * 2 * cache.bundle + place * 2 + i % 2];
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)(number << 16))));
}

// 16 keys that lie together, as [head_dim, KEYS].
inline void load_bundle(const LayerCache& cache, int64_t row, float* keys) {
    const int64_t first = row * cache.head_dim;
    if (cache.kind == CACHE_BF16) {
        const auto* pairs = (const uint16_t*)cache.numbers + first;
        for (int i = 0; i < cache.head_dim; i += 2, pairs += 32) {
            store(keys + i * KEYS, first_of_pairs(pairs));
            store(keys + (i + 1) * KEYS, second_of_pairs(pairs));
        }
    } else if (cache.kind == CACHE_FLOAT32) {
        for (int i = 0; i < cache.head_dim; i++)
            store(keys + i * KEYS, load((const float*)cache.numbers + first + i * 16));
    } else {
        const F16 scales = load(cache.scales + row);
        for (int i = 0; i < cache.head_dim; i++)
            store(keys + i * KEYS, to_float(load_int8((const int8_t*)cache.numbers + first + i * 16)) * scales);
    }
}

// Some keys of a sequence: [first, first + count), of KEYS at most.
struct Tile {
    const int32_t* blocks = nullptr;
    int head = 0, first = 0, count = 0;
};

// Where each 16 of the keys (part 0) or values (1) of a tile in bf16 lie.
struct Bundles {
    const uint16_t* at[KEYS / 16];

    Bundles(const LayerCache& cache, int part, const Tile& tile) {
        for (int i = 0; i < KEYS / 16; i++) {
            const int key = tile.first + (i * 16 < tile.count ? i * 16 : 0);
            at[i] = (const uint16_t*)cache.numbers + cache.row(part, tile.blocks, tile.head, key) * cache.head_dim;
        }
    }
};

// Keys [first, first + count) of a sequence as [head_dim, KEYS]. Columns from count on are not keys.
inline void load_keys(const LayerCache& cache, const int32_t* blocks, int head, int first, int count, float* keys) {
    for (int key = 0; key < count; key += 16) {
        if (cache.has_columns()) {
            load_bundle(cache, cache.row(0, blocks, head, first + key), keys + key);
            continue;
        }
        for (int j = key; j < count && j < key + 16; j++) {
            const int64_t row = cache.row(0, blocks, head, first + j);
            for (int i = 0; i < cache.head_dim; i++) keys[i * KEYS + j] = cached_key(cache, row, i);
        }
    }
}

// Values [first, first + count): [count, head_dim].
inline void load_values(const LayerCache& cache, const int32_t* blocks, int head, int first, int count, float* values) {
    for (int j = 0; j < count; j++) {
        const int64_t row = cache.row(1, blocks, head, first + j);
        for (int i = 0; i < cache.head_dim; i += 16) {
            const int64_t at = row * cache.head_dim + i;
            F16 sixteen;
            if (cache.kind == CACHE_FLOAT32) {
                sixteen = load((const float*)cache.numbers + at);
            } else if (cache.kind == CACHE_BF16) {
                sixteen = load_bf16((const uint16_t*)cache.numbers + at);
            } else {
                sixteen = to_float(load_int8((const int8_t*)cache.numbers + at)) * set1(cache.scales[row]);
            }
            store(values + j * cache.head_dim + i, sixteen);
        }
    }
}

}  // namespace
