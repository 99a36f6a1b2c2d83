// Causal attention over the paged cache. Keys are taken 128 at a time, in spans that begin at fixed positions, for one
// token and for many: what a token gets depends on the tokens before it alone, not on how its prompt was cut, who is
// computed with it, or which threads took which spans.
#pragma once

#include "product.h"

namespace {

constexpr int QUERY_ROWS = 96;   // queries of one item of work, about
constexpr int FEW_QUERIES = 2 * QUERY_TILE;  // so few are not worth making floats of keys and values first
constexpr int SPAN = KEYS;       // keys of the shortest spans
constexpr int SPANS_BEFORE = 8;  // a span is no longer than an eighth of what lies before it: few spans, even shares

// Where the span that begins at `first` ends.
inline int span_end(int first) {
    int length = SPAN;
    while (length * 2 * SPANS_BEFORE <= first) length *= 2;
    return first + length;
}

// Where span `index` begins.
inline int span_start(int index) {
    int first = 0;
    for (int i = 0; i < index; i++) first = span_end(first);
    return first;
}

// Spans that begin before `num_keys`.
inline int num_spans(int num_keys) {
    int count = 0;
    for (int first = 0; first < num_keys; first = span_end(first)) count++;
    return count;
}

// What some queries found in some keys: the weights are relative to the largest score, and sums not yet divided. Behind
// it there is memory for SLACK more numbers, so that 16 rows can be read from each on.
struct Found {
    static constexpr int SLACK = 16;
    float* sums;     // [rows, head_dim]
    float* largest;  // [rows]
    float* totals;   // [rows]: of the weights

    static int64_t floats(int rows, int head_dim) { return (int64_t)rows * (head_dim + 2); }

    Found(float* memory, int rows, int head_dim)
        : sums(memory), largest(sums + (int64_t)rows * head_dim), totals(largest + rows) {}

    void clear(int rows, int head_dim) const {
        memset(sums, 0, sizeof(float) * rows * head_dim);
        for (int row = 0; row < rows; row++) {
            largest[row] = -INFINITY;
            totals[row] = 0.0f;
        }
    }

    // Take in what rows [first, end) found elsewhere.
    void add(const Found& other, int first, int end, int head_dim) const {
        for (int begin = first; begin < end; begin += 16) {
            const F16 before = load(largest + begin), found = load(other.largest + begin), top = max(before, found);
            alignas(64) float tops[16], factors[16], other_factors[16];
            store(tops, top);
            store(factors, exp2(before - top));
            store(other_factors, exp2(found - top));
            for (int row = begin; row < end && row < begin + 16; row++) {
                const float factor = factors[row - begin], other_factor = other_factors[row - begin];
                totals[row] = totals[row] * factor + other.totals[row] * other_factor;
                largest[row] = tops[row - begin];
                for (int i = row * head_dim; i < (row + 1) * head_dim; i += 16)
                    store(sums + i, fma(load(sums + i), set1(factor), load(other.sums + i) * set1(other_factor)));
            }
        }
    }

    void divide(int rows, int head_dim) const {
        for (int row = 0; row < rows; row++) {
            const F16 factor = set1(1.0f / totals[row]);
            for (int i = row * head_dim; i < (row + 1) * head_dim; i += 16) store(sums + i, load(sums + i) * factor);
        }
    }
};

// What one thread needs for one item of work, for up to `rows` queries.
struct AttentionScratch {
    float* keys;     // [head_dim, KEYS]
    float* values;   // [KEYS, head_dim]
    float* queries;  // [rows, head_dim], times scale times log2(e)
    float* scores;   // [rows, KEYS]
    float* largest;  // [rows], and so many more that 16 can be read from each on
    float* factors;  // the same
    Found all, span;

    static int64_t floats(int rows, int head_dim) {
        return (int64_t)2 * KEYS * head_dim + (int64_t)rows * (head_dim + KEYS + 2) + 2 * 16 +
               2 * Found::floats(rows, head_dim) + Found::SLACK;
    }

    AttentionScratch(float* memory, int rows, int head_dim)
        : keys(memory), values(keys + KEYS * head_dim), queries(values + KEYS * head_dim),
          scores(queries + (int64_t)rows * head_dim), largest(scores + (int64_t)rows * KEYS),
          factors(largest + rows + 16), all(factors + rows + 16, rows, head_dim),
          span(all.sums + Found::floats(rows, head_dim), rows, head_dim) {}
};

// The queries of an item: `group` heads of each of the tokens at positions [start, start + num_tokens) see one key head,
// and of it the `window` keys up to their own.
struct Queries {
    const int32_t* blocks;
    int head, start, num_tokens, group, window;

    int first_key() const { return start - window + 1 > 0 ? start - window + 1 : 0; }
    int num_keys() const { return start + num_tokens; }
    // The keys from `from` on.
    Tile tile(int from) const { return {blocks, head, from, num_keys() - from < KEYS ? num_keys() - from : KEYS}; }
    // The tokens that see any of keys [first, end).
    int first_token(int first) const { return first > start ? first - start : 0; }
    int end_token(int end) const {
        const int64_t token = (int64_t)end - 1 + window - start;
        return token < num_tokens ? (int)token : num_tokens;
    }
};

// Turn the scores of rows [first_row, first_row + rows) for the keys from `first` on, so many sixteens of them, into
// weights, in place. s.factors becomes what the rows' earlier sums must be multiplied with.
inline void update_softmax(const Queries& q, int first, int first_row, int rows, int sixteens, const Found& found,
                           const AttentionScratch& s) {
    float* old_largest = found.largest + first_row;
    for (int row = 0; row < rows; row++) {
        const int position = q.start + (first_row + row) / q.group;
        const int from = position - q.window + 1 - first, to = position + 1 - first;
        float* scores = s.scores + row * KEYS;
        F16 top = set1(old_largest[row]);
        for (int n = 0; n < sixteens; n++) {
            F16 score = load(scores + n * 16);
            if (from > n * 16 || to < n * 16 + 16) {
                const F16 column = to_float(iota() + set1((int32_t)(n * 16)));
                score = where_less(column, set1((float)to), score, set1(-INFINITY));
                score = where_less(column, set1((float)from), set1(-INFINITY), score);
                store(scores + n * 16, score);
            }
            top = max(top, score);
        }
        s.largest[row] = reduce_max(top);
    }
    for (int row = 0; row < rows; row += 16)
        store(s.factors + row, exp2(load(old_largest + row) - load(s.largest + row)));
    for (int row = 0; row < rows; row++) {
        float* scores = s.scores + row * KEYS;
        const F16 top = set1(s.largest[row]);
        F16 total = set1(0.0f);
        for (int n = 0; n < sixteens; n++) {
            const F16 weight = exp2(load(scores + n * 16) - top);
            store(scores + n * 16, weight);
            total = total + weight;
        }
        found.totals[first_row + row] = found.totals[first_row + row] * s.factors[row] + reduce_add(total);
        old_largest[row] = s.largest[row];
    }
}

// Add what the queries find in a tile of a span to `found`. `next` is the tile that is read after it.
inline void attend_tile(const LayerCache& cache, const Queries& q, const Tile& tile, const Tile& next,
                        const Found& found, const AttentionScratch& s) {
    const int head_dim = cache.head_dim, first_row = q.first_token(tile.first) * q.group;
    const int rows = q.end_token(tile.first + tile.count) * q.group - first_row, sixteens = (tile.count + 15) / 16;
    if (rows <= 0) return;
    const float* queries = s.queries + (int64_t)first_row * head_dim;
    float* sums = found.sums + (int64_t)first_row * head_dim;
    // Four sixteens take little longer than one: where there are more than one, four.
    const int columns = sixteens % 4 == 1 ? sixteens * 16 : (sixteens + 3) / 4 * 64;
    if (cache.is_direct() && rows <= FEW_QUERIES) {
        const Bundles keys(cache, 0, tile), next_keys(cache, 0, next);
        multiply_floats(queries, head_dim, KeyColumns{keys, next_keys}, rows, head_dim, columns, nullptr, s.scores,
                        KEYS);
        update_softmax(q, tile.first, first_row, rows, sixteens, found, s);
        const Bundles values(cache, 1, tile), next_values(cache, 1, next);
        multiply_floats(s.scores, KEYS, ValueRows{values, next_values, head_dim}, rows, tile.count, head_dim, s.factors,
                        sums, head_dim);
    } else {
        load_keys(cache, q.blocks, q.head, tile.first, tile.count, s.keys);
        multiply_floats(queries, head_dim, FloatRows{s.keys, KEYS}, rows, head_dim, columns, nullptr, s.scores, KEYS);
        update_softmax(q, tile.first, first_row, rows, sixteens, found, s);
        load_values(cache, q.blocks, q.head, tile.first, tile.count, s.values);
        multiply_floats(s.scores, KEYS, FloatRows{s.values, head_dim}, rows, tile.count, head_dim, s.factors, sums,
                        head_dim);
    }
}

// `found` becomes what the queries find in the span [first, end). `next` is the tile that is read after all of theirs.
inline void attend_span(const LayerCache& cache, const Queries& q, int first, int end, const Tile& next,
                        const Found& found, const AttentionScratch& s) {
    found.clear(q.num_tokens * q.group, cache.head_dim);
    for (int key = first; key < end && key < q.num_keys(); key += KEYS)
        if (key + KEYS > q.first_key()) {
            const Tile tile = q.tile(key), following = key + KEYS < q.num_keys() ? q.tile(key + KEYS) : next;
            attend_tile(cache, q, tile, following.count ? following : tile, found, s);
        }
}

// s.all becomes what the queries find in all keys that they see, divided.
inline void attend(const LayerCache& cache, const Queries& q, const Tile& next, const AttentionScratch& s) {
    s.all.clear(q.num_tokens * q.group, cache.head_dim);
    for (int first = 0, end; first < q.num_keys(); first = end) {
        end = span_end(first);
        if (end <= q.first_key()) continue;
        attend_span(cache, q, first, end, next, s.span, s);
        s.all.add(s.span, q.first_token(first) * q.group, q.end_token(end) * q.group, cache.head_dim);
    }
    s.all.divide(q.num_tokens * q.group, cache.head_dim);
}

}  // namespace
