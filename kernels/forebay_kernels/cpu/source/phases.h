// The phases of a step, in the order in which data flows.
#pragma once

#include "pack.h"
#include "step.h"

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
    for (int i = is_shared ? pool_.next() : 0; i < num_rows; i = is_shared ? pool_.next() : i + 1) {
        const float* x = hidden_ + (int64_t)(rows ? rows[i] : i) * model_.hidden_size;
        rms_norm(x, norm, model_.hidden_size, model_.eps, scratch.row);
        quantize_row(consumer, scratch.row, model_.hidden_size, i, out);
    }
    if (is_shared) pool_.barrier();
    return out;
}

// For heads that do not end where groups do: quantized here, else by the items of attention.
Activations Step::quantize_attended(const Weight& consumer, int thread) {
    for (int row; (row = pool_.next()) < batch_->num_tokens;) {
        memcpy(scratch_[thread].row, attended_ + (int64_t)row * attention_size_, sizeof(float) * attention_size_);
        quantize_row(consumer, scratch_[thread].row, attention_size_, row, gathered_);
    }
    pool_.barrier();
    return gathered_;
}

// Call finish(panel, row, rows, sums) for every panel, or every few panels, and every few rows; then wait for the others.
template <typename Finish>
void Step::multiply(const Weight& weight, const Activations& x, int num_rows, int thread, int panels_at_once,
                    Finish finish) {
    const int panels = weight.num_outputs / PANEL / panels_at_once;
    const int most_parts = (num_rows + ITEM_ROWS - 1) / ITEM_ROWS;
    const int wanted_parts = (ITEMS_A_THREAD * num_threads_ + panels - 1) / panels;
    const int parts = num_threads_ == 1 ? 1 : wanted_parts < most_parts ? wanted_parts : most_parts;
    float* sums = scratch_[thread].sums;
    for (int item; (item = pool_.next()) < panels * parts;) {
        const int panel = item / parts, part = item % parts;
        const int end = (int)((int64_t)num_rows * (part + 1) / parts);
        for (int row = (int)((int64_t)num_rows * part / parts); row < end;) {
            const int num_left = (end - row + ITEM_ROWS - 1) / ITEM_ROWS, rows = (end - row + num_left - 1) / num_left;
            for (int i = 0; i < panels_at_once; i++)
                multiply_panel(weight, panel * panels_at_once + i, x, row, rows, sums + i * ITEM_ROWS * PANEL);
            finish(panel, row, rows, sums);
            row += rows;
        }
    }
    pool_.barrier();
}

// Norm and turn a row's key, and write it and its value to the cache.
void Step::write_keys(const LayerCache& cache, const Layer& layer, int row, int head, float* scratch) {
    const int sequence = row_sequence_[row], head_dim = model_.head_dim;
    const int position = batch_->context_lens[sequence] + row - batch_->starts[sequence];
    const float* key = qkv_ + (int64_t)row * layer.qkv.num_outputs + attention_size_ + head * head_dim;
    if (layer.key_norm) {
        rms_norm(key, layer.key_norm, head_dim, model_.eps, scratch);
    } else {
        memcpy(scratch, key, sizeof(float) * head_dim);
    }
    rotate(scratch, model_.rotary + (int64_t)position * head_dim, head_dim);
    const int64_t slot = cache.slot(batch_->blocks + batch_->block_offsets[sequence], position);
    write_cached(cache, 0, slot, head, scratch);
    write_cached(cache, 1, slot, head, key + model_.num_kv_heads * head_dim);
}

// Items of attention that a sequence makes: by tokens and key heads, or one for all heads of a single token.
int Step::attention_items(int sequence) const {
    const int num_tokens = batch_->starts[sequence + 1] - batch_->starts[sequence];
    if (num_tokens == 1 && is_wide_) return 1;
    return (num_tokens + query_tokens_ - 1) / query_tokens_ * model_.num_kv_heads;
}

void Step::attend_item(const LayerCache& cache, const Layer& layer, int item, int thread) {
    int sequence = 0, num_items;
    while (item >= (num_items = attention_items(sequence))) {
        item -= num_items;
        sequence++;
    }
    const int num_rows = batch_->starts[sequence + 1] - batch_->starts[sequence];
    const bool is_whole = num_rows == 1 && is_wide_;
    const int num_heads = is_whole ? model_.num_kv_heads : 1, head = is_whole ? 0 : item % model_.num_kv_heads;
    // The last tokens see most keys: they go first.
    const int part = is_whole ? 0 : num_items / model_.num_kv_heads - 1 - item / model_.num_kv_heads;
    const int first = batch_->starts[sequence] + part * query_tokens_;
    const int left = batch_->starts[sequence + 1] - first, num_tokens = left < query_tokens_ ? left : query_tokens_;
    const int start = batch_->context_lens[sequence] + part * query_tokens_;
    const AttentionScratch scratch(scratch_[thread].attention, query_rows_, model_.head_dim);
    const int rows = num_tokens * group_heads_;
    for (int i = 0; i < num_heads; i++) {
        if (!is_mixed_) write_keys(cache, layer, first, head + i, scratch.queries + i * rows * model_.head_dim);
        for (int token = 0; token < num_tokens; token++)
            turn_queries(layer, first + token, start + token, head + i,
                         scratch.queries + (i * rows + token * group_heads_) * model_.head_dim);
    }
    const int32_t* blocks = batch_->blocks + batch_->block_offsets[sequence];
    attend(cache, blocks, head, num_heads, start, num_tokens, group_heads_, scratch);
    for (int i = 0; i < num_heads; i++)
        for (int token = 0; token < num_tokens; token++)
            keep_attended(layer, first + token, head + i,
                          scratch.sums + (i * rows + token * group_heads_) * model_.head_dim);
}

// The queries of a row that read one key head: normed, turned and scaled.
void Step::turn_queries(const Layer& layer, int row, int position, int head, float* out) {
    const int head_dim = model_.head_dim;
    const float* queries = qkv_ + (int64_t)row * layer.qkv.num_outputs + head * group_heads_ * head_dim;
    const F16 factor = set1(model_.attention_scale * LOG2_E);
    for (int i = 0; i < group_heads_; i++, queries += head_dim, out += head_dim) {
        if (layer.query_norm) {
            rms_norm(queries, layer.query_norm, head_dim, model_.eps, out);
        } else {
            memcpy(out, queries, sizeof(float) * head_dim);
        }
        rotate(out, model_.rotary + (int64_t)position * head_dim, head_dim);
        for (int k = 0; k < head_dim; k += 16) store(out + k, load(out + k) * factor);
    }
}

// Quantize what a row's queries of one key head found, or keep it until all heads are there.
void Step::keep_attended(const Layer& layer, int row, int head, const float* sums) {
    const int width = group_heads_ * model_.head_dim, from = head * width;
    if (model_.head_dim % layer.output.group == 0) {
        for (int i = 0; i < width; i += layer.output.group)
            quantize_group(layer.output, sums + i, row, from + i, gathered_);
    } else {
        memcpy(attended_ + (int64_t)row * attention_size_ + from, sums, sizeof(float) * width);
    }
}

void Step::compute_layer(int index, int thread) {
    const Layer& layer = layers_[index];
    const int num_tokens = batch_->num_tokens, hidden_size = model_.hidden_size;
    const LayerCache cache = layer_cache(model_, index);
    Activations x = norm_rows(layer.input_norm, layer.qkv, num_tokens, nullptr, thread);
    multiply(layer.qkv, x, num_tokens, thread, 1, [&](int panel, int row, int rows, const float* sums) {
        for (int m = 0; m < rows; m++)
            memcpy(qkv_ + (int64_t)(row + m) * layer.qkv.num_outputs + panel * PANEL, sums + m * PANEL, sizeof(float) * PANEL);
    });
    if (is_mixed_) {
        for (int row; (row = pool_.next()) < num_tokens;)
            for (int head = 0; head < model_.num_kv_heads; head++)
                write_keys(cache, layer, row, head, scratch_[thread].row);
        pool_.barrier();
    }
    int num_items = 0;
    for (int i = 0; i < batch_->num_sequences; i++) num_items += attention_items(i);
    for (int item; (item = pool_.next()) < num_items;) attend_item(cache, layer, item, thread);
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
    multiply(layer.output, x, num_tokens, thread, 1, add);
    x = norm_rows(layer.attention_norm, layer.gate_up, num_tokens, nullptr, thread);
    multiply(layer.gate_up, x, num_tokens, thread, 2, [&](int panel, int row, int rows, float* sums) {
        for (int m = 0; m < rows; m++) {
            float* gate = sums + m * PANEL;
            for (int i = 0; i < PANEL; i += 16)
                store(gate + i, silu_and_mul(load(gate + i), load(gate + ITEM_ROWS * PANEL + i)));
            for (int i = 0; i < PANEL; i += layer.down.group)
                quantize_group(layer.down, gate + i, row + m, panel * PANEL + i, gated_);
        }
    });
    multiply(layer.down, gated_, num_tokens, thread, 1, add);
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
        for (int i; (i = pool_.next()) < num_rows;)
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
    multiply(model_.head, x, num_rows, thread, 1, [&](int panel, int row, int rows, const float* sums) {
        const int columns = model_.vocab_size - panel * PANEL < PANEL ? model_.vocab_size - panel * PANEL : PANEL;
        for (int m = 0; m < rows && columns > 0; m++) {
            if (batch_->logits)
                memcpy(batch_->logits + (row + m) * batch_->logits_stride + panel * PANEL, sums + m * PANEL,
                       sizeof(float) * columns);
            if (batch_->best_ids) find_best(panel, row + m, sums + m * PANEL, scratch);
        }
    });
    if (!batch_->best_ids) return;
    for (int row; (row = pool_.next()) < num_rows;) {
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
    for (int row; (row = pool_.next()) < batch.num_rows;) {
        memcpy(scratch_[thread].row, batch.hidden + (int64_t)row * model_.hidden_size, sizeof(float) * model_.hidden_size);
        quantize_row(model_.head, scratch_[thread].row, model_.hidden_size, row, normed_);
    }
    pool_.barrier();
    multiply(model_.head, normed_, batch.num_rows, thread, 1, [&](int panel, int row, int rows, const float* sums) {
        const int columns = model_.vocab_size - panel * PANEL < PANEL ? model_.vocab_size - panel * PANEL : PANEL;
        for (int m = 0; m < rows && columns > 0; m++)
            memcpy(batch.logits + (int64_t)(row + m) * model_.vocab_size + panel * PANEL, sums + m * PANEL,
                   sizeof(float) * columns);
    });
}

void Step::work(int thread) {
    for (int row; (row = pool_.next()) < batch_->num_tokens;) embed(row);
    pool_.barrier();
    for (int layer = 0; layer < model_.num_layers; layer++) compute_layer(layer, thread);
    compute_wanted(thread);
}

}  // namespace
