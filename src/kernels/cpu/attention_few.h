/* attention_few.h - attention of a few queries, such as the one of each step of generation, for the type of
 * attention_loops.h.
 *
 * A few queries do not fill vectors, so the lanes are keys for the scores and D_v for the result:
 *
 *     scores (queries, keys) = q (queries, D) k^T (D, keys)
 *     y (queries, D_v) = y decay + p (queries, keys) v (keys, D_v)
 *
 * Scores are sums over the lanes of products of rows: those of as many keys as there are lanes are
 * transposed, and added. A single query reads k and v once and computes less than that takes. */
#ifndef TERN_SRC_KERNELS_CPU_ATTENTION_FEW_H
#define TERN_SRC_KERNELS_CPU_ATTENTION_FEW_H

#include "kernels/cpu/attention_loops.h"

#define FEW TERN__ATTENTION_FEW

/* The rows of k or v from number `key` on, in place if whole vectors can be read, else loaded into `room`. */
static const REAL *whole_rows_at(const head_rows *x, int64_t key, int64_t count, REAL *room, int64_t *step)
{
    *step = x->step;
    if (x->columns % WIDTH == 0 && !tern__dtype_is_half(x->dtype)) return (const REAL *)x->data + key * *step;
    *step = padded_columns(x->columns);
    rows_load(room, x, key, count, 1);
    return room;
}

/* The scores (FEW, KEYS) of the block's keys; those of keys that do not exist are any numbers. */
TERN__SIMD static void few_scores(const attention_block *k, const REAL *query, const REAL *keys, int64_t step)
{
    int64_t columns = padded_columns(k->a->n.depth);
    const REAL scale = (REAL)(k->a->attr->scale * M_LOG2E);
    for (int64_t i = 0; i < k->count; i++, query += columns)
        for (int64_t j = 0; j < k->keys; j += WIDTH) {
            VECTOR sum[WIDTH] = {{0}};
            EACH(l, WIDTH)
            {
                const REAL *key = keys + TERN__MIN(j + l, k->keys - 1) * step;
                for (int64_t c = 0; c < columns; c += WIDTH)
                    sum[l] += vector_load(query + c) * vector_load(key + c);
            }
            vector_turn(sum);
            for (int l = 1; l < WIDTH; l++) sum[0] += sum[l];
            vector_store(k->scores + i * KEYS + j, sum[0] * scale);
        }
}

/* Adds the mask and is_causal, up to whole vectors of keys. */
static void few_mask(const attention_block *k)
{
    const tern__view *mask = k->a->mask;
    if (mask)
        mask_load_rows(k->staged, mask,
                       k->b * mask->stride[0] + k->h * mask->stride[1] + k->key * mask->stride[3], k->count,
                       k->keys);
    for (int64_t i = 0; i < k->count; i++) {
        REAL *row = k->scores + i * KEYS;
        int64_t seen = tern__attention_seen(k->a->attr, i, k->key + k->keys) - k->key;
        for (int64_t j = 0; mask && j < k->keys; j++) row[j] += k->staged[i * KEYS + j];
        for (int64_t j = TERN__MAX(0, seen); j < padded_columns(k->keys); j++) row[j] = -(REAL)INFINITY;
    }
}

TERN__INLINE REAL lanes_added(VECTOR v)
{
    REAL lanes[WIDTH], sum = 0;
    vector_store(lanes, v);
    for (int l = 0; l < WIDTH; l++) sum += lanes[l];
    return sum;
}

/* Replaces a query's scores by weights, and what it has summed before by that in their unit. */
TERN__SIMD static void few_soften(const attention_block *k, const running_sums *r, int64_t i)
{
    REAL *row = k->scores + i * KEYS, before = r->top[i], lanes[WIDTH], top = before;
    VECTOR tops = ALL(before), total = {0};
    for (int64_t j = 0; j < k->keys; j += WIDTH) tops = vector_larger(vector_load(row + j), tops);
    vector_store(lanes, tops);
    for (int l = 0; l < WIDTH; l++) top = lanes[l] > top ? lanes[l] : top;
    REAL shift = top == -(REAL)INFINITY ? 0 : top, decay;
    for (int64_t j = 0; j < k->keys; j += WIDTH) {
        VECTOR p = vector_power_of_2(vector_load(row + j) - shift);
        total += p;
        if (k->kept) p *= vector_load(k->staged + i * KEYS + j);
        vector_store(row + j, p);
    }
    vector_store(lanes, vector_power_of_2(ALL(before - shift)));
    decay = lanes[0];
    r->top[i] = top;
    r->total[i] = r->total[i] * decay + lanes_added(total);
    REAL *result = r->result + i * padded_columns(k->a->n.width);
    for (int64_t c = 0; c < k->a->n.width; c += WIDTH)
        vector_store(result + c, vector_load(result + c) * decay);
}

static int64_t few_room(const tern__attention *a)
{
    int64_t used = 0, depth = padded_columns(a->n.depth), width = padded_columns(a->n.width);
    block_of(a, NULL, &used);
    running_of(a, NULL, &used);
    return used + FEW * depth + KEYS * TERN__MAX(depth, width);
}

/* All queries of a head, number b H + h. */
static void attention_few(const tern__attention *a, int64_t head, void *memory)
{
    const tern__attention_shape *n = &a->n;
    int64_t used = 0, step, b = head / n->heads, h = head % n->heads, width = padded_columns(n->width);
    attention_block k = block_of(a, memory, &used);
    running_sums r = running_of(a, memory, &used);
    REAL *query = room_cut(memory, &used, FEW * padded_columns(n->depth)), *room = room_cut(memory, &used, 0);
    int64_t key_head = h / (n->heads / n->key_heads);
    head_rows ks = rows_of(a->k, b, key_head), vs = rows_of(a->v, b, key_head), qs = rows_of(a->q, b, h);
    block_at(&k, b, h, 0);
    rows_load(query, &qs, 0, k.count, 1);
    running_begin(&r, width);
    int64_t end = block_keys(&k);
    for (k.key = 0; k.key < end; k.key += KEYS) {
        k.keys = TERN__MIN(KEYS, end - k.key);
        const REAL *keys = whole_rows_at(&ks, k.key, k.keys, room, &step);
        few_scores(&k, query, keys, step);
        few_mask(&k);
        if (k.kept) kept_rows(&k);
        for (int64_t i = 0; i < k.count; i++) few_soften(&k, &r, i);
        const REAL *values = whole_rows_at(&vs, k.key, k.keys, room, &step);
        product p = {.a = k.scores,
                     .b = values,
                     .c = r.result,
                     .rows = k.count,
                     .depth = k.keys,
                     .vectors = width / WIDTH,
                     .a_row = KEYS,
                     .a_step = 1,
                     .b_step = step,
                     .c_step = width,
                     .add = true};
        attention_multiply(&p);
    }
    head_rows y = rows_of(a->call->out[0], b, h);
    for (int64_t i = 0; i < k.count; i++)
        rows_store(&y, i, 1, r.result + i * width, r.total[i] == 0 ? 0 : 1 / r.total[i], a->call->add[0]);
    lse_store(&k, &r);
}

#endif
