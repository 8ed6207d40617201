/* microbatches.c - sums the gradients of a round's microbatches pairwise, so that the result does not depend
 * on how many ranks share them.
 *
 * tern_all_reduce combines neighbouring ranks first, then pairs of neighbours. If the 2, 4, 8 .. microbatches
 * of a rank are combined in the same way, their sum is a part of the sum over all ranks' microbatches: 1 rank
 * with 4, 2 ranks with 2 and 4 ranks with 1 get the same bits. A gradient that is added to another while it
 * is computed would be rounded in between, so every backward begins without gradients: those of the one
 * before have then been added to sums. As in a binary counter, the sum of level l is of 2^l microbatches, and
 * it is there if bit l of their number is set. The last microbatch, which is reduced, finds one sum of each
 * level, and adds them when its bucket is put. */
#include "parallel/ddp.h"

#include "kernels/kernel.h"

#include <string.h>

enum { LEVELS_MAX = 30 };

struct tern__ddp_microbatches {
    int levels;                           /* 2^levels microbatches */
    int count;                            /* that have begun in this round */
    char *sums[LEVELS_MAX][TERN__RANGES]; /* laid out as the gradient ranges */
    bool *has[LEVELS_MAX];                /* [level][leaf index]: the sum is there; else it counts as zeros */
    float losses[LEVELS_MAX];             /* the sums of losses */
};
typedef struct tern__ddp_microbatches microbatches;

static bool microbatches_is_on(const tern_ddp *ddp)
{
    return ddp->opts.microbatches > 1;
}

static int microbatches_open(tern_ddp *ddp, tern_error *err)
{
    microbatches *self = ddp->microbatches;
    while (1 << self->levels < ddp->opts.microbatches) self->levels++;
    for (int level = 0; level < self->levels; level++) {
        self->has[level] = tern__ddp_alloc(ddp, NULL, (size_t)ddp->seal->leaf_count * sizeof(bool), err);
        if (!self->has[level]) return TERN_E_MEMORY;
        for (int r = 0; r < ddp->seal->range_count; r++) {
            const tern__range *range = &ddp->seal->ranges[r];
            self->sums[level][r] = tern__ddp_alloc(ddp, range->device, range->grad_bytes, err);
            if (!self->sums[level][r]) return TERN_E_MEMORY;
        }
    }
    return TERN_OK;
}

/* ---- sums of one leaf ---- */

static tern__view sum_at(const tern_ddp *ddp, int k, int level)
{
    int r = ddp->seal->range_of[k];
    tern__view view = ddp->seal->leaves[k]->grad->view;
    view.data = ddp->microbatches->sums[level][r] + ((char *)view.data - ddp->seal->ranges[r].grads);
    return view;
}

static tern_device *device_of(const tern_ddp *ddp, int k)
{
    tern_device *device = ddp->seal->ranges[ddp->seal->range_of[k]].device;
    return device ? device : ddp->round.scope->device;
}

/* gradient = sum of the level + gradient */
static int leaf_sum_add(const tern_ddp *ddp, int k, int level, tern_error *err)
{
    tern__view sum = sum_at(ddp, k, level), *grad = &ddp->seal->leaves[k]->grad->view;
    int status = TERN_OK;
    if (!ddp->microbatches->has[level][k]) status = tern__memory_zero(sum.data, tern__view_bytes(&sum), err);
    const tern__call add = {
        .device = device_of(ddp, k), .kernel = TERN__ADD, .in = {&sum, grad}, .out = {grad}, .err = err};
    return status ? status : tern__kernel_run(&add);
}

/* Adds the gradient to the sums of the lower levels, and keeps the result as the level's. */
static int leaf_sum_push(tern_ddp *ddp, int k, int level, tern_error *err)
{
    microbatches *self = ddp->microbatches;
    tern__leaf *leaf = ddp->seal->leaves[k];
    tern__view *grad = &leaf->grad->view, sum = sum_at(ddp, k, level);
    bool any = leaf->fresh;
    int status = TERN_OK;
    for (int l = 0; l < level; l++) any |= self->has[l][k];
    if (any && !leaf->fresh) status = tern__memory_zero(grad->data, tern__view_bytes(grad), err);
    for (int l = 0; l < level && any && !status; l++) status = leaf_sum_add(ddp, k, l, err);
    const tern__call copy = {
        .device = device_of(ddp, k), .kernel = TERN__COPY, .in = {grad}, .out = {&sum}, .err = err};
    if (any && !status) status = tern__kernel_run(&copy);
    for (int l = 0; l < level; l++) self->has[l][k] = false;
    self->has[level][k] = any;
    /* A leaf that this backward does not use keeps a gradient, of zeros. */
    if (leaf->fresh && !leaf->pending && !status)
        status = tern__memory_zero(grad->data, tern__view_bytes(grad), err);
    leaf->fresh &= !leaf->pending;
    return status;
}

/* ---- a round ---- */

static void round_reset(tern_ddp *ddp)
{
    microbatches *self = ddp->microbatches;
    for (int level = 0; level < self->levels; level++)
        memset(self->has[level], 0, (size_t)ddp->seal->leaf_count * sizeof(bool));
    self->count = 0;
}

/* Returns the level whose sum is complete with microbatch i of the round. */
static int level_of(int i)
{
    int level = 0;
    while (i >> level & 1) level++;
    return level;
}

/* Refuses a round of fewer or more microbatches. */
static int microbatch_count_check(const tern_ddp *ddp, tern_error *err)
{
    int n = ddp->opts.microbatches, count = ddp->microbatches->count;
    bool is_last = ddp->round.active;
    if (is_last ? count == n : count < n) return TERN_OK;
    return tern__error_set(
        err, "tern_backward", TERN_E_STATE,
        "the tern_ddp of %s has %d microbatches, but %s: tern_ddp_sync_set(ddp, %s) has to be "
        "called before %s",
        ddp->module->kind, n,
        is_last ? "a synchronised backward came before the last of them"
                : "the backward of the last of them is not synchronised",
        is_last ? "false" : "true", is_last ? "all but the last" : "it");
}

/* Other models' backwards are no microbatches of this one. */
static int microbatches_begin(tern_ddp *ddp, tern_error *err)
{
    microbatches *self = ddp->microbatches;
    if (!ddp->round.reached) return TERN_OK;
    if (!tern__ddp_has_gradients(ddp)) round_reset(ddp); /* tern_zero_grad has ended the round */
    int before = self->count;
    self->count += ddp->round.used;
    int status = microbatch_count_check(ddp, err);
    for (int i = 0; i < ddp->leaf_count && ddp->round.used && before && !status; i++)
        status = leaf_sum_push(ddp, ddp->order[i], level_of(before - 1), err);
    if (status || ddp->round.active || !ddp->round.used) return status;
    self->losses[level_of(self->count - 1)] = (float)tern__microbatches_loss(ddp, tern__ddp_loss_item(ddp));
    return TERN_OK;
}

double tern__microbatches_loss(const tern_ddp *ddp, double loss)
{
    const microbatches *self = ddp->microbatches;
    float sum = (float)loss;
    for (int level = 0, levels = self && self->count ? level_of(self->count - 1) : 0; level < levels; level++)
        sum = self->losses[level] + sum;
    return self ? sum : loss;
}

/* A rank without samples takes part with zeros. */
static int microbatches_put(tern_ddp *ddp, tern_error *err)
{
    const tern__bucket *bucket = &ddp->buckets[ddp->round.next_put];
    int status = TERN_OK;
    if (!(ddp->round.samples > 0)) return status;
    for (int i = 0; i < bucket->count; i++)
        for (int level = 0; level < ddp->microbatches->levels && !status; level++)
            status = leaf_sum_add(ddp, ddp->order[bucket->first + i], level, err);
    return status;
}

static int microbatches_take(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    round_reset(ddp);
    return TERN_OK;
}

const tern__ddp_part tern__microbatches_part = {TERN__DDP_STATE(microbatches), .is_on = microbatches_is_on,
                                                .at = {[TERN__DDP_OPEN] = microbatches_open,
                                                       [TERN__DDP_BEGIN] = microbatches_begin,
                                                       [TERN__DDP_PUT] = microbatches_put,
                                                       [TERN__DDP_TAKE] = microbatches_take}};
