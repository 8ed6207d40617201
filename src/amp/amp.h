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

/* ---- non_finite.c: what name_non_finite says ---- */

typedef struct tern__non_finite {
    tern__watch watch; /* first */
    uint64_t backward; /* the number of the running or last one               */
    int parameters;    /* in it, whose gradient is not finite                 */
    const tern__leaf *first;
    double bad; /* numbers of the first's */
} tern__non_finite;

/* Looks at the gradients of the scope's next backward. */
void tern__non_finite_begin(tern__non_finite *self, tern_scope *scope);
/* Logs what it has found there, once. */
void tern__non_finite_report(tern__non_finite *self, const tern_scope *scope);

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
    tern__non_finite non_finite;
};

#endif
