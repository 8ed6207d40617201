/* amp.h - mixed precision: what is big is computed in 16 bits; scaling of the loss.
 *
 * bf16 has f32's range: its gradients do not underflow, and a loss scale is harmless there, since powers of
 * two cancel exactly; f16 wants one.
 *
 * Threads: a scaler belongs to the thread of its scope. */
#ifndef TERN_AMP_H
#define TERN_AMP_H

#include <tern/object.h>
#include <tern/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- regions: torch.autocast; parameters and gradients stay f32 ---- */

/* TERN_BF16 or TERN_F16 begins a region of the scope, TERN_F32 ends it; returns what it was, so that regions
 * nest:
 *
 *     tern_dtype was = tern_autocast_set(scope, TERN_BF16);
 *     tern_tensor *loss = tern_cross_entropy(scope, tern_forward(model, scope, x), y, NULL);
 *     tern_autocast_set(scope, was);
 *     tern_backward(scope, loss);
 *
 * In a region ops cast their inputs first, with gradient: products of matrices and convolutions to its dtype,
 * losses to f32, and ops on several tensors bring those to the widest of their types; all others run in what
 * they are given. f64 stays. Which op does what is PyTorch's list for the CPU, in src/amp/autocast.c. A
 * parameter is cast once in a region and step, not by every op that uses it. Module calls, tern_checkpoint,
 * tern_data_parallel and a ddp follow the scope; backward runs in the types that its ops ran in, wherever it
 * is called. Where the CPU has no instructions for the dtype a warning says so, once a process. Any other
 * dtype is the scope's E_DTYPE and changes nothing. torch.autocast("cpu"). */
TERN_API tern_dtype tern_autocast_set(tern_scope *scope, tern_dtype dtype);

/* ---- loss scaling: torch.cuda.amp.GradScaler ----
 *
 *     tern_backward(scope, tern_scaler_scale(scaler, scope, loss));
 *     tern_scaler_unscale(scaler, scope, optim);   (only to clip, or to look at gradients)
 *     tern_scaler_step(scaler, scope, optim);
 *     tern_scaler_update(scaler, scope);
 *
 * The loss is multiplied with a scale, so that small gradients do not underflow, and the gradients are
 * divided by it before the optimizer takes them. A step whose gradients have an infinity or a NaN is skipped,
 * on all ranks of the model's tern_ddp if one of them has it: the same steps, state and scale everywhere. */

typedef struct tern_scaler tern_scaler;

typedef struct tern_scaler_opts {
    size_t size;
    double init_scale;       /* > 0; default 65536                                                   */
    double growth_factor;    /* > 1; after growth_interval updates without a skipped step; default 2 */
    double backoff_factor;   /* in (0, 1); after a skipped step; default 0.5                         */
    int64_t growth_interval; /* >= 1; default 2000                                                   */
    bool enabled;            /* false: scale, unscale and update do nothing, and every step is made;
                              * default true */
} tern_scaler_opts;
TERN_API tern_scaler_opts tern_scaler_defaults(void);

/* Yours: tern_scaler_free. E_RANGE: an option out of its range; E_MEMORY. */
TERN_API tern_scaler *tern_scaler_new(const tern_scaler_opts *opts, tern_error *err);
TERN_API void tern_scaler_free(tern_scaler *scaler);

/* loss * scale, in f32 if the loss is bf16 or f16. tern_ddp_loss_mean and tern_loss_normaliser stay those of
 * the loss itself. */
TERN_API tern_tensor *tern_scaler_scale(tern_scaler *scaler, tern_scope *scope, tern_tensor *loss);

/* Divides the optimizer's gradients by the scale, in one pass that also looks for what is not finite. Under a
 * tern_ddp it is collective. E_STATE: called twice since the last update, or after step; E_DTYPE: gradients
 * of f16, in which small ones would be lost again; E_PEER. */
TERN_API void tern_scaler_unscale(tern_scaler *scaler, tern_scope *scope, tern_optim *optim);

/* Unscales, if that is not done, and makes the optimizer's step, or skips it and forgets the gradients: the
 * optimizer's state and number of steps stay. Returns whether it was made. E_STATE: called twice since the
 * last update, or the optimizer has no gradients; those of unscale. */
TERN_API bool tern_scaler_step(tern_scaler *scaler, tern_scope *scope, tern_optim *optim);

/* After the steps of all optimizers: a smaller scale if one was skipped, a larger one after enough that were
 * not. E_STATE: nothing was unscaled since the last one. */
TERN_API void tern_scaler_update(tern_scaler *scaler, tern_scope *scope);

/* 1 if it is not enabled. */
TERN_API double tern_scaler_scale_get(const tern_scaler *scaler);

/* {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}, as GradScaler's; empty
 * if it is not enabled. Yours: tern_object_free. E_MEMORY. */
TERN_API tern_object *tern_scaler_state_dict(const tern_scaler *scaler, tern_error *err);
/* Takes all five; of a scaler that is not enabled nothing. After an error nothing has changed. E_INVALID: a
 * number is missing, or the state is of a scaler that was not enabled; E_DTYPE, E_RANGE. */
TERN_API int tern_scaler_state_dict_load(tern_scaler *scaler, const tern_object *state, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
