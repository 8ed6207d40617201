/* attention_loops.h - attention for one type, REAL: the functions of attention_f32.c and f64_attention.c,
 * which define it and its vectors.
 *
 * Forward takes a block of queries and goes over the keys in blocks. The lanes of vectors are queries: the
 * scores of a block are stored as (keys, queries), so a query's largest score, its sum of exponentials and
 * its factors are elements of vectors, and nothing is summed across lanes. Both products then read k and v in
 * place, element by element:
 *
 *     scores (keys, queries) = k (keys, D) q^T (D, queries)
 *     y^T (D_v, queries) = y^T decay + v^T (D_v, keys) p (keys, queries)
 *
 * where only q is transposed before and y afterwards. The softmax is the running one: if a block of keys has
 * a larger score, what was summed before is multiplied by decay = exp(old maximum - new maximum). Scores are
 * in units of ln 2, so that exponentials are powers of two.
 *
 * Backward copies k and v of a head into rows of REAL without gaps. It goes over the queries in blocks, and
 * for each over the keys in blocks: it computes p and the scores' gradients again as (keys, queries), and
 * adds to all three gradients by products whose lanes are D and D_v. With queries outside, the sums in memory
 * are those of dk and dv, and dq is complete after one pass. */
#ifndef TERN_SRC_KERNELS_CPU_ATTENTION_LOOPS_H
#define TERN_SRC_KERNELS_CPU_ATTENTION_LOOPS_H

#include "kernels/cpu/dropout_draws.h"

#include <math.h>

/* The sums of a product that stay in registers: rows by vectors. */
#ifdef TERN__SLIM
#define ROWS 4
#else
#define ROWS 8
#endif
#define VECTORS 3

#define QUERIES TERN__ATTENTION_QUERIES
#define KEYS    TERN__ATTENTION_KEYS

#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

/* A vector of one number. gcc 12 makes one load of this, but sixteen of the same in a function. */
#define ALL(value) ((value) - (VECTOR){0})

/* ---- vectors ---- */

TERN__INLINE VECTOR vector_load(const REAL *from)
{
    VECTOR v;
    memcpy(&v, from, sizeof(v));
    return v;
}

TERN__INLINE void vector_store(REAL *to, VECTOR v)
{
    memcpy(to, &v, sizeof(v));
}

/* v where `keep` is not 0, else 0. */
TERN__INLINE VECTOR vector_where(INTEGERS keep, VECTOR v)
{
    return (VECTOR)((INTEGERS)v & keep);
}

/* In each lane the larger one; b, if a is NaN. */
TERN__INLINE VECTOR vector_larger(VECTOR a, VECTOR b)
{
    INTEGERS above = (INTEGERS)(a > b);
    return (VECTOR)((INTEGERS)vector_where(above, a) | (INTEGERS)vector_where(~above, b));
}

/* The powers of ln 2 over the factorials: the series of 2^r, whose first TERMS are exact to half of REAL's
 * precision for |r| <= 1/2. */
static const double series[] = {1,
                                0.693147180559945309,
                                0.240226506959100712,
                                0.0555041086648215800,
                                0.00961812910762847716,
                                0.00133335581464284434,
                                0.000154035303933816100,
                                0.0000152527338040598403,
                                1.32154867901443095e-6,
                                1.01780860092396997e-7,
                                7.05491162080112333e-9,
                                4.44553827187081150e-10,
                                2.56784359934882051e-11,
                                1.36914888539041289e-12};

/* 2^x for x up to about 0; 0 where that would hardly be a normal number. Adding a large number rounds x to
 * an integer, which is then at the end of the sum's bits, with the exponent's bias. NaN stays. */
TERN__INLINE VECTOR vector_power_of_2(VECTOR x)
{
    const VECTOR large = ALL((REAL)(3LL << (MANTISSA - 1)) + BIAS);
    VECTOR sum = x + large, rest = x - (sum - large);
    VECTOR power = ALL((REAL)series[TERMS - 1]);
    EACH(i, TERMS - 1) power = power * rest + (REAL)series[TERMS - 2 - i];
    power *= (VECTOR)((WORDS)sum << MANTISSA);
    return vector_where(~(INTEGERS)(x < ALL(1 - BIAS)), power);
}

/* ---- products ---- */

/* c (rows, vectors) = c decay + a (rows, depth) b (depth, vectors), with a's and b's elements anywhere. */
typedef struct product {
    const REAL *a, *b;
    REAL *c;
    int64_t rows, depth, vectors;
    int64_t a_row, a_step, b_step, c_step;
    const REAL *decay; /* a factor for each column of c, NULL: 1 */
    bool add;          /* false: c = a b */
} product;

/* How a's rows are stored. */
enum { ADJACENT, IN_ROWS, ANYHOW };

/* A part of c that stays in registers. Rows behind the last one are computed from the last and not stored. */
TERN__INLINE void product_panel(const product *p, int64_t row, int64_t column, int vectors, int form)
{
    const REAL *a[ROWS], *b = p->b + column;
    int64_t step = form == IN_ROWS ? 1 : p->a_step;
    VECTOR sum[ROWS][VECTORS] = {{{0}}}, values[VECTORS];
    EACH(r, ROWS)
    a[r] = form == ADJACENT ? p->a + row + r : p->a + TERN__MIN(row + r, p->rows - 1) * p->a_row;
    for (int64_t t = 0; t < p->depth; t++, b += p->b_step) {
        EACH(v, vectors) values[v] = vector_load(b + v * WIDTH);
        EACH(r, ROWS)
        {
            VECTOR factor = ALL(a[r][t * step]);
            EACH(v, vectors) sum[r][v] += factor * values[v];
        }
    }
    EACH(r, ROWS)
    {
        if (row + r >= p->rows) continue;
        REAL *to = p->c + (row + r) * p->c_step + column;
        EACH(v, vectors)
        {
            VECTOR before = p->add ? vector_load(to + v * WIDTH) : (VECTOR){0};
            if (p->decay) before *= vector_load(p->decay + column + v * WIDTH);
            vector_store(to + v * WIDTH, before + sum[r][v]);
        }
    }
}

TERN__INLINE void product_columns(const product *p, int64_t column, int vectors)
{
    for (int64_t row = 0; row < p->rows; row += ROWS) {
        if (p->a_step == 1)
            product_panel(p, row, column, vectors, IN_ROWS);
        else if (p->a_row == 1 && row + ROWS <= p->rows)
            product_panel(p, row, column, vectors, ADJACENT);
        else
            product_panel(p, row, column, vectors, ANYHOW);
    }
}

TERN__SIMD static void attention_multiply(const product *p)
{
    int64_t groups = (p->vectors + VECTORS - 1) / VECTORS;
    for (int64_t g = 0; g < groups; g++) {
        int64_t first = p->vectors * g / groups, last = p->vectors * (g + 1) / groups;
        switch (last - first) {
        case 1: product_columns(p, first * WIDTH, 1); break;
        case 2: product_columns(p, first * WIDTH, 2); break;
        default: product_columns(p, first * WIDTH, VECTORS); break;
        }
    }
}

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

/* ---- a block of queries, and a block of keys beside it ---- */

typedef struct attention_block {
    const tern__attention *a;
    int64_t b, h;               /* the sample, and the head of q */
    int64_t first, count;       /* queries */
    int64_t vectors;            /* of queries */
    int64_t key, keys;          /* the first key, and how many */
    int64_t from;               /* queries' first vector for which a key of these takes part */
    REAL *query, *scores;       /* q^T (D, QUERIES), scores (KEYS, QUERIES) */
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

static int64_t padded_columns(int64_t columns)
{
    return (columns + WIDTH - 1) / WIDTH * WIDTH;
}

static attention_block block_of(const tern__attention *a, REAL *room, int64_t *used)
{
    attention_block k = {.a = a};
    int64_t row = TERN__MAX(KEYS, TERN__MAX(padded_columns(a->n.depth), padded_columns(a->n.width)));
    k.query = room_cut(room, used, a->n.depth * QUERIES);
    k.scores = room_cut(room, used, KEYS * QUERIES);
    k.staged = room_cut(room, used, row * QUERIES);
    k.bias = a->mask ? room_cut(room, used, KEYS * QUERIES) : NULL;
    k.kept = a->attr->dropout.threshold ? room_cut(room, used, KEYS * QUERIES) : NULL;
    return k;
}

/* The block begins with query `first` of head h of sample b: loads and transposes q, in units of ln 2. */
static void block_begin(attention_block *k, int64_t b, int64_t h, int64_t first)
{
    const tern__attention *a = k->a;
    head_rows q = rows_of(a->q, b, h);
    k->b = b;
    k->h = h;
    k->first = first;
    k->count = TERN__MIN(QUERIES, a->n.queries - first);
    k->vectors = (k->count + WIDTH - 1) / WIDTH;
    rows_load(k->staged, &q, first, k->count, (REAL)(a->attr->scale * M_LOG2E));
    rows_turn(k->query, QUERIES, k->staged, padded_columns(a->n.depth), k->count, a->n.depth);
}

/* How many keys the queries see together. */
static int64_t block_keys(const attention_block *k)
{
    return tern__attention_seen(k->a->attr, k->first + k->count - 1, k->a->n.keys);
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

/* Dropout's factors, which are drawn in chunks. */
static void kept_load(attention_block *k)
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
    rows_turn(k->kept, QUERIES, k->staged, KEYS, k->count, k->keys);
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

/* The scores of the keys in rows at `keys`, `step` apart, and what is to be added to them and multiplied. */
static void block_scores(attention_block *k, const REAL *keys, int64_t step, int64_t key, int64_t count)
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
                 .depth = a->n.depth,
                 .vectors = k->vectors - k->from,
                 .a_row = step,
                 .a_step = 1,
                 .b_step = QUERIES,
                 .c_step = QUERIES};
    attention_multiply(&p);
    if (k->kept) kept_load(k);
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

static void forward_end(const attention_block *k, const running_sums *r)
{
    const tern__call *call = k->a->call;
    int64_t width = k->a->n.width;
    head_rows y = rows_of(call->out[0], k->b, k->h);
    attention_divide(k, r);
    rows_turn(k->staged, padded_columns(width), r->result, QUERIES, width, k->vectors * WIDTH);
    rows_store(&y, k->first, k->count, k->staged, 1, call->add[0]);
    if (!call->out[1]) return;
    REAL *lse = (REAL *)call->out[1]->data + (k->b * k->a->n.heads + k->h) * k->a->n.queries + k->first;
    for (int64_t i = 0; i < k->count; i++)
        lse[i] =
            r->total[i] == 0 ? (REAL)INFINITY : (REAL)((double)r->top[i] * M_LN2 + log((double)r->total[i]));
}

/* The rows of k or v from number `key` on: in place if possible, else loaded into `room`. */
static const REAL *rows_at(const head_rows *x, int64_t key, int64_t count, REAL *room, int64_t *step)
{
    if (!tern__dtype_is_half(x->dtype)) {
        *step = x->step;
        return (const REAL *)x->data + key * x->step;
    }
    *step = padded_columns(x->columns);
    rows_load(room, x, key, count, 1);
    return room;
}

static running_sums running_of(const tern__attention *a, REAL *room, int64_t *used)
{
    running_sums r = {.result = room_cut(room, used, padded_columns(a->n.width) * QUERIES)};
    r.top = room_cut(room, used, QUERIES);
    r.total = room_cut(room, used, QUERIES);
    r.decay = room_cut(room, used, QUERIES);
    return r;
}

static int64_t forward_room(const tern__attention *a)
{
    int64_t used = 0;
    block_of(a, NULL, &used);
    running_of(a, NULL, &used);
    room_cut(NULL, &used, KEYS * TERN__MAX(padded_columns(a->n.depth), padded_columns(a->n.width)));
    return used;
}

static void attention_forward(const tern__attention *a, int64_t block, void *memory)
{
    const tern__attention_shape *n = &a->n;
    int64_t used = 0, head = block / a->blocks, b = head / n->heads, h = head % n->heads, step;
    attention_block k = block_of(a, memory, &used);
    running_sums r = running_of(a, memory, &used);
    REAL *room = room_cut(memory, &used, 0);
    int64_t key_head = h / (n->heads / n->key_heads);
    head_rows ks = rows_of(a->k, b, key_head), vs = rows_of(a->v, b, key_head);
    block_begin(&k, b, h, (a->blocks - 1 - block % a->blocks) * QUERIES);
    memset(r.result, 0, (size_t)(padded_columns(n->width) * QUERIES) * sizeof(REAL));
    for (int64_t i = 0; i < QUERIES; i++) {
        r.top[i] = -(REAL)INFINITY;
        r.total[i] = 0;
    }
    int64_t end = block_keys(&k);
    for (int64_t key = 0; key < end; key += KEYS) {
        int64_t count = TERN__MIN(KEYS, end - key);
        const REAL *from = rows_at(&ks, key, count, room, &step);
        block_scores(&k, from, step, key, count);
        attention_soften(&k, &r);
        from = rows_at(&vs, key, count, room, &step);
        int64_t column = k.from * WIDTH;
        product p = {.a = from,
                     .b = k.scores + column,
                     .c = r.result + column,
                     .rows = n->width,
                     .depth = count,
                     .vectors = k.vectors - k.from,
                     .a_row = 1,
                     .a_step = step,
                     .b_step = QUERIES,
                     .c_step = QUERIES,
                     .decay = r.decay + column,
                     .add = true};
        attention_multiply(&p);
    }
    forward_end(&k, &r);
}

/* ---- backward ---- */

typedef struct head_gradients {
    REAL *keys, *values, *dk, *dv; /* the head's rows, and sums for their gradients */
    REAL *q, *dy, *dq;             /* the block's rows */
    REAL *dy_turned, *slopes;      /* dy^T (D_v, QUERIES); dp, then ds (KEYS, QUERIES) */
    REAL *lse, *delta;             /* of each query */
    bool wants_dq, wants_dk, wants_dv;
} head_gradients;

static head_gradients back_of(const tern__attention *a, REAL *room, int64_t *used)
{
    int64_t depth = padded_columns(a->n.depth), width = padded_columns(a->n.width), keys = a->n.keys;
    head_gradients k = {.keys = room_cut(room, used, keys * depth),
                        .values = room_cut(room, used, keys * width)};
    k.dk = room_cut(room, used, keys * depth);
    k.dv = room_cut(room, used, keys * width);
    k.q = room_cut(room, used, QUERIES * depth);
    k.dq = room_cut(room, used, QUERIES * depth);
    k.dy = room_cut(room, used, QUERIES * width);
    k.dy_turned = room_cut(room, used, a->n.width * QUERIES);
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
    rows_load(g->q, &q, k->first, k->count, 1);
    rows_load(g->dy, &dy, k->first, k->count, 1);
    rows_turn(g->dy_turned, QUERIES, g->dy, width, k->count, a->n.width);
    rows_load(k->staged, &y, k->first, k->count, 1);
    for (int64_t i = k->count; i < QUERIES; i++) {
        g->lse[i] = (REAL)INFINITY;
        g->delta[i] = 0;
    }
    dot_rows(g->delta, g->dy, k->staged, k->count, width);
    const REAL *lse = (const REAL *)call->in[6]->data + row;
    for (int64_t i = 0; i < k->count; i++) g->lse[i] = lse[i] * (REAL)M_LOG2E;
    memset(g->dq, 0, (size_t)(QUERIES * padded_columns(a->n.depth)) * sizeof(REAL));
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
            first = k->from * WIDTH;
    product p = {.rows = k->keys, .depth = k->count - first, .a_row = QUERIES, .a_step = 1, .add = true};
    if (g->wants_dv) {
        p.a = k->scores + first;
        p.b = g->dy + first * width;
        p.c = g->dv + k->key * width;
        p.b_step = p.c_step = width;
        p.vectors = width / WIDTH;
        attention_multiply(&p);
    }
    p.b_step = p.c_step = depth;
    p.vectors = depth / WIDTH;
    if (g->wants_dk) {
        p.a = g->slopes + first;
        p.b = g->q + first * depth;
        p.c = g->dk + k->key * depth;
        attention_multiply(&p);
    }
    if (g->wants_dq) {
        product to = {.a = g->slopes + first,
                      .b = g->keys + k->key * depth,
                      .c = g->dq + first * depth,
                      .rows = k->count - first,
                      .depth = k->keys,
                      .vectors = depth / WIDTH,
                      .a_row = 1,
                      .a_step = QUERIES,
                      .b_step = depth,
                      .c_step = depth,
                      .add = true};
        attention_multiply(&to);
    }
}

/* A block of queries with the share's keys. */
static void back_block(attention_block *k, const head_gradients *g, const tern__attention_share *s)
{
    const tern__attention *a = k->a;
    int64_t depth = padded_columns(a->n.depth), width = padded_columns(a->n.width);
    int64_t end = TERN__MIN(s->last_key, block_keys(k));
    if (end <= s->first_key && !s->queries) return;
    back_begin(k, g);
    for (int64_t key = s->first_key; key < end; key += KEYS) {
        block_scores(k, g->keys + key * depth, depth, key, TERN__MIN(KEYS, end - key));
        int64_t column = k->from * WIDTH;
        product p = {.a = g->values + key * width,
                     .b = g->dy_turned + column,
                     .c = g->slopes + column,
                     .rows = k->keys,
                     .depth = a->n.width,
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
    if (!g->wants_dq) return;
    head_rows dq = rows_of(a->call->out[0], k->b, k->h);
    rows_store(&dq, k->first, k->count, g->dq, (REAL)a->attr->scale, a->call->add[0]);
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
    rows_load(g.keys + s->first_key * depth, &keys, s->first_key, count, 1);
    rows_load(g.values + s->first_key * width, &values, s->first_key, count, 1);
    REAL *dk = g.dk + s->first_key * depth, *dv = g.dv + s->first_key * width;
    memset(dk, 0, (size_t)(count * depth) * sizeof(REAL));
    memset(dv, 0, (size_t)(count * width) * sizeof(REAL));
    for (int64_t h = s->first_head; h < s->last_head; h++)
        for (int64_t first = s->first_query; first < s->last_query; first += QUERIES) {
            block_begin(&k, s->b, s->key_head * group + h, first);
            back_block(&k, &g, s);
        }
    for (int i = 1; i <= 2; i++) {
        if (!s->keys || !call->out[i]) continue;
        head_rows to = rows_of(call->out[i], s->b, s->key_head);
        rows_store(&to, s->first_key, count, i == 1 ? dk : dv, i == 1 ? (REAL)a->attr->scale : 1,
                   call->add[i]);
    }
}

#endif
