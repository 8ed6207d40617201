/* attention.c - scaled dot product attention and its gradients, query by query and key by key, with sums in
 * double. kernels/attention.h has the formulas. */
#include "kernels/attention.h"
#include "kernels/reduce.h"
#include "kernels/reference/reference.h"

#include <math.h>

typedef struct problem {
    const tern__call *call;
    const tern__attention_attr *attr;
    const tern__view *q, *k, *v, *mask;
    tern__attention_shape n;
    double kept; /* dropout's factor where it keeps */
} problem;

/* The inputs q, k, v and the mask begin at number `first`. */
static problem attention_problem_of(const tern__call *call, int first)
{
    const tern__attention_attr *attr = call->attr;
    problem p = {.call = call,
                 .attr = attr,
                 .q = call->in[first],
                 .k = call->in[first + 1],
                 .v = call->in[first + 2],
                 .mask = call->in[first + 3]};
    p.n = tern__attention_shape_of(p.q, p.k, p.v);
    p.kept = p.q->dtype == TERN_F64 ? attr->dropout.scale : (double)(float)attr->dropout.scale;
    return p;
}

static void *attention_scratch(const tern__call *call, int which, int64_t numbers)
{
    size_t bytes = (size_t)TERN__MAX(numbers, 1) * sizeof(double);
    const char *name = tern__kernel_name(call->kernel);
    void *data = tern__device_scratch(call->device, TERN__SCRATCH_OPERAND + which, bytes);
    if (!data)
        tern__error_set(call->err, name, TERN_E_MEMORY, "%s: out of memory: %zu bytes of sums", name, bytes);
    return data;
}

/* Query `row` of all, (b H + h) T_q + i, belongs to these keys: the number of the first of all keys. */
static int64_t first_key(const problem *p, int64_t row)
{
    int64_t head = row / p->n.queries, group = p->n.heads / p->n.key_heads;
    return head / group * p->n.keys;
}

static int64_t keys_seen(const problem *p, int64_t row)
{
    return tern__attention_seen(p->attr, row % p->n.queries, p->n.keys);
}

/* The score of key j of the query's head; -infinity if a mask excludes it. */
static double attention_score(const problem *p, int64_t row, int64_t j)
{
    int64_t depth = p->n.depth, key = first_key(p, row) + j, at = row * p->n.keys + j;
    double sum = 0;
    if (p->mask && p->mask->dtype == TERN_BOOL && !tern__view_get_int(p->mask, at)) return -INFINITY;
    for (int64_t d = 0; d < depth; d++)
        sum += p->attr->scale * tern__view_get(p->q, row * depth + d) * tern__view_get(p->k, key * depth + d);
    return p->mask && p->mask->dtype != TERN_BOOL ? sum + tern__view_get(p->mask, at) : sum;
}

static double dropout_factor(const problem *p, int64_t row, int64_t j)
{
    const tern__dropout_attr *a = &p->attr->dropout;
    uint64_t at = (uint64_t)(row * p->n.keys + j);
    if (!a->threshold) return 1;
    return tern__philox(a->key, tern__dropout_counter(a, at / 4)).word[at % 4] >= a->threshold ? p->kept : 0;
}

/* ---- forward ---- */

static void attend(const problem *p, int64_t row, double *weight)
{
    int64_t seen = keys_seen(p, row), width = p->n.width, first = first_key(p, row);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seen; j++) {
        weight[j] = attention_score(p, row, j);
        top = fmax(top, weight[j]);
    }
    if (top == -INFINITY) top = 0;
    for (int64_t j = 0; j < seen; j++) sum += weight[j] = exp(weight[j] - top);
    for (int64_t j = 0; j < seen; j++) weight[j] *= dropout_factor(p, row, j) / (sum == 0 ? 1 : sum);
    for (int64_t d = 0; d < width; d++) {
        double y = 0;
        for (int64_t j = 0; j < seen; j++) y += weight[j] * tern__view_get(p->v, (first + j) * width + d);
        tern__reference_put(p->call, 0, row * width + d, y);
    }
    if (p->call->out[1]) tern__reference_put(p->call, 1, row, sum == 0 ? INFINITY : top + log(sum));
}

int tern__reference_attention(const tern__call *call)
{
    problem p = attention_problem_of(call, 0);
    double *weight = attention_scratch(call, 0, p.n.keys);
    if (!weight) return TERN_E_MEMORY;
    for (int64_t row = 0; row < p.n.batch * p.n.heads * p.n.queries; row++) attend(&p, row, weight);
    return TERN_OK;
}

/* ---- gradient ---- */

typedef struct back {
    problem p;
    double *delta, *sums; /* delta of each query; room for a row of dq, or of dk and dv */
} back;

/* What a query and a key have to do with each other. */
typedef struct pair {
    double p, weight; /* the probability, and that times dropout's factor */
    double dp;
} pair;

static pair pair_of(const back *b, int64_t row, int64_t j)
{
    const problem *p = &b->p;
    int64_t width = p->n.width, key = first_key(p, row) + j;
    double probability = exp(attention_score(p, row, j) - tern__view_get(p->call->in[6], row));
    double factor = dropout_factor(p, row, j), sum = 0;
    for (int64_t d = 0; d < width; d++)
        sum += tern__view_get(p->call->in[0], row * width + d) * tern__view_get(p->v, key * width + d);
    return (pair){probability, probability * factor, factor * sum};
}

static double score_gradient(const back *b, int64_t row, const pair *of)
{
    return of->p * (of->dp - b->delta[row]);
}

static void find_delta(const back *b, int64_t row)
{
    b->delta[row] = 0;
    for (int64_t j = 0; j < keys_seen(&b->p, row); j++) {
        pair of = pair_of(b, row, j);
        b->delta[row] += of.p * of.dp;
    }
}

static void query_gradient(const back *b, int64_t row)
{
    const problem *p = &b->p;
    int64_t depth = p->n.depth, first = first_key(p, row);
    for (int64_t d = 0; d < depth; d++) b->sums[d] = 0;
    for (int64_t j = 0; j < keys_seen(p, row); j++) {
        pair of = pair_of(b, row, j);
        double ds = p->attr->scale * score_gradient(b, row, &of);
        for (int64_t d = 0; d < depth; d++) b->sums[d] += ds * tern__view_get(p->k, (first + j) * depth + d);
    }
    for (int64_t d = 0; d < depth; d++) tern__reference_put(p->call, 0, row * depth + d, b->sums[d]);
}

/* The gradients of key and value j of a head of k and v: sums over the queries of its group of heads. */
static void key_gradient(const back *b, int64_t key_head, int64_t j)
{
    const problem *p = &b->p;
    int64_t depth = p->n.depth, width = p->n.width, key = key_head * p->n.keys + j;
    int64_t rows = p->n.heads / p->n.key_heads * p->n.queries;
    double *dk = b->sums, *dv = b->sums + depth;
    for (int64_t d = 0; d < depth + width; d++) b->sums[d] = 0;
    for (int64_t row = key_head * rows; row < (key_head + 1) * rows; row++) {
        if (j >= keys_seen(p, row)) continue;
        pair of = pair_of(b, row, j);
        double ds = p->attr->scale * score_gradient(b, row, &of);
        for (int64_t d = 0; d < depth; d++) dk[d] += ds * tern__view_get(p->q, row * depth + d);
        for (int64_t d = 0; d < width; d++)
            dv[d] += of.weight * tern__view_get(p->call->in[0], row * width + d);
    }
    for (int64_t d = 0; d < depth && p->call->out[1]; d++)
        tern__reference_put(p->call, 1, key * depth + d, dk[d]);
    for (int64_t d = 0; d < width && p->call->out[2]; d++)
        tern__reference_put(p->call, 2, key * width + d, dv[d]);
}

/* Summed over the dimensions along which the mask is broadcast. */
static int mask_gradient(const back *b)
{
    const problem *p = &b->p;
    const tern__view *dmask = p->call->out[3];
    int64_t count = tern__own_count(dmask), keys = p->n.keys;
    tern__view own = tern__view_make(dmask->dtype, TERN__PLAIN, 1, &count);
    own.data = dmask->data;
    double *sums = attention_scratch(p->call, 2, count);
    if (!sums) return TERN_E_MEMORY;
    for (int64_t i = 0; i < count; i++) sums[i] = p->call->add[3] ? tern__view_get(&own, i) : 0;
    for (int64_t row = 0; row < p->n.batch * p->n.heads * p->n.queries; row++)
        for (int64_t j = 0; j < keys_seen(p, row); j++) {
            pair of = pair_of(b, row, j);
            sums[tern__view_offset(dmask, row * keys + j)] += score_gradient(b, row, &of);
        }
    for (int64_t i = 0; i < count; i++) tern__view_set(&own, i, sums[i]);
    return TERN_OK;
}

int tern__reference_attention_grad(const tern__call *call)
{
    back b = {.p = attention_problem_of(call, 1)};
    const tern__attention_shape *n = &b.p.n;
    int64_t rows = n->batch * n->heads * n->queries;
    b.delta = attention_scratch(call, 0, rows);
    b.sums = b.delta ? attention_scratch(call, 1, n->depth + n->width) : NULL;
    if (!b.sums) return TERN_E_MEMORY;
    for (int64_t row = 0; row < rows; row++) find_delta(&b, row);
    for (int64_t row = 0; row < rows && call->out[0]; row++) query_gradient(&b, row);
    for (int64_t head = 0; head < n->batch * n->key_heads && (call->out[1] || call->out[2]); head++)
        for (int64_t j = 0; j < n->keys; j++) key_gradient(&b, head, j);
    return call->out[3] ? mask_gradient(&b) : TERN_OK;
}
