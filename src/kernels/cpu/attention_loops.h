/* attention_loops.h - attention for one type, REAL: the functions of attention_f32.c, f64_attention.c and
 * attention_bf16.c, which define it, its vectors, and of what its products are made (attention_products.h).
 *
 * Both ways first copy k and v of a head to rows without gaps.
 *
 * Forward takes a block of queries and goes over the keys in blocks. The lanes of vectors are queries: the
 * scores of a block are stored as (keys, queries), so a query's largest score, its sum of exponentials and
 * its factors are elements of vectors, and nothing is summed across lanes. Both products then read k and v
 * element by element:
 *
 *     scores (keys, queries) = k (keys, D) q^T (D, queries)
 *     y^T (D_v, queries) = y^T decay + v^T (D_v, keys) p (keys, queries)
 *
 * where only q is transposed before and y afterwards. The softmax is the running one: if a block of keys has
 * a larger score, what was summed before is multiplied by decay = exp(old maximum - new maximum). Scores are
 * in units of ln 2, so that exponentials are powers of two.
 *
 * Backward goes over the queries in blocks, and for each over the keys in blocks: it computes p and the
 * scores' gradients again as (keys, queries), and adds to all three gradients by products whose lanes are D
 * and D_v. It takes one span of keys after the other, each with all queries: then k, v, dk and dv stay in the
 * cache, and dq in memory is added to once for each span. */
#ifndef TERN_SRC_KERNELS_CPU_ATTENTION_LOOPS_H
#define TERN_SRC_KERNELS_CPU_ATTENTION_LOOPS_H

#include "kernels/cpu/attention_products.h"
#include "kernels/cpu/dropout_draws.h"

#define QUERIES TERN__ATTENTION_QUERIES
#define KEYS    TERN__ATTENTION_KEYS

/* Keys in a block across the diagonal of is_causal. */
#define DIAGONAL 32

/* Numbers in the rows of k and v that backward takes at a time, for a second-level cache of 1 MiB. */
#define SPAN (1 << 17)

/* ---- rows in memory ---- */

/* The rows of a head, `step` elements apart. */
typedef struct head_rows {
    void *data;
    tern_dtype dtype;
    int64_t step, columns;
} head_rows;

static head_rows rows_of(const tern__view *x, int64_t b, int64_t h)
{
    char *data = x->data;
    data += (b * x->stride[0] + h * x->stride[1]) * (int64_t)tern_dtype_bytes(x->dtype);
    return (head_rows){data, x->dtype, x->stride[2], x->shape[3]};
}

TERN__INLINE void rows_get(REAL *to, const head_rows *from, int64_t first, int64_t count, REAL factor,
                           tern_dtype dtype)
{
    int64_t columns = from->columns, padded = (columns + WIDTH - 1) / WIDTH * WIDTH;
    for (int64_t r = 0; r < count; r++, to += padded) {
        int64_t at = (first + r) * from->step, c = 0;
        for (; c + WIDTH <= columns; c += WIDTH)
            vector_store(to + c, GET(from->data, dtype, at + c, WIDTH) * factor);
        if (c < columns) vector_store(to + c, GET(from->data, dtype, at + c, (int)(columns - c)) * factor);
    }
}

/* Loads rows times a factor, each filled up with zeros to whole vectors. */
TERN__SIMD static void rows_load(REAL *to, const head_rows *from, int64_t first, int64_t count, REAL factor)
{
    switch (from->dtype) {
    case TERN_BF16: rows_get(to, from, first, count, factor, TERN_BF16); break;
    case TERN_F16: rows_get(to, from, first, count, factor, TERN_F16); break;
    default: rows_get(to, from, first, count, factor, TERN_F32); break;
    }
}

/* The inverse: stores or adds. */
TERN__SIMD static void rows_store(const head_rows *to, int64_t first, int64_t count, const REAL *from,
                                  REAL factor, bool add)
{
    int64_t columns = to->columns, padded = (columns + WIDTH - 1) / WIDTH * WIDTH;
    for (int64_t r = 0; r < count; r++, from += padded) {
        int64_t at = (first + r) * to->step, c = 0;
        for (; c + WIDTH <= columns; c += WIDTH)
            SET(to->data, to->dtype, at + c, vector_load(from + c) * factor, WIDTH, add);
        if (c < columns)
            SET(to->data, to->dtype, at + c, vector_load(from + c) * factor, (int)(columns - c), add);
    }
}

/* to[c][r] = from[r][c] for `rows` rows, of which whole vectors can be read. to's rows are filled up with
 * zeros to whole vectors. */
TERN__SIMD static void rows_turn(REAL *to, int64_t to_step, const REAL *from, int64_t from_step, int64_t rows,
                                 int64_t columns)
{
    for (int64_t r = 0; r < rows; r += WIDTH)
        for (int64_t c = 0; c < columns; c += WIDTH) {
            VECTOR v[WIDTH];
            if (r + WIDTH <= rows) {
                EACH(l, WIDTH) v[l] = vector_load(from + (r + l) * from_step + c);
            } else {
                EACH(l, WIDTH)
                v[l] = r + l < rows ? vector_load(from + (r + l) * from_step + c) : (VECTOR){0};
            }
            vector_turn(v);
            if (c + WIDTH <= columns) {
                EACH(l, WIDTH) vector_store(to + (c + l) * to_step + r, v[l]);
            } else
                for (int l = 0; l < columns - c; l++) vector_store(to + (c + l) * to_step + r, v[l]);
        }
}

/* ---- operands of products ---- */

static int64_t padded_columns(int64_t columns)
{
    return (columns + WIDTH - 1) / WIDTH * WIDTH;
}

#if PAIR == 1

/* Rows as operands whose pairs are columns, or rows. */
static void rows_pair(FACTOR *to, const head_rows *from, int64_t first, int64_t count)
{
    rows_load(to, from, first, count, 1);
}
#define rows_zip rows_pair

/* Rows that rows_zip has loaded, with pairs of columns: as they are, or loaded into `room`. */
static const FACTOR *rows_paired(FACTOR *room, const head_rows *from, int64_t first, int64_t count,
                                 const FACTOR *zipped)
{
    (void)room, (void)from, (void)first, (void)count;
    return zipped;
}

/* Scores (keys, QUERIES) as operands whose pairs are queries, or keys. */
static const FACTOR *scores_pair(FACTOR *to, const REAL *from, int64_t keys, int64_t first, int64_t last)
{
    (void)to, (void)keys, (void)first, (void)last;
    return from;
}
#define scores_zip scores_pair

#else

/* Rows as operands whose pairs are columns. */
TERN__SIMD static void rows_pair(FACTOR *to, const head_rows *from, int64_t first, int64_t count)
{
    int64_t words = padded_columns(STEPS(from->columns));
    for (int64_t r = 0; r < count; r++, to += words) {
        const uint16_t *row = (const uint16_t *)from->data + (first + r) * from->step;
        memset(to + words - WIDTH, 0, sizeof(FACTORS));
        memcpy(to, row, (size_t)from->columns * sizeof(*row));
    }
}

TERN__INLINE tern__halves halves_load(const uint16_t *from, int64_t count)
{
    tern__halves v = {0};
    if (count >= WIDTH)
        memcpy(&v, from, sizeof(v));
    else
        memcpy(&v, from, (size_t)count * sizeof(*from));
    return v;
}

/* Rows as operands whose pairs are rows. */
TERN__SIMD static void rows_zip(FACTOR *to, const head_rows *from, int64_t first, int64_t count)
{
    int64_t padded = padded_columns(from->columns);
    for (int64_t r = 0; r < count; r += PAIR, to += padded) {
        const uint16_t *row = (const uint16_t *)from->data + (first + r) * from->step;
        for (int64_t c = 0; c < from->columns; c += WIDTH) {
            tern__halves low = halves_load(row + c, from->columns - c), high = {0};
            if (r + 1 < count) high = halves_load(row + from->step + c, from->columns - c);
            FACTORS both = tern__words_of(low) | tern__words_of(high) << 16;
            memcpy(to + c, &both, sizeof(both));
        }
    }
}

static const FACTOR *rows_paired(FACTOR *room, const head_rows *from, int64_t first, int64_t count,
                                 const FACTOR *zipped)
{
    (void)zipped;
    rows_pair(room, from, first, count);
    return room;
}

/* Scores (keys, QUERIES) of queries first .. last - 1 as operands whose pairs are queries. What stands beside
 * the last query may be NaN. */
TERN__SIMD static const FACTOR *scores_pair(FACTOR *to, const REAL *from, int64_t keys, int64_t first,
                                            int64_t last)
{
    for (int64_t j = 0; j < keys; j++) {
        uint16_t *row = (uint16_t *)to + j * QUERIES;
        for (int64_t i = first; i < last; i += WIDTH) {
            tern__halves v = HALVES(vector_load(from + j * QUERIES + i));
            memcpy(row + i, &v, sizeof(v));
        }
        if (last % PAIR) memset(row + last, 0, sizeof(*row));
    }
    return to;
}

/* The same with pairs of keys. */
TERN__SIMD static const FACTOR *scores_zip(FACTOR *to, const REAL *from, int64_t keys, int64_t first,
                                           int64_t last)
{
    for (int64_t j = 0; j < keys; j += PAIR, from += PAIR * QUERIES)
        for (int64_t i = first; i < last; i += WIDTH) {
            VECTOR high = j + 1 < keys ? vector_load(from + QUERIES + i) : (VECTOR){0};
            FACTORS both = ZIP(vector_load(from + i), high);
            memcpy(to + j / PAIR * QUERIES + i, &both, sizeof(both));
        }
    return to;
}

#endif

/* ---- a block of queries, and a block of keys beside it ---- */

typedef struct attention_block {
    const tern__attention *a;
    int64_t b, h;               /* the sample, and the head of q */
    int64_t first, count;       /* queries */
    int64_t vectors;            /* of queries */
    int64_t key, keys;          /* the first key, and how many */
    int64_t from;               /* queries' first vector for which a key of these takes part */
    FACTOR *query;              /* q^T (D, QUERIES) */
    REAL *scores;               /* (KEYS, QUERIES) */
    FACTOR *weights;            /* room for them as an operand */
    REAL *bias, *kept, *staged; /* mask and dropout's factors (KEYS, QUERIES); room for rows of any kind */
    bool is_row;                /* bias has one number for each key */
} attention_block;

/* The next `count` numbers of scratch memory; NULL if they are only counted. */
static REAL *room_cut(REAL *room, int64_t *used, int64_t count)
{
    REAL *at = room ? room + *used : NULL;
    *used += (count + 15) / 16 * 16;
    return at;
}

static attention_block block_of(const tern__attention *a, REAL *room, int64_t *used)
{
    attention_block k = {.a = a};
    int64_t row = TERN__MAX(KEYS, TERN__MAX(padded_columns(a->n.depth), padded_columns(a->n.width)));
    k.query = (FACTOR *)room_cut(room, used, STEPS(a->n.depth) * QUERIES);
    k.scores = room_cut(room, used, KEYS * QUERIES);
    k.weights = (FACTOR *)room_cut(room, used, PAIR == 1 ? 0 : KEYS / PAIR * QUERIES);
    k.staged = room_cut(room, used, row * QUERIES);
    k.bias = a->mask ? room_cut(room, used, KEYS * QUERIES) : NULL;
    k.kept = a->attr->dropout.threshold ? room_cut(room, used, KEYS * QUERIES) : NULL;
    return k;
}

/* The block begins with query `first` of head h of sample b. */
static void block_at(attention_block *k, int64_t b, int64_t h, int64_t first)
{
    k->b = b;
    k->h = h;
    k->first = first;
    k->count = TERN__MIN(QUERIES, k->a->n.queries - first);
    k->vectors = (k->count + WIDTH - 1) / WIDTH;
}

/* Transposes the block's rows of q or dy, which have pairs of columns. */
static void block_turn(const attention_block *k, FACTOR *to, const FACTOR *rows, int64_t columns)
{
    int64_t steps = STEPS(columns);
    rows_turn((REAL *)to, QUERIES, (const REAL *)rows, padded_columns(steps), k->count, steps);
}

/* How many keys the queries see together. */
static int64_t block_keys(const attention_block *k)
{
    return tern__attention_seen(k->a->attr, k->first + k->count - 1, k->a->n.keys);
}

/* How many of the keys from `key` to `end` are taken at a time. Those that only some of the queries see are
 * taken in short blocks, of which the queries before them take no part. */
static int64_t keys_beside(const attention_block *k, int64_t key, int64_t end)
{
    int64_t count = TERN__MIN(KEYS, end - key);
    if (!k->a->attr->is_causal || key + count <= k->first) return count;
    return TERN__MIN(count, key < k->first ? k->first - key : DIAGONAL);
}

/* One row of the mask as numbers that are added to scores in units of ln 2. */
TERN__SIMD static void mask_load(REAL *to, const tern__view *mask, int64_t at, int64_t step, int64_t count)
{
    if (mask->dtype != TERN_BOOL)
        for (int64_t j = 0; j < count; j++)
            to[j] = GET(mask->data, mask->dtype, at + j * step, 1)[0] * (REAL)M_LOG2E;
    else
        for (int64_t j = 0; j < count; j++)
            to[j] = ((const uint8_t *)mask->data)[at + j * step] ? 0 : -(REAL)INFINITY;
}

/* The same for several rows, whose elements are mostly adjacent. */
static void mask_load_rows(REAL *to, const tern__view *mask, int64_t at, int64_t rows, int64_t count)
{
    head_rows from = {mask->data, mask->dtype, mask->stride[2], count};
    bool is_plain = mask->dtype != TERN_BOOL && mask->stride[3] == 1 && count == KEYS;
    from.data = (char *)from.data + at * (int64_t)tern_dtype_bytes(mask->dtype);
    if (is_plain)
        rows_load(to, &from, 0, rows, (REAL)M_LOG2E);
    else
        for (int64_t i = 0; i < rows; i++, at += mask->stride[2], to += KEYS)
            mask_load(to, mask, at, mask->stride[3], count);
}

static void bias_load(attention_block *k)
{
    const tern__view *mask = k->a->mask;
    int64_t at = k->b * mask->stride[0] + k->h * mask->stride[1] + k->key * mask->stride[3];
    k->is_row = mask->stride[2] == 0;
    if (k->is_row) {
        mask_load(k->bias, mask, at, mask->stride[3], k->keys);
        return;
    }
    mask_load_rows(k->staged, mask, at + k->first * mask->stride[2], k->count, k->keys);
    rows_turn(k->bias, QUERIES, k->staged, KEYS, k->count, k->keys);
}

/* Loads dropout's factors (queries, KEYS) into `staged`. They are drawn in chunks. */
static void kept_rows(const attention_block *k)
{
    const tern__attention *a = k->a;
    const tern__dropout_attr *draw = &a->attr->dropout;
    float drawn[KEYS + 2 * TERN__DROPOUT_CHUNK];
    for (int64_t i = 0; i < k->count; i++) {
        int64_t row = (k->b * a->n.heads + k->h) * a->n.queries + k->first + i, at = row * a->n.keys + k->key;
        int64_t chunk = at / TERN__DROPOUT_CHUNK, skip = at % TERN__DROPOUT_CHUNK;
        int64_t chunks = (skip + k->keys + TERN__DROPOUT_CHUNK - 1) / TERN__DROPOUT_CHUNK;
        TERN__OF_WIDTH(tern__dropout).draw(draw, chunk, chunks, drawn);
        REAL *to = k->staged + i * KEYS, scale = (REAL)draw->scale;
        for (int64_t j = 0; j < k->keys; j++) to[j] = drawn[skip + j] != 0 ? scale : 0;
    }
}

static const REAL numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* The scores of a key in a vector of queries at `at`, with its mask; the first `hidden` queries come before
 * the key. */
TERN__INLINE VECTOR masked_score(const REAL *at, const REAL *bias, bool is_row, int64_t hidden)
{
    VECTOR s = vector_load(at);
    if (bias) s += is_row ? ALL(bias[0]) : vector_load(bias);
    if (hidden > 0) {
        INTEGERS hide = (INTEGERS)(vector_load(numbers) < ALL((REAL)hidden));
        s = (VECTOR)((INTEGERS)vector_where(~hide, s) | ((INTEGERS)ALL(-(REAL)INFINITY) & hide));
    }
    return s;
}

/* Adds mask and is_causal to the scores in vector v. */
TERN__SIMD static void mask_scores(const attention_block *k)
{
    for (int64_t v = k->from; v < k->vectors; v++) {
        int64_t first = k->a->attr->is_causal ? k->key - k->first - v * WIDTH : -KEYS;
        if (!k->bias && first + k->keys <= 0) break;
        REAL *at = k->scores + v * WIDTH;
        const REAL *bias = k->bias ? k->bias + (k->is_row ? 0 : v * WIDTH) : NULL;
        for (int64_t j = 0; j < k->keys; j++, at += QUERIES) {
            vector_store(at, masked_score(at, bias, k->is_row, first + j));
            if (bias) bias += k->is_row ? 1 : QUERIES;
        }
    }
}

/* The scores, in units of ln 2, of the keys in rows at `keys`, `step` apart, and what is to be added to them
 * and multiplied. */
static void block_scores(attention_block *k, const FACTOR *keys, int64_t step, int64_t key, int64_t count)
{
    const tern__attention *a = k->a;
    k->key = key;
    k->keys = count;
    k->from = a->attr->is_causal && key > k->first ? (key - k->first) / WIDTH : 0;
    int64_t column = k->from * WIDTH;
    product p = {.a = keys,
                 .b = k->query + column,
                 .c = k->scores + column,
                 .rows = count,
                 .depth = STEPS(a->n.depth),
                 .scale = (REAL)(a->attr->scale * M_LOG2E),
                 .vectors = k->vectors - k->from,
                 .a_row = step,
                 .a_step = 1,
                 .b_step = QUERIES,
                 .c_step = QUERIES};
    attention_multiply(&p);
    if (k->kept) {
        kept_rows(k);
        rows_turn(k->kept, QUERIES, k->staged, KEYS, k->count, k->keys);
    }
    if (k->bias) bias_load(k);
    mask_scores(k);
}

/* ---- forward ---- */

typedef struct running_sums {
    REAL *result;              /* y^T (D_v, QUERIES), not yet divided by the total */
    REAL *top, *total, *decay; /* of each query */
} running_sums;

/* The largest of the numbers at `from` in each lane and of `top`; NaN is none. Several at a time, since each
 * comparison waits for the one before it. */
TERN__INLINE VECTOR largest_scores(VECTOR top, const REAL *from, int64_t count)
{
    VECTOR tops[4] = {top, top, top, top};
    for (int64_t j = 0; j < count; j += 4) EACH(i, 4)
        {
            VECTOR s = vector_load(from + TERN__MIN(j + i, count - 1) * QUERIES);
            tops[i] = vector_larger(s, tops[i]);
        }
    return vector_larger(vector_larger(tops[0], tops[1]), vector_larger(tops[2], tops[3]));
}

/* Replaces the scores in a vector of queries by probabilities, up to a factor, and those by weights. */
TERN__INLINE void soften_vector(REAL *scores, const REAL *kept, int64_t keys, const running_sums *r,
                                int64_t at)
{
    VECTOR before = vector_load(r->top + at), top = largest_scores(before, scores, keys), total = {0};
    VECTOR shift = vector_where(~(INTEGERS)(top == ALL(-(REAL)INFINITY)), top);
    VECTOR decay = vector_power_of_2(before - shift);
    for (int64_t j = 0; j < keys; j++, scores += QUERIES) {
        VECTOR p = vector_power_of_2(vector_load(scores) - shift);
        total += p;
        if (kept) p *= vector_load(kept + j * QUERIES);
        vector_store(scores, p);
    }
    vector_store(r->top + at, top);
    vector_store(r->decay + at, decay);
    vector_store(r->total + at, vector_load(r->total + at) * decay + total);
}

TERN__SIMD static void attention_soften(const attention_block *k, const running_sums *r)
{
    for (int64_t at = k->from * WIDTH; at < k->vectors * WIDTH; at += WIDTH)
        if (k->kept)
            soften_vector(k->scores + at, k->kept + at, k->keys, r, at);
        else
            soften_vector(k->scores + at, NULL, k->keys, r, at);
}

/* Divides by the totals; a query without keys has total 0 and result 0. */
TERN__SIMD static void attention_divide(const attention_block *k, const running_sums *r)
{
    for (int64_t at = 0; at < k->vectors * WIDTH; at += WIDTH) {
        VECTOR total = vector_load(r->total + at);
        VECTOR inverse = vector_where(~(INTEGERS)(total == ALL(0)), 1 / total);
        for (int64_t d = 0; d < k->a->n.width; d++) {
            REAL *to = r->result + d * QUERIES + at;
            vector_store(to, vector_load(to) * inverse);
        }
    }
}

static void lse_store(const attention_block *k, const running_sums *r)
{
    const tern__view *to = k->a->call->out[1];
    if (!to) return;
    REAL *lse = (REAL *)to->data + (k->b * k->a->n.heads + k->h) * k->a->n.queries + k->first;
    for (int64_t i = 0; i < k->count; i++)
        lse[i] =
            r->total[i] == 0 ? (REAL)INFINITY : (REAL)((double)r->top[i] * M_LN2 + log((double)r->total[i]));
}

static void forward_end(const attention_block *k, const running_sums *r)
{
    const tern__call *call = k->a->call;
    int64_t width = k->a->n.width;
    head_rows y = rows_of(call->out[0], k->b, k->h);
    attention_divide(k, r);
    rows_turn(k->staged, padded_columns(width), r->result, QUERIES, width, k->vectors * WIDTH);
    rows_store(&y, k->first, k->count, k->staged, 1, call->add[0]);
    lse_store(k, r);
}

static running_sums running_of(const tern__attention *a, REAL *room, int64_t *used)
{
    running_sums r = {.result = room_cut(room, used, padded_columns(a->n.width) * QUERIES)};
    r.top = room_cut(room, used, QUERIES);
    r.total = room_cut(room, used, QUERIES);
    r.decay = room_cut(room, used, QUERIES);
    return r;
}

/* Nothing is summed yet. */
static void running_begin(const running_sums *r, int64_t width)
{
    memset(r->result, 0, (size_t)(width * QUERIES) * sizeof(REAL));
    for (int64_t i = 0; i < QUERIES; i++) {
        r->top[i] = -(REAL)INFINITY;
        r->total[i] = 0;
    }
}

static int64_t forward_room(const tern__attention *a)
{
    int64_t used = 0;
    block_of(a, NULL, &used);
    running_of(a, NULL, &used);
    room_cut(NULL, &used, a->n.keys * padded_columns(STEPS(a->n.depth)));
    room_cut(NULL, &used, STEPS(a->n.keys) * padded_columns(a->n.width));
    return used;
}

/* A block of queries with the keys and values. */
static void forward_block(attention_block *k, const running_sums *r, const FACTOR *keys, const FACTOR *values)
{
    const tern__attention_shape *n = &k->a->n;
    int64_t depth = padded_columns(STEPS(n->depth)), width = padded_columns(n->width), end = block_keys(k);
    head_rows q = rows_of(k->a->q, k->b, k->h);
    rows_pair((FACTOR *)k->staged, &q, k->first, k->count);
    block_turn(k, k->query, (FACTOR *)k->staged, n->depth);
    running_begin(r, width);
    for (int64_t key = 0; key < end; key += k->keys) {
        block_scores(k, keys + key * depth, depth, key, keys_beside(k, key, end));
        attention_soften(k, r);
        int64_t column = k->from * WIDTH;
        product p = {.a = values + key / PAIR * width,
                     .b = scores_zip(k->weights, k->scores, k->keys, column, k->vectors * WIDTH) + column,
                     .c = r->result + column,
                     .rows = n->width,
                     .depth = STEPS(k->keys),
                     .vectors = k->vectors - k->from,
                     .a_row = 1,
                     .a_step = width,
                     .b_step = QUERIES,
                     .c_step = QUERIES,
                     .decay = r->decay + column,
                     .add = true};
        attention_multiply(&p);
    }
    forward_end(k, r);
}

static void attention_forward(const tern__attention *a, int64_t item, void *memory)
{
    const tern__attention_shape *n = &a->n;
    int64_t used = 0, head = item / a->parts, b = head / n->heads, h = head % n->heads;
    int64_t key_head = h / (n->heads / n->key_heads), block = a->blocks - 1 - item % a->parts;
    attention_block k = block_of(a, memory, &used);
    running_sums r = running_of(a, memory, &used);
    FACTOR *keys = (FACTOR *)room_cut(memory, &used, n->keys * padded_columns(STEPS(n->depth)));
    FACTOR *values = (FACTOR *)room_cut(memory, &used, STEPS(n->keys) * padded_columns(n->width));
    head_rows ks = rows_of(a->k, b, key_head), vs = rows_of(a->v, b, key_head);
    block_at(&k, b, h, block * QUERIES);
    rows_pair(keys, &ks, 0, block_keys(&k));
    rows_zip(values, &vs, 0, block_keys(&k));
    for (; block >= 0; block -= a->parts) {
        block_at(&k, b, h, block * QUERIES);
        forward_block(&k, &r, keys, values);
    }
}

/* ---- backward ---- */

typedef struct head_gradients {
    FACTOR *keys, *values;      /* the head's rows, with pairs of columns */
    FACTOR *keys_zipped;        /* with pairs of rows */
    REAL *dk, *dv;              /* sums for their gradients */
    FACTOR *q, *dy, *dy_turned; /* the block's rows, with pairs of rows, and dy^T (D_v, QUERIES) */
    REAL *dq, *rows;            /* dq of all queries; room for dy in REAL */
    REAL *slopes;               /* dp, then ds (KEYS, QUERIES) */
    REAL *lse, *delta;          /* of each query */
    bool wants_dq, wants_dk, wants_dv;
} head_gradients;

static head_gradients back_of(const tern__attention *a, REAL *room, int64_t *used)
{
    int64_t depth = padded_columns(a->n.depth), width = padded_columns(a->n.width), keys = a->n.keys;
    int64_t depth_steps = padded_columns(STEPS(a->n.depth)), width_steps = padded_columns(STEPS(a->n.width));
    head_gradients k = {.keys = (FACTOR *)room_cut(room, used, keys * depth_steps),
                        .values = (FACTOR *)room_cut(room, used, keys * width_steps)};
    k.keys_zipped = PAIR == 1 ? k.keys : (FACTOR *)room_cut(room, used, STEPS(keys) * depth);
    k.dk = room_cut(room, used, keys * depth);
    k.dv = room_cut(room, used, keys * width);
    k.q = (FACTOR *)room_cut(room, used, STEPS(QUERIES) * depth);
    k.dq = room_cut(room, used, a->n.queries * depth);
    k.dy = (FACTOR *)room_cut(room, used, STEPS(QUERIES) * width);
    k.rows = PAIR == 1 ? (REAL *)k.dy : room_cut(room, used, QUERIES * width);
    k.dy_turned = (FACTOR *)room_cut(room, used, STEPS(a->n.width) * QUERIES);
    k.slopes = room_cut(room, used, KEYS * QUERIES);
    k.lse = room_cut(room, used, QUERIES);
    k.delta = room_cut(room, used, QUERIES);
    return k;
}

static int64_t backward_room(const tern__attention *a)
{
    int64_t used = 0;
    block_of(a, NULL, &used);
    back_of(a, NULL, &used);
    return used;
}

/* The sum of dy y for each row. */
TERN__SIMD static void dot_rows(REAL *to, const REAL *dy, const REAL *y, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++, dy += columns, y += columns) {
        VECTOR sum = {0};
        REAL lanes[WIDTH], all = 0;
        for (int64_t c = 0; c < columns; c += WIDTH) sum += vector_load(dy + c) * vector_load(y + c);
        vector_store(lanes, sum);
        for (int l = 0; l < WIDTH; l++) all += lanes[l];
        to[r] = all;
    }
}

/* Queries that do not exist have probability 0. */
static void back_begin(const attention_block *k, const head_gradients *g)
{
    const tern__attention *a = k->a;
    const tern__call *call = a->call;
    int64_t row = (k->b * a->n.heads + k->h) * a->n.queries + k->first, width = padded_columns(a->n.width);
    head_rows q = rows_of(a->q, k->b, k->h), dy = rows_of(call->in[0], k->b, k->h);
    head_rows y = rows_of(call->in[5], k->b, k->h);
    FACTOR *room = (FACTOR *)k->staged;
    rows_zip(g->q, &q, k->first, k->count);
    block_turn(k, k->query, rows_paired(room, &q, k->first, k->count, g->q), a->n.depth);
    rows_load(g->rows, &dy, k->first, k->count, 1);
    rows_load(k->staged, &y, k->first, k->count, 1);
    for (int64_t i = k->count; i < QUERIES; i++) {
        g->lse[i] = (REAL)INFINITY;
        g->delta[i] = 0;
    }
    dot_rows(g->delta, g->rows, k->staged, k->count, width);
    if (PAIR > 1) rows_zip(g->dy, &dy, k->first, k->count);
    block_turn(k, g->dy_turned, rows_paired(room, &dy, k->first, k->count, g->dy), a->n.width);
    const REAL *lse = (const REAL *)call->in[6]->data + row;
    for (int64_t i = 0; i < k->count; i++) g->lse[i] = lse[i] * (REAL)M_LOG2E;
}

/* Replaces the scores in a vector of queries by weights p z, and dy v^T by the scores' gradients. */
TERN__INLINE void slopes_vector(REAL *scores, REAL *slopes, const REAL *kept, int64_t keys, VECTOR lse,
                                VECTOR delta)
{
    for (int64_t at = 0; at < keys * QUERIES; at += QUERIES) {
        VECTOR p = vector_power_of_2(vector_load(scores + at) - lse), weight = p,
               dp = vector_load(slopes + at);
        if (kept) {
            VECTOR factor = vector_load(kept + at);
            weight *= factor;
            dp *= factor;
        }
        vector_store(scores + at, weight);
        vector_store(slopes + at, p * (dp - delta));
    }
}

TERN__SIMD static void find_slopes(const attention_block *k, const head_gradients *g)
{
    for (int64_t at = k->from * WIDTH; at < k->vectors * WIDTH; at += WIDTH) {
        VECTOR lse = vector_load(g->lse + at), delta = vector_load(g->delta + at);
        if (k->kept)
            slopes_vector(k->scores + at, g->slopes + at, k->kept + at, k->keys, lse, delta);
        else
            slopes_vector(k->scores + at, g->slopes + at, NULL, k->keys, lse, delta);
    }
}

/* Adds the scores' gradients to the mask's. */
static void dmask_add(const attention_block *k, const head_gradients *g)
{
    const tern__view *dmask = k->a->call->out[3];
    REAL *to = (REAL *)k->a->dmask + k->b * dmask->stride[0] + k->h * dmask->stride[1];
    for (int64_t j = 0; j < k->keys; j++)
        for (int64_t i = k->from * WIDTH; i < k->count; i++)
            to[(k->first + i) * dmask->stride[2] + (k->key + j) * dmask->stride[3]] +=
                g->slopes[j * QUERIES + i];
}

/* Adds what the block of queries and the block of keys give to each other's gradients. */
static void back_add(const attention_block *k, const head_gradients *g)
{
    int64_t depth = padded_columns(k->a->n.depth), width = padded_columns(k->a->n.width),
            first = k->from * WIDTH, last = k->count;
    product p = {
        .rows = k->keys, .depth = STEPS(k->count - first), .a_row = QUERIES / PAIR, .a_step = 1, .add = true};
    if (g->wants_dv) {
        p.a = scores_pair(k->weights, k->scores, k->keys, first, last) + first / PAIR;
        p.b = g->dy + first / PAIR * width;
        p.c = g->dv + k->key * width;
        p.b_step = p.c_step = width;
        p.vectors = width / WIDTH;
        attention_multiply(&p);
    }
    p.b_step = p.c_step = depth;
    p.vectors = depth / WIDTH;
    if (g->wants_dk) {
        p.a = scores_pair(k->weights, g->slopes, k->keys, first, last) + first / PAIR;
        p.b = g->q + first / PAIR * depth;
        p.c = g->dk + k->key * depth;
        attention_multiply(&p);
    }
    if (g->wants_dq) {
        product to = {.a = scores_zip(k->weights, g->slopes, k->keys, first, last) + first,
                      .b = g->keys_zipped + k->key / PAIR * depth,
                      .c = g->dq + (k->first + first) * depth,
                      .rows = k->count - first,
                      .depth = STEPS(k->keys),
                      .vectors = depth / WIDTH,
                      .a_row = 1,
                      .a_step = QUERIES,
                      .b_step = depth,
                      .c_step = depth,
                      .add = true};
        attention_multiply(&to);
    }
}

/* A block of queries with the share's keys from first_key to `end`. */
static void back_block(attention_block *k, const head_gradients *g, const tern__attention_share *s,
                       int64_t first_key, int64_t end)
{
    const tern__attention *a = k->a;
    int64_t depth = padded_columns(STEPS(a->n.depth)), width = padded_columns(STEPS(a->n.width));
    back_begin(k, g);
    for (int64_t key = first_key; key < end; key += k->keys) {
        block_scores(k, g->keys + key * depth, depth, key, keys_beside(k, key, end));
        int64_t column = k->from * WIDTH;
        product p = {.a = g->values + key * width,
                     .b = g->dy_turned + column,
                     .c = g->slopes + column,
                     .rows = k->keys,
                     .depth = STEPS(a->n.width),
                     .vectors = k->vectors - k->from,
                     .a_row = width,
                     .a_step = 1,
                     .b_step = QUERIES,
                     .c_step = QUERIES};
        attention_multiply(&p);
        find_slopes(k, g);
        back_add(k, g);
        if (a->dmask && s->queries) dmask_add(k, g);
    }
}

/* A head of q. Its blocks go over the keys in spans, so that those and their gradients stay in the cache. */
static void back_head(attention_block *k, const head_gradients *g, const tern__attention_share *s, int64_t h)
{
    const tern__attention *a = k->a;
    int64_t depth = padded_columns(a->n.depth), count = s->last_query - s->first_query;
    int64_t span = TERN__MAX(1, SPAN / (depth + padded_columns(a->n.width)) / KEYS) * KEYS;
    REAL *sums = g->dq + s->first_query * depth;
    if (g->wants_dq) memset(sums, 0, (size_t)(count * depth) * sizeof(REAL));
    for (int64_t key = s->first_key; key < s->last_key; key += span)
        for (int64_t first = s->first_query; first < s->last_query; first += QUERIES) {
            block_at(k, s->b, h, first);
            int64_t end = TERN__MIN(TERN__MIN(key + span, s->last_key), block_keys(k));
            if (end > key) back_block(k, g, s, key, end);
        }
    if (!g->wants_dq) return;
    head_rows dq = rows_of(a->call->out[0], s->b, h);
    rows_store(&dq, s->first_query, count, sums, (REAL)a->attr->scale, a->call->add[0]);
}

static void attention_backward(const tern__attention *a, const tern__attention_share *s, void *memory)
{
    const tern__attention_shape *n = &a->n;
    const tern__call *call = a->call;
    int64_t used = 0, group = n->heads / n->key_heads, count = s->last_key - s->first_key;
    int64_t depth = padded_columns(n->depth), width = padded_columns(n->width);
    attention_block k = block_of(a, memory, &used);
    head_gradients g = back_of(a, memory, &used);
    g.wants_dq = s->queries && call->out[0];
    g.wants_dk = s->keys && call->out[1];
    g.wants_dv = s->keys && call->out[2];
    head_rows keys = rows_of(a->k, s->b, s->key_head), values = rows_of(a->v, s->b, s->key_head);
    rows_pair(g.keys + s->first_key * padded_columns(STEPS(n->depth)), &keys, s->first_key, count);
    rows_pair(g.values + s->first_key * padded_columns(STEPS(n->width)), &values, s->first_key, count);
    if (PAIR > 1) rows_zip(g.keys_zipped + s->first_key / PAIR * depth, &keys, s->first_key, count);
    REAL *dk = g.dk + s->first_key * depth, *dv = g.dv + s->first_key * width;
    memset(dk, 0, (size_t)(count * depth) * sizeof(REAL));
    memset(dv, 0, (size_t)(count * width) * sizeof(REAL));
    for (int64_t h = s->first_head; h < s->last_head; h++) back_head(&k, &g, s, s->key_head * group + h);
    for (int i = 1; i <= 2; i++) {
        if (!s->keys || !call->out[i]) continue;
        head_rows to = rows_of(call->out[i], s->b, s->key_head);
        rows_store(&to, s->first_key, count, i == 1 ? dk : dv, i == 1 ? (REAL)a->attr->scale : 1,
                   call->add[i]);
    }
}

#endif
