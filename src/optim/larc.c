/* larc.c - layer-wise adaptive rates: what a parameter's gradient is multiplied with depends on the norms of
 * both. Every rank has all parameters and all gradients, so also a sharded optimizer's ranks compute them
 * each by itself, with the same bits. Where there are masters the norm is that of the rounded parameter, for
 * a master is only on the rank that updates it. */
#include "optim/optim.h"

#include "base/opts.h"

#include <math.h>

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

bool tern__larc_adapt(tern_optim *optim, tern_scope *scope, int k, double decay, tern__optim_attr *attr)
{
    const tern__leaf *leaf = optim->seal->leaves[k];
    const tern_larc_opts *o = &optim->larc;
    double pp, gg;
    if (!tern__norm_square(scope, &leaf->parameter->view, &pp) ||
        !tern__norm_square(scope, &leaf->grad->view, &gg))
        return false;
    double p = sqrt(pp), g = sqrt(gg), rate = optim->groups[optim->group_of[k]].rate;
    if (p == 0 || g == 0) return true;
    double adapted = o->trust_coefficient * p / (g + p * decay + o->eps);
    if (o->clip) adapted = 1 < adapted / rate ? 1 : adapted / rate;
    attr->step.scale *= adapted;
    attr->step.decay = attr->step.scale * decay;
    return true;
}
