/* bytes.c - collectives of byte strings of unequal lengths: first the lengths, in a collective of their own,
 * then the bytes. A rank that has no memory, or gets an impossible length, makes the group fail, so that no
 * other rank waits for it. */
#include "comm/call/request.h"

#include <string.h>

/* ---- lengths ---- */

static int check_object(const tern_bytes *bytes, const char *func, tern_error *err)
{
    if (bytes->count > TERN_BYTES_MAX)
        return tern__error_set(err, func, TERN_E_RANGE, "a string of %zu bytes, expected at most %zu",
                               bytes->count, (size_t)TERN_BYTES_MAX);
    if (bytes->count && !bytes->data)
        return tern__error_set(err, func, TERN_E_INVALID, "a string is NULL, expected %zu bytes",
                               bytes->count);
    return TERN_OK;
}

static int check_list(const tern_bytes *list, int length, const char *what, const char *func, tern_error *err)
{
    int status = TERN_OK;
    if (!list && length) return tern__error_set(err, func, TERN_E_INVALID, "%s is NULL", what);
    for (int i = 0; i < length && !status; i++) status = check_object(&list[i], func, err);
    return status;
}

/* Allocates memory for the strings. Each rank has checked its own lengths. */
static int make_list(tern_bytes *list, const int64_t *counts, int length, const char *func, tern_error *err)
{
    for (int i = 0; i < length; i++) list[i] = (tern_bytes){0};
    for (int i = 0; i < length; i++) {
        char *data = tern__alloc((size_t)counts[i] + 1, func, err);
        if (!data) return TERN_E_MEMORY;
        data[counts[i]] = '\0';
        list[i] = (tern_bytes){data, (size_t)counts[i]};
    }
    return TERN_OK;
}

static void free_list(tern_bytes *list, size_t length)
{
    for (size_t i = 0; list && i < length; i++) {
        tern_bytes_free(list[i].data);
        list[i] = (tern_bytes){0};
    }
}

/* ---- a call: lengths, memory, data ---- */

typedef struct exchange {
    tern_group *group;
    const char *func;
    int64_t *counts;  /* [world] */
    tern_span *spans; /* [2][world] to each rank, from each rank */
    tern_error *why;
} exchange;

static int object_begin(exchange *x)
{
    size_t world = (size_t)x->group->boot.world;
    x->counts = tern__alloc(world * sizeof(*x->counts), x->func, x->why);
    x->spans = tern__alloc(2 * world * sizeof(*x->spans), x->func, x->why);
    if (!x->counts || !x->spans) return TERN_E_MEMORY;
    memset(x->counts, 0, world * sizeof(*x->counts));
    memset(x->spans, 0, 2 * world * sizeof(*x->spans));
    return TERN_OK;
}

/* Frees everything. An error becomes the group's, and the strings in `made` are freed. */
static int object_end(exchange *x, int status, tern_bytes *made, size_t length, tern_error *err)
{
    tern__free(x->counts);
    tern__free(x->spans);
    if (!status) return TERN_OK;
    free_list(made, length);
    return tern__call_fail(x->group, x->func, x->why, err);
}

static int object_move(exchange *x)
{
    tern__request r = {.func = x->func,
                       .kind = TERN__ALL_TO_ALL_V,
                       .dtype = TERN_U8,
                       .ins = x->spans,
                       .outs = x->spans + x->group->boot.world};
    return tern__request_run(x->group, &r, x->why);
}

/* ---- public ---- */

int tern_all_gather_bytes(tern_group *group, const void *in, size_t count, tern_bytes *outs, tern_error *err)
{
    tern_error why = {0};
    exchange x = {.group = group, .func = __func__, .why = &why};
    const tern_bytes own = {(void *)in, count};
    int64_t length = (int64_t)count;
    int status = tern__call_given(group, __func__, err), world = tern_group_size(group);
    if (status) return status;
    tern_bytes *made = NULL;
    status = object_begin(&x);
    if (!status) status = check_list(&own, 1, "in", __func__, &why);
    if (!status && !outs) status = tern__error_set(&why, __func__, TERN_E_INVALID, "outs is NULL");
    if (!status) status = tern_all_gather(group, &length, x.counts, 1, TERN_I64, &why);
    if (!status) status = make_list(made = outs, x.counts, world, __func__, &why);
    if (!status) status = tern_all_gather_v(group, in, count, outs, TERN_U8, &why);
    return object_end(&x, status, made, (size_t)world, err);
}

int tern_gather_bytes(tern_group *group, const void *in, size_t count, tern_bytes *outs, int root,
                      tern_error *err)
{
    tern_error why = {0};
    exchange x = {.group = group, .func = __func__, .why = &why};
    const tern_bytes own = {(void *)in, count};
    int64_t length = (int64_t)count;
    int status = tern__call_given(group, __func__, err), world = tern_group_size(group);
    if (status) return status;
    bool is_root = root == group->boot.rank;
    tern_bytes *made = NULL;
    status = object_begin(&x);
    if (!status) status = check_list(&own, 1, "in", __func__, &why);
    if (!status && is_root && !outs) status = tern__error_set(&why, __func__, TERN_E_INVALID, "outs is NULL");
    if (!status) status = tern_gather(group, &length, x.counts, 1, TERN_I64, root, &why);
    if (!status && is_root) status = make_list(made = outs, x.counts, world, __func__, &why);
    if (!status) {
        x.spans[root] = own;
        if (is_root) memcpy(x.spans + world, outs, (size_t)world * sizeof(*outs));
        status = object_move(&x);
    }
    return object_end(&x, status, made, (size_t)world, err);
}

int tern_broadcast_bytes(tern_group *group, tern_bytes *bytes, int root, tern_error *err)
{
    tern_error why = {0};
    exchange x = {.group = group, .func = __func__, .why = &why};
    int status = tern__call_given(group, __func__, err);
    if (status) return status;
    bool is_root = root == group->boot.rank;
    tern_bytes *made = NULL;
    if (!bytes) status = tern__error_set(&why, __func__, TERN_E_INVALID, "bytes is NULL");
    if (!status && is_root) status = check_object(bytes, __func__, &why);
    int64_t length = !status && is_root ? (int64_t)bytes->count : 0;
    if (!status) status = tern_broadcast(group, &length, 1, TERN_I64, root, &why);
    if (!status && !is_root) status = make_list(made = bytes, &length, 1, __func__, &why);
    if (!status) status = tern_broadcast(group, bytes->data, bytes->count, TERN_U8, root, &why);
    return object_end(&x, status, made, 1, err);
}

int tern_scatter_bytes(tern_group *group, const tern_bytes *ins, tern_bytes *out, int root, tern_error *err)
{
    tern_error why = {0};
    exchange x = {.group = group, .func = __func__, .why = &why};
    int status = tern__call_given(group, __func__, err), world = tern_group_size(group);
    if (status) return status;
    bool is_root = root == group->boot.rank;
    tern_bytes *made = NULL;
    int64_t length = 0;
    status = object_begin(&x);
    if (!status && !out) status = tern__error_set(&why, __func__, TERN_E_INVALID, "out is NULL");
    if (!status && is_root) status = check_list(ins, world, "ins", __func__, &why);
    for (int rank = 0; !status && is_root && rank < world; rank++) x.counts[rank] = (int64_t)ins[rank].count;
    if (!status) status = tern_scatter(group, x.counts, &length, 1, TERN_I64, root, &why);
    if (!status) status = make_list(made = out, &length, 1, __func__, &why);
    if (!status) {
        if (is_root) memcpy(x.spans, ins, (size_t)world * sizeof(*ins));
        x.spans[world + root] = *out;
        status = object_move(&x);
    }
    return object_end(&x, status, made, 1, err);
}
