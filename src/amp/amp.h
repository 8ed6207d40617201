/* amp.h - loss scaling and opt levels from inside. */
#ifndef TERN_SRC_AMP_H
#define TERN_SRC_AMP_H

#include "kernels/loss_scale.h"
#include "optim/optim.h"

#include <tern/amp.h>

/* ---- loss_scale.c: a loss scale starts in the host's memory and moves to the device of its first loss ----
 */

/* Moves *scale to the loss's device, if the loss is in a device's memory; so tern__memory_free frees it. */
int tern__loss_scale_follow(tern__loss_scale **scale, const tern_tensor *loss, tern_error *err);
/* Returns loss * scale; its backward multiplies the gradient by the scale, too. */
tern_tensor *tern__loss_scaled(tern_scope *scope, tern_tensor *loss, const tern__loss_scale *scale);
/* Marks the scale as overflowed unless *bad is 0. Like the next function, false after a failure. */
bool tern__loss_scale_find(tern_scope *scope, tern__loss_scale *scale, const double *bad);
/* Computes the next scale. */
bool tern__loss_scale_advance(tern_scope *scope, tern__loss_scale *scale, const tern__scale_attr *attr);

/* ---- overflow.c ---- */

/* The result of looking for gradients that are not finite. */
typedef struct tern__overflow {
    bool any;          /* the optimizer has gradients                                            */
    bool found;        /* one is not finite, here or on another rank of the model's ddp          */
    bool is_on_device; /* only the device knows: found is then true, and skips.bad has the count */
} tern__overflow;

/* Divides the optimizer's gradients by the scale, and records in *result and in the scale whether they
 * overflowed. False after a failure. */
bool tern__overflow_check(tern_optim *optim, tern_scope *scope, tern__loss_scale *scale,
                          tern__overflow *result);

/* ---- non_finite.c: the log of the option name_non_finite ---- */

typedef struct tern__non_finite {
    tern__watch watch; /* first */
    uint64_t backward; /* the number of the running or last backward                    */
    int parameters;    /* how many parameters had a gradient in it that is not finite   */
    const tern__leaf *first;
    double bad; /* how many elements of the first one's gradient are not finite */
} tern__non_finite;

/* Makes the scope's next backward look at every gradient. */
void tern__non_finite_begin(tern__non_finite *self, tern_scope *scope);
/* Logs once what that backward has found. */
void tern__non_finite_report(tern__non_finite *self, const tern_scope *scope);

/* The loss scaler of one loss under amp. */
typedef struct tern__loss_scaler {
    bool dynamic; /* false: the scale is constant and stays in the host's memory */
    tern__loss_scale *scale;
    double told;    /* how many of its overflows have been logged */
    bool is_silent; /* only rank 0 logs                            */
} tern__loss_scaler;

/* Reads a scaler's values; waits for the device that holds them. */
int tern__loss_scaler_read(tern__loss_scaler *scaler, int loss_id, tern__loss_scale *values, tern_error *err);

struct tern_amp {
    tern_amp_opts opts;
    tern_module **models; /* [model_count] borrowed    */
    int model_count;
    tern__loss_scaler *scalers; /* [opts.num_losses] */
    tern__non_finite non_finite;
};

#endif
