/* attention.c - scaled dot product attention on several threads. Forward, each takes heads of q, or parts of
 * them. The gradients of k and v are sums over all queries, so backward each takes whole heads of k and v; if
 * there are fewer heads than threads, first blocks of queries for dq, then blocks of keys for dk and dv, with
 * the scores computed twice. attention_loops.h has the algorithm. Who takes what changes no bit. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/loops.h"
#include "kernels/reduce.h"

#include <stdatomic.h>
#include <string.h>

typedef void (*attention_fn)(const tern__attention *a, int64_t item, void *room);

/* bf16 is multiplied as it is where the CPU does that, by whole blocks of queries, and else converted to f32.
 * The tile unit's CPUs multiply pairs no faster than f32. */
static const tern__attention_fns *attention_fns_of(const tern__attention *a)
{
    if (a->q->dtype == TERN_F64) return TERN__BY_WIDTH(tern__attention_f64);
#ifdef __x86_64__
    if (a->q->dtype == TERN_BF16 && a->n.queries > TERN__ATTENTION_FEW && tern__has_bf16_pairs() &&
        !tern__amx_has())
        return &tern__attention_bf16;
#endif
    return TERN__BY_WIDTH(tern__attention_f32);
}

/* The inputs q, k, v and the mask begin at number `first`. */
static tern__attention attention_of(const tern__call *call, int first)
{
    tern__attention a = {.call = call,
                         .attr = call->attr,
                         .q = call->in[first],
                         .k = call->in[first + 1],
                         .v = call->in[first + 2],
                         .mask = call->in[first + 3]};
    a.n = tern__attention_shape_of(a.q, a.k, a.v);
    a.fns = attention_fns_of(&a);
    a.blocks = (a.n.queries + TERN__ATTENTION_QUERIES - 1) / TERN__ATTENTION_QUERIES;
    return a;
}

/* Whether elements of a row are adjacent, and of q's dtype. */
static bool attention_is_in_rows(const tern__attention *a, const tern__view *x)
{
    return !x ||
           (x->layout == TERN__PLAIN && x->dtype == a->q->dtype && (x->stride[3] == 1 || x->shape[3] <= 1));
}

/* Items are taken in turn by whichever thread is free: those of a causal head differ. */
static int attention_each(const tern__attention *a, int64_t items, int threads, int64_t room, attention_fn fn)
{
    size_t bytes = (size_t)room * (a->q->dtype == TERN_F64 ? sizeof(double) : sizeof(float));
    char *memory = tern__loop_scratch(a->call, (size_t)threads * bytes);
    atomic_llong next = 0;
    if (!memory) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        for (int64_t i; (i = atomic_fetch_add(&next, 1)) < items;) fn(a, i, memory + (size_t)t * bytes);
    return TERN_OK;
}

/* How many threads the products are worth. */
static int attention_threads(const tern__attention *a, int64_t items)
{
    const tern__attention_shape *n = &a->n;
    int64_t products = n->batch * n->heads * n->queries * n->keys * (n->depth + n->width);
    return (int)TERN__MAX(1, TERN__MIN(items, tern__loop_threads(a->call, products / 8)));
}

/* In how many parts a head is computed forward. Each copies all keys and values, so there are more than one
 * only if the heads would leave threads without work. */
static int64_t attention_parts(const tern__attention *a, int threads)
{
    int64_t heads = a->n.batch * a->n.heads;
    if (heads % threads == 0 || heads >= 8 * threads) return 1;
    return TERN__MIN(a->blocks, (4 * threads + heads - 1) / heads);
}

int tern__cpu_attention(const tern__call *call)
{
    tern__attention a = attention_of(call, 0);
    const tern__view *rows[] = {a.q, a.k, a.v, call->out[0]};
    for (size_t i = 0; i < TERN__COUNT(rows); i++)
        if (!attention_is_in_rows(&a, rows[i])) return TERN_E_UNSUPPORTED;
    int64_t heads = a.n.batch * a.n.heads;
    if (a.n.queries <= TERN__ATTENTION_FEW)
        return attention_each(&a, heads, attention_threads(&a, heads), a.fns->few_room(&a), a.fns->few);
    int threads = attention_threads(&a, heads * a.blocks);
    a.parts = attention_parts(&a, threads);
    return attention_each(&a, heads * a.parts, threads, a.fns->forward_room(&a), a.fns->forward);
}

/* ---- gradient ---- */

static void backward_head(const tern__attention *a, int64_t head, void *room)
{
    tern__attention_share all = {.b = head / a->n.key_heads, .key_head = head % a->n.key_heads};
    all.last_head = a->n.heads / a->n.key_heads;
    all.last_query = a->n.queries;
    all.last_key = a->n.keys;
    all.queries = all.keys = true;
    a->fns->backward(a, &all, room);
}

static void backward_queries(const tern__attention *a, int64_t block, void *room)
{
    int64_t head = block / a->blocks, group = a->n.heads / a->n.key_heads;
    tern__attention_share part = {.b = head / a->n.heads, .key_head = head % a->n.heads / group};
    part.first_head = head % group;
    part.last_head = part.first_head + 1;
    part.first_query = block % a->blocks * TERN__ATTENTION_QUERIES;
    part.last_query = TERN__MIN(a->n.queries, part.first_query + TERN__ATTENTION_QUERIES);
    part.last_key = a->n.keys;
    part.queries = true;
    a->fns->backward(a, &part, room);
}

static int64_t key_blocks(const tern__attention *a)
{
    return (a->n.keys + TERN__ATTENTION_KEYS - 1) / TERN__ATTENTION_KEYS;
}

static void backward_keys(const tern__attention *a, int64_t block, void *room)
{
    int64_t blocks = key_blocks(a), head = block / blocks;
    tern__attention_share part = {.b = head / a->n.key_heads, .key_head = head % a->n.key_heads};
    part.last_head = a->n.heads / a->n.key_heads;
    part.last_query = a->n.queries;
    part.first_key = block % blocks * TERN__ATTENTION_KEYS;
    part.last_key = TERN__MIN(a->n.keys, part.first_key + TERN__ATTENTION_KEYS);
    part.keys = true;
    a->fns->backward(a, &part, room);
}

/* A head takes five products of the same size. In parts they are seven, but every thread has some. */
static int backward_each(const tern__attention *a, int threads)
{
    int64_t heads = a->n.batch * a->n.key_heads, rounds = (heads + threads - 1) / threads;
    int64_t room = a->fns->backward_room(a);
    if (5 * rounds * threads <= 7 * heads)
        return attention_each(a, heads, (int)TERN__MIN(threads, heads), room, backward_head);
    int status = TERN_OK;
    if (a->call->out[0] || a->dmask)
        status = attention_each(a, a->n.batch * a->n.heads * a->blocks, threads, room, backward_queries);
    bool wants_keys = a->call->out[1] || a->call->out[2];
    return status || !wants_keys ? status
                                 : attention_each(a, heads * key_blocks(a), threads, room, backward_keys);
}

/* Sums of the mask's gradient, in the type in which is computed. */
static int mask_grad_open(tern__attention *a)
{
    const tern__view *dmask = a->call->out[3];
    if (!dmask) return TERN_OK;
    size_t bytes =
        (size_t)tern__own_count(dmask) * (dmask->dtype == TERN_F64 ? sizeof(double) : sizeof(float));
    a->dmask = tern__loop_scratch_of(a->call, TERN__SCRATCH_OPERAND + 1, TERN__MAX(bytes, 1));
    if (!a->dmask) return TERN_E_MEMORY;
    memset(a->dmask, 0, bytes);
    return TERN_OK;
}

static int mask_grad_close(const tern__attention *a)
{
    const tern__view *dmask = a->call->out[3];
    if (!dmask || tern__own_count(dmask) == 0) return TERN_OK;
    int64_t count = tern__own_count(dmask);
    tern__view to = tern__view_make(dmask->dtype, TERN__PLAIN, 1, &count), sums = to;
    to.data = dmask->data;
    sums.data = a->dmask;
    sums.dtype = dmask->dtype == TERN_F64 ? TERN_F64 : TERN_F32;
    tern__call copy = {.device = a->call->device, .kernel = TERN__COPY, .in = {&sums}, .out = {&to}};
    copy.add[0] = a->call->add[3];
    copy.err = a->call->err;
    return tern__cpu_pointwise(&copy);
}

/* Whether several heads, or blocks of queries, add to one element of the mask's gradient: then one thread
 * takes all. */
static bool dmask_is_shared(const tern__attention *a)
{
    const tern__view *dmask = a->call->out[3];
    if (!dmask) return false;
    bool is_shared = false;
    for (int d = 0; d < 3; d++) is_shared |= dmask->stride[d] == 0 && dmask->shape[d] > 1;
    return is_shared;
}

int tern__cpu_attention_grad(const tern__call *call)
{
    tern__attention a = attention_of(call, 1);
    const tern__view *rows[] = {a.q,         a.k,          a.v,          call->in[0],
                                call->in[5], call->out[0], call->out[1], call->out[2]};
    for (size_t i = 0; i < TERN__COUNT(rows); i++)
        if (!attention_is_in_rows(&a, rows[i])) return TERN_E_UNSUPPORTED;
    int status = mask_grad_open(&a);
    if (status) return status;
    int threads = dmask_is_shared(&a) ? 1 : attention_threads(&a, a.n.batch * a.n.heads * a.blocks);
    status = backward_each(&a, threads);
    return status ? status : mask_grad_close(&a);
}
