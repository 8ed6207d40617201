/* optim.h - optimizers: one fused pass over the sealed parameters; clipping.
 *
 * Threads: an optimizer belongs to one thread at a time. */
#ifndef TERN_OPTIM_H
#define TERN_OPTIM_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- optimizers: over all parameters under `module`, which may be a part of a larger tree. They seal the
 * tree and borrow the module. State is kept in the parameter's dtype, from the first step on. Yours:
 * tern_optim_free, before the module. E_RANGE: an option out of its range, which begins at 0 if nothing else
 * is said; E_INVALID: options that exclude each other, no module; E_MEMORY. ---- */

typedef struct tern_optim tern_optim;

typedef struct tern_sgd_opts {
    size_t size;
    double lr;           /* default 0.001                                            */
    double momentum;     /* default 0                                                */
    double dampening;    /* in [0, 1]; default 0                                     */
    double weight_decay; /* default 0                                                */
    bool nesterov;       /* default false; wants momentum > 0 and no dampening       */
    bool maximize;       /* default false                                            */
} tern_sgd_opts;
TERN_API tern_sgd_opts tern_sgd_defaults(void);

/* torch.optim.SGD: g = maximize ? -g : g; g += weight_decay p; b = momentum b + (1 - dampening) g (b = g at a
 * parameter's first step); g = nesterov ? g + momentum b : b; p -= lr g. */
TERN_API tern_optim *tern_sgd_new(tern_module *module, const tern_sgd_opts *opts, tern_error *err);

typedef struct tern_adam_opts {
    size_t size;
    double lr;           /* default 0.001                                            */
    double beta1, beta2; /* in [0, 1); default 0.9 and 0.999                         */
    double eps;          /* default 1e-8                                             */
    double weight_decay; /* default 0; of AdamW 0.01                                 */
    bool amsgrad;        /* divide by the largest second moment so far; default false */
    bool maximize;       /* default false                                            */
} tern_adam_opts;
TERN_API tern_adam_opts tern_adam_defaults(void);
TERN_API tern_adam_opts tern_adamw_defaults(void);

/* torch.optim.Adam (Kingma and Ba 2015): g = maximize ? -g : g; g += weight_decay p; m = beta1 m + (1 -
 * beta1) g; v = beta2 v + (1 - beta2) g^2; p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps), with
 * t the number of the parameter's own steps, from 1. Amsgrad takes the largest v so far in place of v. */
TERN_API tern_optim *tern_adam_new(tern_module *module, const tern_adam_opts *opts, tern_error *err);
/* torch.optim.AdamW (Loshchilov and Hutter 2019): the same, but weight decay is p *= 1 - lr weight_decay. */
TERN_API tern_optim *tern_adamw_new(tern_module *module, const tern_adam_opts *opts, tern_error *err);

typedef struct tern_rmsprop_opts {
    size_t size;
    double lr;           /* default 0.01                                             */
    double alpha;        /* default 0.99                                             */
    double eps;          /* default 1e-8                                             */
    double weight_decay; /* default 0                                                */
    double momentum;     /* default 0                                                */
    bool centered;       /* divide by the deviation of g; default false              */
    bool maximize;       /* default false                                            */
} tern_rmsprop_opts;
TERN_API tern_rmsprop_opts tern_rmsprop_defaults(void);

/* torch.optim.RMSprop (Hinton 2012; centered: Graves 2013): g = maximize ? -g : g; g += weight_decay p; s =
 * alpha s + (1 - alpha) g^2; u = g / (sqrt(s) + eps), or, with a mean a = alpha a + (1 - alpha) g, g /
 * (sqrt(s - a^2) + eps); b = momentum b + u; p -= lr b. */
TERN_API tern_optim *tern_rmsprop_new(tern_module *module, const tern_rmsprop_opts *opts, tern_error *err);

typedef struct tern_adagrad_opts {
    size_t size;
    double lr;                        /* default 0.01                                */
    double lr_decay;                  /* default 0                                   */
    double eps;                       /* default 1e-10                               */
    double weight_decay;              /* default 0                                   */
    double initial_accumulator_value; /* of every sum; default 0                     */
    bool maximize;                    /* default false                               */
} tern_adagrad_opts;
TERN_API tern_adagrad_opts tern_adagrad_defaults(void);

/* torch.optim.Adagrad (Duchi, Hazan and Singer 2011): g = maximize ? -g : g; g += weight_decay p; s += g^2;
 * p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps), with t as in Adam. */
TERN_API tern_optim *tern_adagrad_new(tern_module *module, const tern_adagrad_opts *opts, tern_error *err);

typedef struct tern_lamb_opts {
    size_t size;
    double lr;            /* default 0.001                                          */
    double beta1, beta2;  /* in [0, 1); default 0.9 and 0.999                       */
    double eps;           /* default 1e-6                                           */
    double weight_decay;  /* default 0.01                                           */
    double max_grad_norm; /* of all gradients of the optimizer together, > 0; default 1; INFINITY: any */
    bool bias_correction; /* default true                                           */
    bool grad_averaging;  /* m takes (1 - beta1) g, not g; default true             */
    bool adam_w_mode;     /* weight decay beside the moments, not in g; default true */
    bool use_nvlamb;      /* trust ratios also without weight decay; default false  */
} tern_lamb_opts;
TERN_API tern_lamb_opts tern_lamb_defaults(void);

/* LAMB for large batches (You et al. 2020) as in NVIDIA's apex, FusedLAMB: g *= min(1, max_grad_norm / norm
 * of all g); m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; u = m / (1 - beta1^t) / (sqrt(v /
 * (1 - beta2^t)) + eps) + weight_decay p; p -= lr r u, where r is norm(p) / norm(u) of the whole parameter,
 * or 1 if one of them is 0 or there is no weight decay. t is the number of the parameter's own steps, where
 * apex counts the optimizer's. Norms are summed up in double, with the same bits on any number of threads and
 * ranks, also of a sharded optimizer. */
TERN_API tern_optim *tern_lamb_new(tern_module *module, const tern_lamb_opts *opts, tern_error *err);

typedef struct tern_larc_opts {
    size_t size;
    double trust_coefficient; /* default 0.02                                        */
    bool clip;                /* never raises a rate; default true                   */
    double eps;               /* default 1e-8                                        */
} tern_larc_opts;
TERN_API tern_larc_opts tern_larc_defaults(void);

/* Layer-wise adaptive rates on top of any optimizer but LAMB, from the next step on: apex's LARC (You,
 * Gitman and Ginsburg 2017), which wraps an optimizer; here it is a property of one, as its groups, state,
 * schedules and shards stay what they are. Each parameter's a = trust_coefficient norm(p) / (norm(g) +
 * weight_decay norm(p) + eps), with clip min(a / lr, 1), and g = a (g + weight_decay p) is what the optimizer
 * is given, with no weight decay of its own; where a norm is 0, g. E_INVALID: no optimizer, or LAMB, which
 * has ratios of its own; E_RANGE: a number below 0. */
TERN_API int tern_optim_larc(tern_optim *optim, const tern_larc_opts *opts, tern_error *err);

TERN_API void tern_optim_free(tern_optim *optim);

/* Updates every parameter that has a gradient, and forgets the gradients of all that it has. Does nothing
 * after an error in the scope. The first step makes the state: E_MEMORY in the scope. Of a
 * sharded optimizer it is collective. */
TERN_API void tern_optim_step(tern_optim *optim, tern_scope *scope);

/* ---- parameter groups: parameters with options of their own ---- */

/* Whether a parameter belongs to the group; `name` is its full name in the state dict. */
typedef bool (*tern_parameter_fn)(const char *name, const tern_tensor *parameter, void *ctx);

/* The parameters for which `belongs` says true leave their group for a new one with these options; NULL are
 * the defaults of the optimizer's kind. Before the first step. Each of the optimizer's parameters is asked
 * about once, in the order of the state dict. Returns the group's number, from 1 (0 is what _new made), or a
 * negative status: E_STATE after a step, E_INVALID if no parameter belongs or the optimizer is of another
 * kind, and those of the _new functions. What lies inside one group, next to each other in memory, and has
 * made equally many steps is updated in one pass. */
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
TERN_API int tern_optim_group_count(const tern_optim *optim);

/* A group's rate as the next step uses it; NaN if there is no such group. */
TERN_API double tern_optim_lr_get(const tern_optim *optim, int group);
/* Sets the rate that schedules multiply; of a group that there is not, nothing. */
TERN_API void tern_optim_lr_set(tern_optim *optim, int group, double lr);

/* ---- sharding: every rank keeps and updates its slice (ZeRO-1; Rajbhandari et al. 2020,
 * torch.distributed.optim.ZeroRedundancyOptimizer) ----
 *
 * The bytes of the parameters are cut into as many equal slices as there are ranks, also inside a parameter.
 * A rank has the state of its own slice only, updates it, and takes the others from the peers: the same bits
 * as without sharding, with 1/size of the state and of the update. Gradients, clipping, groups and schedules
 * stay as they are. The rules:
 * - A rank that calls tern_optim_step says two things with it: "my slice is ready" and "I no longer read my
 *   parameters". No rank's parameters are written to before all ranks have said so; a fast rank waits there
 *   for a peer that still computes with its own, in backward or in an evaluation.
 * - When it returns, all parameters of this rank are new, and nobody writes to them before its next call.
 *   On a GPU they are so for all that it is asked from then on.
 * So all ranks step the same optimizers in the same order, equally often (E_MISMATCH on all), and with the
 * same options and rates: E_MISMATCH names the rank with others. A rank in tern_ddp_join steps in its
 * after_backward.
 * On a GPU the state and the update are of the slice alone, too. With NCCL slices go over between GPUs, and a
 * step waits for the other ranks' programs only; without, they cross pinned memory of the host's, as much as
 * there are parameters, for which the step waits. */

/* Before the first step (E_STATE), on all ranks of `group`, which must be that of the tern_ddp on the model
 * (E_STATE): without it gradients would differ. Collective; called with an error already set, it makes the
 * peers' call fail with it too. Borrows the group: free the optimizer before the ddp and the group.
 * E_INVALID: no optimizer or group, a parameter that the ddp ignores; E_MEMORY; E_PEER; E_SYSTEM: memory that
 * cannot be pinned. */
TERN_API int tern_optim_shard(tern_optim *optim, tern_group *group, tern_error *err);

/* ---- state: what an optimizer remembers of its parameters, for checkpoints ---- */

/* One tensor of it. */
typedef struct tern_optim_entry {
    const char *parameter; /* its full name in the state dict                                            */
    const char *name;      /* torch's: "momentum_buffer"; "exp_avg", "exp_avg_sq", "max_exp_avg_sq";
                            * "square_avg", "momentum_buffer", "grad_avg"; "sum". And "step", the number of
                            * the parameter's own steps, () i64                                          */
    tern_tensor *tensor;   /* of the parameter's shape and dtype                                         */
} tern_optim_entry;

typedef struct tern_optim_state tern_optim_state;

/* A copy of the whole state as it is between two steps. As in torch a parameter has entries from its first
 * step on; they stand in the order of the state dict, "step" first. Of a sharded optimizer it is collective,
 * and the slices of all ranks come together on rank `root`, on all if that is -1; the other ranks get NULL
 * without an error (torch's consolidate_state_dict). Without a shard `root` says nothing. Borrows the names
 * of the module. Yours: tern_optim_state_free. E_INVALID: no optimizer; E_RANGE: no such root; E_MEMORY,
 * E_PEER. */
TERN_API tern_optim_state *tern_optim_state_gather(tern_optim *optim, int root, tern_error *err);
TERN_API void tern_optim_state_free(tern_optim_state *state);
TERN_API int tern_optim_state_count(const tern_optim_state *state);
TERN_API const tern_optim_entry *tern_optim_state_entries(const tern_optim_state *state); /* borrowed */

/* Takes the place of the whole state, as if the optimizer had made those steps; a parameter without entries
 * has made none. Each rank is given all of it and takes its own slice, so the number of ranks may be another
 * than the state was gathered on. Not collective; all ranks the same. Copies. The parameters, groups, rates
 * and schedules stay as they are. After an error nothing has changed. E_INVALID: no such parameter or state,
 * one given twice, or one that is missing ("step" may be, of SGD, as in torch's files); E_DTYPE, E_SHAPE,
 * E_RANGE: a tensor that does not fit; E_UNSUPPORTED: one that is not row-major; E_MEMORY. */
TERN_API int tern_optim_state_load(tern_optim *optim, const tern_optim_entry *entries, int count,
                                   tern_error *err);

/* Bytes of state on this rank; 0 before the first step. */
TERN_API size_t tern_optim_state_bytes(const tern_optim *optim);

/* ---- clipping: after tern_backward, before tern_optim_step ---- */

/* torch.nn.utils.clip_grad_norm_ over the gradients of all parameters under `module`: g *= min(1, max_norm /
 * (norm + 1e-6)). norm_type 2, 1, any p > 0, or INFINITY. Returns the norm before clipping, (), f32; 0 if
 * nothing has a gradient. As there, a NaN makes every gradient NaN, infinity makes itself NaN and the others
 * 0. Under tern_ddp the gradients are equal on all ranks by then, and so is the norm. E_RANGE unless max_norm
 * >= 0, norm_type > 0.
 */
TERN_API tern_tensor *tern_clip_grad_norm(tern_scope *scope, tern_module *module, double max_norm,
                                          double norm_type);
/* torch.nn.utils.clip_grad_value_: every element into [-limit, limit]. E_RANGE unless limit >= 0. */
TERN_API void tern_clip_grad_value(tern_scope *scope, tern_module *module, double limit);

#ifdef __cplusplus
}
#endif
#endif
