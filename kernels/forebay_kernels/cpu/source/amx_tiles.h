// AMX: eight registers of up to 16 rows of 64 bytes, the tiles, and products of two of them. Their names and shapes, and
// the instructions: GCC's and clang's own headers do not say which memory they read and write.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace {

constexpr int TILE_HEIGHT = 16;

// What each tile holds. Sums are 16 rows of 16 numbers; inputs are 16 rows of a group of bytes; weights are four inputs
// of 16 outputs a row, as they lie in a panel.
enum AmxTile : int { SUMS = 0, NUM_SUMS = 4, INPUTS_BY_32 = 4, WEIGHTS_BY_32, INPUTS_BY_64, WEIGHTS_BY_64 };

// The operand of `ldtilecfg`.
struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 8, 16, 16};
};

#if defined(FOREBAY_EMULATED_TILES)
#define FOREBAY_TILES
}  // namespace
#include "amx_emulation.h"
namespace {
#elif defined(__AMX_INT8__)
#define FOREBAY_TILES

// Ask the system for the right of this process to use tiles: it saves 8 KiB more for a thread that does.
inline bool request_tiles() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

inline void configure_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void release_tiles() { asm volatile("tilerelease"); }

template <int TILE>
inline void clear_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}

template <int TILE>
inline void load_tile(const void* rows, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(TILE), "m"(*(const char(*)[])rows));
}

template <int TILE>
inline void store_tile(int32_t* rows) {
    asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "=m"(*(int32_t(*)[256])rows) : "r"(rows), "r"(64L), "i"(TILE));
}

// Add products of signed inputs and unsigned weights, four bytes each, to the 32-bit numbers of TO.
template <int TO, int INPUTS, int WEIGHTS>
inline void add_products() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(TO), "i"(INPUTS), "i"(WEIGHTS));
}
#else
inline bool request_tiles() { return true; }
inline void configure_tiles(const TileShapes&) {}
inline void release_tiles() {}
#endif

#if defined(FOREBAY_TILES)
constexpr bool HAS_TILES = true;
#else
constexpr bool HAS_TILES = false;
#endif

// While it lives, this thread may use tiles if as many rows make it worth while; other threads have their own.
class TilesOfThread {
  public:
    explicit TilesOfThread(int num_rows) : is_active_(HAS_TILES && num_rows >= TILE_HEIGHT) {
        if (is_active_) configure_tiles(TileShapes{});
    }
    ~TilesOfThread() {
        if (is_active_) release_tiles();
    }
    TilesOfThread(const TilesOfThread&) = delete;
    TilesOfThread& operator=(const TilesOfThread&) = delete;

  private:
    bool is_active_;
};

}  // namespace
