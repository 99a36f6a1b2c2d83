// Products of quantized rows with packed weights. Every output is the sum of its groups in their order, whatever the
// number of rows: a row gives the same bits alone and in company.
#pragma once

#include <utility>

#include "amx_tiles.h"
#include "dot.h"
#include "interface.h"

namespace {

constexpr int PANEL = 32;  // outputs that lie together
constexpr int SIXTEENS = PANEL / 16;

// Quantized activations: row m has num_inputs numbers from values + m * num_inputs on.
struct Activations {
    int8_t* values;
    float* scales;    // [rows, groups]
    int32_t* sums;    // [rows, groups]: of the quantized numbers
    int32_t* starts;  // [rows, groups]: what dots with the weight begin with
    uint16_t* bf16;   // instead of all these, for weights in BF16
};

// Weights are stored with so much too much: what a dot begins with, for each unit of the activations' sum.
inline int32_t start_of(const Weight& weight) {
    if (weight.kind == INT4_GROUPS) return weight.mins ? 0 : -8;
    return -EXCESS;
}

inline int num_groups(const Weight& weight) { return weight.num_inputs / weight.group; }

inline int64_t panel_bytes(const Weight& weight) {
    const int64_t numbers = (int64_t)weight.num_inputs * PANEL;
    return weight.kind == INT4_GROUPS ? numbers / 2 : weight.kind == BF16 ? numbers * 2 : numbers;
}

// Inputs [first, last) of one panel, in the units of its kind: groups, or pairs of inputs for BF16.
struct Piece {
    const Weight& weight;
    int panel, first, last;
    const uint8_t* data;  // where input 0 would be
    bool is_streamed;     // whether it is read once, by one tile of rows
    // Else: what is asked for with each unit, so many lines, `ahead_step` bytes apart.
    const uint8_t* ahead = nullptr;
    int ahead_lines = 0;
    int64_t ahead_step = 0;

    // Ask for part `part` of the `num_parts` of each step, `first_line` being the first of all.
    void ask_for_part(const uint8_t* first_line, int part, int num_parts) {
        const int64_t lines = ahead_step / 64, first = lines * part / num_parts;
        ahead = first_line + first * 64;
        ahead_lines = (int)(lines * (part + 1) / num_parts - first);
    }
};

constexpr int AHEAD_BYTES = 4096;  // that weights are asked for before their use: a fifth faster than without

inline __attribute__((always_inline)) void prefetch(const uint8_t* first, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) prefetch(first + i);
}

// Ask for what lies ahead when a unit of a piece, `bytes` at `data`, is computed; where tiles of rows read a block in turn,
// for the L2 cache only: in the L1 cache it would take the block's place.
inline __attribute__((always_inline)) void prefetch_ahead(const Piece& piece, int unit, const uint8_t* data, int bytes) {
    if (piece.is_streamed) {
        prefetch(data + AHEAD_BYTES, bytes);
    } else {
        const char* ahead = (const char*)piece.ahead + (unit - piece.first) * piece.ahead_step;
        for (int i = 0; i < piece.ahead_lines; i++) _mm_prefetch(ahead + i * 64, _MM_HINT_T1);
    }
}

// Sums of ROWS rows and a panel's outputs, in memory: [rows, PANEL].
template <int ROWS>
struct RowSums {
    Registers<F16, ROWS * SIXTEENS> sums;

    inline __attribute__((always_inline)) void load_from(const float* memory) {
        repeat<ROWS * SIXTEENS>([&](auto i) INLINE_LAMBDA {
            at<i>(sums) = load(memory + i * 16);
        });
    }
    inline __attribute__((always_inline)) void store_to(float* memory) {
        repeat<ROWS * SIXTEENS>([&](auto i) INLINE_LAMBDA {
            store(memory + i * 16, at<i>(sums));
        });
    }
};

// Add a piece's groups for rows [row, row + ROWS) to sums: two numbers a byte or one, scales of groups or of channels.
template <bool IS_PACKED, bool HAS_GROUPS, int ROWS>
__attribute__((noinline)) void add_tile(const Piece& piece, const Activations& x, int row, float* memory) {
    const Weight& weight = piece.weight;
    const int groups = num_groups(weight), group = weight.group, group_bytes = group * PANEL / (IS_PACKED ? 2 : 1);
    const int8_t* values = x.values + (int64_t)row * weight.num_inputs;
    const float* scales = x.scales + (int64_t)row * groups;
    const int32_t* x_sums = x.sums + (int64_t)row * groups;
    const int32_t* starts = x.starts + (int64_t)row * groups;
    RowSums<ROWS> total;
    if constexpr (SUMS_IN_REGISTERS) total.load_from(memory);
    for (int g = piece.first; g < piece.last; g++) {
        const uint8_t* bytes = piece.data + (int64_t)g * group_bytes;
        prefetch_ahead(piece, g, bytes, group_bytes);
        Registers<I16, ROWS * SIXTEENS> dots;
        repeat<ROWS>([&](auto m) INLINE_LAMBDA {
            const I16 start = set1(starts[m * groups + g]);
            repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                at<m * SIXTEENS + b>(dots) = start;
            });
        });
        Registers<Bytes, SIXTEENS> w;
        const auto add_four = [&](int k) INLINE_LAMBDA {
            repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                const Bytes four = repeat4(values + (int64_t)m * weight.num_inputs + g * group + k);
                repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                    I16& sum = at<m * SIXTEENS + b>(dots);
                    sum = IS_PACKED ? dot_nibbles(sum, at<b>(w), four) : dot(sum, at<b>(w), four);
                });
            });
        };
        for (int k = 0; k < group; k += IS_PACKED ? 8 : 4, bytes += 4 * PANEL) {
            repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                at<b>(w) = load_weights(bytes + b * 64);
                if constexpr (IS_PACKED) at<b>(w) = low_nibbles(at<b>(w));
            });
            add_four(k);
            if constexpr (IS_PACKED) {
                repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                    at<b>(w) = high_nibbles(load_weights(bytes + b * 64));
                });
                add_four(k + 4);
            }
        }
        const int64_t place = ((int64_t)piece.panel * groups + g) * PANEL;
        if constexpr (!SUMS_IN_REGISTERS) total.load_from(memory);
        repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
            F16 weight_scale;
            if constexpr (HAS_GROUPS) weight_scale = load_fp16(weight.scales + place + b * 16);
            repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                F16& sum = at<m * SIXTEENS + b>(total.sums);
                const F16 scale = set1(scales[m * groups + g]);
                sum = fma(to_float(at<m * SIXTEENS + b>(dots)), HAS_GROUPS ? weight_scale * scale : scale, sum);
            });
        });
        if (HAS_GROUPS && weight.mins)
            repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
                const F16 min = load_fp16(weight.mins + place + b * 16);
                repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                    F16& sum = at<m * SIXTEENS + b>(total.sums);
                    sum = fma(min, set1(scales[m * groups + g] * (float)x_sums[m * groups + g]), sum);
                });
            });
        if constexpr (!SUMS_IN_REGISTERS) total.store_to(memory);
    }
    if constexpr (SUMS_IN_REGISTERS) total.store_to(memory);
}

// BF16: the same for pairs of inputs.
template <int ROWS>
__attribute__((noinline)) void add_bf16_tile(const Piece& piece, const Activations& x, int row, float* memory) {
    const uint16_t* values = x.bf16 + (int64_t)row * piece.weight.num_inputs;
    RowSums<ROWS> total;
    total.load_from(memory);
    for (int k = piece.first; k < piece.last; k++) {
        const uint8_t* bytes = piece.data + (int64_t)k * 4 * PANEL;
        prefetch_ahead(piece, k, bytes, 4 * PANEL);
        Registers<int32_t, ROWS> two;
        repeat<ROWS>([&](auto m) INLINE_LAMBDA {
            memcpy(&at<m>(two), values + (int64_t)m * piece.weight.num_inputs + 2 * k, 4);
        });
        repeat<SIXTEENS>([&](auto b) INLINE_LAMBDA {
            const F16 pairs = load((const float*)(bytes + b * 64));
#if defined(__AVX512BF16__)
            repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                const I16 both = set1(at<m>(two));
                asm("vdpbf16ps %2, %1, %0" : "+v"(at<m * SIXTEENS + b>(total.sums).v) : "v"(both.v), "v"(pairs.v));
            });
#else
            const F16 even = as_float(shift_left(as_int(pairs), 16)), odd = keep_high(pairs);
            repeat<ROWS>([&](auto m) INLINE_LAMBDA {
                const I16 both = set1(at<m>(two));
                F16& sum = at<m * SIXTEENS + b>(total.sums);
                sum = fma(keep_high(as_float(both)), odd, sum);
                sum = fma(as_float(shift_left(both, 16)), even, sum);
            });
#endif
        });
    }
    total.store_to(memory);
}

using AddTile = void (*)(const Piece&, const Activations&, int, float*);

// The functions for 1, 2, ... TILE_ROWS rows.
template <int KIND, int... I>
inline AddTile tile_of(int rows, std::integer_sequence<int, I...>) {
    if constexpr (KIND == BF16) {
        static constexpr AddTile functions[] = {add_bf16_tile<I + 1>...};
        return functions[rows - 1];
    } else {
        static constexpr AddTile functions[] = {add_tile<KIND == INT4_GROUPS, KIND != INT8_CHANNELS, I + 1>...};
        return functions[rows - 1];
    }
}

// How many rows to compute in AMX tiles. A few that are left are quicker without.
inline int rows_in_tiles(int rows) {
    const int left = rows % TILE_HEIGHT;
    return rows < TILE_HEIGHT ? 0 : left > TILE_ROWS ? rows : rows - left;
}

// In amx_product.h.
template <bool HAS_GROUPS>
inline void add_in_tiles(Piece piece, const Activations& x, int row, int rows, const uint8_t* ahead, float* sums);

// Add a piece for rows [row, row + rows) to sums. What is read next, `ahead`, is asked for in equal shares by all tiles,
// line by line between their products: asked for at once, lines would wait for one another, and the products for them.
template <int KIND>
inline void add_piece(Piece piece, const Activations& x, int row, int rows, const uint8_t* ahead,
                      int64_t ahead_bytes, float* sums) {
    int done = 0;
    piece.ahead_step = ahead_bytes / (piece.last - piece.first);
    if constexpr (HAS_TILES && (KIND == INT8_CHANNELS || KIND == INT8_GROUPS)) {
        done = rows_in_tiles(rows);
        if (done) {
            add_in_tiles<KIND == INT8_GROUPS>(piece, x, row, done, ahead, sums);
            piece.ahead_step = 0;
        }
    }
    const int num_tiles = (rows - done + TILE_ROWS - 1) / TILE_ROWS;
    for (int tile = 0; tile < num_tiles; tile++) {
        piece.ask_for_part(ahead, tile, num_tiles);
        const int size = (rows - done + num_tiles - tile - 1) / (num_tiles - tile);
        const AddTile function = tile_of<KIND>(size, std::make_integer_sequence<int, TILE_ROWS>{});
        function(piece, x, row + done, sums + done * PANEL);
        done += size;
    }
}

constexpr int BLOCK_BYTES = 32 * 1024;  // of weights that several tiles of rows read in turn: they stay in the L1 cache

template <int KIND>
inline void panel_of_kind(const Weight& weight, int panel, const Activations& x, int row, int rows, float* sums) {
    const int num_steps = KIND == BF16 ? weight.num_inputs / 2 : num_groups(weight);
    const int64_t numbers = (int64_t)weight.num_inputs * PANEL, bytes = KIND == BF16 ? numbers * 2 : numbers;
    const uint8_t* data = weight.data + panel * panel_bytes(weight);
    if (rows <= TILE_ROWS) {
        add_piece<KIND>(Piece{weight, panel, 0, num_steps, data, true}, x, row, rows, nullptr, 0, sums);
        return;
    }
    const int64_t wanted_blocks = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
    const int num_blocks = wanted_blocks < num_steps ? (int)wanted_blocks : num_steps;
    const int64_t step_bytes = panel_bytes(weight) / num_steps;
    for (int block = 0, first = 0; block < num_blocks; block++) {
        const int last = (int)((int64_t)num_steps * (block + 1) / num_blocks);
        const uint8_t* ahead = data + last * step_bytes;
        const int64_t ahead_bytes = (last - first) * step_bytes;
        if constexpr (KIND == INT4_GROUPS) {
            alignas(64) uint8_t unpacked[BLOCK_BYTES];
            const int64_t from = first * step_bytes;
            unpack_nibbles(data + from, ahead_bytes, unpacked);
            add_piece<INT8_GROUPS>(Piece{weight, panel, first, last, unpacked - from * 2, false}, x, row, rows, ahead,
                                   ahead_bytes, sums);
        } else {
            add_piece<KIND>(Piece{weight, panel, first, last, data, false}, x, row, rows, ahead, ahead_bytes, sums);
        }
        first = last;
    }
}

// The outputs of one panel for rows [row, row + rows): sums becomes [rows, PANEL].
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

constexpr int ITEM_ROWS = 20 * TILE_ROWS;  // that are computed with a panel before the next one

}  // namespace
