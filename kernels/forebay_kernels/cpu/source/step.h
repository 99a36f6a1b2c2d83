// One step of a Llama-type model for a flat batch of rows: prefill chunks and decodes alike.
#pragma once

#include <cstdlib>
#include <new>

#include "attention.h"
#include "threads.h"

namespace {

constexpr int FEW_ROWS = 4;      // so many are normed by every thread for itself, which saves a barrier
constexpr int FEW_HEADS = 4;     // of keys for each thread: with fewer, their keys are shared out, too
constexpr int MOST_GROUP = 64;   // inputs that share a scale
constexpr int MOST_PANELS = 2 * MOST_GROUP / PANEL;  // of gate and up in turn, that make a group of what follows
constexpr int BLOCK_ROWS = 32;   // so many are worth reading all weights for

// Memory that is zero at first, in huge pages where the system has them.
inline void* allocate(int64_t bytes) {
    const int64_t size = (bytes + 63) / 64 * 64;
    void* memory = aligned_alloc(64, size ? size : 64);
    if (memory) memset(memory, 0, size ? size : 64);
    return memory;
}

class Step {
  public:
    explicit Step(const Model& model)
        : model_(model), layers_(copy_layers(model)), pool_(model.num_threads), num_threads_(pool_.size()) {
        const int64_t rows = model.max_tokens, few = FEW_ROWS;
        group_heads_ = model.num_heads / model.num_kv_heads;
        attention_size_ = model.num_heads * model.head_dim;
        query_tokens_ = QUERY_ROWS / group_heads_ < 1 ? 1 : QUERY_ROWS / group_heads_;
        const Layer& layer = layers_[0];
        hidden_ = floats(rows * model.hidden_size);
        qkv_ = floats(rows * layer.qkv.num_outputs);
        attended_ = floats(rows * attention_size_);
        int widest = model.hidden_size > attention_size_ ? model.hidden_size : attention_size_;
        row_floats_ = widest + 2 * MOST_GROUP;
        normed_ = activations(rows, hidden_inputs());
        gathered_ = activations(rows, layer.output.num_inputs);
        gated_ = activations(rows, layer.down.num_inputs);
        scratch_ = static_cast<Scratch*>(calloc(num_threads_, sizeof(Scratch)));
        query_rows_ = query_tokens_ * group_heads_;
        max_spans_ = num_spans(model.num_positions);
        const int64_t most_split = FEW_HEADS * num_threads_;
        found_ = floats(most_split * max_spans_ * Found::floats(group_heads_, model.head_dim) + Found::SLACK);
        num_open_ = static_cast<std::atomic<int>*>(keep(most_split * sizeof(std::atomic<int>)));
        for (int i = 0; scratch_ && i < num_threads_; i++) {
            scratch_[i].normed = activations(few, widest + MOST_GROUP);
            scratch_[i].row = floats(row_floats_);
            scratch_[i].sums = floats(MOST_PANELS * ITEM_ROWS * PANEL);
            scratch_[i].attention = floats(AttentionScratch::floats(query_rows_, model.head_dim));
            scratch_[i].best_ids = static_cast<int32_t*>(keep(rows * sizeof(int32_t)));
            scratch_[i].best_logits = floats(rows);
        }
        row_sequence_ = static_cast<int32_t*>(keep(rows * sizeof(int32_t)));
        is_whole_ = is_whole_ && layers_ && scratch_;
    }

    ~Step() {
        for (int i = 0; i < num_kept_; i++) free(kept_[i]);
        free(kept_);
        free(scratch_);
        free(layers_);
    }

    // Whether there was memory for everything.
    bool is_whole() const { return is_whole_; }
    int num_threads() const { return num_threads_; }

    // False, and nothing done, where a token, position or block is outside of the model's.
    bool run(const Batch& batch) {
        if (!is_sound(batch)) return false;
        batch_ = &batch;
        plan_attention();
        for (int i = 0; i < batch.num_sequences; i++)
            for (int row = batch.starts[i]; row < batch.starts[i + 1]; row++) row_sequence_[row] = i;
        pool_.run([](void* self, int thread) { static_cast<Step*>(self)->work(thread); }, this);
        return true;
    }

    bool run_head(const HeadBatch& batch) {
        if (batch.num_rows > model_.max_tokens) return false;
        head_batch_ = &batch;
        pool_.run([](void* self, int thread) { static_cast<Step*>(self)->compute_head(thread); }, this);
        return true;
    }

  private:
    struct Scratch {
        Activations normed;
        float* row;
        float* sums;
        float* attention;
        int32_t* best_ids;
        float* best_logits;
    };

    // Part `part` of the `num_parts` that a sequence's attention to one key head has.
    struct AttentionItem {
        int sequence, head, part, num_parts;
    };

    static Layer* copy_layers(const Model& model) {
        auto* layers = static_cast<Layer*>(malloc(sizeof(Layer) * model.num_layers));
        if (layers) memcpy(layers, model.layers, sizeof(Layer) * model.num_layers);
        return layers;
    }

    bool is_sound(const Batch& batch) const {
        if (batch.num_tokens > model_.max_tokens || batch.num_wanted > model_.max_tokens) return false;
        for (int i = 0; i < batch.num_tokens; i++)
            if (batch.token_ids[i] < 0 || batch.token_ids[i] >= model_.vocab_size) return false;
        for (int i = 0; i < batch.num_wanted; i++)
            if (batch.wanted_rows[i] < 0 || batch.wanted_rows[i] >= batch.num_tokens) return false;
        for (int i = 0; i < batch.num_sequences; i++) {
            const int length = batch.context_lens[i] + batch.starts[i + 1] - batch.starts[i];
            if (batch.context_lens[i] < 0 || batch.starts[i + 1] <= batch.starts[i] || length > model_.num_positions) return false;
            const int32_t* blocks = batch.blocks + batch.block_offsets[i];
            for (int block = 0; block * model_.block_size < length; block++)
                if (blocks[block] < 0 || blocks[block] >= model_.num_blocks) return false;
        }
        return batch.starts[0] == 0 && batch.starts[batch.num_sequences] == batch.num_tokens;
    }

    void* keep(int64_t bytes) {
        void** longer = static_cast<void**>(realloc(kept_, (num_kept_ + 1) * sizeof(void*)));
        void* memory = longer ? allocate(bytes) : nullptr;
        if (longer) kept_ = longer;
        if (memory) kept_[num_kept_++] = memory;
        is_whole_ = is_whole_ && memory;
        return memory;
    }

    float* floats(int64_t count) { return static_cast<float*>(keep(count * sizeof(float))); }

    // Room for the activations of any kind of weight: scales of groups of 32 at the smallest.
    Activations activations(int64_t rows, int64_t inputs) {
        const int64_t sums = rows * inputs / 32 * sizeof(int32_t);
        return {static_cast<int8_t*>(keep(rows * inputs)), floats(rows * inputs / 32),
                static_cast<int32_t*>(keep(sums)), static_cast<int32_t*>(keep(sums)),
                static_cast<uint16_t*>(keep(rows * inputs * sizeof(uint16_t)))};
    }

    int hidden_inputs() const { return (model_.hidden_size + PANEL - 1) / PANEL * PANEL; }

    void work(int thread);
    void embed(int row);
    Activations norm_rows(const float* norm, const Weight& consumer, int num_rows, const int32_t* rows, int thread);
    Activations quantize_attended(const Weight& consumer, int thread);
    template <typename Finish>
    void multiply(const Weight& weight, const Activations& x, int num_rows, int thread, int panels_at_once,
                  const Weight& next, Finish finish);
    int row_blocks(int num_rows) const;
    void write_keys(const LayerCache& cache, const Layer& layer, int row, int head, float* scratch);
    void attend_item(const LayerCache& cache, const Layer& layer, int item, int thread);
    void attend_part(const LayerCache& cache, const Layer& layer, int sequence, int head, int part, const Tile& next,
                     const AttentionScratch& s);
    Queries queries_of(const Layer& layer, int sequence, int token, int num_tokens, int head) const;
    void plan_attention();
    AttentionItem attention_item(int item) const;
    Tile first_tile(const Layer& layer, int item) const;
    int attention_parts(int sequence) const;
    void turn_queries(const Layer& layer, const Queries& q, int row, float* out) const;
    void keep_attended(const Layer& layer, int row, int head, const float* sums);
    void compute_layer(int index, int thread);
    void compute_wanted(int thread);
    void compute_head(int thread);
    void find_best(int panel, int row, const float* logits, Scratch& scratch) const;

    Model model_;
    Layer* layers_;
    Pool pool_;
    int num_threads_;
    int group_heads_;
    int attention_size_;
    int query_tokens_;  // of one item of attention
    int query_rows_;    // that fit into a thread's scratch
    int row_floats_;
    void** kept_ = nullptr;
    int num_kept_ = 0;
    bool is_whole_ = true;
    Scratch* scratch_;
    float* hidden_;    // [rows, hidden_size]: the residual stream
    float* qkv_;       // [rows, outputs of qkv]
    float* attended_;  // [rows, num_heads * head_dim]
    Activations normed_, gathered_, gated_;
    int32_t* row_sequence_;  // [rows]
    const Batch* batch_ = nullptr;
    const HeadBatch* head_batch_ = nullptr;
    bool is_mixed_ = false;  // whether a sequence has several rows
    bool splits_keys_ = false;
    int num_attention_items_ = 0;
    int max_spans_;                // that a sequence has
    float* found_;                 // [key heads of a step that splits keys, max_spans_]: what was `Found` in each
    std::atomic<int>* num_open_;   // [the same key heads]: spans that are not done
};

}  // namespace
