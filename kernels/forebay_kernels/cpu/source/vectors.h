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

// Inlined always: GCC takes a function that only prefetches for one without effect, and leaves out its calls.
inline __attribute__((always_inline)) void prefetch(const void* line) { _mm_prefetch((const char*)line, _MM_HINT_T0); }

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
inline I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
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
inline I16 operator-(I16 a, I16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
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

// 32 bf16 numbers, two in each float: the first, or the second, of every two.
inline F16 first_of_pairs(const uint16_t* p) { return as_float(shift_left(as_int(load((const float*)p)), 16)); }
inline F16 second_of_pairs(const uint16_t* p) { return keep_high(load((const float*)p)); }

inline uint16_t to_bf16(float a) {
    uint32_t bits;
    memcpy(&bits, &a, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;  // NaN stays NaN
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// 16 numbers as bf16, each as `to_bf16` rounds it.
inline void store_bf16(uint16_t* p, F16 a) {
#if defined(__AVX512F__)
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i high = _mm512_mask_set1_epi32(_mm512_srli_epi32(rounded, 16), is_nan, 0x7fc0);
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(high));
#else
    alignas(32) float numbers[16];
    store(numbers, a);
    for (int i = 0; i < 16; i++) p[i] = to_bf16(numbers[i]);
#endif
}

// Put together what `first_of_pairs` and `second_of_pairs` took apart: 32 numbers in their order.
inline void interleave(F16& first, F16& second) {
#if defined(__AVX512F__)
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const __m512 whole = _mm512_permutex2var_ps(first.v, low, second.v);
    second.v = _mm512_permutex2var_ps(first.v, high, second.v);
    first.v = whole;
#else
    const __m256 parts[4] = {_mm256_unpacklo_ps(first.lo, second.lo), _mm256_unpackhi_ps(first.lo, second.lo),
                             _mm256_unpacklo_ps(first.hi, second.hi), _mm256_unpackhi_ps(first.hi, second.hi)};
    first = {_mm256_permute2f128_ps(parts[0], parts[1], 0x20), _mm256_permute2f128_ps(parts[0], parts[1], 0x31)};
    second = {_mm256_permute2f128_ps(parts[2], parts[3], 0x20), _mm256_permute2f128_ps(parts[2], parts[3], 0x31)};
#endif
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

inline float power_of_two(float x) { return _mm_cvtss_f32(_mm256_castps256_ps128(low_half(exp2(set1(x))))); }

// 1 / x for x from 1 on, NaN for NaN: relative error below 2e-7, and the same bits everywhere. A division takes as long as
// sixteen of these operations.
inline F16 reciprocal(F16 x) {
    const F16 bounded = min(set1(1e30f), x);  // NaN stays NaN: it is the second operand
    F16 guess = as_float(set1((int32_t)0x7ef311c7) - as_int(bounded));
    for (int i = 0; i < 3; i++) guess = fma(guess, fma(set1(0.0f) - bounded, guess, set1(1.0f)), guess);
    return guess;
}

constexpr float LOG2_E = 1.44269504088896341f;

}  // namespace
