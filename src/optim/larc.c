/* larc.c - layer-wise adaptive rates: what a parameter's gradient is multiplied with depends on the norms of
 * both. Every rank has all parameters and all gradients, so also a sharded optimizer's ranks compute them
 * each by itself, with the same bits. Where there are masters the norm is that of the rounded parameter, for
 * a master is only on the rank that updates it. */
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
    if (optim->lamb)
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

bool tern__larc_adapt(tern_optim *optim, tern_scope *scope, int k, double decay, tern__optim_attr *attr,
                      const double **factors)
{
    const tern__leaf *leaf = optim->seal->leaves[k];
    const tern_larc_opts *o = &optim->larc;
    const tern__norm_attr norm = {.use = TERN__NORM_ADAPTED,
                                  .p = 2,
                                  .eps = o->eps,
                                  .coefficient = o->trust_coefficient,
                                  .decay = decay,
                                  .rate = optim->groups[optim->group_of[k]].rate,
                                  .clip = o->clip};
    double *sums = tern__norm_sums(optim, k);
    attr->step.decay = attr->step.scale * decay;
    *factors = tern__norm_factors_of(optim, k);
    return tern__norm_square(scope, &leaf->parameter->view, &sums[0]) &&
           tern__norm_square(scope, &leaf->grad->view, &sums[1]) &&
           tern__norm_decide(scope, &norm, sums, 1, 2, tern__norm_factors_of(optim, k));
}
