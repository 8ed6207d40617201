/* skips.c - steps that are skipped because gradients have overflowed.
 *
 * If the result is in the host's memory, the host reads it and makes no step. If only the device knows it,
 * the host launches every step together with the verdict, and the kernels change nothing in a skipped one. So
 * `steps` counts too many. The device counts the skipped ones for each parameter, since not all have a
 * gradient in every step, and its kernels subtract them; the host reads the counts when it is asked for the
 * steps. Neighbours that have not made the same steps since then are not updated together, even if their
 * counts are equal. */
#include "kernels/pointwise.h"
#include "optim/optim.h"
#include "tensor/number.h"

#include <string.h>

enum { BAD, VERDICT, SCALE, FACTOR, STEPS };

static int open_skips(tern_optim *optim, tern_error *err)
{
    const char *func = "tern_optim_step";
    size_t leaves = (size_t)optim->seal->leaf_count, bytes = (STEPS + leaves) * sizeof(double);
    tern__skips *skips = &optim->skips;
    skips->apart = tern__alloc(leaves * sizeof(*skips->apart), func, err);
    double *numbers = skips->apart ? tern__memory_new(optim->device, bytes, func, err) : NULL;
    if (!numbers) return TERN_E_MEMORY;
    *skips = (tern__skips){.bad = numbers + BAD,
                           .verdict = numbers + VERDICT,
                           .scale = numbers + SCALE,
                           .factor = numbers + FACTOR,
                           .steps = numbers + STEPS,
                           .apart = skips->apart};
    return tern__memory_zero(numbers, bytes, err);
}

void tern__skips_free(tern_optim *optim)
{
    tern__memory_free(optim->skips.bad);
    tern__free(optim->skips.apart);
}

bool tern__skips_begin(tern_optim *optim, tern_scope *scope)
{
    tern_error err = {0};
    int status = optim->skips.bad ? TERN_OK : open_skips(optim, &err);
    if (!status) status = tern__memory_zero(optim->skips.bad, sizeof(double), &err);
    if (status) tern__scope_fail_with(scope, &err);
    return !status;
}

/* Sets each element of a view to 1, or adds 1 to it, if the number is not 0. */
static bool add_one(tern_scope *scope, const double *number, const tern__view *to, bool add)
{
    tern__pointwise_attr attr = {{0, 1}};
    tern__view from = tern__numbers_view(number, to->shape[0]);
    from.stride[0] = 0;
    tern__call call = {.kernel = TERN__CLAMP, .in = {&from}, .out = {to}, .add = {add}, .attr = &attr};
    tern__go_to(scope, to->data);
    return tern__run(scope, &call);
}

bool tern__skips_vote(tern_optim *optim, tern_scope *scope, const double *bad)
{
    bool add = optim->skip;
    tern__view verdict = tern__numbers_view(optim->skips.verdict, 1);
    optim->skip = true;
    return !tern__number_is_on_device(verdict.data) || add_one(scope, bad, &verdict, add);
}

/* ---- a step ---- */

static void part_neighbours(tern_optim *optim)
{
    const tern__seal *seal = optim->seal;
    int before[TERN__RANGES];
    for (int r = 0; r < TERN__RANGES; r++) before[r] = -1;
    for (int k = 0; k < seal->leaf_count; k++) {
        int *last = &before[seal->range_of[k]];
        if (*last >= 0 && tern__optim_is_due(optim, k) != tern__optim_is_due(optim, *last))
            optim->skips.apart[k] = true;
        *last = k;
    }
}

bool tern__skips_count(tern_optim *optim, tern_scope *scope)
{
    bool fine = true;
    if (!tern__number_is_on_device(optim->skips.bad)) return true;
    part_neighbours(optim);
    for (int k = 0, next; k < optim->seal->leaf_count && optim->skip && fine; k = next) {
        next = k + 1;
        if (!tern__optim_is_due(optim, k)) continue;
        while (next < optim->seal->leaf_count && tern__optim_is_due(optim, next)) next++;
        tern__view steps = tern__numbers_view(optim->skips.steps + k, next - k);
        fine = add_one(scope, optim->skips.verdict, &steps, true);
    }
    return fine;
}

int tern__skips_settle(tern_optim *optim, tern_error *err)
{
    size_t leaves = (size_t)optim->seal->leaf_count, bytes = leaves * sizeof(double);
    if (!tern__number_is_on_device(optim->skips.bad)) return TERN_OK;
    double *skipped = tern__alloc(bytes, "tern_optim", err);
    int status = skipped ? tern__memory_copy(skipped, optim->skips.steps, bytes, err) : TERN_E_MEMORY;
    if (!status) status = tern__memory_zero(optim->skips.steps, bytes, err);
    for (size_t k = 0; k < leaves && !status; k++) optim->steps[k] -= (int64_t)skipped[k];
    if (!status) memset(optim->skips.apart, 0, leaves * sizeof(*optim->skips.apart));
    tern__free(skipped);
    return status;
}
