/* collective.c - the table of collectives, their byte counts, and the check of their results. */
#include "bench/collective.h"

#include <stdio.h>
#include <string.h>

#define NONE  TERN__HOLDS_NONE
#define PART  TERN__HOLDS_PART
#define WHOLE TERN__HOLDS_WHOLE

/* ---- the calls ---- */

static int all_reduce(const tern__trial *t, tern_error *err)
{
    return tern_all_reduce(t->world, t->in, t->count, t->dtype, TERN_SUM, err);
}

static int reduce(const tern__trial *t, tern_error *err)
{
    return tern_reduce(t->world, t->in, t->count, t->dtype, TERN_SUM, 0, err);
}

static int broadcast(const tern__trial *t, tern_error *err)
{
    return tern_broadcast(t->world, t->in, t->count, t->dtype, 0, err);
}

static int all_gather(const tern__trial *t, tern_error *err)
{
    return tern_all_gather(t->world, t->in, t->out, t->count, t->dtype, err);
}

static int reduce_scatter(const tern__trial *t, tern_error *err)
{
    return tern_reduce_scatter(t->world, t->in, t->out, t->count, t->dtype, TERN_SUM, err);
}

static int gather(const tern__trial *t, tern_error *err)
{
    return tern_gather(t->world, t->in, t->out, t->count, t->dtype, 0, err);
}

static int scatter(const tern__trial *t, tern_error *err)
{
    return tern_scatter(t->world, t->in, t->out, t->count, t->dtype, 0, err);
}

static int all_to_all(const tern__trial *t, tern_error *err)
{
    return tern_all_to_all(t->world, t->in, t->out, t->count, t->dtype, err);
}

static int barrier(const tern__trial *t, tern_error *err)
{
    return tern_barrier(t->world, err);
}

static int sendrecv(const tern__trial *t, tern_error *err)
{
    if (t->rank == 0) tern_send(t->world, t->in, t->count, t->dtype, 1, 0, err);
    if (t->rank <= 1) tern_recv(t->world, t->in, t->count, t->dtype, 1 - t->rank, 0, NULL, err);
    if (t->rank == 1) tern_send(t->world, t->in, t->count, t->dtype, 0, 0, err);
    return err->code;
}

static const tern__collective collectives[] = {
    {"all_reduce", "a sum over all ranks, to all", all_reduce, WHOLE, NONE, false, false},
    {"reduce", "a sum over all ranks, to rank 0", reduce, WHOLE, NONE, true, false},
    {"broadcast", "what rank 0 has, to all", broadcast, WHOLE, NONE, true, false},
    {"all_gather", "a part of each rank, to all", all_gather, PART, WHOLE, false, true},
    {"reduce_scatter", "a sum over all ranks, a part to each", reduce_scatter, WHOLE, PART, false, true},
    {"gather", "a part of each rank, to rank 0", gather, PART, WHOLE, true, true},
    {"scatter", "what rank 0 has, a part to each", scatter, WHOLE, PART, true, true},
    {"all_to_all", "a part of each rank for each", all_to_all, WHOLE, WHOLE, false, true},
    {"barrier", "all ranks meet", barrier, NONE, NONE, false, false},
    {"sendrecv", "a message from rank 0 to rank 1", sendrecv, WHOLE, NONE, true, false},
};

const tern__collective *tern__collective_at(int i)
{
    return i < (int)TERN__COUNT(collectives) ? &collectives[i] : NULL;
}

const tern__collective *tern__collective_find(const char *name)
{
    for (size_t i = 0; i < TERN__COUNT(collectives); i++)
        if (!strcmp(name, collectives[i].name)) return &collectives[i];
    return NULL;
}

bool tern__collective_is_pair(const tern__collective *op)
{
    return op->call == sendrecv;
}

/* ---- bytes ---- */

size_t tern__collective_bytes(const tern__collective *op, size_t wish, tern_dtype dtype, int ranks)
{
    size_t step = tern_dtype_bytes(dtype) * (op->is_cut ? (size_t)ranks : 1);
    return op->call == barrier ? 0 : (wish + step - 1) / step * step;
}

size_t tern__collective_count(const tern__collective *op, size_t bytes, tern_dtype dtype, int ranks)
{
    return bytes / tern_dtype_bytes(dtype) / (op->is_cut ? (size_t)ranks : 1);
}

size_t tern__collective_holds(tern__holds holds, size_t bytes, int ranks)
{
    return holds == PART ? bytes / (size_t)ranks : holds == WHOLE ? bytes : 0;
}

double tern__collective_bound(const tern__collective *op, size_t bytes, int ranks)
{
    double whole = (double)bytes, part = whole / ranks;
    if (op->call == reduce || op->call == reduce_scatter) return (whole + part) / 2;
    if (op->call == broadcast) return whole - part;
    if (op->call == sendrecv) return whole / 2;
    return op->call == gather || op->call == scatter ? part : whole;
}

double tern__collective_bus(const tern__collective *op, size_t bytes, int ranks)
{
    double whole = (double)bytes, others = whole * (ranks - 1) / ranks;
    if (op->call == reduce || op->call == broadcast || op->call == sendrecv) return whole;
    return op->call == all_reduce ? 2 * others : others;
}

/* ---- inputs and expected results ---- */

/* Returns element i of the rank's input. */
static float given(int rank, size_t i)
{
    return (float)((i + (size_t)rank) % 4);
}

static float summed(const tern__trial *t, size_t i)
{
    float sum = 0;
    for (int rank = 0; rank < t->ranks; rank++) sum += given(rank, i);
    return sum;
}

static float expected(const tern__trial *t, size_t i)
{
    size_t own = (size_t)t->rank * t->count, part = t->op->is_cut ? i % t->count : 0;
    int from = t->op->is_cut ? (int)(i / t->count) : 0;
    if (t->op->call == all_reduce || t->op->call == reduce) return summed(t, i);
    if (t->op->call == reduce_scatter) return summed(t, own + i);
    if (t->op->call == scatter) return given(0, own + i);
    if (t->op->call == sendrecv) return given(t->rank == 1 ? 0 : t->rank, i);
    if (t->op->call == all_to_all) return given(from, own + part);
    return t->op->call == broadcast ? given(0, i) : given(from, part);
}

static void put(const tern__trial *t, size_t i, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (t->dtype == TERN_BF16)
        ((uint16_t *)t->in)[i] = (uint16_t)(bits >> 16); /* exact: it is 0 to 3 */
    else
        ((float *)t->in)[i] = value;
}

static float get(const tern__trial *t, const void *from, size_t i)
{
    uint32_t bits = (uint32_t)((const uint16_t *)from)[t->dtype == TERN_BF16 ? i : 0] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return t->dtype == TERN_BF16 ? value : ((const float *)from)[i];
}

static size_t elements(const tern__trial *t, tern__holds holds)
{
    size_t parts = holds == WHOLE && t->op->is_cut ? (size_t)t->ranks : 1;
    return holds == NONE ? 0 : t->count * parts;
}

void tern__collective_fill(const tern__trial *t)
{
    for (size_t i = 0; i < elements(t, t->op->in); i++) put(t, i, given(t->rank, i));
}

/* Returns the index of the first wrong element, -1 if all are right. */
static int64_t find_wrong(const tern__trial *t)
{
    bool is_in_place = t->op->out == NONE, is_not_root = t->op->has_root && t->rank != 0;
    const void *result = is_in_place ? t->in : t->out;
    size_t count = elements(t, is_in_place ? t->op->in : t->op->out);
    if (is_not_root && (t->op->call == reduce || t->op->call == gather)) return -1;
    for (size_t i = 0; i < count; i++)
        if (get(t, result, i) != expected(t, i)) return (int64_t)i;
    return -1;
}

int tern__collective_check(const tern__trial *t, tern_error *err)
{
    int64_t wrong = find_wrong(t), worst[2] = {wrong, wrong < 0 ? -1 : t->rank};
    tern_all_reduce(t->world, worst, 2, TERN_I64, TERN_MAX, err);
    if (tern__is_set(err)) return err->code;
    if (worst[0] < 0) return TERN_OK;
    return tern__error_set(
        err, "tern bench", TERN_E_MISMATCH,
        "%s of %zu %s on %d ranks: rank %lld has a wrong result, at element %lld or before", t->op->name,
        t->count, tern_dtype_name(t->dtype), t->ranks, (long long)worst[1], (long long)worst[0]);
}
