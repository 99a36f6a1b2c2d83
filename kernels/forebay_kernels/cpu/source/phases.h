// The phases of a step, in the order in which data flows.
#pragma once

#include "attention_items.h"
#include "pack.h"

namespace {

void Step::embed(int row) {
    const int size = model_.hidden_size, token = batch_->token_ids[row];
    read_output(model_.embedding, token, size, hidden_ + (int64_t)row * size);
}

// The normed and quantized rows of the residual stream; `rows` picks some, null: all.
Activations Step::norm_rows(const float* norm, const Weight& consumer, int num_rows, const int32_t* rows, int thread) {
    Scratch& scratch = scratch_[thread];
    const bool is_shared = num_rows > FEW_ROWS;
    const Activations out = is_shared ? normed_ : scratch.normed;
    for (int i = is_shared ? pool_.next(thread, num_rows) : 0; i >= 0 && i < num_rows;
         i = is_shared ? pool_.next(thread, num_rows) : i + 1) {
        const float* x = hidden_ + (int64_t)(rows ? rows[i] : i) * model_.hidden_size;
        rms_norm(x, norm, model_.hidden_size, model_.eps, scratch.row);
        quantize_row(consumer, scratch.row, model_.hidden_size, i, out);
    }
    if (is_shared) pool_.barrier();
    return out;
}

// For heads that do not end where groups do: quantized here, else by the items of attention.
Activations Step::quantize_attended(const Weight& consumer, int thread) {
    for (int row; (row = pool_.next(thread, batch_->num_tokens)) >= 0;) {
        memcpy(scratch_[thread].row, attended_ + (int64_t)row * attention_size_, sizeof(float) * attention_size_);
        quantize_row(consumer, scratch_[thread].row, attention_size_, row, gathered_);
    }
    pool_.barrier();
    return gathered_;
}

// Blocks of rows that threads, or groups of threads, keep to themselves through all phases where there are enough: what
// they wrote is then in their own cache.
int Step::row_blocks(int num_rows) const {
    const int most = num_rows / BLOCK_ROWS;
    return most < 1 ? 1 : most < num_threads_ ? most : num_threads_;
}

// Call finish(panel, row, rows, sums) for every panel, or every few panels, and some rows; then wait for the others.
// `next` is the weight that the next product reads.
template <typename Finish>
void Step::multiply(const Weight& weight, const Activations& x, int num_rows, int thread, int panels_at_once,
                    const Weight& next, Finish finish) {
    const int panels = weight.num_outputs / PANEL / panels_at_once, blocks = row_blocks(num_rows);
    float* sums = scratch_[thread].sums;
    for (int item; (item = pool_.next(thread, panels * blocks)) >= 0;) {
        const int panel = item % panels * panels_at_once, block = item / panels;
        const int end = (int)((int64_t)num_rows * (block + 1) / blocks);
        for (int row = (int)((int64_t)num_rows * block / blocks); row < end;) {
            const int num_left = (end - row + ITEM_ROWS - 1) / ITEM_ROWS, rows = (end - row + num_left - 1) / num_left;
            for (int i = 0; i < panels_at_once; i++)
                multiply_panel(weight, panel + i, x, row, rows, sums + i * ITEM_ROWS * PANEL);
            finish(panel, row, rows, sums);
            row += rows;
        }
    }
    const int64_t first_panel = (int64_t)next.num_outputs / PANEL * thread / num_threads_;
    if (blocks == 1) prefetch(next.data + first_panel * panel_bytes(next), AHEAD_BYTES);
    pool_.barrier();
}

void Step::compute_layer(int index, int thread) {
    const Layer& layer = layers_[index];
    const int num_tokens = batch_->num_tokens, hidden_size = model_.hidden_size;
    const LayerCache cache = layer_cache(model_, index);
    Activations x = norm_rows(layer.input_norm, layer.qkv, num_tokens, nullptr, thread);
    multiply(layer.qkv, x, num_tokens, thread, 1, layer.output, [&](int panel, int row, int rows, const float* sums) {
        for (int m = 0; m < rows; m++)
            memcpy(qkv_ + (int64_t)(row + m) * layer.qkv.num_outputs + panel * PANEL, sums + m * PANEL,
                   sizeof(float) * PANEL);
    });
    if (is_mixed_) {
        for (int row; (row = pool_.next(thread, num_tokens)) >= 0;)
            for (int head = 0; head < model_.num_kv_heads; head++)
                write_keys(cache, layer, row, head, scratch_[thread].row);
        pool_.barrier();
    }
    for (int item; (item = pool_.next(thread, num_attention_items_)) >= 0;) attend_item(cache, layer, item, thread);
    pool_.barrier();
    x = model_.head_dim % layer.output.group == 0 ? gathered_ : quantize_attended(layer.output, thread);
    const auto add = [&](int panel, int row, int rows, const float* sums) {
        const int columns = hidden_size - panel * PANEL < PANEL ? hidden_size - panel * PANEL : PANEL;
        for (int m = 0; m < rows; m++)
            for (int i = 0; i < columns; i += 16) {
                float* out = hidden_ + (int64_t)(row + m) * hidden_size + panel * PANEL + i;
                store(out, load(out) + load(sums + m * PANEL + i));
            }
    };
    multiply(layer.output, x, num_tokens, thread, 1, layer.gate_up, add);
    x = norm_rows(layer.attention_norm, layer.gate_up, num_tokens, nullptr, thread);
    const int group = layer.down.group, panels = 2 * group / PANEL;
    const auto gate = [&](int panel, int row, int rows, const float* sums) {
        alignas(64) float gated[MOST_GROUP];
        for (int m = 0; m < rows; m++) {
            for (int i = 0; i < group; i += 16) {
                const float* sum = sums + i / PANEL * 2 * ITEM_ROWS * PANEL + m * PANEL + i % PANEL;
                store(gated + i, silu_and_mul(load(sum), load(sum + ITEM_ROWS * PANEL)));
            }
            quantize_group(layer.down, gated, row + m, panel / 2 * PANEL, gated_);
        }
    };
    multiply(layer.gate_up, x, num_tokens, thread, panels, layer.down, gate);
    const Weight& next = index + 1 < model_.num_layers ? layers_[index + 1].qkv : model_.head;
    multiply(layer.down, gated_, num_tokens, thread, 1, next, add);
}

// Remember the likeliest of a panel's tokens if it beats what this thread has seen; NaN stays.
void Step::find_best(int panel, int row, const float* logits, Scratch& scratch) const {
    const int columns = model_.vocab_size - panel * PANEL < PANEL ? model_.vocab_size - panel * PANEL : PANEL;
    float best = scratch.best_logits[row];
    if (columns == PANEL) {
        F16 largest = set1(-INFINITY), check = set1(0.0f);
        for (int i = 0; i < PANEL; i += 16) {
            largest = max(largest, load(logits + i));
            check = check + load(logits + i) * set1(0.0f);
        }
        const float top = reduce_max(largest);
        if (reduce_add(check) == 0.0f && (top < best || (top == best && scratch.best_ids[row] < panel * PANEL))) return;
    }
    for (int i = 0; i < columns; i++) {
        const int id = panel * PANEL + i;
        if (logits[i] != logits[i] || logits[i] > best || (logits[i] == best && id < scratch.best_ids[row])) {
            best = logits[i];
            scratch.best_ids[row] = id;
        }
    }
    scratch.best_logits[row] = best;
}

void Step::compute_wanted(int thread) {
    const int num_rows = batch_->num_wanted;
    Scratch& scratch = scratch_[thread];
    if (batch_->hidden) {
        for (int i; (i = pool_.next(thread, num_rows)) >= 0;)
            rms_norm(hidden_ + (int64_t)batch_->wanted_rows[i] * model_.hidden_size, model_.final_norm, model_.hidden_size,
                     model_.eps, batch_->hidden + (int64_t)i * model_.hidden_size);
        pool_.barrier();
    }
    if (!batch_->logits && !batch_->best_ids) return;
    const Activations x = norm_rows(model_.final_norm, model_.head, num_rows, batch_->wanted_rows, thread);
    for (int row = 0; row < num_rows; row++) {
        scratch.best_logits[row] = -INFINITY;
        scratch.best_ids[row] = INT32_MAX;
    }
    multiply(model_.head, x, num_rows, thread, 1, layers_[0].qkv, [&](int panel, int row, int rows, const float* sums) {
        const int columns = model_.vocab_size - panel * PANEL < PANEL ? model_.vocab_size - panel * PANEL : PANEL;
        for (int m = 0; m < rows && columns > 0; m++) {
            if (batch_->logits)
                memcpy(batch_->logits + (row + m) * batch_->logits_stride + panel * PANEL, sums + m * PANEL,
                       sizeof(float) * columns);
            if (batch_->best_ids) find_best(panel, row + m, sums + m * PANEL, scratch);
        }
    });
    if (!batch_->best_ids) return;
    for (int row; (row = pool_.next(thread, num_rows)) >= 0;) {
        float best = -INFINITY;
        int32_t id = INT32_MAX;
        for (int i = 0; i < num_threads_; i++) {
            const float value = scratch_[i].best_logits[row];
            const int32_t other = scratch_[i].best_ids[row];
            if (value != value || value > best || (value == best && other < id)) {
                best = value;
                id = other;
            }
        }
        batch_->best_ids[row] = id;
        batch_->best_logits[row] = best;
    }
    pool_.barrier();
}

void Step::compute_head(int thread) {
    const HeadBatch& batch = *head_batch_;
    const TilesOfThread tiles(batch.num_rows);
    for (int row; (row = pool_.next(thread, batch.num_rows)) >= 0;) {
        memcpy(scratch_[thread].row, batch.hidden + (int64_t)row * model_.hidden_size, sizeof(float) * model_.hidden_size);
        quantize_row(model_.head, scratch_[thread].row, model_.hidden_size, row, normed_);
    }
    pool_.barrier();
    multiply(model_.head, normed_, batch.num_rows, thread, 1, layers_[0].qkv, [&](int panel, int row, int rows, const float* sums) {
        const int columns = model_.vocab_size - panel * PANEL < PANEL ? model_.vocab_size - panel * PANEL : PANEL;
        for (int m = 0; m < rows && columns > 0; m++)
            memcpy(batch.logits + (int64_t)(row + m) * model_.vocab_size + panel * PANEL, sums + m * PANEL,
                   sizeof(float) * columns);
    });
}

void Step::work(int thread) {
    const TilesOfThread tiles(batch_->num_tokens);
    for (int row; (row = pool_.next(thread, batch_->num_tokens)) >= 0;) embed(row);
    pool_.barrier();
    for (int layer = 0; layer < model_.num_layers; layer++) compute_layer(layer, thread);
    compute_wanted(thread);
}

}  // namespace
