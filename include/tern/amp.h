/* amp.h - mixed precision: regions in which ops compute in 16 bits, scaling of the loss, and apex's opt
 * levels.
 *
 * bf16 has f32's range: its gradients do not underflow, and a loss scale is harmless there, since powers of
 * two cancel exactly; f16 wants one.
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
 * they are given, but for exp, log, pow, sums, softmax, layer and group norm and interpolation on a GPU,
 * which run in f32, and reflected and replicated padding and pools of volumes on the CPU, which do. f64
 * stays. Which op does what is PyTorch's list for the device that it runs on, apex's under opt level O1, in
 * src/amp/autocast.def. A parameter is cast once in a region and step, not by every op that uses it. Module
 * calls, tern_checkpoint, tern_data_parallel and a ddp follow the scope; backward runs in the types that its
 * ops ran in, wherever it is called. Where the scope is on a CPU that has no instructions for the dtype a
 * warning says so, once a process. Any other dtype is the scope's E_DTYPE and changes nothing. Without a
 * scope nothing happens, as with ops; TERN_F32. torch.autocast("cpu"), torch.autocast("cuda"). */
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
 * on all ranks of the model's tern_ddp if one of them has it: the same steps, state and scale everywhere.
 *
 * Of a model in a device's own memory nothing here waits for the device, which alone knows the scale and
 * whether a step is made, but for what reads: tern_scaler_scale_get, the state dicts, name_non_finite, which
 * looks at each gradient (once a parameter and backward), and a tern_ddp that ignores some of the optimizer's
 * parameters, whose ranks ask each other (once a step). */

typedef struct tern_scaler tern_scaler;

typedef struct tern_scaler_opts {
    size_t size;
    double init_scale;       /* > 0; default 65536                                                   */
    double growth_factor;    /* > 1; after growth_interval updates without a skipped step; default 2 */
    double backoff_factor;   /* in (0, 1); after a skipped step; default 0.5                         */
    int64_t growth_interval; /* >= 1; default 2000                                                   */
    bool enabled;            /* false: scale, unscale and update do nothing, and every step is made;
                              * default true */
    bool name_non_finite;    /* each rank logs a warning that names the first parameter whose own gradient has
                              * an infinity or a NaN, with the number of the backward; looks at every
                              * gradient before it is reduced; default false                           */
} tern_scaler_opts;
TERN_API tern_scaler_opts tern_scaler_defaults(void);

/* Yours: tern_scaler_free, before a device with memory of its own, whose losses it has scaled, is closed;
 * the same of an amp. E_RANGE: an option out of its range; E_MEMORY. */
TERN_API tern_scaler *tern_scaler_new(const tern_scaler_opts *opts, tern_error *err);
TERN_API void tern_scaler_free(tern_scaler *scaler);

/* loss * scale, in f32 if the loss is bf16 or f16. tern_ddp_loss_mean and tern_loss_normaliser stay those of
 * the loss itself. */
TERN_API tern_tensor *tern_scaler_scale(tern_scaler *scaler, tern_scope *scope, tern_tensor *loss);

/* Divides the optimizer's gradients by the scale, in one pass that also looks for what is not finite. Under a
 * tern_ddp it is collective (in a device's own memory only if the ddp ignores some of the optimizer's
 * parameters: the others' gradients are the same on all ranks). E_STATE: called twice since the last update,
 * or after step; E_DTYPE: gradients of f16, in which small ones would be lost again; E_PEER. */
TERN_API void tern_scaler_unscale(tern_scaler *scaler, tern_scope *scope, tern_optim *optim);

/* Unscales, if that is not done, and makes the optimizer's step, or skips it and forgets the gradients: the
 * optimizer's state and number of steps stay. Returns whether it was made; true where only a device knows:
 * after the update tern_scaler_scale_get tells. E_STATE: called twice since the last update, or the optimizer
 * has no gradients; those of unscale. */
TERN_API bool tern_scaler_step(tern_scaler *scaler, tern_scope *scope, tern_optim *optim);

/* After the steps of all optimizers: a smaller scale if one was skipped, a larger one after enough that were
 * not. E_STATE: nothing was unscaled since the last one. */
TERN_API void tern_scaler_update(tern_scaler *scaler, tern_scope *scope);

/* 1 if it is not enabled; NaN if a device has failed. */
TERN_API double tern_scaler_scale_get(const tern_scaler *scaler);

/* {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}, as GradScaler's; empty
 * if it is not enabled. Yours: tern_object_free. E_MEMORY. */
TERN_API tern_object *tern_scaler_state_dict(const tern_scaler *scaler, tern_error *err);
/* Takes all five; of a scaler that is not enabled nothing. After an error nothing has changed. E_INVALID: a
 * number is missing, or the state is of a scaler that was not enabled; E_DTYPE, E_RANGE. */
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
 * in this order; another one is E_STATE and names it, but an optimizer may precede its ddp. (apex makes the
 * optimizer first and rewrites it; here optimizers fix the model's memory, so amp precedes them, and those
 * that are made on the model later need not be handed over.)
 *
 *      cast_model  patch_functions  keep_batch_norm_f32  master_weights  loss_scale
 * O0   no          no               -                    no              1
 * O1   no          yes              -                    no              dynamic
 * O2   yes         no               yes                  yes             dynamic
 * O3   yes         no               no                   no              1
 */

typedef struct tern_amp tern_amp;
typedef enum tern_opt_level { TERN_O0, TERN_O1, TERN_O2, TERN_O3 } tern_opt_level;

typedef struct tern_amp_opts {
    size_t size;
    tern_opt_level level; /* of the defaults of what follows                                         */
    bool enabled;         /* false: nothing is cast or scaled; default true                          */
    tern_dtype half_type; /* TERN_BF16, the default, which CPUs have instructions for, or TERN_F16   */
    bool cast_model;      /* parameters and buffers become half_type, and what the model's tern_forward is
                           * given of floating point; apex's cast_model_type                         */
    bool patch_functions; /* ops cast by apex's lists, from the model's first tern_forward in a scope on */
    bool keep_batch_norm_f32;      /* batch norms keep f32 parameters; their running statistics always do */
    bool master_weights;           /* optimizers update f32 masters and round them                        */
    bool gradients_f32;            /* gradients of 16-bit parameters add up, go over, and are unscaled in f32;
                                    * default as master_weights. apex's allreduce_always_fp32             */
    tern_dtype cast_model_outputs; /* default f32 with cast_model, else TERN_DTYPE_COUNT: as they are */
    double loss_scale;             /* > 0, or TERN_LOSS_SCALE_DYNAMIC                                */
    double min_loss_scale;         /* of a dynamic one; default 0: none                              */
    double max_loss_scale;         /* of a dynamic one, which begins at most at 65536; default 2^24  */
    int num_losses;                /* each has a scale of its own; default 1                         */
    bool name_non_finite;          /* as the scaler's; default false                                 */
} tern_amp_opts;
#define TERN_LOSS_SCALE_DYNAMIC 0.0
TERN_API tern_amp_opts tern_amp_defaults(tern_opt_level level);

/* Casts the model, a whole tree, and says how it and its optimizers compute; NULL options are those of O1.
 * tern_module_state_dict gives what was cast as copies in f32, as apex's; an optimizer's state dict has the
 * masters. Borrows the model, which stays as it is when amp is gone. Yours: tern_amp_free. E_STATE: after
 * tern_ddp_new, an optimizer or a backward, twice, or a part of a tree; E_RANGE, E_DTYPE: options; E_MEMORY.
 */
TERN_API tern_amp *tern_amp_new(tern_module *model, const tern_amp_opts *opts, tern_error *err);
/* Another model under the same options and loss scales, as a GAN has two; borrowed. */
TERN_API int tern_amp_add(tern_amp *amp, tern_module *model, tern_error *err);
TERN_API void tern_amp_free(tern_amp *amp);

typedef struct tern_amp_backward_opts {
    size_t size;
    int loss_id;               /* whose scale; below num_losses; default 0                          */
    tern_optim *const *optims; /* [optim_count] that this loss is for; NULL, the default: all that have
                                * been made on amp's models */
    int optim_count;
    bool delay_unscale; /* gradients stay scaled and unchecked, for more to come; default false     */
} tern_amp_backward_opts;
TERN_API tern_amp_backward_opts tern_amp_backward_defaults(void);

/* apex's `with amp.scale_loss(loss, optimizers, loss_id) as scaled: scaled.backward()`: backward from the
 * loss times its scale, then gradients are divided by it and searched for what is not finite. If there is
 * any, on any rank of the models' ddps, the scale becomes smaller and the next tern_optim_step of each of the
 * optimizers is none, which rank 0 logs (INFO), of a device's own memory when the scale is read next; after
 * 2000 backwards without, it becomes larger. A constant scale skips nothing, as apex's. Gradients of several
 * losses add up. Returns TERN_OK or the scope's error: E_RANGE for a loss_id that there is not, those of
 * tern_backward. */
TERN_API int tern_amp_backward(tern_amp *amp, tern_scope *scope, tern_tensor *loss,
                               const tern_amp_backward_opts *opts);

/* 1 if not enabled, NaN if there is no such loss, or a device has failed. */
TERN_API double tern_amp_loss_scale_get(const tern_amp *amp, int loss_id);

/* apex's amp.state_dict(): {"loss_scaler0": {"loss_scale", "unskipped"}, ..}. Yours: tern_object_free. */
TERN_API tern_object *tern_amp_state_dict(const tern_amp *amp, tern_error *err);
/* The scales of as many losses as there are on both sides; a warning says if those are not equally many.
 * After an error nothing has changed. E_INVALID: another key, or a number is missing; E_DTYPE, E_RANGE. */
TERN_API int tern_amp_state_dict_load(tern_amp *amp, const tern_object *state, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
