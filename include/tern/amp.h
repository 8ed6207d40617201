/* amp.h - mixed precision: regions in which ops compute in 16 bits, loss scaling, and apex's opt levels.
 *
 * bf16 has the range of f32, so its gradients do not underflow. A loss scale is harmless with bf16, since a
 * power of two cancels exactly. f16 needs one.
 *
 * Threads: a scaler and an amp belong to the thread of their scope. */
#ifndef TERN_AMP_H
#define TERN_AMP_H

#include <tern/object.h>
#include <tern/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- regions: torch.autocast; parameters and gradients stay f32 ---- */

/* Begins a region of the scope in which ops compute in TERN_BF16 or TERN_F16; TERN_F32 ends it. Returns the
 * old setting, so regions can be nested. torch.autocast("cpu"), torch.autocast("cuda").
 *
 *     tern_dtype was = tern_autocast_set(scope, TERN_BF16);
 *     tern_tensor *loss = tern_cross_entropy(scope, tern_forward(model, scope, x), y, NULL);
 *     tern_autocast_set(scope, was);
 *     tern_backward(scope, loss);
 *
 * Inside a region ops cast their inputs first, differentiably:
 *
 * - Matrix products and convolutions cast to the region's dtype.
 * - Losses cast to f32.
 * - Ops on several tensors cast them to the widest of their dtypes.
 * - On a GPU exp, log, pow, sums, softmax, layer and group norm and interpolation cast to f32; on the CPU
 *   reflected and replicated padding and pooling of volumes do.
 * - All other ops compute in the dtype that they are given. f64 is never cast.
 *
 * The lists are PyTorch's for the device, and apex's under opt level O1; they are in src/amp/autocast.def. A
 * parameter is cast once per region and step, however many ops use it. Module calls, tern_checkpoint,
 * tern_data_parallel and a ddp follow the scope. Backward computes in the dtypes in which the ops ran,
 * wherever it is called. If the scope's CPU has no instructions for the dtype, a warning says so, once per
 * process. Any other dtype is the scope's E_DTYPE and changes nothing. With a NULL scope nothing happens, and
 * TERN_F32 is returned. */
TERN_API tern_dtype tern_autocast_set(tern_scope *scope, tern_dtype dtype);

/* ---- loss scaling: torch.cuda.amp.GradScaler ----
 *
 *     tern_backward(scope, tern_scaler_scale(scaler, scope, loss));
 *     tern_scaler_unscale(scaler, scope, optim);   (only to clip, or to look at gradients)
 *     tern_scaler_step(scaler, scope, optim);
 *     tern_scaler_update(scaler, scope);
 *
 * The loss is multiplied by a scale, so that small gradients do not underflow; the gradients are divided by
 * it before the optimizer uses them. If a gradient has an infinity or a NaN, the step is skipped, on all
 * ranks of the model's tern_ddp. So all ranks make the same steps and have the same optimizer state and
 * scale.
 *
 * If the model is on a GPU, the scale and the decision about a step stay on the GPU, and these functions do
 * not wait for it. Exceptions: tern_scaler_scale_get and the state dicts; name_non_finite, which looks at
 * each gradient (once per parameter and backward); and a tern_ddp that ignores some of the optimizer's
 * parameters, whose ranks ask each other (once per step). */

typedef struct tern_scaler tern_scaler;

typedef struct tern_scaler_opts {
    size_t size;
    double init_scale;     /* first scale, > 0; default 65536                                      */
    double growth_factor;  /* > 1; applied after growth_interval updates without a skipped step; default 2 */
    double backoff_factor; /* in (0, 1); applied after a skipped step; default 0.5                 */
    int64_t growth_interval; /* >= 1; default 2000                                                   */
    bool enabled;            /* false: scale, unscale and update do nothing, and every step is made;
                              * default true */
    bool name_non_finite;    /* each rank logs a warning that names the first parameter whose own gradient has
                              * an infinity or a NaN, and the number of the backward. It reads every gradient
                              * before it is reduced; default false                                    */
} tern_scaler_opts;
/* Returns the default options. */
TERN_API tern_scaler_opts tern_scaler_defaults(void);

/* Makes a scaler. Yours: tern_scaler_free; like an amp, free it before a GPU whose losses it has scaled is
 * closed. NULL on error: E_RANGE (an option out of its range), E_MEMORY. */
TERN_API tern_scaler *tern_scaler_new(const tern_scaler_opts *opts, tern_error *err);
TERN_API void tern_scaler_free(tern_scaler *scaler);

/* Returns loss * scale, in f32 if the loss is bf16 or f16. tern_ddp_loss_mean and tern_loss_normaliser still
 * refer to the loss itself. */
TERN_API tern_tensor *tern_scaler_scale(tern_scaler *scaler, tern_scope *scope, tern_tensor *loss);

/* Divides the optimizer's gradients by the scale, and looks for infinities and NaNs in the same pass.
 * Collective under a tern_ddp (on a GPU only if the ddp ignores some of the optimizer's parameters, as other
 * gradients are equal on all ranks). E_STATE: called twice since the last update, or after the step; E_DTYPE:
 * f16 gradients, which would underflow again; E_PEER. What becomes infinite or NaN after this call, as by a
 * norm of infinite gradients or by your own code, is not looked for: tern_scaler_step makes the step, as
 * torch's. */
TERN_API void tern_scaler_unscale(tern_scaler *scaler, tern_scope *scope, tern_optim *optim);

/* Unscales, if that is not done yet, and makes the optimizer's step. If a gradient is not finite, it skips
 * the step instead: it forgets the gradients, and the optimizer's state and number of steps do not change.
 * Returns whether the step was made; on a GPU always true, since only the GPU knows; tern_scaler_scale_get
 * after the update tells. E_STATE: called twice since the last update, or the optimizer has no gradients; and
 * the errors of tern_scaler_unscale. */
TERN_API bool tern_scaler_step(tern_scaler *scaler, tern_scope *scope, tern_optim *optim);

/* Adapts the scale, after the steps of all optimizers: lowers it if a step was skipped, and raises it after
 * enough steps that were not. E_STATE: nothing was unscaled since the last update. */
TERN_API void tern_scaler_update(tern_scaler *scaler, tern_scope *scope);

/* Returns the scale; 1 if the scaler is not enabled, NaN if a device has failed. */
TERN_API double tern_scaler_scale_get(const tern_scaler *scaler);

/* Returns a scaler's state as GradScaler's: {"scale", "growth_factor", "backoff_factor", "growth_interval",
 * "_growth_tracker"}, or an empty dict if it is not enabled. E_MEMORY. Yours: tern_object_free. */
TERN_API tern_object *tern_scaler_state_dict(const tern_scaler *scaler, tern_error *err);
/* Sets a scaler's state to these five numbers; does nothing if the scaler is not enabled. After an error
 * nothing has changed. E_INVALID: a number is missing, or the state comes from a scaler that was not enabled;
 * E_DTYPE, E_RANGE. */
TERN_API int tern_scaler_state_dict_load(tern_scaler *scaler, const tern_object *state, tern_error *err);

/* ---- opt levels: apex.amp ----
 *
 *     tern_sync_batch_norm_convert(model, group, &err);     (if wanted)
 *     tern_amp *amp = tern_amp_new(model, &opts, &err);      opts = tern_amp_defaults(TERN_O1)
 *     tern_ddp *ddp = tern_ddp_new(model, group, NULL, &err);
 *     tern_optim *sgd = tern_sgd_new(model, &sgd_opts, &err);
 *     ..
 *     tern_amp_backward(amp, scope, loss, NULL);
 *     tern_optim_step(sgd, scope);
 *
 * Make the calls in this order; another order is E_STATE, which names it, except that an optimizer may
 * precede its ddp. In apex the optimizer comes first and amp rewrites it. In tern optimizers fix the model's
 * memory, so amp comes before them; optimizers made on the model later need not be handed to amp.
 *
 *        cast_model  patch_functions  keep_batch_norm_f32  master_weights  loss_scale
 *   O0   no          no               -                    no              1
 *   O1   no          yes              -                    no              dynamic
 *   O2   yes         no               yes                  yes             dynamic
 *   O3   yes         no               no                   no              1
 */

typedef struct tern_amp tern_amp;
/* apex's opt levels. */
typedef enum tern_opt_level { TERN_O0, TERN_O1, TERN_O2, TERN_O3 } tern_opt_level;

typedef struct tern_amp_opts {
    size_t size;
    tern_opt_level level; /* the level whose defaults these are                                      */
    bool enabled;         /* false: nothing is cast or scaled; default true                          */
    tern_dtype half_type; /* TERN_BF16, the default, for which CPUs have instructions, or TERN_F16   */
    bool cast_model; /* cast parameters and buffers to half_type, and floating-point inputs of the model's
                      * tern_forward; apex's cast_model_type                                    */
    bool patch_functions; /* ops cast by apex's lists, from the model's first tern_forward in a scope on */
    bool keep_batch_norm_f32;      /* batch norms keep f32 parameters; their running statistics always do */
    bool master_weights;           /* optimizers update f32 copies and round them to the parameters       */
    bool gradients_f32;            /* gradients of 16-bit parameters are accumulated, exchanged and unscaled
                                    * in f32; default as master_weights. apex's allreduce_always_fp32     */
    tern_dtype cast_model_outputs; /* default f32 with cast_model, else TERN_DTYPE_NONE: not cast   */
    double loss_scale;             /* > 0, or TERN_LOSS_SCALE_DYNAMIC                                */
    double min_loss_scale;         /* lower limit of a dynamic scale; default 0: none                */
    double max_loss_scale;         /* its upper limit; it begins at 65536 or this limit; default 2^24 */
    int num_losses;                /* each has a scale of its own; default 1                         */
    bool name_non_finite;          /* as in tern_scaler_opts; default false                          */
} tern_amp_opts;
#define TERN_LOSS_SCALE_DYNAMIC 0.0
/* Returns the options of an opt level, as in the table. */
TERN_API tern_amp_opts tern_amp_defaults(tern_opt_level level);

/* Casts a model, which must be a whole tree, and sets how it and its optimizers compute; NULL options are
 * those of O1. tern_module_state_dict then gives the cast parameters as copies in f32, as apex's; an
 * optimizer's state dict contains the master weights. Borrows the model, which stays cast when the amp is
 * freed. Yours: tern_amp_free. NULL on error: E_STATE (called after tern_ddp_new, an optimizer or a backward,
 * or twice, or for a part of a tree), E_RANGE, E_DTYPE (options), E_MEMORY. */
TERN_API tern_amp *tern_amp_new(tern_module *model, const tern_amp_opts *opts, tern_error *err);
/* Adds another model with the same options and loss scales, such as the second net of a GAN; borrowed. */
TERN_API int tern_amp_add(tern_amp *amp, tern_module *model, tern_error *err);
TERN_API void tern_amp_free(tern_amp *amp);

typedef struct tern_amp_backward_opts {
    size_t size;
    int loss_id;               /* which loss, and so which scale; below num_losses; default 0       */
    tern_optim *const *optims; /* [optim_count] the optimizers that this loss is for; default NULL: all that
                                * have been made on amp's models */
    int optim_count;
    bool delay_unscale; /* leave gradients scaled and unchecked, as more will be added; default false */
} tern_amp_backward_opts;
/* Returns the default options. */
TERN_API tern_amp_backward_opts tern_amp_backward_defaults(void);

/* Runs backward from loss * scale, divides the gradients by the scale, and looks for infinities and NaNs:
 * apex's `with amp.scale_loss(loss, optimizers, loss_id) as scaled: scaled.backward()`. If there is one, on
 * any rank of the models' ddps, the scale is lowered, and the next tern_optim_step of each of the optimizers
 * does nothing. Rank 0 logs this (INFO); for a model on a GPU, when the scale is read next. After 2000
 * backwards without one the scale is raised. A constant scale skips no step, as apex's. Gradients of several
 * losses are added. Returns TERN_OK or the scope's error: E_RANGE (no such loss_id), and those of
 * tern_backward. */
TERN_API int tern_amp_backward(tern_amp *amp, tern_scope *scope, tern_tensor *loss,
                               const tern_amp_backward_opts *opts);

/* Returns a loss's scale; 1 if amp is not enabled, NaN if there is no such loss or a device has failed. */
TERN_API double tern_amp_loss_scale_get(const tern_amp *amp, int loss_id);

/* Returns the scales as apex's amp.state_dict(): {"loss_scaler0": {"loss_scale", "unskipped"}, ..}. Yours:
 * tern_object_free. */
TERN_API tern_object *tern_amp_state_dict(const tern_amp *amp, tern_error *err);
/* Sets the scales from a state. If the numbers of losses differ, it sets those that both have and logs a
 * warning. After an error nothing has changed. E_INVALID: another key, or a number is missing; E_DTYPE,
 * E_RANGE. */
TERN_API int tern_amp_state_dict_load(tern_amp *amp, const tern_object *state, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
