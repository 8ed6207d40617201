/* amp.h - loss scaling and opt levels from inside. */
#ifndef TERN_SRC_AMP_H
#define TERN_SRC_AMP_H

#include "optim/optim.h"

#include <tern/amp.h>

/* loss * scale, of which the gradient is scaled. */
tern_tensor *tern__loss_scale(tern_scope *scope, tern_tensor *loss, double scale);

/* What an optimizer's gradients are. */
typedef struct tern__overflow {
    bool any;   /* there are gradients                                                       */
    bool found; /* one of them is not finite, here or on another rank of the model's ddp     */
} tern__overflow;

/* Multiplies the optimizer's gradients with `factor` and looks. False after a failure. */
bool tern__overflow_check(tern_optim *optim, tern_scope *scope, double factor, tern__overflow *result);

/* A loss's scale under amp. */
typedef struct tern__loss_scaler {
    bool dynamic;
    double scale;
    int64_t unskipped; /* backwards without overflow since the scale was changed */
} tern__loss_scaler;

struct tern_amp {
    tern_amp_opts opts;
    tern_module **models; /* [model_count] borrowed    */
    int model_count;
    tern__loss_scaler *scalers; /* [opts.num_losses] */
};

#endif
