/* amp.h - loss scaling from inside. */
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

#endif
