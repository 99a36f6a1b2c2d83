// Whether this machine multiplies in tiles as it does without: no test has seen all machines that will run this.
#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "amx_product.h"
#include "rows.h"

namespace {

enum Readiness : int32_t { READY = 0, TILES_REFUSED = 1, TILES_WRONG = 2 };

// Compare the rows of a small product, computed together, with the same rows one by one.
inline bool rows_agree(WeightKind kind, int group) {
    constexpr int ROWS = 2 * TILE_HEIGHT - 2, INPUTS = 128, GROUPS = INPUTS / 32;
    alignas(64) uint8_t data[INPUTS * PANEL];
    alignas(64) float x[INPUTS], channel_scales[PANEL], together[ROWS * PANEL], alone[PANEL];
    uint16_t scales[GROUPS * PANEL];
    int8_t values[ROWS * INPUTS];
    float x_scales[ROWS * GROUPS];
    int32_t x_sums[ROWS * GROUPS], starts[ROWS * GROUPS];
    uint32_t noise = 1;
    const auto next = [&] { return (noise = noise * 1664525 + 1013904223) >> 16; };
    for (uint8_t& byte : data) byte = (uint8_t)next();
    for (float& scale : channel_scales) scale = (float)next();
    for (uint16_t& scale : scales) scale = (uint16_t)(0x2000 + next() % 0x2000);  // 2^-7 to 2
    const Weight weight{kind, group, PANEL, INPUTS, data, channel_scales, scales, scales, nullptr};
    const Activations activations{values, x_scales, x_sums, starts, nullptr};
    for (int row = 0; row < ROWS; row++) {
        for (float& number : x) number = (float)next() - 32768.0f;
        for (int from = 0; from < INPUTS; from += group) quantize_group(weight, x + from, row, from, activations);
    }
    {
        const TilesOfThread tiles(ROWS);
        multiply_panel(weight, 0, activations, 0, ROWS, together);
    }
    for (int row = 0; row < ROWS; row++) {
        multiply_panel(weight, 0, activations, row, 1, alone);
        if (memcmp(together + row * PANEL, alone, sizeof(alone)) != 0) return false;
    }
    return true;
}

// In a process of its own: some virtual machines list AMX and forbid it, and an instruction that is not allowed ends a
// process. A bare system call, because a library's handlers for forks are not for this.
inline Readiness check_tiles() {
    if (!HAS_TILES) return READY;
    if (!request_tiles()) return TILES_REFUSED;
    const auto child = (pid_t)syscall(SYS_fork);
    if (child == 0) {
        signal(SIGILL, SIG_DFL);
        _exit(rows_agree(INT8_CHANNELS, 32) && rows_agree(INT8_GROUPS, 64) ? READY : TILES_WRONG);
    }
    int status = 0;
    pid_t ended;
    do ended = child < 0 ? child : waitpid(child, &status, 0);
    while (ended < 0 && errno == EINTR);
    return ended < 0 || !WIFEXITED(status) ? TILES_REFUSED : (Readiness)WEXITSTATUS(status);
}

}  // namespace
