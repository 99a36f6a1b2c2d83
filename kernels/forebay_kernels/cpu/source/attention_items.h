// The attention of a step, cut into items of work.
#pragma once

#include "step.h"

namespace {

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
    rotate(scratch, model_.rotary + (int64_t)position * model_.rotary_dim, model_.rotary_dim);
    const int32_t* blocks = batch_->blocks + batch_->block_offsets[sequence];
    write_key(cache, cache.row(0, blocks, head, position), scratch);
    write_value(cache, cache.row(1, blocks, head, position), key + model_.num_kv_heads * head_dim);
}

// Items of attention that a sequence makes, for each key head: parts of its tokens; or spans of the keys that one sees.
int Step::attention_parts(int sequence) const {
    const int num_tokens = batch_->starts[sequence + 1] - batch_->starts[sequence];
    if (splits_keys_) return num_spans(batch_->context_lens[sequence] + 1);
    return (num_tokens + query_tokens_ - 1) / query_tokens_;
}

// Cut the batch's attention: where there are few heads of few decodes for the threads, along the keys.
void Step::plan_attention() {
    const int num_heads = batch_->num_sequences * model_.num_kv_heads;
    is_mixed_ = batch_->num_sequences != batch_->num_tokens;
    splits_keys_ = !is_mixed_ && num_threads_ > 1 && num_heads < FEW_HEADS * num_threads_;
    num_attention_items_ = 0;
    for (int i = 0; i < batch_->num_sequences; i++) {
        const int parts = attention_parts(i);
        num_attention_items_ += parts * model_.num_kv_heads;
        if (!splits_keys_) continue;
        for (int head = 0; head < model_.num_kv_heads; head++) num_open_[i * model_.num_kv_heads + head] = parts;
    }
}

Step::AttentionItem Step::attention_item(int item) const {
    int sequence = 0, num_parts;
    while (item >= (num_parts = attention_parts(sequence)) * model_.num_kv_heads) {
        item -= num_parts * model_.num_kv_heads;
        sequence++;
    }
    return {sequence, item % model_.num_kv_heads, item / model_.num_kv_heads, num_parts};
}

// The keys that an item of decodes begins with; none where there is no such item.
Tile Step::first_tile(const Layer& layer, int item) const {
    if (is_mixed_ || item >= num_attention_items_) return {};
    const auto [sequence, head, part, num_parts] = attention_item(item);
    const Queries queries = queries_of(layer, sequence, 0, 1, head);
    return queries.tile(splits_keys_ ? span_start(part) : queries.first_key() / KEYS * KEYS);
}

void Step::attend_item(const LayerCache& cache, const Layer& layer, int item, int thread) {
    const auto [sequence, head, part, num_parts] = attention_item(item);
    const Tile next = first_tile(layer, item + 1);
    const AttentionScratch scratch(scratch_[thread].attention, query_rows_, model_.head_dim);
    if (splits_keys_) {
        attend_part(cache, layer, sequence, head, part, next, scratch);
        return;
    }
    const int skipped = part * query_tokens_;
    const int first = batch_->starts[sequence] + skipped, left = batch_->starts[sequence + 1] - first;
    const int num_tokens = left < query_tokens_ ? left : query_tokens_;
    if (!is_mixed_) write_keys(cache, layer, first, head, scratch.queries);
    const Queries queries = queries_of(layer, sequence, skipped, num_tokens, head);
    turn_queries(layer, queries, first, scratch.queries);
    attend(cache, queries, next, scratch);
    for (int token = 0; token < num_tokens; token++)
        keep_attended(layer, first + token, head, scratch.all.sums + (int64_t)token * group_heads_ * model_.head_dim);
}

// One span of the keys that a token sees; whoever comes last puts the spans together, in their order.
void Step::attend_part(const LayerCache& cache, const Layer& layer, int sequence, int head, int part,
                       const Tile& next, const AttentionScratch& s) {
    const int row = batch_->starts[sequence], parts = attention_parts(sequence), head_dim = model_.head_dim;
    const int64_t place = sequence * model_.num_kv_heads + head, size = Found::floats(group_heads_, head_dim);
    if (part == parts - 1) write_keys(cache, layer, row, head, s.queries);
    const Queries queries = queries_of(layer, sequence, 0, 1, head);
    turn_queries(layer, queries, row, s.queries);
    int first = span_start(part);
    float* found = found_ + place * max_spans_ * size;
    const Found in_span(found + part * size, group_heads_, head_dim);
    attend_span(cache, queries, first, span_end(first), next, in_span, s);
    if (num_open_[place].fetch_sub(1) != 1) return;
    num_open_[place] = parts;  // for the next layer
    s.all.clear(group_heads_, head_dim);
    first = 0;
    for (int i = 0; i < parts; i++, first = span_end(first))
        if (span_end(first) > queries.first_key())
            s.all.add(Found(found + i * size, group_heads_, head_dim), 0, group_heads_, head_dim);
    s.all.divide(group_heads_, head_dim);
    keep_attended(layer, row, head, s.all.sums);
}

Queries Step::queries_of(const Layer& layer, int sequence, int token, int num_tokens, int head) const {
    const int32_t* blocks = batch_->blocks + batch_->block_offsets[sequence];
    const int window = layer.window ? layer.window : INT_MAX;
    return {blocks, head, batch_->context_lens[sequence] + token, num_tokens, group_heads_, window};
}

// Norm, turn and scale queries, of rows from `row` on.
void Step::turn_queries(const Layer& layer, const Queries& q, int row, float* out) const {
    const int head_dim = model_.head_dim;
    const F16 factor = set1(model_.attention_scale * LOG2_E);
    for (int i = 0; i < q.num_tokens; i++) {
        const float* queries = qkv_ + (int64_t)(row + i) * layer.qkv.num_outputs + q.head * group_heads_ * head_dim;
        for (int k = 0; k < group_heads_; k++, queries += head_dim, out += head_dim) {
            if (layer.query_norm) {
                rms_norm(queries, layer.query_norm, head_dim, model_.eps, out);
            } else {
                memcpy(out, queries, sizeof(float) * head_dim);
            }
            rotate(out, model_.rotary + (int64_t)(q.start + i) * model_.rotary_dim, model_.rotary_dim);
            for (int n = 0; n < head_dim; n += 16) store(out + n, load(out + n) * factor);
        }
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

}  // namespace
