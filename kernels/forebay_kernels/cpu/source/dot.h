// Sixteen sums of four products of bytes each, by what the instruction set has for them.
#pragma once

#include "vectors.h"

namespace {

// Eight-bit weights are stored as number + 128. This is what a dot product with them has too much, for each unit of the
// activations' sum: AVX2 takes the 128 off each weight instead.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int32_t EXCESS = 128;
#else
constexpr int32_t EXCESS = 0;
#endif

// Rows that are computed together with a panel; whether there are registers for the sums of the groups beside those of
// the products.
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 7;
constexpr bool SUMS_IN_REGISTERS = true;
#else
constexpr int TILE_ROWS = 2;
constexpr bool SUMS_IN_REGISTERS = false;
#endif

// Four bytes of activations, repeated; 64 bytes of weights, of 16 outputs.
#if defined(__AVX512F__)

struct Bytes {
    __m512i v;
};

inline Bytes repeat4(const int8_t* p) {
    int32_t bits;
    memcpy(&bits, p, 4);
    return {_mm512_set1_epi32(bits)};
}
inline Bytes load_weights(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline Bytes high_nibbles(Bytes a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
inline void store_number(uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a.v); }
// As assembly: GCC 12 takes the intrinsic for a function that may look at memory, and keeps all sums there.
inline I16 dot(I16 sum, Bytes weights, Bytes x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(weights.v), "v"(x.v));
    return sum;
}
inline I16 dot_nibbles(I16 sum, Bytes weights, Bytes x) { return dot(sum, weights, x); }

#else

struct Bytes {
    __m256i lo, hi;
};

inline Bytes repeat4(const int8_t* p) {
    int32_t bits;
    memcpy(&bits, p, 4);
    return {_mm256_set1_epi32(bits), _mm256_set1_epi32(bits)};
}
inline Bytes load_weights(const uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
inline Bytes low_nibbles(Bytes a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
inline Bytes high_nibbles(Bytes a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), mask)};
}

// Where `dot` takes off 128, they are there first.
inline void store_number(uint8_t* p, Bytes a) {
    const __m256i offset = _mm256_set1_epi8((char)(EXCESS ? 0 : 0x80));
    _mm256_storeu_si256((__m256i*)p, _mm256_or_si256(a.lo, offset));
    _mm256_storeu_si256((__m256i*)(p + 32), _mm256_or_si256(a.hi, offset));
}

#if defined(__AVXVNNI__)

inline I16 dot(I16 sum, Bytes weights, Bytes x) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.lo) : "x"(weights.lo), "x"(x.lo));
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.hi) : "x"(weights.hi), "x"(x.hi));
    return sum;
}
inline I16 dot_nibbles(I16 sum, Bytes weights, Bytes x) { return dot(sum, weights, x); }

#else

// Pairs of products stay below 2^15: |x| is at most 127, |weight| at most 128, and 2 * 127 * 128 = 32,512.
inline __m256i dot8(__m256i sum, __m256i magnitudes, __m256i x) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(magnitudes, x), _mm256_set1_epi16(1)));
}
inline I16 dot(I16 sum, Bytes weights, Bytes x) {
    const __m256i flip = _mm256_set1_epi8((char)0x80);
    const __m256i lo = _mm256_xor_si256(weights.lo, flip), hi = _mm256_xor_si256(weights.hi, flip);
    return {dot8(sum.lo, _mm256_abs_epi8(lo), _mm256_sign_epi8(x.lo, lo)),
            dot8(sum.hi, _mm256_abs_epi8(hi), _mm256_sign_epi8(x.hi, hi))};
}
inline I16 dot_nibbles(I16 sum, Bytes weights, Bytes x) {
    return {dot8(sum.lo, weights.lo, x.lo), dot8(sum.hi, weights.hi, x.hi)};
}

#endif
#endif

// 64 bytes for each 8 inputs of 16 outputs become 128: the numbers as `dot` wants them, so that a product is theirs.
inline void unpack_nibbles(const uint8_t* from, int64_t bytes, uint8_t* to) {
    constexpr int PANEL_BYTES = 2 * 64;  // of four inputs
    for (int64_t i = 0; i < bytes; i += PANEL_BYTES, to += 2 * PANEL_BYTES)
        for (int b = 0; b < PANEL_BYTES; b += 64) {
            const Bytes packed = load_weights(from + i + b);
            store_number(to + b, low_nibbles(packed));
            store_number(to + PANEL_BYTES + b, high_nibbles(packed));
        }
}

}  // namespace
