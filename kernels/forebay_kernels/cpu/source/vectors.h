// Sixteen numbers at a time: one register with AVX-512, two with AVX2. The operations and their order are the same on
// both, so every variant of the library computes the same bits.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define INLINE_LAMBDA __attribute__((always_inline))

namespace {

template <int I>
struct Index {
    constexpr operator int() const { return I; }
};

// body(0), ... body(N - 1), written out: arrays that it indexes become registers.
template <int N, int I = 0, typename Body>
inline __attribute__((always_inline)) void repeat(const Body& body) {
    if constexpr (I < N) {
        body(Index<I>{});
        repeat<N, I + 1>(body);
    }
}

// N values that `at<i>` finds: fields, because compilers keep arrays in memory.
template <typename Value, int N>
struct Registers {
    Value first;
    Registers<Value, N - 1> rest;
};
template <typename Value>
struct Registers<Value, 1> {
    Value first;
};

template <int I, typename Value, int N>
inline __attribute__((always_inline)) Value& at(Registers<Value, N>& values) {
    if constexpr (I == 0) {
        return values.first;
    } else {
        return at<I - 1>(values.rest);
    }
}

#if defined(__AVX512F__)

struct F16 {
    __m512 v;
};
struct I16 {
    __m512i v;
};

inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 set1(float a) { return {_mm512_set1_ps(a)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// Either of them when b is NaN: b.
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 round_even(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F16 magnitude_bits(F16 a) { return {_mm512_abs_ps(a.v)}; }
// The larger of two that are not negative, as whole numbers: NaN is the largest of all.
inline F16 max_bits(F16 a, F16 b) {
    return {_mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
inline __m256 low_half(F16 a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high_half(F16 a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)); }
inline F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I16 to_int(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }
inline I16 set1(int32_t a) { return {_mm512_set1_epi32(a)}; }
inline I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I16 shift_left(I16 a, int n) { return {_mm512_slli_epi32(a.v, n)}; }
inline F16 as_float(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
inline I16 as_int(F16 a) { return {_mm512_castps_si512(a.v)}; }
inline __m256i low_half(I16 a) { return _mm512_castsi512_si256(a.v); }
inline __m256i high_half(I16 a) { return _mm512_extracti64x4_epi64(a.v, 1); }
inline I16 load_int8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
inline void store_int8(int8_t* p, I16 a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }
inline I16 load_uint16(const uint16_t* p) { return {_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p))}; }
inline F16 load_fp16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
// first where left < right, second elsewhere; lane by lane.
inline F16 where_less(F16 left, F16 right, F16 first, F16 second) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(left.v, right.v, _CMP_LT_OQ), second.v, first.v)};
}
inline I16 iota() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }

#else

struct F16 {
    __m256 lo, hi;
};
struct I16 {
    __m256i lo, hi;
};

inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline F16 set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline F16 operator+(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F16 round_even(F16 a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
inline F16 magnitude_bits(F16 a) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
inline __m256 max_bits(__m256 a, __m256 b) {
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
inline F16 max_bits(F16 a, F16 b) { return {max_bits(a.lo, b.lo), max_bits(a.hi, b.hi)}; }
inline __m256 low_half(F16 a) { return a.lo; }
inline __m256 high_half(F16 a) { return a.hi; }
inline F16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I16 to_int(F16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline I16 set1(int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
inline I16 operator+(I16 a, I16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline I16 shift_left(I16 a, int n) { return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)}; }
inline F16 as_float(I16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline I16 as_int(F16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline __m256i low_half(I16 a) { return a.lo; }
inline __m256i high_half(I16 a) { return a.hi; }
inline I16 load_int8(const int8_t* p) {
    const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
inline void store_int8(int8_t* p, I16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(words, words), 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(bytes));
}
inline I16 load_uint16(const uint16_t* p) {
    const __m256i words = _mm256_loadu_si256((const __m256i*)p);
    return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(words)),
            _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words, 1))};
}
inline F16 load_fp16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline F16 where_less(F16 left, F16 right, F16 first, F16 second) {
    return {_mm256_blendv_ps(second.lo, first.lo, _mm256_cmp_ps(left.lo, right.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(second.hi, first.hi, _mm256_cmp_ps(left.hi, right.hi, _CMP_LT_OQ))};
}
inline I16 iota() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

#endif

// Of each 32 bits the upper 16: the second of two bf16 numbers, as a float.
inline F16 keep_high(F16 a) {
#if defined(__AVX512F__)
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32((int)0xffff0000)))};
#else
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000));
    return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
#endif
}

inline F16 load_bf16(const uint16_t* p) { return as_float(shift_left(load_uint16(p), 16)); }

inline uint16_t to_bf16(float a) {
    uint32_t bits;
    memcpy(&bits, &a, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;  // NaN stays NaN
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float reduce_add(F16 a) {
    const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline int32_t reduce_add(I16 a) {
    const __m256i eight = _mm256_add_epi32(low_half(a), high_half(a));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

inline float reduce_max(F16 a) {
    const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The largest of what is not negative; NaN when there is one.
inline float reduce_max_bits(F16 a) {
    const __m256i eight =
        _mm256_max_epu32(_mm256_castps_si256(low_half(a)), _mm256_castps_si256(high_half(a)));
    const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epu32(two, _mm_shuffle_epi32(two, 0xb1))));
}

// 2 to the power of x: 0 below -125.5, infinite from 128 on; relative error below 3e-7.
inline F16 exp2(F16 x) {
    const F16 bounded = min(set1(128.0f), max(set1(-127.0f), x));  // NaN stays NaN: it is the second operand
    const F16 whole = round_even(bounded);
    const F16 rest = bounded - whole;  // -0.5 to 0.5
    F16 sum = set1(1.5403530393381609954e-4f);
    sum = fma(sum, rest, set1(1.3333558146428443423e-3f));
    sum = fma(sum, rest, set1(9.6181291076284771619e-3f));
    sum = fma(sum, rest, set1(5.5504108664821579953e-2f));
    sum = fma(sum, rest, set1(2.4022650695910071233e-1f));
    sum = fma(sum, rest, set1(6.9314718055994530942e-1f));
    sum = fma(sum, rest, set1(1.0f));
    // Half of the exponent at a time, so that neither factor overflows.
    const F16 power = as_float(shift_left(to_int(whole) + set1((int32_t)126), 23));
    return where_less(x, set1(-126.0f), set1(0.0f), sum * power * set1(2.0f));
}

constexpr float LOG2_E = 1.44269504088896341f;

// The 16 x 16 matrix of a transposed in place: 8 x 8 quarters, the same on every variant but for their number.
inline void transpose8(__m256 r[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

// Store the transpose of the 16 x 16 matrix of rows: row i of the result goes to out + i * stride.
inline void store_transposed(const F16 rows[16], float* out, int64_t stride) {
    for (int half = 0; half < 2; half++) {
        __m256 left[8], right[8];
        for (int i = 0; i < 8; i++) {
            left[i] = low_half(rows[half * 8 + i]);
            right[i] = high_half(rows[half * 8 + i]);
        }
        transpose8(left);
        transpose8(right);
        for (int i = 0; i < 8; i++) {
            _mm256_storeu_ps(out + i * stride + half * 8, left[i]);
            _mm256_storeu_ps(out + (i + 8) * stride + half * 8, right[i]);
        }
    }
}

// The same for bf16 numbers, two in each float of rows: 16 rows of 32 numbers become 32 rows of 16 floats.
inline void store_transposed_bf16(const F16 rows[16], float* out, int64_t stride) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000));
    for (int half = 0; half < 2; half++) {
        for (int side = 0; side < 2; side++) {
            __m256 pairs[8];
            for (int i = 0; i < 8; i++) pairs[i] = side ? high_half(rows[half * 8 + i]) : low_half(rows[half * 8 + i]);
            transpose8(pairs);
            for (int i = 0; i < 8; i++) {
                float* even = out + (side * 16 + 2 * i) * stride + half * 8;
                _mm256_storeu_ps(even, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs[i]), 16)));
                _mm256_storeu_ps(even + stride, _mm256_and_ps(pairs[i], mask));
            }
        }
    }
}

}  // namespace
