// Products of 16 rows and more in tiles: bit for bit what `add_tile` of matmul.h computes.
//
// A panel lies in memory as a tile wants it, so nothing is held twice. For each group of inputs a tile of zeros takes the
// products, which are whole numbers, and goes to memory that stays in the L1 cache; from there, row by row, the operations
// of `add_tile` follow. The next group's tiles are asked for before that, so that both go on at once.
//
// By Intel's tables, not measured: a block of 16 rows, 16 outputs and 32 inputs takes some 30 cycles (48 operations on two
// ports, beside 16 cycles of products and 16 of storing them), and 80 without tiles (160 operations on two ports, 128 of
// which are products). With groups of 64 it is the same 30 for twice the work.
#pragma once

#include "matmul.h"

#if defined(FOREBAY_TILES)

namespace {

// The products of 16 rows and 16 outputs, summed over the inputs of group g, from zero: dots becomes [16, 16]. Groups take
// turns with the tiles for sums, so that the products of one need not wait until those of the last are stored.
template <int GROUP>
inline void multiply_group(int g, const int8_t* x, int64_t row_bytes, const uint8_t* weights, int32_t* dots) {
    constexpr int INPUTS = GROUP == 32 ? INPUTS_BY_32 : INPUTS_BY_64;
    constexpr int WEIGHTS = GROUP == 32 ? WEIGHTS_BY_32 : WEIGHTS_BY_64;
    load_tile<INPUTS>(x + (int64_t)g * GROUP, row_bytes);
    load_tile<WEIGHTS>(weights + (int64_t)g * GROUP * PANEL, 4 * PANEL);
    repeat<NUM_SUMS>([&](auto i) INLINE_LAMBDA {
        if (g % NUM_SUMS != i) return;
        clear_tile<SUMS + i>();
        add_products<SUMS + i, INPUTS, WEIGHTS>();
        store_tile<SUMS + i>(dots);
    });
}

// Add a piece's groups for rows [row, row + 16) and 16 outputs, from `column` of the panel on, to memory, [16, PANEL]; the
// first `num_done` rows have been there before.
template <bool HAS_GROUPS, int GROUP>
__attribute__((noinline)) void add_block(const Piece& piece, const Activations& x, int row, int column, int num_done,
                                         float* memory) {
    const Weight& weight = piece.weight;
    const int groups = num_groups(weight);
    const int8_t* values = x.values + (int64_t)row * weight.num_inputs;
    const int64_t first = (int64_t)row * groups;
    alignas(64) int32_t dots[2][TILE_HEIGHT * 16];
    const auto multiply = [&](int g) INLINE_LAMBDA {
        multiply_group<GROUP>(g, values, weight.num_inputs, piece.data + column * 4, dots[g % 2]);
    };
    Registers<F16, TILE_HEIGHT> sums;
    repeat<TILE_HEIGHT>([&](auto m) INLINE_LAMBDA {
        at<m>(sums) = load(memory + m * PANEL + column);
    });
    multiply(piece.first);
    for (int g = piece.first; g < piece.last; g++) {
        if (g + 1 < piece.last) multiply(g + 1);
        prefetch_ahead(piece, g, nullptr, 0);
        const int64_t place = ((int64_t)piece.panel * groups + g) * PANEL + column;
        F16 weight_scale, min;
        const bool has_mins = HAS_GROUPS && weight.mins;
        if constexpr (HAS_GROUPS) weight_scale = load_fp16(weight.scales + place);
        if (has_mins) min = load_fp16(weight.mins + place);
        repeat<TILE_HEIGHT>([&](auto m) INLINE_LAMBDA {
            const int64_t at_group = first + (int64_t)m * groups + g;
            const F16 scale = set1(x.scales[at_group]);
            const I16 dot = as_int(load((const float*)dots[g % 2] + m * 16)) + set1(x.starts[at_group]);
            F16& sum = at<m>(sums);
            sum = fma(to_float(dot), HAS_GROUPS ? weight_scale * scale : scale, sum);
            if (has_mins) sum = fma(min, set1(x.scales[at_group] * (float)x.sums[at_group]), sum);
        });
    }
    repeat<TILE_HEIGHT>([&](auto m) INLINE_LAMBDA {
        if (m >= num_done) store(memory + m * PANEL + column, at<m>(sums));
    });
}

// Add a piece for rows [row, row + rows), 16 or more, to sums. What is read next, `ahead`, is asked for in equal shares. The
// last 16 rows may be some of those before once more.
template <bool HAS_GROUPS>
inline void add_in_tiles(Piece piece, const Activations& x, int row, int rows, const uint8_t* ahead, float* sums) {
    const auto add = piece.weight.group == 32 ? add_block<HAS_GROUPS, 32> : add_block<HAS_GROUPS, 64>;
    const int num_blocks = (rows + TILE_HEIGHT - 1) / TILE_HEIGHT * SIXTEENS;
    for (int block = 0; block < num_blocks; block++) {
        const int done = block / SIXTEENS * TILE_HEIGHT, most = rows - TILE_HEIGHT, begin = done < most ? done : most;
        piece.ask_for_part(ahead, block, num_blocks);
        add(piece, x, row + begin, block % SIXTEENS * 16, done - begin, sums + begin * PANEL);
    }
}

}  // namespace

#endif
