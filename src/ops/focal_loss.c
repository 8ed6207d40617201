/* focal_loss.c - focal loss (Lin et al. 2017), from logits. */
#include "ops/focal_loss.h"

#include <math.h>

tern_focal_opts tern_focal_defaults(void)
{
    return (tern_focal_opts){
        .size = sizeof(tern_focal_opts), .gamma = 2, .alpha = 0.25, .ignore_index = -100};
}

static int read_opts(tern_scope *scope, const char *func, const tern_focal_opts *user, tern_focal_opts *opts)
{
    *opts = tern_focal_defaults();
    if (tern__scope_opts(scope, opts, sizeof(*opts), user, func)) return scope->error.code;
    if (!(opts->gamma >= 0 && isfinite(opts->gamma)))
        return tern__scope_fail(scope, func, TERN_E_RANGE, "focal_loss: expected gamma >= 0, got %g",
                                opts->gamma);
    if (!(opts->alpha <= 1))
        return tern__scope_fail(scope, func, TERN_E_RANGE, "focal_loss: expected alpha <= 1, got %g",
                                opts->alpha);
    if (opts->classes || !opts->weight) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_INVALID,
                            "focal_loss: of a mask expected alpha, got weights of classes");
}

tern_tensor *tern_focal_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                             const tern_focal_opts *user)
{
    tern_focal_opts opts;
    if (!TERN__ENTER(scope, __func__, 2, &x, &target) || read_opts(scope, __func__, user, &opts)) return NULL;
    return (opts.classes ? tern__focal_class_loss : tern__focal_mask_loss)(scope, __func__, x, target, &opts);
}
