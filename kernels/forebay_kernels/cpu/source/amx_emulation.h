// The instructions of amx_tiles.h in plain C++, by Intel's description, for tests on processors without them. What would
// be an invalid instruction there ends the process here.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct EmulatedTile {
    uint8_t bytes[16][64];
};

struct EmulatedTiles {
    bool is_configured = false;
    TileShapes shapes;
    EmulatedTile tiles[8];
};

thread_local EmulatedTiles emulated;

// What tests make go wrong.
enum Disturbance : int32_t { NO_DISTURBANCE = 0, REFUSED = 1, ILLEGAL_INSTRUCTION = 2, WRONG_PRODUCTS = 3 };
int32_t disturbance = NO_DISTURBANCE;

inline void require(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "emulated tiles: %s\n", what);
    abort();
}

inline bool request_tiles() { return disturbance != REFUSED; }

inline void configure_tiles(const TileShapes& shapes) {
    if (disturbance == ILLEGAL_INSTRUCTION) __builtin_trap();
    require(shapes.palette == 1 && shapes.start_row == 0, "unknown palette or start row");
    for (int i = 0; i < 16; i++) {
        const bool is_unused = !shapes.rows[i] && !shapes.row_bytes[i];
        require(i < 8 ? shapes.rows[i] <= 16 && shapes.row_bytes[i] <= 64 : is_unused, "a shape that is not allowed");
        require(!shapes.rows[i] == !shapes.row_bytes[i], "a tile with rows or columns alone");
    }
    for (uint8_t byte : shapes.reserved) require(byte == 0, "reserved bytes are not zero");
    emulated = {true, shapes, {}};
}

inline void release_tiles() { emulated.is_configured = false; }

inline EmulatedTile& tile_of(int tile) {
    require(emulated.is_configured && emulated.shapes.rows[tile], "a tile that is not configured");
    return emulated.tiles[tile];
}

template <int TILE>
inline void clear_tile() {
    tile_of(TILE) = {};
}

template <int TILE>
inline void load_tile(const void* rows, int64_t stride) {
    EmulatedTile& tile = tile_of(TILE);
    tile = {};
    for (int i = 0; i < emulated.shapes.rows[TILE]; i++)
        memcpy(tile.bytes[i], (const uint8_t*)rows + i * stride, emulated.shapes.row_bytes[TILE]);
}

template <int TILE>
inline void store_tile(int32_t* rows) {
    const EmulatedTile& tile = tile_of(TILE);
    for (int i = 0; i < emulated.shapes.rows[TILE]; i++)
        memcpy(rows + i * 16, tile.bytes[i], emulated.shapes.row_bytes[TILE]);
}

template <int TO, int INPUTS, int WEIGHTS>
inline void add_products() {
    EmulatedTile &sums = tile_of(TO), &inputs = tile_of(INPUTS), &weights = tile_of(WEIGHTS);
    const TileShapes& shapes = emulated.shapes;
    const int rows = shapes.rows[TO], columns = shapes.row_bytes[TO] / 4, depth = shapes.rows[WEIGHTS];
    require(shapes.rows[INPUTS] == rows && shapes.row_bytes[WEIGHTS] == columns * 4, "sums of another shape");
    require(shapes.row_bytes[INPUTS] == depth * 4, "inputs and weights of different depth");
    for (int m = 0; m < rows; m++) {
        int32_t row[16];
        memcpy(row, sums.bytes[m], sizeof(row));
        for (int k = 0; k < depth; k++)
            for (int n = 0; n < columns; n++)
                for (int i = 0; i < 4; i++)
                    row[n] += (int8_t)inputs.bytes[m][4 * k + i] * (int32_t)weights.bytes[k][4 * n + i];
        if (disturbance == WRONG_PRODUCTS) row[0]++;
        memcpy(sums.bytes[m], row, sizeof(row));
    }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void forebay_disturb_tiles(int32_t how) { disturbance = how; }
