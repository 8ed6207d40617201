/* norm.c - what norms say about an optimizer's updates, LARC's and LAMB's: sums, and factors made of them,
 * for each parameter and for each group, in the memory of the parameters. Kernels make them everywhere; the
 * host takes those that it sees into the attributes of an update. */
#include "kernels/norm_factors.h"
#include "kernels/power_sum.h"
#include "optim/optim.h"
#include "tensor/number.h"

enum { SUMS = 2, FACTORS = 3 };

int tern__norms_open(tern_optim *optim, tern_error *err)
{
    size_t leaves = (size_t)optim->seal->leaf_count, groups = (size_t)optim->group_count;
    size_t count = leaves * SUMS + (leaves + groups) * FACTORS;
    if (optim->norms.sums) return TERN_OK;
    optim->norms.sums =
        tern__memory_new(tern__optim_device(optim), count * sizeof(double), "tern_optim_step", err);
    optim->norms.factors = optim->norms.sums ? optim->norms.sums + leaves * SUMS : NULL;
    return optim->norms.sums ? TERN_OK : TERN_E_MEMORY;
}

void tern__norms_free(tern_optim *optim)
{
    tern__memory_free(optim->norms.sums);
}

double *tern__norm_sums(const tern_optim *optim, int k)
{
    return optim->norms.sums + (size_t)k * SUMS;
}

double *tern__norm_factors_of(const tern_optim *optim, int k)
{
    return optim->norms.factors + (size_t)k * FACTORS;
}

double *tern__norm_factors_of_group(const tern_optim *optim, int g)
{
    return tern__norm_factors_of(optim, optim->seal->leaf_count + g);
}

bool tern__norm_square(tern_scope *scope, const tern__view *view, double *sum)
{
    tern__power_attr attr = {2};
    tern__view out = tern__number_view(sum);
    tern__call call = {.kernel = TERN__POWER_SUM, .in = {view}, .out = {&out}, .attr = &attr};
    tern__go_to(scope, view->data);
    return tern__run(scope, &call);
}

bool tern__norm_decide(tern_scope *scope, const tern__norm_attr *attr, const double *sums, int64_t rows,
                       int64_t columns, double *factors)
{
    tern__view in = tern__view_make(TERN_F64, TERN__PLAIN, 2, (int64_t[]){rows, columns}),
               out = tern__numbers_view(factors, FACTORS);
    in.data = (void *)sums;
    tern__call call = {.kernel = TERN__NORM_FACTORS, .in = {&in}, .out = {&out}, .attr = attr};
    tern__go_to(scope, factors);
    return tern__run(scope, &call);
}

const double *tern__norm_take(const double *factors, tern__step_attr *step)
{
    if (!factors || tern__number_is_away(factors)) return factors;
    tern__step_settle(step, factors, NULL);
    return NULL;
}
