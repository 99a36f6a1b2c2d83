// Puts the numbers of a weight in the order in which products read them: panels of PANEL outputs, in which the same few
// inputs of all outputs adjoin, as words of four bytes.
#pragma once

#include "interface.h"
#include "matmul.h"

namespace {

// One output as words: INT8 kinds four numbers + 128, BF16 two numbers, INT4 kinds eight numbers, the first four low.
// `bytes` has room for num_inputs numbers.
inline void words_of_row(const Unpacked& from, int row, int num_inputs, uint8_t* bytes, uint8_t* words) {
    const int columns = from.columns;
    if (from.kind == BF16) {
        memcpy(words, (const uint8_t*)from.numbers + (int64_t)row * columns * 2, (int64_t)columns * 2);
        memset(words + (int64_t)columns * 2, 0, (int64_t)(num_inputs - columns) * 2);
        return;
    }
    if (from.kind != INT4_GROUPS) {
        const uint8_t* numbers = (const uint8_t*)from.numbers + (int64_t)row * columns;
        for (int k = 0; k < columns; k++) words[k] = numbers[k] ^ 128;
        memset(words + columns, 128, num_inputs - columns);
        return;
    }
    const uint8_t* halves = (const uint8_t*)from.numbers + (int64_t)row * columns / 2;
    const int half = from.chunk / 2;
    for (int k = 0; k < columns; k += from.chunk)  // byte j of a chunk holds its numbers j and j + half
        for (int j = 0; j < half; j++) {
            const uint8_t both = halves[k / 2 + j];
            bytes[k + j] = both & 15;
            bytes[k + half + j] = both >> 4;
        }
    memset(bytes + columns, 0, num_inputs - columns);
    for (int k = 0; k < num_inputs; k += 8)
        for (int j = 0; j < 4; j++) words[k / 2 + j] = bytes[k + j] | bytes[k + 4 + j] << 4;
}

// False where there is no memory. Outputs whose row is not one of the weight's are padding.
inline bool pack_panels(const Unpacked& from, const int32_t* rows, int num_outputs, int num_inputs, uint8_t* out) {
    const int num_words = num_inputs / (from.kind == BF16 ? 2 : from.kind == INT4_GROUPS ? 8 : 4);
    auto* words = (uint32_t*)aligned_alloc(64, ((int64_t)num_words * 4 + num_inputs + 127) / 64 * 64);
    if (!words) return false;
    auto* bytes = (uint8_t*)(words + num_words);
    auto* panels = (uint32_t*)out;
    const uint32_t padding = from.kind == BF16 || from.kind == INT4_GROUPS ? 0 : 0x80808080u;
    for (int output = 0; output < num_outputs; output++) {
        uint32_t* place = panels + (int64_t)(output / PANEL) * num_words * PANEL + output % PANEL;
        if (rows[output] >= from.rows) {
            for (int k = 0; k < num_words; k++) place[(int64_t)k * PANEL] = padding;
            continue;
        }
        words_of_row(from, rows[output], num_inputs, bytes, (uint8_t*)words);
        for (int k = 0; k < num_words; k++) place[(int64_t)k * PANEL] = words[k];
    }
    free(words);
    return true;
}

// The weights of one output in float32: `size` inputs, without the padding. What packing has interleaved lies apart.
inline void read_output(const Weight& weight, int output, int size, float* out) {
    const uint8_t* words = weight.data + (output / PANEL) * panel_bytes(weight) + output % PANEL * 4;
    constexpr int next = 4 * PANEL;  // bytes from one word of the output to the next
    if (weight.kind == BF16) {
        for (int i = 0; i < size; i++) {
            uint16_t bits;
            memcpy(&bits, words + i / 2 * next + i % 2 * 2, 2);
            const uint32_t wide = (uint32_t)bits << 16;
            memcpy(out + i, &wide, 4);
        }
        return;
    }
    const int64_t place = (int64_t)(output / PANEL) * num_groups(weight) * PANEL + output % PANEL;
    for (int i = 0; i < size; i++) {
        const int64_t of_group = place + i / weight.group * PANEL;
        if (weight.kind == INT4_GROUPS) {
            const int number = words[i / 8 * next + i % 4] >> (i % 8 < 4 ? 0 : 4) & 15;
            const float scale = _cvtsh_ss(weight.scales[of_group]);
            out[i] = number * scale + (weight.mins ? _cvtsh_ss(weight.mins[of_group]) : -8.0f * scale);
        } else {
            const bool is_by_channel = weight.kind == INT8_CHANNELS;
            const float scale = is_by_channel ? weight.channel_scales[output] : _cvtsh_ss(weight.scales[of_group]);
            out[i] = (float)(words[i / 4 * next + i % 4] - 128) * scale;
        }
    }
}

}  // namespace
