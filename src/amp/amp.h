/* amp.h - loss scaling and opt levels from inside. */
#ifndef TERN_SRC_AMP_H
#define TERN_SRC_AMP_H

#include "kernels/loss_scale.h"
#include "optim/optim.h"

#include <tern/amp.h>

/* ---- loss_scale.c: a scale, in the host's memory until it meets a loss that is in a device's ---- */

/* Zeros. Yours: tern__memory_free. */
tern__loss_scale *tern__loss_scale_new(const char *func, tern_error *err);
/* *scale is where the loss is, if that is in a device's memory. */
int tern__loss_scale_follow(tern__loss_scale **scale, const tern_tensor *loss, tern_error *err);
/* loss * scale, of which the gradient is scaled. */
tern_tensor *tern__loss_scaled(tern_scope *scope, tern_tensor *loss, const tern__loss_scale *scale);
/* Numbers that are not finite have been found, unless *bad is 0. False after a failure, as the next. */
bool tern__loss_scale_find(tern_scope *scope, tern__loss_scale *scale, const double *bad);
/* The next scale. */
bool tern__loss_scale_advance(tern_scope *scope, tern__loss_scale *scale, const tern__scale_attr *attr);

/* ---- overflow.c ---- */

/* What an optimizer's gradients are. */
typedef struct tern__overflow {
    bool any;     /* there are gradients                                                       */
    bool found;   /* one of them is not finite, here or on another rank of the model's ddp     */
    bool is_away; /* a device knows that alone: found is true, and skips.bad tells              */
} tern__overflow;

/* Divides the optimizer's gradients by the scale and looks, for the scale too. False after a failure. */
bool tern__overflow_check(tern_optim *optim, tern_scope *scope, tern__loss_scale *scale,
                          tern__overflow *result);

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
    bool dynamic; /* another one stays in the host's memory */
    tern__loss_scale *scale;
    double told;    /* of its overflows, those that were logged */
    bool is_silent; /* another rank than 0's */
} tern__loss_scaler;

/* What a scaler has: waits for a device. */
int tern__loss_scaler_read(tern__loss_scaler *scaler, int loss_id, tern__loss_scale *values, tern_error *err);

struct tern_amp {
    tern_amp_opts opts;
    tern_module **models; /* [model_count] borrowed    */
    int model_count;
    tern__loss_scaler *scalers; /* [opts.num_losses] */
    tern__non_finite non_finite;
};

#endif
