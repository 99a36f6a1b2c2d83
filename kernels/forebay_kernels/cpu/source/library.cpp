// The functions that Python calls.

#include "amx_check.h"
#include "pack.h"
#include "phases.h"
#include "quantize.h"

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// Once in a process, before anything else: a `Readiness`. Only where it is READY may the rest be called.
EXPORTED int32_t forebay_prepare() { return check_tiles(); }

// Null where there is no memory. The model's arrays must live as long; the structures themselves are copied.
EXPORTED void* forebay_create_step(const Model* model) {
    auto* memory = aligned_alloc(64, (sizeof(Step) + 63) / 64 * 64);
    if (!memory) return nullptr;
    auto* step = new (memory) Step(*model);
    if (step->is_whole()) return step;
    step->~Step();
    free(memory);
    return nullptr;
}

// -1, and nothing done, where a token, position or block is outside of the model's.
EXPORTED int32_t forebay_run_step(void* step, const Batch* batch) { return static_cast<Step*>(step)->run(*batch) ? 0 : -1; }

// -1 where there are more rows than a step can have.
EXPORTED int32_t forebay_run_head(void* step, const HeadBatch* batch) {
    return static_cast<Step*>(step)->run_head(*batch) ? 0 : -1;
}

EXPORTED int32_t forebay_num_threads(const void* step) { return static_cast<const Step*>(step)->num_threads(); }

EXPORTED void forebay_destroy_step(void* step) {
    static_cast<Step*>(step)->~Step();
    free(step);
}

// Quantize rows of x, [rows, in_features], for a weight: values [rows, num_inputs], scales and sums [rows, groups].
EXPORTED int32_t forebay_quantize(const Weight* weight, const float* x, int32_t rows, int32_t in_features, int8_t* values,
                                  float* scales, int32_t* sums) {
    auto* starts = static_cast<int32_t*>(allocate(sizeof(int32_t) * rows * num_groups(*weight)));
    const Activations out{values, scales, sums, starts, nullptr};
    auto* row = static_cast<float*>(allocate(weight->num_inputs * sizeof(float)));
    const bool is_whole = row && starts;
    for (int i = 0; is_whole && i < rows; i++) {
        memcpy(row, x + (int64_t)i * in_features, sizeof(float) * in_features);
        quantize_row(*weight, row, in_features, i, out);
    }
    free(row);
    free(starts);
    return is_whole ? 0 : -1;
}

// out, [rows, num_outputs], = x times the weight's transpose; -1 where there is no memory.
EXPORTED int32_t forebay_multiply(const Weight* weight, const float* x, float* out, int32_t rows, int32_t in_features,
                                  int32_t num_threads) {
    struct Job {
        const Weight* weight;
        const float* x;
        float* out;
        int rows, in_features;
        Activations quantized;
        Pool pool;
        explicit Job(int threads) : pool(threads) {}
    };
    auto* memory = aligned_alloc(64, (sizeof(Job) + 63) / 64 * 64);
    const int64_t inputs = (int64_t)weight->num_inputs * rows;
    auto* bytes = static_cast<int8_t*>(allocate(inputs * 3 + inputs * 3 / 8));
    if (!memory || !bytes) {
        free(memory);
        free(bytes);
        return -1;
    }
    auto* job = new (memory) Job(num_threads);
    job->weight = weight, job->x = x, job->out = out, job->rows = rows, job->in_features = in_features;
    auto* scales = reinterpret_cast<float*>(bytes + inputs);
    auto* sums = reinterpret_cast<int32_t*>(bytes + inputs + inputs / 8);
    auto* starts = reinterpret_cast<int32_t*>(bytes + inputs + inputs / 4);
    job->quantized = {bytes, scales, sums, starts, reinterpret_cast<uint16_t*>(bytes + inputs + inputs * 3 / 8)};
    job->pool.run(
        [](void* context, int thread) {
            Job& job = *static_cast<Job*>(context);
            const TilesOfThread tiles(job.rows);
            auto* scratch = static_cast<float*>(allocate((job.weight->num_inputs + ITEM_ROWS * PANEL) * sizeof(float)));
            for (int row; (row = job.pool.next(thread, job.rows)) >= 0;) {
                memcpy(scratch, job.x + (int64_t)row * job.in_features, sizeof(float) * job.in_features);
                quantize_row(*job.weight, scratch, job.in_features, row, job.quantized);
            }
            job.pool.barrier();
            for (int panel; (panel = job.pool.next(thread, job.weight->num_outputs / PANEL)) >= 0;)
                for (int row = 0; row < job.rows; row += ITEM_ROWS) {
                    const int size = job.rows - row < ITEM_ROWS ? job.rows - row : ITEM_ROWS;
                    multiply_panel(*job.weight, panel, job.quantized, row, size, scratch);
                    for (int m = 0; m < size; m++)
                        memcpy(job.out + (int64_t)(row + m) * job.weight->num_outputs + panel * PANEL,
                               scratch + m * PANEL, sizeof(float) * PANEL);
                }
            free(scratch);
        },
        job);
    job->~Job();
    free(memory);
    free(bytes);
    return 0;
}

// The sum of the bytes, read by all threads at once: what a step that reads as many cannot be faster than.
EXPORTED int64_t forebay_read(const uint8_t* bytes, int64_t num_bytes, int32_t num_threads) {
    struct Job {
        const uint8_t* bytes;
        int64_t num_bytes;
        std::atomic<int64_t> sum{0};
        Pool pool;
        explicit Job(int threads) : pool(threads) {}
    };
    auto* memory = aligned_alloc(64, (sizeof(Job) + 63) / 64 * 64);
    if (!memory) return -1;
    auto* job = new (memory) Job(num_threads);
    job->bytes = bytes, job->num_bytes = num_bytes;
    job->pool.run(
        [](void* context, int thread) {
            Job& job = *static_cast<Job*>(context);
            constexpr int64_t piece = 1 << 18;
            const int num_pieces = (int)((job.num_bytes + piece - 1) / piece);
            I16 sum = set1((int32_t)0);
            for (int i; (i = job.pool.next(thread, num_pieces)) >= 0;) {
                const int64_t left = job.num_bytes - i * piece;
                for (int64_t k = i * piece, end = k + (left < piece ? left : piece); k + 64 <= end; k += 64) {
                    prefetch(job.bytes + k + AHEAD_BYTES, 64);
                    sum = sum + as_int(load((const float*)(job.bytes + k)));
                }
            }
            job.sum += reduce_add(sum);
        },
        job);
    const int64_t sum = job->sum;
    job->~Job();
    free(memory);
    return sum;
}

// Pack the rows of a weight, in the order of `rows`, into panels; -1 where there is no memory.
EXPORTED int32_t forebay_pack(const Unpacked* from, const int32_t* rows, int32_t num_outputs, int32_t num_inputs,
                              uint8_t* out) {
    return pack_panels(*from, rows, num_outputs, num_inputs, out) ? 0 : -1;
}

// Quantize to eight bits, `group` numbers a scale: values [rows, columns], scales [rows, columns / group]; -1 where there
// is no memory.
EXPORTED int32_t forebay_quantize_int8(const StoredMatrix* from, int32_t group, int8_t* values, float* scales) {
    auto* row = static_cast<float*>(allocate(sizeof(float) * from->columns));
    if (!row) return -1;
    for (int i = 0; i < from->rows; i++) {
        read_row(*from, i, row);
        for (int k = 0; k < from->columns; k += group)
            *scales++ = quantize_int8_group(row + k, group, values + (int64_t)i * from->columns + k);
    }
    free(row);
    return 0;
}

// Quantize to four bits: packed [rows, columns / 2], scales [rows, columns / group], float16. Each scale is one of the
// factors times the number of the largest magnitude.
EXPORTED int32_t forebay_quantize_int4(const StoredMatrix* from, int32_t group, int32_t chunk, const float* factors,
                                       int32_t num_factors, uint8_t* packed, uint16_t* scales) {
    auto* row = static_cast<float*>(allocate(sizeof(float) * from->columns));
    if (!row) return -1;
    for (int64_t i = 0; i < from->rows; i++) {
        read_row(*from, (int)i, row);
        quantize_int4_row(row, from->columns, group, chunk, factors, num_factors, packed + i * from->columns / 2,
                          scales + i * (from->columns / group));
    }
    free(row);
    return 0;
}

}  // extern "C"
