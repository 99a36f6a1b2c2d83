// What happens to each row between the products: norms, quantization, the rotary embedding, the gate.
#pragma once

#include <cmath>

#include "matmul.h"

namespace {

// Quantize `group` numbers of row `row`, from input `from` on, as `quantize_rows` does; or round them to bf16.
inline void quantize_group(const Weight& consumer, const float* x, int row, int from, const Activations& out) {
    const int group = consumer.group;
    if (consumer.kind == BF16) {
        uint16_t* target = out.bf16 + (int64_t)row * consumer.num_inputs + from;
        for (int i = 0; i < group; i++) target[i] = to_bf16(x[i]);
        return;
    }
    F16 largest = set1(0.0f);
    for (int i = 0; i < group; i += 16) largest = max_bits(largest, magnitude_bits(load(x + i)));
    const float magnitude = reduce_max_bits(largest);
    const float inverse = magnitude > 1e-30f ? 127.0f / magnitude : 0.0f;
    int8_t* values = out.values + (int64_t)row * consumer.num_inputs + from;
    I16 sum = set1((int32_t)0);
    for (int i = 0; i < group; i += 16) {
        const I16 rounded = to_int(load(x + i) * set1(inverse));
        store_int8(values + i, rounded);
        // A number that is not finite would count as -2^31 here, and 0 there: its group's scale is not finite either.
        sum = sum + load_int8(values + i);
    }
    const int64_t at = (int64_t)row * num_groups(consumer) + from / group;
    out.scales[at] = magnitude / 127.0f;
    const int32_t total = reduce_add(sum);
    out.sums[at] = total;
    out.starts[at] = total * start_of(consumer);
}

// Quantize a row of `size` numbers; the rest, up to the consumer's inputs, is zero. x has room for the padding.
inline void quantize_row(const Weight& consumer, float* x, int size, int row, const Activations& out) {
    for (int i = size; i < consumer.num_inputs; i++) x[i] = 0.0f;
    for (int from = 0; from < consumer.num_inputs; from += consumer.group)
        quantize_group(consumer, x + from, row, from, out);
}

// y = x / sqrt(mean(x²) + eps) * weight. `size` is a multiple of 16.
inline void rms_norm(const float* x, const float* weight, int size, float eps, float* y) {
    F16 squares = set1(0.0f);
    for (int i = 0; i < size; i += 16) squares = fma(load(x + i), load(x + i), squares);
    const F16 factor = set1(1.0f / sqrtf(reduce_add(squares) / (float)size + eps));
    for (int i = 0; i < size; i += 16) store(y + i, load(x + i) * factor * load(weight + i));
}

// Turn the first numbers of a head, in place: number i together with number i + size / 2. `size` is a multiple of 16.
inline void rotate(float* head, const float* cos_sin, int size) {
    const int half = size / 2;
    for (int i = 0; i < half; i += 8) {
        const __m256 cosine = _mm256_loadu_ps(cos_sin + i), sine = _mm256_loadu_ps(cos_sin + half + i);
        const __m256 first = _mm256_loadu_ps(head + i), second = _mm256_loadu_ps(head + half + i);
        _mm256_storeu_ps(head + i, _mm256_fmsub_ps(first, cosine, _mm256_mul_ps(second, sine)));
        _mm256_storeu_ps(head + half + i, _mm256_fmadd_ps(second, cosine, _mm256_mul_ps(first, sine)));
    }
}

// gate[i] becomes silu(gate[i]) * up[i], for 16 numbers.
inline F16 silu_and_mul(F16 gate, F16 up) {
    return gate * reciprocal(set1(1.0f) + exp2(gate * set1(-LOG2_E))) * up;
}

}  // namespace
