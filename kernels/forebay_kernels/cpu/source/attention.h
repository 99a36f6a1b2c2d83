// Causal attention over the paged cache. Keys are taken 64 at a time, from position 0 on, for one token and for many:
// what a token gets depends on the tokens before it alone, not on how its prompt was cut or who is computed with it.
#pragma once

#include "rows.h"

namespace {

constexpr int KEYS = 64;           // that one tile holds
constexpr int QUERY_ROWS = 96;     // queries of one item of work, about
constexpr int MAX_HEAD_DIM = 256;

// The cache of one layer.
struct LayerCache {
    int kind, block_size, num_kv_heads, head_dim;
    uint8_t* part[2];   // keys, values: [num_blocks, block_size, num_kv_heads, head_dim]
    float* scales[2];   // [num_blocks, block_size, num_kv_heads]

    int64_t slot(const int32_t* blocks, int position) const {
        return (int64_t)blocks[position / block_size] * block_size + position % block_size;
    }
};

inline LayerCache layer_cache(const Model& model, int layer) {
    const int64_t slots = (int64_t)model.num_blocks * model.block_size * model.num_kv_heads;
    const int64_t item = model.cache_kind == CACHE_FLOAT32 ? 4 : model.cache_kind == CACHE_BF16 ? 2 : 1;
    LayerCache cache{model.cache_kind, model.block_size, model.num_kv_heads, model.head_dim, {}, {}};
    for (int i = 0; i < 2; i++) {
        cache.part[i] = (uint8_t*)model.cache + (2 * layer + i) * slots * model.head_dim * item;
        cache.scales[i] = model.cache_scales + (model.cache_scales ? (2 * layer + i) * slots : 0);
    }
    return cache;
}

inline void write_cached(const LayerCache& cache, int part, int64_t slot, int head, const float* x) {
    const int64_t row = slot * cache.num_kv_heads + head, at = row * cache.head_dim;
    if (cache.kind == CACHE_FLOAT32) {
        memcpy((float*)cache.part[part] + at, x, sizeof(float) * cache.head_dim);
    } else if (cache.kind == CACHE_BF16) {
        uint16_t* out = (uint16_t*)cache.part[part] + at;
        for (int i = 0; i < cache.head_dim; i++) out[i] = to_bf16(x[i]);
    } else {
        F16 largest = set1(0.0f);
        for (int i = 0; i < cache.head_dim; i += 16) largest = max_bits(largest, magnitude_bits(load(x + i)));
        const float magnitude = reduce_max_bits(largest);
        const F16 inverse = set1(magnitude > 1e-30f ? 127.0f / magnitude : 0.0f);
        int8_t* out = (int8_t*)cache.part[part] + at;
        for (int i = 0; i < cache.head_dim; i += 16) store_int8(out + i, to_int(load(x + i) * inverse));
        cache.scales[part][row] = magnitude / 127.0f;
    }
}

inline F16 load_cached(const LayerCache& cache, int part, int64_t row, int from) {
    const int64_t at = row * cache.head_dim + from;
    if (cache.kind == CACHE_FLOAT32) return load((const float*)cache.part[part] + at);
    if (cache.kind == CACHE_BF16) return load_bf16((const uint16_t*)cache.part[part] + at);
    return to_float(load_int8((const int8_t*)cache.part[part] + at)) * set1(cache.scales[part][row]);
}

// Keys [first, first + count) of a sequence, transposed: [head_dim, KEYS]. Columns from count on are not keys.
inline void load_keys(const LayerCache& cache, const int32_t* blocks, int head, int first, int count, float* keys) {
    for (int key = 0; key < count; key += 16) {
        int64_t rows[16];
        for (int j = 0; j < 16; j++) {
            const int position = first + (key + j < count ? key + j : count - 1);
            rows[j] = cache.slot(blocks, position) * cache.num_kv_heads + head;
        }
        int from = 0;
        for (; cache.kind == CACHE_BF16 && from + 32 <= cache.head_dim; from += 32) {
            F16 tile[16];
            for (int j = 0; j < 16; j++)
                tile[j] = load((const float*)((const uint16_t*)cache.part[0] + rows[j] * cache.head_dim + from));
            store_transposed_bf16(tile, keys + from * KEYS + key, KEYS);
        }
        for (; from < cache.head_dim; from += 16) {
            F16 tile[16];
            for (int j = 0; j < 16; j++) tile[j] = load_cached(cache, 0, rows[j], from);
            store_transposed(tile, keys + from * KEYS + key, KEYS);
        }
    }
}

// Values [first, first + count): [count, head_dim].
inline void load_values(const LayerCache& cache, const int32_t* blocks, int head, int first, int count, float* values) {
    for (int j = 0; j < count; j++) {
        const int64_t row = cache.slot(blocks, first + j) * cache.num_kv_heads + head;
        for (int from = 0; from < cache.head_dim; from += 16)
            store(values + j * cache.head_dim + from, load_cached(cache, 1, row, from));
    }
}

// c += a b for ROWS rows and SIXTEENS * 16 columns, in the order of the inner dimension.
template <int ROWS, int SIXTEENS>
inline __attribute__((always_inline)) void add_product(const float* a, int stride_a, const float* b, int stride_b,
                                                        int inner, float* c, int stride_c) {
    Registers<F16, ROWS * SIXTEENS> sums;
    repeat<ROWS>([&](auto m) INLINE_LAMBDA {
        repeat<SIXTEENS>([&](auto n) INLINE_LAMBDA {
            at<m * SIXTEENS + n>(sums) = load(c + m * stride_c + n * 16);
        });
    });
    for (int k = 0; k < inner; k++) {
        Registers<F16, SIXTEENS> row;
        repeat<SIXTEENS>([&](auto n) INLINE_LAMBDA {
            at<n>(row) = load(b + k * stride_b + n * 16);
        });
        repeat<ROWS>([&](auto m) INLINE_LAMBDA {
            const F16 factor = set1(a[m * stride_a + k]);
            repeat<SIXTEENS>([&](auto n) INLINE_LAMBDA {
                at<m * SIXTEENS + n>(sums) = fma(factor, at<n>(row), at<m * SIXTEENS + n>(sums));
            });
        });
    }
    repeat<ROWS>([&](auto m) INLINE_LAMBDA {
        repeat<SIXTEENS>([&](auto n) INLINE_LAMBDA {
            store(c + m * stride_c + n * 16, at<m * SIXTEENS + n>(sums));
        });
    });
}

template <int ROWS>
__attribute__((noinline)) void add_product_rows(const float* a, int stride_a, const float* b, int stride_b, int inner,
                                                int columns, float* c, int stride_c) {
    int n = 0;
    for (; n + 16 * TILE_SIXTEENS <= columns; n += 16 * TILE_SIXTEENS)
        add_product<ROWS, TILE_SIXTEENS>(a, stride_a, b + n, stride_b, inner, c + n, stride_c);
    for (; n < columns; n += 16) add_product<ROWS, 1>(a, stride_a, b + n, stride_b, inner, c + n, stride_c);
}

inline void add_product_of(const float* a, int stride_a, const float* b, int stride_b, int rows, int inner, int columns,
                           float* c, int stride_c) {
    using Function = void (*)(const float*, int, const float*, int, int, int, float*, int);
#if defined(__AVX512F__)
    constexpr Function functions[] = {add_product_rows<1>, add_product_rows<2>, add_product_rows<3>,
                                      add_product_rows<4>, add_product_rows<5>, add_product_rows<6>};
#else
    constexpr Function functions[] = {add_product_rows<1>, add_product_rows<2>};
#endif
    const int num_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int tile = 0, done = 0; tile < num_tiles; tile++) {
        const int size = (rows - done + num_tiles - tile - 1) / (num_tiles - tile);
        functions[size - 1](a + done * stride_a, stride_a, b, stride_b, inner, columns, c + done * stride_c, stride_c);
        done += size;
    }
}

// What one thread needs for one item of work, for up to `rows` queries.
struct AttentionScratch {
    float* keys;     // [head_dim, KEYS]
    float* values;   // [KEYS, head_dim]
    float* queries;  // [rows, head_dim], times scale times log2(e)
    float* sums;     // [rows, head_dim]
    float* scores;   // [rows, KEYS]
    float* largest;  // [rows]
    float* totals;   // [rows]

    static int64_t floats(int rows, int head_dim) {
        return (int64_t)2 * KEYS * head_dim + (int64_t)rows * (2 * head_dim + KEYS + 2);
    }

    AttentionScratch(float* memory, int rows, int head_dim) {
        keys = memory;
        values = keys + KEYS * head_dim;
        queries = values + KEYS * head_dim;
        sums = queries + (int64_t)rows * head_dim;
        scores = sums + (int64_t)rows * head_dim;
        largest = scores + (int64_t)rows * KEYS;
        totals = largest + rows;
    }

    // The same without the first rows.
    AttentionScratch skip(int rows, int head_dim) const {
        AttentionScratch rest = *this;
        rest.queries += rows * head_dim;
        rest.sums += rows * head_dim;
        rest.scores += rows * KEYS;
        rest.largest += rows;
        rest.totals += rows;
        return rest;
    }
};

// Turn a row's scores into weights in place, and what was summed so far to the new largest score.
inline void update_softmax(const AttentionScratch& s, int row, int num_seen, int head_dim) {
    float* scores = s.scores + row * KEYS;
    F16 score[KEYS / 16];
    F16 largest = set1(s.largest[row]);
    for (int n = 0; n < KEYS / 16; n++) {
        const F16 column = to_float(iota() + set1((int32_t)(n * 16)));
        score[n] = where_less(column, set1((float)num_seen), load(scores + n * 16), set1(-INFINITY));
        largest = max(largest, score[n]);
    }
    const float new_largest = reduce_max(largest);
    F16 total = set1(0.0f);
    for (int n = 0; n < KEYS / 16; n++) {
        const F16 weight = exp2(score[n] - set1(new_largest));
        store(scores + n * 16, weight);
        total = total + weight;
    }
    const float factor = reduce_max(exp2(set1(s.largest[row] - new_largest)));
    s.totals[row] = s.totals[row] * factor + reduce_add(total);
    s.largest[row] = new_largest;
    if (factor != 1.0f)
        for (int i = 0; i < head_dim; i += 16) store(s.sums + row * head_dim + i, load(s.sums + row * head_dim + i) * set1(factor));
}

// What keys [first, first + count) of one head add to the rows' softmax.
inline void attend_tile(const LayerCache& cache, const int32_t* blocks, int head, int start, int num_tokens, int group,
                        int first, int count, const AttentionScratch& s) {
    const int head_dim = cache.head_dim, rows = num_tokens * group;
    load_keys(cache, blocks, head, first, count, s.keys);
    load_values(cache, blocks, head, first, count, s.values);
    // Tokens before the tile see nothing of it.
    const int skipped = first > start ? (first - start) * group : 0;
    float* scores = s.scores + skipped * KEYS;
    memset(scores, 0, sizeof(float) * (rows - skipped) * KEYS);
    add_product_of(s.queries + skipped * head_dim, head_dim, s.keys, KEYS, rows - skipped, head_dim,
                   (count + 15) / 16 * 16, scores, KEYS);
    for (int row = skipped; row < rows; row++) update_softmax(s, row, start + row / group - first + 1, head_dim);
    add_product_of(scores, KEYS, s.values, head_dim, rows - skipped, count, head_dim, s.sums + skipped * head_dim,
                   head_dim);
}

// Attend from num_tokens tokens at positions [start, start + num_tokens), `group` heads each, to num_heads key heads from
// `head` on: one tile of all heads after the other, because they lie together. s.queries is filled, head by head; on
// return s.sums holds the results.
inline void attend(const LayerCache& cache, const int32_t* blocks, int head, int num_heads, int start, int num_tokens,
                   int group, const AttentionScratch& s) {
    const int head_dim = cache.head_dim, rows = num_tokens * group, num_keys = start + num_tokens;
    memset(s.sums, 0, sizeof(float) * num_heads * rows * head_dim);
    for (int row = 0; row < num_heads * rows; row++) {
        s.largest[row] = -INFINITY;
        s.totals[row] = 0.0f;
    }
    for (int first = 0; first < num_keys; first += KEYS) {
        const int count = num_keys - first < KEYS ? num_keys - first : KEYS;
        for (int i = 0; i < num_heads; i++)
            attend_tile(cache, blocks, head + i, start, num_tokens, group, first, count, s.skip(i * rows, head_dim));
    }
    for (int row = 0; row < num_heads * rows; row++) {
        const F16 factor = set1(1.0f / s.totals[row]);
        for (int i = 0; i < head_dim; i += 16)
            store(s.sums + row * head_dim + i, load(s.sums + row * head_dim + i) * factor);
    }
}

}  // namespace
