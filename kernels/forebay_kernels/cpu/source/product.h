// Products of a few rows of floats with keys or values, straight from the cache or from floats.
#pragma once

#include "cache.h"

namespace {

// Rows and sixteens of columns that are computed together, by the number of registers.
#if defined(__AVX512F__)
constexpr int QUERY_TILE = 6;
constexpr int TILE_SIXTEENS = 4;
#else
constexpr int QUERY_TILE = 2;
constexpr int TILE_SIXTEENS = 2;
#endif

// Rows of floats that lie a stride apart: row k of the second factor, 16 columns at a time.
struct FloatRows {
    static constexpr int STEP = 1;
    static constexpr bool IS_PAIRED = false;
    const float* rows;
    int stride;

    template <int SIXTEEN, int PART>
    F16 get(int k) const {
        return load(rows + (int64_t)k * stride + SIXTEEN * 16);
    }
    FloatRows skip(int columns) const { return {rows + columns, stride}; }
};

// The keys of a tile in bf16 as columns: the cache has two numbers of 16 keys in each 64 bytes. Columns from the tile's
// count on are not keys. What is read is replaced in the processor's cache by what is read next, line by line: asked for
// at once, lines would wait for one another, and the products for them.
struct KeyColumns {
    static constexpr int STEP = 2;
    static constexpr bool IS_PAIRED = false;
    const Bundles& now;
    const Bundles& next;
    int bundle = 0;

    template <int SIXTEEN, int PART>
    F16 get(int k) const {
        const uint16_t* pairs = now.at[bundle + SIXTEEN] + k * 16;
        if (PART) return second_of_pairs(pairs);
        prefetch(next.at[bundle + SIXTEEN] + k * 16);
        return first_of_pairs(pairs);
    }
    KeyColumns skip(int columns) const { return {now, next, bundle + columns / 16}; }
};

// The values of a tile in bf16 as rows. Of each 32 columns those at even places come first, then the others: so they lie
// in registers, and `interleave` puts the sums in order. head_dim is a multiple of 32.
struct ValueRows {
    static constexpr int STEP = 1;
    static constexpr bool IS_PAIRED = true;
    const Bundles& now;
    const Bundles& next;
    int head_dim, column = 0;

    template <int SIXTEEN, int PART>
    F16 get(int k) const {
        const int64_t place = (int64_t)(k % 16) * head_dim + column + SIXTEEN / 2 * 32;
        const uint16_t* pairs = now.at[k / 16] + place;
        if (SIXTEEN % 2) return second_of_pairs(pairs);
        prefetch(next.at[k / 16] + place);
        return first_of_pairs(pairs);
    }
    ValueRows skip(int columns) const { return {now, next, head_dim, column + columns}; }
};

// c = factors c + a b for ROWS rows and SIXTEENS * 16 columns, in the order of the inner dimension; without factors: a b.
template <int ROWS, int SIXTEENS, typename Source>
inline __attribute__((always_inline)) void multiply_tile(const float* a, int stride_a, const Source& b, int inner,
                                                          const float* factors, float* c, int stride_c) {
    Registers<F16, ROWS * SIXTEENS> sums;
    repeat<ROWS * SIXTEENS>([&](auto i) INLINE_LAMBDA {
        at<i>(sums) = set1(0.0f);
    });
    for (int k = 0; k < inner; k += Source::STEP)
        repeat<Source::STEP>([&](auto part) INLINE_LAMBDA {
            Registers<F16, SIXTEENS> row;
            repeat<SIXTEENS>([&](auto n) INLINE_LAMBDA {
                at<n>(row) = b.template get<n, part>(k);
            });
            repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                const F16 factor = set1(a[m * stride_a + k + part]);
                repeat<SIXTEENS>([&](auto n) INLINE_LAMBDA {
                    at<m * SIXTEENS + n>(sums) = fma(factor, at<n>(row), at<m * SIXTEENS + n>(sums));
                });
            });
        });
    repeat<ROWS>([&](auto m) INLINE_LAMBDA {
        if constexpr (Source::IS_PAIRED)
            repeat<SIXTEENS / 2>([&](auto n) INLINE_LAMBDA {
                interleave(at<m * SIXTEENS + 2 * n>(sums), at<m * SIXTEENS + 2 * n + 1>(sums));
            });
        repeat<SIXTEENS>([&](auto n) INLINE_LAMBDA {
            float* out = c + m * stride_c + n * 16;
            const F16 sum = at<m * SIXTEENS + n>(sums);
            store(out, factors ? fma(load(out), set1(factors[m]), sum) : sum);
        });
    });
}

template <int ROWS, typename Source>
__attribute__((noinline)) void multiply_rows(const float* a, int stride_a, const Source& b, int inner, int columns,
                                             const float* factors, float* c, int stride_c) {
    constexpr int LEAST = Source::IS_PAIRED ? 2 : 1;
    int n = 0;
    for (; n + 16 * TILE_SIXTEENS <= columns; n += 16 * TILE_SIXTEENS)
        multiply_tile<ROWS, TILE_SIXTEENS>(a, stride_a, b.skip(n), inner, factors, c + n, stride_c);
    for (; n < columns; n += 16 * LEAST)
        multiply_tile<ROWS, LEAST>(a, stride_a, b.skip(n), inner, factors, c + n, stride_c);
}

// c = factors c + a b, or a b, for rows of a [rows, inner] and columns of c [rows, columns].
template <typename Source>
inline void multiply_floats(const float* a, int stride_a, const Source& b, int rows, int inner, int columns,
                            const float* factors, float* c, int stride_c) {
    using Function = void (*)(const float*, int, const Source&, int, int, const float*, float*, int);
#if defined(__AVX512F__)
    constexpr Function functions[] = {multiply_rows<1, Source>, multiply_rows<2, Source>, multiply_rows<3, Source>,
                                      multiply_rows<4, Source>, multiply_rows<5, Source>, multiply_rows<6, Source>};
#else
    constexpr Function functions[] = {multiply_rows<1, Source>, multiply_rows<2, Source>};
#endif
    const int num_tiles = (rows + QUERY_TILE - 1) / QUERY_TILE;
    for (int tile = 0, done = 0; tile < num_tiles; tile++) {
        const int size = (rows - done + num_tiles - tile - 1) / (num_tiles - tile);
        functions[size - 1](a + (int64_t)done * stride_a, stride_a, b, inner, columns, factors ? factors + done : nullptr,
                            c + (int64_t)done * stride_c, stride_c);
        done += size;
    }
}

}  // namespace
