/* larc.c - layer-wise adaptive rates (LARC): a parameter's gradient is multiplied by a factor that depends on
 * the norms of both. Every rank has all parameters and all gradients, so the ranks of a sharded optimizer,
 * too, each compute the norms for themselves, with the same bits. With masters it is the rounded parameter's
 * norm, as only the rank that updates a parameter has its master. */
#include "optim/optim.h"

#include "base/opts.h"

tern_larc_opts tern_larc_defaults(void)
{
    return (tern_larc_opts){
        .size = sizeof(tern_larc_opts), .trust_coefficient = 0.02, .clip = true, .eps = 1e-8};
}

int tern_optim_larc(tern_optim *optim, const tern_larc_opts *opts, tern_error *err)
{
    tern_larc_opts o = tern_larc_defaults();
    if (tern__is_set(err)) return err->code;
    if (!optim) return tern__error_set(err, __func__, TERN_E_INVALID, "the optimizer is NULL");
    if (optim->rule->first_pass)
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "LAMB has trust ratios of its own: expected another optimizer");
    int status = tern__opts_read(&o, sizeof(o), opts, __func__, err);
    if (status) return status;
    if (!(o.trust_coefficient >= 0) || !(o.eps >= 0))
        return tern__error_set(err, __func__, TERN_E_RANGE,
                               "larc: expected trust_coefficient and eps >= 0, got %g and %g",
                               o.trust_coefficient, o.eps);
    optim->larc = o;
    return TERN_OK;
}

/* Sums the squares of one run's parameters or gradients into a column of the sums. */
static bool square(tern_optim *optim, tern_scope *scope, int first, int last, int column)
{
    tern__leaf *const *leaves = optim->seal->leaves;
    const tern__view *from = column ? &leaves[first]->grad->view : &leaves[first]->parameter->view,
                     *to = column ? &leaves[last]->grad->view : &leaves[last]->parameter->view;
    int section = 0,
        count = tern__norm_sections(optim, first, last, optim->all[optim->seal->range_of[first]], &section);
    tern__view x = tern__view_span(from, to), sections = tern__norm_table(optim, section, count),
               sums = tern__norm_sums(optim, section, count);
    sums.ndim = 1;
    sums.data = (double *)sums.data + column;
    return tern__norm_squares(scope, &x, &sections, &sums);
}

static bool adapt(tern_optim *optim, tern_scope *scope, int first, int last)
{
    const tern_larc_opts *o = &optim->larc;
    tern__optim_group *group = &optim->groups[optim->group_of[first]];
    const double *decay = tern__optim_decay(optim, group);
    const tern__norm_attr norm = {.use = TERN__NORM_ADAPTED,
                                  .p = 2,
                                  .eps = o->eps,
                                  .coefficient = o->trust_coefficient,
                                  .decay = decay ? *decay : 0,
                                  .rate = group->rate,
                                  .clip = o->clip};
    return square(optim, scope, first, last, 0) && square(optim, scope, first, last, 1) &&
           tern__norm_decide_leaves(optim, scope, &norm, first, last);
}

bool tern__larc_prepare(tern_optim *optim, tern_scope *scope)
{
    return tern__optim_each_update(optim, scope, adapt);
}
