// What Python passes in: plain structures, mirrored by forebay_kernels/cpu/structures.py.
#pragma once

#include <cstdint>

// How the numbers of a weight are stored; see packing.py.
enum WeightKind : int32_t {
    INT8_CHANNELS = 0,  // 8 bits, one float32 scale for each output
    INT8_GROUPS = 1,    // 8 bits, one float16 scale for each group of inputs
    INT4_GROUPS = 2,    // 4 bits, one float16 scale and minimum for each group of inputs
    BF16 = 3,
};

enum CacheKind : int32_t { CACHE_FLOAT32 = 0, CACHE_BF16 = 1, CACHE_INT8 = 2 };

// Panels of 32 outputs: all inputs of one panel lie together. num_outputs and num_inputs are multiples of 64, padded with zeros.
struct Weight {
    int32_t kind;
    int32_t group;  // inputs that share a scale of the activations (and of the weight, where it has groups)
    int32_t num_outputs;
    int32_t num_inputs;
    const uint8_t* data;
    const float* channel_scales;  // [num_outputs], INT8_CHANNELS
    const uint16_t* scales;       // [panels][groups][32], float16
    const uint16_t* mins;         // as scales; null: -8 scales for 4 bits, -128 for 8 (that is: symmetric)
    const float* bias;            // [num_outputs] or null
};

struct Layer {
    const float* input_norm;      // [hidden_size]
    const float* attention_norm;  // [hidden_size], after the attention
    const float* query_norm;      // [head_dim] or null
    const float* key_norm;
    Weight qkv;
    Weight output;
    Weight gate_up;  // panels of gate and up in turn
    Weight down;
    int32_t window;  // keys up to its own that a token sees; 0: all
    int32_t padding;
};

struct Model {
    int32_t num_layers;
    int32_t hidden_size;
    int32_t intermediate_size;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t vocab_size;
    int32_t cache_kind;
    int32_t num_blocks;
    int32_t block_size;
    int32_t max_tokens;  // rows of a step at most
    int32_t num_threads;
    int32_t num_positions;  // rows of `rotary`
    int32_t rotary_dim;     // numbers of a head that turn
    float eps;
    float attention_scale;
    const Layer* layers;
    const float* final_norm;
    Weight embedding;  // of any kind; its outputs are the tokens. The head itself where the two are tied
    Weight head;
    const float* rotary;  // [positions, rotary_dim]: cosines, then sines
    void* cache;          // [num_blocks, num_layers, 2, num_kv_heads, block_size * head_dim]; see cache.h
    float* cache_scales;  // [num_blocks, num_layers, 2, num_kv_heads, block_size], for CACHE_INT8
};

struct Batch {
    int32_t num_tokens;
    int32_t num_sequences;
    int32_t num_wanted;
    int32_t padding;
    const int32_t* token_ids;      // [num_tokens]
    const int32_t* starts;         // [num_sequences + 1], first row of each
    const int32_t* context_lens;   // [num_sequences], tokens before the first row
    const int32_t* blocks;         // tables of all sequences, one after the other
    const int32_t* block_offsets;  // [num_sequences], where each begins
    const int32_t* wanted_rows;    // [num_wanted]
    float* hidden;                 // [num_wanted, hidden_size] or null: after the final norm
    float* logits;                 // [num_wanted, logits_stride] or null
    int64_t logits_stride;
    int32_t* best_ids;             // [num_wanted] or null: likeliest token, the first of equals
    float* best_logits;            // [num_wanted] or null; NaN when any logit is
};

// Hidden states of an earlier step whose logits are wanted now.
struct HeadBatch {
    int32_t num_rows;
    int32_t padding;
    const float* hidden;  // [num_rows, hidden_size], after the final norm
    float* logits;        // [num_rows, vocab_size]
};

// The forms in which a weight may lie before it is quantized; see quantization.py.
enum StoredKind : int32_t { STORED_FLOAT32 = 0, STORED_BF16 = 1, STORED_FP16 = 2, STORED_INT8 = 3, STORED_INT4 = 4 };

// A matrix, rows one after the other; columns, group and half a chunk are multiples of 16. Quantized numbers mean
// (number - zero) * scale + min, zeros and mins being 0 where they are null.
struct StoredMatrix {
    int32_t kind;
    int32_t rows;
    int32_t columns;
    int32_t group;  // numbers that share a scale
    int32_t chunk;  // STORED_INT4: byte j of a chunk holds its numbers j (low) and j + chunk / 2
    int32_t padding;
    const void* numbers;
    const float* scales;  // [rows, columns / group]; as the others
    const float* zeros;
    const float* mins;
};

// A matrix whose numbers are to be packed, rows one after the other.
struct Unpacked {
    int32_t kind;  // WeightKind
    int32_t rows;
    int32_t columns;
    int32_t chunk;  // INT4_GROUPS: as in StoredMatrix
    const void* numbers;
};
