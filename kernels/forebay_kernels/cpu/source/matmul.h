// Products of quantized rows with packed weights. Every output is the sum of its groups in their order, whatever the
// number of rows: a row gives the same bits alone and in company.
#pragma once

#include "dot.h"
#include "interface.h"

namespace {

constexpr int PANEL = 64;  // outputs that lie together

// Quantized activations: row m has num_inputs numbers from values + m * num_inputs on.
struct Activations {
    int8_t* values;
    float* scales;   // [rows, groups]
    int32_t* sums;   // [rows, groups]: of the quantized numbers
    uint16_t* bf16;  // instead of the three above, for weights in BF16
};

inline int num_groups(const Weight& weight) { return weight.num_inputs / weight.group; }

inline int64_t panel_bytes(const Weight& weight) {
    const int64_t numbers = (int64_t)weight.num_inputs * PANEL;
    return weight.kind == INT4_GROUPS ? numbers / 2 : weight.kind == BF16 ? numbers * 2 : numbers;
}

// Add groups [first, last) of ROWS rows and SIXTEENS * 16 outputs to sums, [rows, 64].
template <int KIND, int ROWS, int SIXTEENS>
inline __attribute__((always_inline)) void add_tile(const Weight& weight, int panel, int sixteen, const Activations& x,
                                                     int row, int first, int last, float* sums) {
    const int groups = num_groups(weight), group = weight.group;
    const uint8_t* data = weight.data + panel * panel_bytes(weight) + sixteen * 64;
    const int8_t* values = x.values + (int64_t)row * weight.num_inputs;
    const float* scales = x.scales + (int64_t)row * groups;
    const int32_t* x_sums = x.sums + (int64_t)row * groups;
    for (int g = first; g < last; g++) {
        Registers<I16, ROWS * SIXTEENS> dots;
        repeat<ROWS>([&](auto m) INLINE_LAMBDA {
            const I16 start = KIND == INT4_GROUPS ? set1((int32_t)0) : set1((int32_t)(-EXCESS * x_sums[m * groups + g]));
            repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                at<m * SIXTEENS + b>(dots) = start;
            });
        });
        if constexpr (KIND == INT4_GROUPS) {
            const uint8_t* bytes = data + (int64_t)g * group * (PANEL / 2);
            for (int k = 0; k < group; k += 8, bytes += 4 * PANEL) {
                Registers<Bytes, SIXTEENS> w;
                repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                    at<b>(w) = low_nibbles(load_weights(bytes + b * 64));
                });
                repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                    const Bytes four = repeat4(values + (int64_t)m * weight.num_inputs + g * group + k);
                    repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                        at<m * SIXTEENS + b>(dots) = dot_nibbles(at<m * SIXTEENS + b>(dots), at<b>(w), four);
                    });
                });
                repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                    at<b>(w) = high_nibbles(load_weights(bytes + b * 64));
                });
                repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                    const Bytes four = repeat4(values + (int64_t)m * weight.num_inputs + g * group + k + 4);
                    repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                        at<m * SIXTEENS + b>(dots) = dot_nibbles(at<m * SIXTEENS + b>(dots), at<b>(w), four);
                    });
                });
            }
        } else {
            const uint8_t* bytes = data + (int64_t)g * group * PANEL;
            for (int k = 0; k < group; k += 4, bytes += 4 * PANEL) {
                Registers<Bytes, SIXTEENS> w;
                repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                    at<b>(w) = load_weights(bytes + b * 64);
                });
                repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                    const Bytes four = repeat4(values + (int64_t)m * weight.num_inputs + g * group + k);
                    repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                        at<m * SIXTEENS + b>(dots) = dot(at<m * SIXTEENS + b>(dots), at<b>(w), four);
                    });
                });
            }
        }
        const int64_t place = ((int64_t)panel * groups + g) * PANEL + sixteen * 16;
        repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
            F16 weight_scale, weight_min;
            if constexpr (KIND != INT8_CHANNELS) weight_scale = load_fp16(weight.scales + place + b * 16);
            if constexpr (KIND == INT4_GROUPS)
                weight_min = weight.mins ? load_fp16(weight.mins + place + b * 16) : weight_scale * set1(-8.0f);
            repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                float* out = sums + m * PANEL + (sixteen + b) * 16;
                const float scale = scales[m * groups + g];
                F16 sum = load(out);
                if constexpr (KIND == INT8_CHANNELS) {
                    sum = fma(to_float(at<m * SIXTEENS + b>(dots)), set1(scale), sum);
                } else {
                    sum = fma(to_float(at<m * SIXTEENS + b>(dots)), weight_scale * set1(scale), sum);
                    if constexpr (KIND == INT4_GROUPS)
                        sum = fma(weight_min, set1(scale * (float)x_sums[m * groups + g]), sum);
                }
                store(out, sum);
            });
        });
    }
}

// BF16: the same for pairs of inputs [first, last).
template <int ROWS, int SIXTEENS>
inline __attribute__((always_inline)) void add_bf16_tile(const Weight& weight, int panel, int sixteen,
                                                          const Activations& x, int row, int first, int last,
                                                          float* sums) {
    const uint8_t* data = weight.data + panel * panel_bytes(weight) + sixteen * 64;
    const uint16_t* values = x.bf16 + (int64_t)row * weight.num_inputs;
    Registers<F16, ROWS * SIXTEENS> sum;
    repeat<ROWS>([&](auto m) INLINE_LAMBDA {
        repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
            at<m * SIXTEENS + b>(sum) = load(sums + m * PANEL + (sixteen + b) * 16);
        });
    });
    for (int k = first; k < last; k++) {
        const uint8_t* bytes = data + (int64_t)k * 4 * PANEL;
        Registers<int32_t, ROWS> two;
        repeat<ROWS>([&](auto m) INLINE_LAMBDA {
            memcpy(&at<m>(two), values + (int64_t)m * weight.num_inputs + 2 * k, 4);
        });
        repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
#if defined(__AVX512BF16__)
            const F16 pairs = load((const float*)(bytes + b * 64));
            repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                const I16 both = set1(at<m>(two));
                asm("vdpbf16ps %2, %1, %0" : "+v"(at<m * SIXTEENS + b>(sum).v) : "v"(both.v), "v"(pairs.v));
            });
#else
            const F16 pairs = load((const float*)(bytes + b * 64));
            const F16 even = as_float(shift_left(as_int(pairs), 16)), odd = keep_high(pairs);
            repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                const I16 both = set1(at<m>(two));
                at<m * SIXTEENS + b>(sum) = fma(keep_high(as_float(both)), odd, at<m * SIXTEENS + b>(sum));
                at<m * SIXTEENS + b>(sum) = fma(as_float(shift_left(both, 16)), even, at<m * SIXTEENS + b>(sum));
            });
#endif
        });
    }
    repeat<ROWS>([&](auto m) INLINE_LAMBDA {
        repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
            store(sums + m * PANEL + (sixteen + b) * 16, at<m * SIXTEENS + b>(sum));
        });
    });
}

template <int KIND, int ROWS>
__attribute__((noinline)) void add_rows(const Weight& weight, int panel, int sixteen, int sixteens, const Activations& x,
                                        int row, int first, int last, float* sums) {
    for (int end = sixteen + sixteens; sixteen < end; sixteen += TILE_SIXTEENS) {
        if constexpr (KIND == BF16) {
            add_bf16_tile<ROWS, TILE_SIXTEENS>(weight, panel, sixteen, x, row, first, last, sums);
        } else {
            add_tile<KIND, ROWS, TILE_SIXTEENS>(weight, panel, sixteen, x, row, first, last, sums);
        }
    }
}

template <int KIND>
inline void add_block(const Weight& weight, int panel, const Activations& x, int row, int rows, int first, int last,
                      float* sums) {
    using Function = void (*)(const Weight&, int, int, int, const Activations&, int, int, int, float*);
#if defined(__AVX512F__)
    constexpr Function functions[] = {add_rows<KIND, 1>, add_rows<KIND, 2>, add_rows<KIND, 3>,
                                      add_rows<KIND, 4>, add_rows<KIND, 5>, add_rows<KIND, 6>};
#else
    constexpr Function functions[] = {add_rows<KIND, 1>, add_rows<KIND, 2>};
#endif
    const int num_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int tile = 0, done = 0; tile < num_tiles; tile++) {
        const int size = (rows - done + num_tiles - tile - 1) / (num_tiles - tile);
        functions[size - 1](weight, panel, 0, PANEL / 16, x, row + done, first, last, sums + done * PANEL);
        done += size;
    }
}

constexpr int BLOCK_BYTES = 32 * 1024;  // of weights that several tiles of rows read in turn: they stay in the L1 cache

template <int KIND>
inline void panel_of_kind(const Weight& weight, int panel, const Activations& x, int row, int rows, float* sums) {
    // Groups, or pairs of inputs for BF16; a panel's bytes of each.
    const int num_steps = KIND == BF16 ? weight.num_inputs / 2 : num_groups(weight);
    int num_blocks = rows <= TILE_ROWS ? 1 : (int)((panel_bytes(weight) + BLOCK_BYTES - 1) / BLOCK_BYTES);
    if (num_blocks > num_steps) num_blocks = num_steps;
    for (int block = 0, first = 0; block < num_blocks; block++) {
        const int last = (int)((int64_t)num_steps * (block + 1) / num_blocks);
        add_block<KIND>(weight, panel, x, row, rows, first, last, sums);
        first = last;
    }
}

// The outputs of one panel for rows [row, row + rows): sums becomes [rows, 64].
inline void multiply_panel(const Weight& weight, int panel, const Activations& x, int row, int rows, float* sums) {
    memset(sums, 0, sizeof(float) * rows * PANEL);
    switch (weight.kind) {
        case INT8_CHANNELS: panel_of_kind<INT8_CHANNELS>(weight, panel, x, row, rows, sums); break;
        case INT8_GROUPS: panel_of_kind<INT8_GROUPS>(weight, panel, x, row, rows, sums); break;
        case INT4_GROUPS: panel_of_kind<INT4_GROUPS>(weight, panel, x, row, rows, sums); break;
        default: panel_of_kind<BF16>(weight, panel, x, row, rows, sums);
    }
    for (int b = 0; b < PANEL; b += 16) {
        const int64_t output = (int64_t)panel * PANEL + b;
        const F16 scale = weight.kind == INT8_CHANNELS ? load(weight.channel_scales + output) : set1(1.0f);
        const F16 bias = weight.bias ? load(weight.bias + output) : set1(0.0f);
        for (int m = 0; m < rows; m++) {
            float* out = sums + m * PANEL + b;
            store(out, weight.bias ? fma(load(out), scale, bias) : load(out) * scale);
        }
    }
}

// Rows that one item of work computes: enough to amortize the panel, few enough to share the work out.
constexpr int ITEM_ROWS = 48;

}  // namespace
