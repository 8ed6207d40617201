/* optim.h - optimizers, parameter groups, sharding, optimizer state, and gradient clipping.
 *
 * An optimizer is made for all parameters under `module`, which may be a part of a larger tree. It seals the
 * tree and borrows the module. It updates the sealed parameters in one fused pass. Its state has the dtype of
 * the parameters and is made in the first step. Yours: tern_optim_free, before the module.
 *
 * The _new functions return NULL on error: E_RANGE (an option out of its range; an option without a stated
 * range must be >= 0), E_INVALID (options that exclude each other, or no module), E_MEMORY. NULL options are
 * the defaults.
 *
 * In the formulas p is the parameter, g its gradient, and t the number of this parameter's steps, from 1.
 *
 * Threads: an optimizer belongs to one thread at a time. */
#ifndef TERN_OPTIM_H
#define TERN_OPTIM_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- optimizers ---- */

typedef struct tern_optim tern_optim;

typedef struct tern_sgd_opts {
    size_t size;
    double lr;           /* default 0.001                                            */
    double momentum;     /* default 0                                                */
    double dampening;    /* in [0, 1]; default 0                                     */
    double weight_decay; /* default 0                                                */
    bool nesterov;       /* Nesterov momentum; needs momentum > 0, dampening 0; default false */
    bool maximize;       /* ascend instead of descend; default false                 */
} tern_sgd_opts;
TERN_API tern_sgd_opts tern_sgd_defaults(void);

/* torch.optim.SGD: g = maximize ? -g : g; g += weight_decay p; b = momentum b + (1 - dampening) g (b = g at
 * the first step); g = nesterov ? g + momentum b : b; p -= lr g. */
TERN_API tern_optim *tern_sgd_new(tern_module *module, const tern_sgd_opts *opts, tern_error *err);

typedef struct tern_adam_opts {
    size_t size;
    double lr;           /* default 0.001                                            */
    double beta1, beta2; /* in [0, 1); default 0.9 and 0.999                         */
    double eps;          /* default 1e-8                                             */
    double weight_decay; /* default 0; with tern_adamw_defaults 0.01                 */
    bool amsgrad;        /* divide by the largest second moment so far; default false */
    bool maximize;       /* default false                                            */
} tern_adam_opts;
TERN_API tern_adam_opts tern_adam_defaults(void);
TERN_API tern_adam_opts tern_adamw_defaults(void);

/* torch.optim.Adam (Kingma and Ba 2015): g = maximize ? -g : g; g += weight_decay p; m = beta1 m + (1 -
 * beta1) g; v = beta2 v + (1 - beta2) g^2; p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps). With
 * amsgrad the largest v so far replaces v. */
TERN_API tern_optim *tern_adam_new(tern_module *module, const tern_adam_opts *opts, tern_error *err);
/* torch.optim.AdamW (Loshchilov and Hutter 2019): as Adam, but weight decay is p *= 1 - lr weight_decay. */
TERN_API tern_optim *tern_adamw_new(tern_module *module, const tern_adam_opts *opts, tern_error *err);

typedef struct tern_rmsprop_opts {
    size_t size;
    double lr;           /* default 0.01                                             */
    double alpha;        /* default 0.99                                             */
    double eps;          /* default 1e-8                                             */
    double weight_decay; /* default 0                                                */
    double momentum;     /* default 0                                                */
    bool centered;       /* divide by the standard deviation of g; default false     */
    bool maximize;       /* default false                                            */
} tern_rmsprop_opts;
TERN_API tern_rmsprop_opts tern_rmsprop_defaults(void);

/* torch.optim.RMSprop (Hinton 2012; centered: Graves 2013): g = maximize ? -g : g; g += weight_decay p; s =
 * alpha s + (1 - alpha) g^2; u = g / (sqrt(s) + eps); b = momentum b + u; p -= lr b. If centered, with a =
 * alpha a + (1 - alpha) g: u = g / (sqrt(s - a^2) + eps), where s - a^2 is 0 if rounding makes it less. */
TERN_API tern_optim *tern_rmsprop_new(tern_module *module, const tern_rmsprop_opts *opts, tern_error *err);

typedef struct tern_adagrad_opts {
    size_t size;
    double lr;                        /* default 0.01                                */
    double lr_decay;                  /* default 0                                   */
    double eps;                       /* default 1e-10                               */
    double weight_decay;              /* default 0                                   */
    double initial_accumulator_value; /* initial value of the sums s; default 0      */
    bool maximize;                    /* default false                               */
} tern_adagrad_opts;
TERN_API tern_adagrad_opts tern_adagrad_defaults(void);

/* torch.optim.Adagrad (Duchi, Hazan and Singer 2011): g = maximize ? -g : g; g += weight_decay p; s += g^2; p
 * -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps). */
TERN_API tern_optim *tern_adagrad_new(tern_module *module, const tern_adagrad_opts *opts, tern_error *err);

typedef struct tern_lamb_opts {
    size_t size;
    double lr;            /* default 0.001                                          */
    double beta1, beta2;  /* in [0, 1); default 0.9 and 0.999                       */
    double eps;           /* default 1e-6                                           */
    double weight_decay;  /* default 0.01                                           */
    double max_grad_norm; /* limit of the norm of all gradients of the optimizer together, > 0; default 1;
                           * INFINITY: none */
    bool bias_correction; /* default true                                           */
    bool grad_averaging;  /* m takes (1 - beta1) g; false: g; default true          */
    bool adam_w_mode;     /* add weight decay to u; false: to g; default true       */
    bool use_nvlamb;      /* use trust ratios also without weight decay; default false */
} tern_lamb_opts;
TERN_API tern_lamb_opts tern_lamb_defaults(void);

/* LAMB, for large batches (You et al. 2020), as FusedLAMB of NVIDIA's apex: g *= min(1, max_grad_norm / norm
 * of all g); m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; u = m / (1 - beta1^t) / (sqrt(v / (1
 * - beta2^t)) + eps) + weight_decay p; p -= lr r u. The trust ratio r is norm(p) / norm(u) over the whole
 * parameter, or 1 if one of the norms is 0 or there is no weight decay. t counts the parameter's own steps;
 * apex counts the optimizer's. Norms are summed in double, and have the same bits on any number of threads
 * and ranks, also with a sharded optimizer. */
TERN_API tern_optim *tern_lamb_new(tern_module *module, const tern_lamb_opts *opts, tern_error *err);

/* Options of LARC. */
typedef struct tern_larc_opts {
    size_t size;
    double trust_coefficient; /* default 0.02                                        */
    bool clip;                /* never raise a learning rate; default true           */
    double eps;               /* default 1e-8                                        */
} tern_larc_opts;
TERN_API tern_larc_opts tern_larc_defaults(void);

/* Adds layer-wise adaptive rates to an optimizer other than LAMB, from the next step on: apex's LARC (You,
 * Gitman and Ginsburg 2017). apex wraps the optimizer; here LARC is a property of it, so its groups, state,
 * schedules and shards stay as they are. For each parameter, a = trust_coefficient norm(p) / (norm(g) +
 * weight_decay norm(p) + eps); with clip, a = min(a / lr, 1). The optimizer then gets g = a (g + weight_decay
 * p) and applies no weight decay itself. If a norm is 0, g stays as it is. E_INVALID: no optimizer, or LAMB,
 * which has ratios of its own; E_RANGE: a negative number. */
TERN_API int tern_optim_larc(tern_optim *optim, const tern_larc_opts *opts, tern_error *err);

/* Frees an optimizer; the parameters stay as they are. */
TERN_API void tern_optim_free(tern_optim *optim);

/* Makes a step: updates every parameter that has a gradient, and forgets all gradients of the optimizer's
 * parameters. Does nothing after an error in the scope. The first step allocates the state (the scope's
 * E_MEMORY). Collective if the optimizer is sharded. */
TERN_API void tern_optim_step(tern_optim *optim, tern_scope *scope);

/* ---- parameter groups: parameters with options of their own ---- */

/* Tells whether a parameter belongs to a group. `name` is its full name in the state dict. */
typedef bool (*tern_parameter_fn)(const char *name, const tern_tensor *parameter, void *ctx);

/* Move the parameters for which `belongs` returns true from their groups to a new one with these options;
 * NULL options are the defaults of this kind of optimizer. Call them before the first step. `belongs` is
 * called once for each parameter of the optimizer, in the order of the state dict. Return the group's number,
 * from 1 (group 0 is the one that _new made), or a negative status: E_STATE (after a step), E_INVALID (no
 * parameter belongs, or the optimizer is of another kind), and those of the _new functions. Parameters of one
 * group that are adjacent in memory and have made the same number of steps are updated in one pass. */
TERN_API int tern_sgd_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx,
                                const tern_sgd_opts *opts, tern_error *err);
TERN_API int tern_adam_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx,
                                 const tern_adam_opts *opts, tern_error *err);
TERN_API int tern_rmsprop_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx,
                                    const tern_rmsprop_opts *opts, tern_error *err);
TERN_API int tern_adagrad_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx,
                                    const tern_adagrad_opts *opts, tern_error *err);
TERN_API int tern_lamb_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx,
                                 const tern_lamb_opts *opts, tern_error *err);
/* Moves all biases and the weights of norms and embeddings to a new group with the options of group 0 but no
 * weight decay, as language models are trained. A head that shares its weight with an embedding goes with it.
 * Returns as the functions above. */
TERN_API int tern_optim_no_decay_group_add(tern_optim *optim, tern_error *err);
/* Returns the number of groups, at least 1. */
TERN_API int tern_optim_group_count(const tern_optim *optim);

/* Returns the learning rate that a group's next step will use; NaN if there is no such group. */
TERN_API double tern_optim_lr_get(const tern_optim *optim, int group);
/* Sets a group's own rate, which schedules multiply. Does nothing if there is no such group. */
TERN_API void tern_optim_lr_set(tern_optim *optim, int group, double lr);

/* ---- sharding: each rank updates a slice of the parameters (ZeRO-1; Rajbhandari et al. 2020,
 * torch.distributed.optim.ZeroRedundancyOptimizer) ----
 *
 * The bytes of the parameters are cut into as many equal slices as there are ranks; a cut may be inside a
 * parameter. A rank has the optimizer state of its own slice only, updates that slice, and gets the other
 * slices from the peers. The result has the same bits as without sharding, at 1/size of the state and the
 * work. Gradients, clipping, groups and schedules stay as they are. The rules:
 *
 * - A call of tern_optim_step says that this rank's slice is ready and that it no longer reads its
 *   parameters. No rank's parameters are written before all ranks have called it. So a fast rank waits for a
 *   peer that still computes with its parameters, in backward or in an evaluation.
 * - When it returns, all parameters of this rank are new, and nothing writes to them before its next call. On
 *   a GPU this holds for all work that the GPU is given from then on.
 * - All ranks must step the same optimizers in the same order and equally often (E_MISMATCH on all), with the
 *   same options and rates (E_MISMATCH names the rank with others). A rank in tern_ddp_join steps in its
 *   after_backward.
 *
 * On a GPU, too, state and update are those of the slice only. With NCCL the slices go between the GPUs, and
 * a step waits only for the other ranks' programs. Without NCCL they go through pinned host memory of the
 * size of all parameters, and the step waits for the copies. */

/* Shards an optimizer over the ranks of `group`, before the first step (E_STATE). `group` must be that of the
 * tern_ddp on the model (E_STATE), since without a ddp gradients would differ. Collective; if *err is already
 * set, the call fails on the peers too. Borrows the group: free the optimizer before the ddp and the group.
 * E_INVALID: no optimizer or group, or a parameter that the ddp ignores; E_MEMORY; E_PEER; E_SYSTEM: memory
 * cannot be pinned. */
TERN_API int tern_optim_shard(tern_optim *optim, tern_group *group, tern_error *err);

/* ---- optimizer state, for checkpoints ---- */

/* One tensor of an optimizer's state. */
typedef struct tern_optim_entry {
    const char *parameter; /* the parameter's full name in the state dict                                */
    const char *name;      /* torch's name: "momentum_buffer"; "exp_avg", "exp_avg_sq", "max_exp_avg_sq";
                            * "square_avg", "momentum_buffer", "grad_avg"; "sum"; and "step", the number of
                            * the parameter's own steps, with shape () and dtype i64                     */
    tern_tensor *tensor;   /* has the parameter's shape and dtype                                        */
} tern_optim_entry;

typedef struct tern_optim_state tern_optim_state;

/* Copies the whole state, as it is between two steps. As in torch, a parameter has entries from its first
 * step on; entries are in the order of the state dict, "step" first. If the optimizer is sharded the call is
 * collective, and the slices of all ranks are gathered on rank `root`, or on all ranks if root is -1; other
 * ranks get NULL without an error (torch's consolidate_state_dict). Without sharding `root` is ignored. The
 * names are borrowed from the module. Yours: tern_optim_state_free. E_INVALID: no optimizer; E_RANGE: no such
 * root; E_MEMORY, E_PEER. */
TERN_API tern_optim_state *tern_optim_state_gather(tern_optim *optim, int root, tern_error *err);
TERN_API void tern_optim_state_free(tern_optim_state *state);
/* Return the number of entries in a state, and the entries, borrowed. */
TERN_API int tern_optim_state_count(const tern_optim_state *state);
TERN_API const tern_optim_entry *tern_optim_state_entries(const tern_optim_state *state);

/* Replaces the whole state by copies of these entries, as if the optimizer had made those steps; a parameter
 * without entries has made none. Parameters, groups, rates and schedules stay as they are. If the optimizer
 * is sharded, each rank is given all entries and takes its own slice, so the state may have been gathered on
 * another number of ranks. Not collective, but all ranks must do the same. After an error nothing has
 * changed: E_INVALID (no such parameter or entry, one given twice or missing; "step" may be missing with SGD,
 * as in torch's files), E_DTYPE, E_SHAPE, E_RANGE (a tensor that does not fit), E_UNSUPPORTED (one that is
 * not row-major), E_MEMORY. */
TERN_API int tern_optim_state_load(tern_optim *optim, const tern_optim_entry *entries, int count,
                                   tern_error *err);

/* Returns the bytes of state on this rank; 0 before the first step. */
TERN_API size_t tern_optim_state_bytes(const tern_optim *optim);

/* ---- gradient clipping: between tern_backward and tern_optim_step ---- */

/* Clips the norm of the gradients of all parameters under `module`: g *= min(1, max_norm / (norm + 1e-6)).
 * norm_type is 2, 1, any p > 0, or INFINITY. Returns the norm before clipping, shape (), f32; 0 if nothing
 * has a gradient. As in torch, a NaN makes every gradient NaN; an infinity becomes NaN and the other elements
 * 0. Under tern_ddp the gradients, and so the norm, are equal on all ranks by then. E_RANGE unless max_norm
 * >= 0 and norm_type > 0. torch.nn.utils.clip_grad_norm_. */
TERN_API tern_tensor *tern_clip_grad_norm(tern_scope *scope, tern_module *module, double max_norm,
                                          double norm_type);
/* Limits every element of the gradients to [-limit, limit]. E_RANGE unless limit >= 0.
 * torch.nn.utils.clip_grad_value_. */
TERN_API void tern_clip_grad_value(tern_scope *scope, tern_module *module, double limit);

#ifdef __cplusplus
}
#endif
#endif
