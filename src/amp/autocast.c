/* autocast.c - casts the inputs of ops in an autocast region.
 *
 * Every op passes its name and its inputs to tern__op_enter, which asks the scope's policy. The policy looks
 * the op up in the table of autocast.def. So no op knows about autocast, and the tape holds ordinary casts
 * before ordinary ops. */
#include "amp/autocast.h"

#include "comm/group.h"
#include "ops/ops.h"

#include <tern/amp.h>

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- the lists ---- */

typedef enum rule { KEEP, LOWER, FULL, PROMOTE, WIDEST } rule; /* see autocast.def */

typedef struct row {
    const char *op;
    rule torch[2];   /* on the CPU, and on a GPU                                  */
    rule apex;       /* on either                                                 */
    unsigned inputs; /* one bit for each that the rule is about; all above the 31st */
} row;

#define INPUT(i) (1u << (i))
#define ALL      UINT_MAX

static const row rows[] = {
#define R(op, cpu, cuda, apex, inputs) {"tern_" #op, {cpu, cuda}, apex, inputs},
#include "amp/autocast.def"
#undef R
};

static int autocast_compare(const void *op, const void *at)
{
    return strcmp(op, ((const row *)at)->op);
}

/* ---- casts ---- */

/* Returns x in `dtype`. A parameter is cast once and the copy is kept, except while tern_checkpoint finds out
 * which parameters are used: then it has to see every use. */
static tern_tensor *autocast_cast(tern_scope *scope, tern_tensor *x, tern_dtype dtype)
{
    bool kept = x->leaf && x->view.dtype != dtype && !scope->checkpoint.traced;
    tern_tensor *y = kept ? tern__cast_find(scope, x, dtype) : NULL;
    if (y) return y;
    y = kept ? tern__cast_parameter(scope, x, dtype) : tern__cast(scope, x, dtype);
    if (y && kept) tern__cast_keep(scope, x, y);
    return y;
}

/* Neither bf16 nor f16 holds all values of the other, so the two need f32. */
static tern_dtype wider(tern_dtype a, tern_dtype b)
{
    if (a == b) return a;
    return a == TERN_F64 || b == TERN_F64 ? TERN_F64 : TERN_F32;
}

/* An op's inputs, and a bit for each that the policy is about. */
typedef struct operands {
    int count;
    tern_tensor **x;
    unsigned mask;
} operands;

static bool concerns(const operands *in, int i)
{
    bool listed = i >= 32 || (in->mask & INPUT(i));
    return listed && in->x[i] && tern__dtype_is_float(in->x[i]->view.dtype);
}

/* Finds the widest dtype, either of all inputs or of those with dimensions; false if there are none. */
static bool find_widest(const operands *in, bool dimensions, tern_dtype *widest)
{
    bool found = false;
    for (int i = 0; i < in->count; i++) {
        if (!concerns(in, i) || (dimensions && in->x[i]->view.ndim == 0)) continue;
        tern_dtype dtype = in->x[i]->view.dtype;
        *widest = found ? wider(*widest, dtype) : dtype;
        found = true;
    }
    return found;
}

/* Returns the dtype that an input of dtype `x` is cast to. */
static tern_dtype target(rule by, tern_dtype x, tern_dtype region, tern_dtype widest)
{
    if (by == LOWER) return x == TERN_F64 ? x : region;
    if (by == FULL) return tern__dtype_is_half(x) ? TERN_F32 : x;
    return widest;
}

static void settle_by(rule by, tern_scope *scope, tern_dtype region, const operands *in)
{
    tern_dtype widest = TERN_F32;
    bool searched = by == PROMOTE && find_widest(in, true, &widest);
    if (!searched && (by == PROMOTE || by == WIDEST)) find_widest(in, false, &widest);
    for (int i = 0; i < in->count && !scope->error.code; i++)
        if (concerns(in, i))
            in->x[i] = autocast_cast(scope, in->x[i], target(by, in->x[i]->view.dtype, region, widest));
}

/* ---- policies ---- */

typedef struct policy {
    tern__policy base;
    tern__autocast_list list;
} policy;

static rule rule_of(const row *listed, tern__autocast_list list, const tern_device *here)
{
    if (!listed) return KEEP;
    return list == TERN__AUTOCAST_APEX ? listed->apex : listed->torch[here->backend != NULL];
}

static void autocast_settle(const tern__policy *self, tern_scope *scope, const char *op, int count,
                            tern_tensor **inputs)
{
    const row *listed = bsearch(op, rows, TERN__COUNT(rows), sizeof(*rows), autocast_compare);
    rule by = rule_of(listed, ((const policy *)self)->list, scope->here);
    if (by == KEEP) return;
    const operands in = {count, inputs, listed->inputs};
    settle_by(by, scope, self->dtype, &in);
}

static const policy policies[2][2] = {
    {{{TERN_BF16, autocast_settle}, TERN__AUTOCAST_TORCH},
     {{TERN_F16, autocast_settle}, TERN__AUTOCAST_TORCH}},
    {{{TERN_BF16, autocast_settle}, TERN__AUTOCAST_APEX}, {{TERN_F16, autocast_settle}, TERN__AUTOCAST_APEX}},
};

static void autocast_leave(const tern__policy *self, tern_scope *scope, const char *op, int count,
                           tern_tensor **inputs)
{
    (void)self, (void)scope, (void)op, (void)count, (void)inputs;
}

/* The policy outside of regions at opt level O1: it remembers that the next region goes by apex's list. */
static const policy apex_off = {{TERN_F32, autocast_leave}, TERN__AUTOCAST_APEX};

/* Warns if the CPU has no fast kernels for the region's dtype: once per process and dtype, on rank 0. Asking
 * the CPU takes longer than everything else that a region does. */
static void note_what_lacks(const tern_scope *scope, tern_dtype dtype)
{
    static atomic_flag asked[2] = {ATOMIC_FLAG_INIT, ATOMIC_FLAG_INIT};
    if (scope->device->backend) return;
    if (scope->group && tern_group_rank(scope->group) > 0) return;
    if (atomic_flag_test_and_set(&asked[dtype == TERN_F16])) return;
    const char *lacks = tern__kernel_lacks(dtype);
    if (!lacks) return;
    tern__log(TERN_LOG_WARN,
              "autocast: this machine lacks %s; results in %s are right, but no faster than in f32", lacks,
              tern_dtype_name(dtype));
}

const tern__policy *tern__autocast_policy(tern__autocast_list list, tern_dtype dtype)
{
    return &policies[list][dtype == TERN_F16].base;
}

/* Returns the policy that follows `now` when a region of `dtype` begins, or ends with f32. */
static const tern__policy *next_policy(const tern__policy *now, tern_dtype dtype)
{
    tern__autocast_list list = now ? ((const policy *)now)->list : TERN__AUTOCAST_TORCH;
    if (tern__dtype_is_half(dtype)) return tern__autocast_policy(list, dtype);
    return list == TERN__AUTOCAST_APEX ? &apex_off.base : NULL;
}

tern_dtype tern_autocast_set(tern_scope *scope, tern_dtype dtype)
{
    if (!scope) return TERN_F32;
    tern_dtype before = scope->autocast.policy ? scope->autocast.policy->dtype : TERN_F32;
    if (dtype != TERN_F32 && !tern__dtype_is_half(dtype)) {
        tern__scope_fail(scope, __func__, TERN_E_DTYPE,
                         "autocast: expected bf16 or f16 to begin a region, or f32 to end it, got %s",
                         tern_dtype_name(dtype));
        return before;
    }
    if (tern__dtype_is_half(dtype)) note_what_lacks(scope, dtype);
    tern__policy_set(scope, next_policy(scope->autocast.policy, dtype));
    return before;
}
