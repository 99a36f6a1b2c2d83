// Weights from the form in which a checkpoint has them to eight or four bits, row by row, without a copy in float32.
#pragma once

#include <cmath>

#include "interface.h"
#include "vectors.h"

namespace {

// A row in float32, as `dequantize` of its form computes it.
inline void read_row(const StoredMatrix& from, int row, float* out) {
    const int columns = from.columns;
    const int64_t first = (int64_t)row * columns;
    if (from.kind == STORED_FLOAT32) {
        memcpy(out, (const float*)from.numbers + first, sizeof(float) * columns);
        return;
    }
    if (from.kind == STORED_BF16 || from.kind == STORED_FP16) {
        const auto* numbers = (const uint16_t*)from.numbers + first;
        for (int k = 0; k < columns; k += 16)
            store(out + k, from.kind == STORED_BF16 ? load_bf16(numbers + k) : load_fp16(numbers + k));
        return;
    }
    const int64_t groups = (int64_t)row * (columns / from.group);
    if (from.kind == STORED_INT8) {
        const auto* numbers = (const int8_t*)from.numbers + first;
        for (int k = 0; k < columns; k += 16)
            store(out + k, to_float(load_int8(numbers + k)) * set1(from.scales[groups + k / from.group]));
        return;
    }
    const auto* bytes = (const uint8_t*)from.numbers + first / 2;
    const __m128i mask = _mm_set1_epi8(15);
    for (int k = 0; k < columns; k += from.chunk) {  // a chunk's low halves come before its high ones
        const int64_t group = groups + k / from.group;
        const F16 scale = set1(from.scales[group]), zero = set1(from.zeros ? from.zeros[group] : 0.0f);
        const F16 minimum = set1(from.mins ? from.mins[group] : 0.0f);
        for (int i = 0; i < from.chunk / 2; i += 16) {
            const __m128i pairs = _mm_loadu_si128((const __m128i*)(bytes + k / 2 + i));
            alignas(16) int8_t halves[32];
            _mm_store_si128((__m128i*)halves, _mm_and_si128(pairs, mask));
            _mm_store_si128((__m128i*)(halves + 16), _mm_and_si128(_mm_srli_epi16(pairs, 4), mask));
            store(out + k + i, (to_float(load_int8(halves)) - zero) * scale + minimum);
            store(out + k + from.chunk / 2 + i, (to_float(load_int8(halves + 16)) - zero) * scale + minimum);
        }
    }
}

inline float largest_magnitude(const float* x, int size) {
    F16 largest = set1(0.0f);
    for (int i = 0; i < size; i += 16) largest = max_bits(largest, magnitude_bits(load(x + i)));
    return reduce_max_bits(largest);
}

// `quantize_rows` for eight bits: `size` numbers share the scale that is returned.
inline float quantize_int8_group(const float* x, int size, int8_t* values) {
    const float magnitude = largest_magnitude(x, size);
    const F16 inverse = set1(magnitude > 1e-30f ? 1.0f / magnitude * 127.0f : 0.0f);  // as torch divides a number
    for (int i = 0; i < size; i += 16) {
        const F16 scaled = max(set1(-127.0f), min(set1(127.0f), load(x + i) * inverse));
        store_int8(values + i, to_int(scaled));
    }
    return magnitude / 127.0f;
}

// The number of the largest magnitude, the first of equals.
inline float extreme_of(const float* x, int size) {
    const float magnitude = largest_magnitude(x, size);
    int i = 0;
    while (i < size - 1 && fabsf(x[i]) != magnitude) i++;
    return x[i];
}

inline F16 int4_numbers(F16 x, F16 inverse) {
    return max(set1(-8.0f), min(set1(7.0f), round_even(x * inverse)));
}

// `quantize_int4` of the server: the scale, in float16, of the least squared error among those tried.
inline uint16_t best_int4_scale(const float* x, int size, const float* factors, int num_factors) {
    const float extreme = extreme_of(x, size);
    uint16_t best = 0;
    float best_error = INFINITY;
    for (int t = 0; t < num_factors; t++) {
        const uint16_t half = _cvtss_sh(extreme * factors[t], _MM_FROUND_TO_NEAREST_INT);
        const float scale = _cvtsh_ss(half);
        const F16 inverse = set1(fabsf(scale) > 1e-30f ? 1.0f / scale : 0.0f);
        F16 squares = set1(0.0f);
        for (int i = 0; i < size; i += 16) {
            const F16 number = load(x + i), difference = int4_numbers(number, inverse) * set1(scale) - number;
            squares = fma(difference, difference, squares);
        }
        const float error = reduce_add(squares);
        if (error < best_error) best_error = error, best = half;
    }
    return best;
}

// Four bits with float16 scales: packed as the rows of an Int4Weight whose chunks have `chunk` numbers.
inline void quantize_int4_row(const float* x, int columns, int group, int chunk, const float* factors, int num_factors,
                              uint8_t* packed, uint16_t* scales) {
    for (int k = 0; k < columns; k += group) {
        scales[k / group] = best_int4_scale(x + k, group, factors, num_factors);
        const float scale = _cvtsh_ss(scales[k / group]);
        const F16 inverse = set1(fabsf(scale) > 1e-30f ? 1.0f / scale : 0.0f);
        for (int from = k; from < k + group; from += chunk)
            for (int i = 0; i < chunk / 2; i += 16) {
                alignas(16) int8_t low[16], high[16];
                store_int8(low, to_int(int4_numbers(load(x + from + i), inverse) + set1(8.0f)));
                store_int8(high, to_int(int4_numbers(load(x + from + chunk / 2 + i), inverse) + set1(8.0f)));
                const __m128i shifted = _mm_slli_epi16(_mm_load_si128((const __m128i*)high), 4);
                _mm_storeu_si128((__m128i*)(packed + (from / 2) + i),
                                 _mm_or_si128(_mm_load_si128((const __m128i*)low), shifted));
            }
    }
}

}  // namespace
