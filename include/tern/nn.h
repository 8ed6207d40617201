/* nn.h - modules: parameters and a forward written with ops.
 *
 * A module of one's own is a struct whose first field is tern_module:
 *
 *     typedef struct { tern_module base; tern_module *nn1, *nn2; } two_layers;
 *     tern_module_init(&net.base, "two_layers", two_layers_forward, &err);
 *     net.nn1 = tern_module_add(&net.base, "nn1", tern_linear_new(10, 20, NULL, rng, &err), &err);
 *
 * A module owns its children, parameters and buffers. The tree is sealed, as a whole, by the first of
 * tern_ddp_new, an optimizer's _new or a backward: its parameters move into one address range, their
 * gradients into a parallel one, and nothing may be added after that (E_STATE).
 *
 * Threads: a module belongs to one thread at a time. */
#ifndef TERN_NN_H
#define TERN_NN_H

#include <tern/conv.h>
#include <tern/ops.h>
#include <tern/rng.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_module tern_module;
typedef tern_tensor *(*tern_forward_fn)(tern_module *module, tern_scope *scope, tern_tensor *x);

struct tern_module {
    const char *kind; /* "linear", "two_layers": for errors and tern_summary */
    tern_forward_fn forward;
    bool training;                        /* set by tern_train and tern_eval                     */
    void (*release)(tern_module *module); /* NULL, or what a module of one's own must free besides */
    struct tern__module_tree *tree;       /* parent, children, parameters, buffers */
};

/* For a struct of your own, wherever it lives; tern_module_release before it goes away, unless a parent owns
 * it. `kind` is static storage. */
TERN_API int tern_module_init(tern_module *module, const char *kind, tern_forward_fn forward,
                              tern_error *err);
TERN_API void tern_module_release(tern_module *module);
/* What a _new function returned: releases and frees. NULL is fine. */
TERN_API void tern_module_free(tern_module *module);

/* Makes `child` a part of `module` under `name` and hands it over; returns it. After a failure the child is
 * freed, unless a module owns it already (E_STATE). */
TERN_API tern_module *tern_module_add(tern_module *module, const char *name, tern_module *child,
                                      tern_error *err);
/* A new parameter (with gradient) or buffer (without), zeroed; the module's. */
TERN_API tern_tensor *tern_parameter_add(tern_module *module, const char *name, tern_dtype dtype, int ndim,
                                         const int64_t *shape, tern_error *err);
TERN_API tern_tensor *tern_buffer_add(tern_module *module, const char *name, tern_dtype dtype, int ndim,
                                      const int64_t *shape, tern_error *err);

/* Makes `name` of the module another name of a parameter of the same tree, as PyTorch's `decoder.weight =
 * encoder.weight` does: one tensor, one gradient, the sum of both uses. What the module had under that name,
 * of the same shape, is given up; if it had nothing, the name is new. The state dict has both names; counts,
 * optimizers and ddp see the parameter once, under its first. Before the seal. Returns `parameter`, borrowed.
 * E_INVALID: no parameter, one of another tree, or a buffer's name; E_SHAPE: of another shape or dtype;
 * E_STATE: sealed, or what the module has there is shared already. */
TERN_API tern_tensor *tern_parameter_share(tern_module *module, const char *name, tern_tensor *parameter,
                                           tern_error *err);

/* Calls the module. What it makes on the way is recycled as soon as nobody needs it; only its result is the
 * caller's. */
TERN_API tern_tensor *tern_forward(tern_module *module, tern_scope *scope, tern_tensor *x);

/* The same, but instead of what backward needs only x is kept, and the call is computed again when backward
 * comes to it: memory for time. What is drawn of the scope is the same both times, running statistics move
 * once, and gradients are those of tern_forward, also under tern_ddp. Tensors that the module takes from
 * elsewhere must not want gradients (E_UNSUPPORTED), and it must use the same parameters both times, whatever
 * it draws from generators of its own (E_STATE). A parameter that it uses without effect on its result, as in
 * what it detaches, gets zeros. The module may call tern_backward itself, on a loss of tensors that it has
 * detached (tern_detach, tern_requires_grad_set); that backward runs both times, and its gradients reach
 * parameters and x only the second time. torch.utils.checkpoint.checkpoint. */
TERN_API tern_tensor *tern_checkpoint(tern_module *module, tern_scope *scope, tern_tensor *x);

/* Places the parameters and buffers under `module` on a device, so that their ops run there; borrows it. A
 * model whose parts are on several devices moves what goes from one to the next by tern_to in its forward.
 * Before the seal (E_STATE): place first, then ddp, then optimizer, then steps. torch.nn.Module.to. */
TERN_API int tern_module_to(tern_module *module, tern_device *device, tern_error *err);

/* Parameters and buffers of floating point under `module` become `dtype`: f64 for a whole computation in
 * double precision, bf16 or f16, where running statistics of batch norms become f32, or f32 again. Inputs are
 * cast by the caller (tern_cast). Before the seal (E_STATE), and before amp, which does it for its levels O2
 * and O3. torch.nn.Module.to(dtype), double(), float(), half(), bfloat16(). */
TERN_API int tern_module_cast(tern_module *module, tern_dtype dtype, tern_error *err);

/* The whole tree: batch norm uses the batch's statistics in training and its running ones in evaluation, and
 * dropout drops in training only. */
TERN_API void tern_train(tern_module *module);
TERN_API void tern_eval(tern_module *module);

/* How many parameter tensors the tree has, and how many elements they have together; a shared one is one. */
TERN_API int tern_module_parameter_count(const tern_module *module);
TERN_API int64_t tern_module_element_count(const tern_module *module);

/* The state dict: parameters and buffers in PyTorch's order and with its names ("layer1.0.conv1.weight"). The
 * tensors are borrowed; names last as long as the module. */
typedef struct tern_state_entry {
    const char *name;
    tern_tensor *tensor;
    bool is_buffer;
} tern_state_entry;
TERN_API int tern_state_count(const tern_module *module);
TERN_API tern_state_entry tern_state_get(const tern_module *module, int index);
/* By name; NULL if there is none. */
TERN_API tern_tensor *tern_state_find(const tern_module *module, const char *name);

/* Forgets all gradients. An optimizer's step does it too. */
TERN_API void tern_zero_grad(tern_module *module);

/* Freezing: a parameter that requires no gradient gets none from the calls that follow, and an optimizer
 * passes it by. And an input of a step, a tensor of the scope that is no result of an op with a gradient,
 * gets one from the backwards that follow, each rank its own: tern_grad_get has their sum until the scope
 * ends. torch.Tensor.requires_grad_. E_INVALID: neither of them; E_DTYPE: integers. */
TERN_API int tern_requires_grad_set(tern_tensor *tensor, bool required, tern_error *err);
TERN_API bool tern_requires_grad_get(const tern_tensor *tensor);
/* All parameters of the tree: torch.nn.Module.requires_grad_. */
TERN_API void tern_module_requires_grad_set(tern_module *module, bool required);

/* average = decay average + (1 - decay) model for every parameter, and average = model for every buffer: an
 * exponential moving average as torch.optim.swa_utils.get_ema_multi_avg_fn; with decay 0 a copy. Both trees
 * have the same state dict (E_SHAPE or E_INVALID name the first difference). */
TERN_API void tern_ema_update(tern_scope *scope, tern_module *average, const tern_module *model,
                              double decay);

/* Prints a table of the layers with kind, shape of the output, parameters and size of the output, and the
 * totals, by sending zeros of the given shape, f32 or an index for an embedding, through the model in
 * evaluation mode. */
TERN_API int tern_summary(tern_module *module, tern_device *device, int ndim, const int64_t *shape,
                          tern_error *err);

/* ---- layers ---- */

typedef struct tern_linear_opts {
    size_t size;
    bool bias; /* default true */
} tern_linear_opts;
TERN_API tern_linear_opts tern_linear_defaults(void);

/* torch.nn.Linear(in, out): weight (out, in), bias (out), initialised from `rng` as PyTorch does, bit for
 * bit. (.., in) -> (.., out) */
TERN_API tern_module *tern_linear_new(int64_t in, int64_t out, const tern_linear_opts *opts, tern_rng *rng,
                                      tern_error *err);
/* Calls a linear with what follows it, as one operation: y = linear(x), then max(y, 0) if `relu`. */
TERN_API tern_tensor *tern_linear_act_forward(tern_module *linear, tern_scope *scope, tern_tensor *x,
                                              bool relu);

/* torch.nn.Embedding(count, size): weight (count, size) from the normal distribution as PyTorch draws it, bit
 * for bit, and 0 in the row of padding_idx. An index (..) of i64 or i32 -> (.., size) */
TERN_API tern_module *tern_embedding_new(int64_t count, int64_t size, const tern_embedding_opts *opts,
                                         tern_rng *rng, tern_error *err);

/* torch.nn.Dropout(p): tern_dropout in training, x itself in evaluation. */
TERN_API tern_module *tern_dropout_new(double p, tern_error *err);
/* torch.nn.Dropout2d(p), Dropout3d(p): whole channels. */
TERN_API tern_module *tern_dropout2d_new(double p, tern_error *err);
TERN_API tern_module *tern_dropout3d_new(double p, tern_error *err);

/* torch.nn.Conv2d(in, out, (kernel_h, kernel_w)): weight (out, in / groups, kernel_h, kernel_w), bias (out),
 * initialised from `rng` as PyTorch does, bit for bit. (N, in, H, W) -> (N, out, H', W') */
TERN_API tern_module *tern_conv2d_new(int64_t in, int64_t out, int64_t kernel_h, int64_t kernel_w,
                                      const tern_conv2d_opts *opts, tern_rng *rng, tern_error *err);

/* torch.nn.Conv1d(in, out, kernel): weight (out, in / groups, kernel). (N, in, L) -> (N, out, L') */
TERN_API tern_module *tern_conv1d_new(int64_t in, int64_t out, int64_t kernel, const tern_conv1d_opts *opts,
                                      tern_rng *rng, tern_error *err);
/* torch.nn.Conv3d(in, out, (kernel_d, kernel_h, kernel_w)). (N, in, D, H, W) -> (N, out, D', H', W') */
TERN_API tern_module *tern_conv3d_new(int64_t in, int64_t out, int64_t kernel_d, int64_t kernel_h,
                                      int64_t kernel_w, const tern_conv3d_opts *opts, tern_rng *rng,
                                      tern_error *err);
/* torch.nn.ConvTranspose2d, 1d and 3d: weight (in, out / groups, kernel ..), otherwise the same. */
TERN_API tern_module *tern_conv_transpose2d_new(int64_t in, int64_t out, int64_t kernel_h, int64_t kernel_w,
                                                const tern_conv_transpose2d_opts *opts, tern_rng *rng,
                                                tern_error *err);
TERN_API tern_module *tern_conv_transpose1d_new(int64_t in, int64_t out, int64_t kernel,
                                                const tern_conv_transpose1d_opts *opts, tern_rng *rng,
                                                tern_error *err);
TERN_API tern_module *tern_conv_transpose3d_new(int64_t in, int64_t out, int64_t kernel_d, int64_t kernel_h,
                                                int64_t kernel_w, const tern_conv_transpose3d_opts *opts,
                                                tern_rng *rng, tern_error *err);

/* torch.nn.ReLU, SiLU, Sigmoid, Tanh, GELU (`approximate`: by tanh), LeakyReLU (torch's default slope is
 * 0.01). */
TERN_API tern_module *tern_relu_new(tern_error *err);
TERN_API tern_module *tern_silu_new(tern_error *err);
TERN_API tern_module *tern_sigmoid_new(tern_error *err);
TERN_API tern_module *tern_tanh_new(tern_error *err);
TERN_API tern_module *tern_gelu_new(bool approximate, tern_error *err);
TERN_API tern_module *tern_leaky_relu_new(double slope, tern_error *err);
/* torch.nn.Softmax(dim), LogSoftmax(dim). */
TERN_API tern_module *tern_softmax_new(int dim, tern_error *err);
TERN_API tern_module *tern_log_softmax_new(int dim, tern_error *err);

typedef struct tern_batch_norm_opts {
    size_t size;
    double eps;               /* default 1e-5 */
    double momentum;          /* default 0.1 */
    bool affine;              /* with weight and bias; default true */
    bool track_running_stats; /* false: the batch's statistics also in evaluation; default true */
    bool cumulative;          /* the running ones are the mean over all batches so far, whatever the momentum:
                               * PyTorch's momentum=None; default false                         */
} tern_batch_norm_opts;
TERN_API tern_batch_norm_opts tern_batch_norm_defaults(void);

/* torch.nn.BatchNorm1d, 2d, 3d(channels): weight 1, bias 0 and the buffers running_mean 0, running_var 1,
 * num_batches_tracked 0. (N, C) or (N, C, L); (N, C, H, W); (N, C, D, H, W) */
TERN_API tern_module *tern_batch_norm1d_new(int64_t channels, const tern_batch_norm_opts *opts,
                                            tern_error *err);
TERN_API tern_module *tern_batch_norm2d_new(int64_t channels, const tern_batch_norm_opts *opts,
                                            tern_error *err);
TERN_API tern_module *tern_batch_norm3d_new(int64_t channels, const tern_batch_norm_opts *opts,
                                            tern_error *err);
/* Calls a batch norm with what follows it in a residual block, as one operation: y = batch_norm(x) +
 * residual, then max(y, 0) if `relu`. `residual` may be NULL. */
TERN_API tern_tensor *tern_batch_norm_act_forward(tern_module *batch_norm, tern_scope *scope, tern_tensor *x,
                                                  tern_tensor *residual, bool relu);

typedef struct tern_norm_opts {
    size_t size;
    double eps;  /* default 1e-5 */
    bool affine; /* with weight and bias; default true */
} tern_norm_opts;
TERN_API tern_norm_opts tern_norm_defaults(void);

/* torch.nn.LayerNorm(shape), over the last `ndim` dimensions: weight 1 and bias 0, both of that shape. */
TERN_API tern_module *tern_layer_norm_new(int ndim, const int64_t *shape, const tern_norm_opts *opts,
                                          tern_error *err);
/* torch.nn.GroupNorm(groups, channels): weight 1, bias 0 (channels). (N, channels, ...) */
TERN_API tern_module *tern_group_norm_new(int64_t groups, int64_t channels, const tern_norm_opts *opts,
                                          tern_error *err);

/* torch.nn.MaxPool2d, AvgPool2d((kernel_h, kernel_w)): (N, C, H, W) -> (N, C, H', W') */
TERN_API tern_module *tern_max_pool2d_new(int64_t kernel_h, int64_t kernel_w, const tern_pool2d_opts *opts,
                                          tern_error *err);
TERN_API tern_module *tern_avg_pool2d_new(int64_t kernel_h, int64_t kernel_w, const tern_pool2d_opts *opts,
                                          tern_error *err);

/* torch.nn.MaxPool3d, AvgPool3d((kernel_d, kernel_h, kernel_w)): (N, C, D, H, W) -> (N, C, D', H', W') */
TERN_API tern_module *tern_max_pool3d_new(int64_t kernel_d, int64_t kernel_h, int64_t kernel_w,
                                          const tern_pool3d_opts *opts, tern_error *err);
TERN_API tern_module *tern_avg_pool3d_new(int64_t kernel_d, int64_t kernel_h, int64_t kernel_w,
                                          const tern_pool3d_opts *opts, tern_error *err);

/* torch.nn.AdaptiveAvgPool2d((height, width)), AdaptiveAvgPool3d((depth, height, width)). */
TERN_API tern_module *tern_adaptive_avg_pool2d_new(int64_t height, int64_t width, tern_error *err);
TERN_API tern_module *tern_adaptive_avg_pool3d_new(int64_t depth, int64_t height, int64_t width,
                                                   tern_error *err);

/* torch.nn.AdaptiveAvgPool2d(1) and torch.nn.Flatten: (N, C, H, W) -> (N, C) */
TERN_API tern_module *tern_global_avg_pool_new(tern_error *err);

/* torch.nn.Upsample: tern_interpolate. */
TERN_API tern_module *tern_upsample_new(const tern_interpolate_opts *opts, tern_error *err);

/* torch.nn.Flatten: (N, ...) -> (N, the product of the rest) */
TERN_API tern_module *tern_flatten_new(tern_error *err);

/* torch.nn.Sequential: children named "0", "1", ... by tern_sequential_add. A ReLU after a linear or a batch
 * norm is one operation with it. */
TERN_API tern_module *tern_sequential_new(tern_error *err);
TERN_API tern_module *tern_sequential_add(tern_module *sequential, tern_module *child, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
