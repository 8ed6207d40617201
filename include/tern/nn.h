/* nn.h - modules: parameters, and a forward function written with ops.
 *
 * A module of your own is a struct whose first field is a tern_module:
 *
 *     typedef struct { tern_module base; tern_module *nn1, *nn2; } two_layers;
 *     tern_module_init(&net.base, "two_layers", two_layers_forward, &err);
 *     net.nn1 = tern_module_add(&net.base, "nn1", tern_linear_new(10, 20, NULL, rng, &err), &err);
 *
 * A module whose forward is NULL only holds others, as torch.nn.ModuleList and ModuleDict: its children have
 * the names that you add them under ("0", "1", ..), and tern_forward of it is E_INVALID.
 *
 * A module owns its children, parameters and buffers. The first tern_ddp_new, optimizer or backward seals the
 * whole tree: its parameters move into one range of memory, and their gradients into another parallel to it.
 * After that nothing can be added (E_STATE).
 *
 * Constructors of modules return NULL on error; the module is yours (tern_module_free) until it is added
 * to another. Options may be NULL: the defaults. With a NULL rng nothing is drawn: all weights but those
 * of norms are 0, to be loaded. This holds for models, too.
 *
 * Threads: a module belongs to one thread at a time. */
#ifndef TERN_NN_H
#define TERN_NN_H

#include <tern/conv.h>
#include <tern/data.h>
#include <tern/ops.h>
#include <tern/recompute.h>
#include <tern/rng.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A module's forward: returns its result for input x. */
typedef tern_tensor *(*tern_forward_fn)(tern_module *module, tern_scope *scope, tern_tensor *x);

struct tern_module {
    const char *kind; /* "linear", "two_layers": for errors and tern_summary */
    tern_forward_fn forward;
    bool training;                        /* set by tern_train and tern_eval                    */
    void (*release)(tern_module *module); /* frees what else your module owns; NULL: nothing    */
    struct tern__module_tree *tree;       /* parent, children, parameters, buffers              */
};

/* Makes a struct of your own a module, wherever the struct is stored. `kind` must be a static string. Call
 * tern_module_release before the struct goes away, unless a parent owns it. */
TERN_API int tern_module_init(tern_module *module, const char *kind, tern_forward_fn forward,
                              tern_error *err);
TERN_API void tern_module_release(tern_module *module);
/* Releases and frees a module that a _new function returned. NULL is allowed. */
TERN_API void tern_module_free(tern_module *module);

/* Adds `child` to `module` under `name`; `module` owns it from then on. Returns the child. On error the child
 * is freed, unless another module owns it already (E_STATE). A name, also of a parameter or buffer, is UTF-8
 * text of at least one character without a dot, and new in its module (E_INVALID). */
TERN_API tern_module *tern_module_add(tern_module *module, const char *name, tern_module *child,
                                      tern_error *err);
/* Add a new parameter (with gradient) or buffer (without), filled with zeros; the module owns it. */
TERN_API tern_tensor *tern_parameter_add(tern_module *module, const char *name, tern_dtype dtype, int ndim,
                                         const int64_t *shape, tern_error *err);
TERN_API tern_tensor *tern_buffer_add(tern_module *module, const char *name, tern_dtype dtype, int ndim,
                                      const int64_t *shape, tern_error *err);
/* Keeps a buffer of `module` out of the state dict, as one that follows from the options and need not be
 * saved; or back in it. Everything else (devices, dtypes, tern_ddp) treats it like other buffers. Call it
 * before the seal (E_STATE). E_INVALID: no such buffer. register_buffer(name, tensor, persistent=False). */
TERN_API int tern_buffer_persistent_set(tern_module *module, const char *name, bool persistent,
                                        tern_error *err);

/* Shares a parameter: gives `parameter`, of the same tree, a second name `name` in `module`, as PyTorch's
 * `decoder.weight = encoder.weight` does. There is one tensor and one gradient, the sum of both uses. A
 * parameter that the module had under that name, of the same shape, is dropped; otherwise the name is new.
 * The state dict has both names; counts, optimizers and ddp see the parameter once, under its first name.
 * Call it before the seal. Returns `parameter`, borrowed; NULL on error: E_INVALID (no parameter, one of
 * another tree, or a buffer's name), E_SHAPE (another shape or dtype), E_STATE (the tree is sealed, or the
 * module's own parameter of that name is shared already). */
TERN_API tern_tensor *tern_parameter_share(tern_module *module, const char *name, tern_tensor *parameter,
                                           tern_error *err);

/* Calls a module and returns its result. Tensors made inside the call are recycled as soon as nothing needs
 * them; only the result is yours to use. */
TERN_API tern_tensor *tern_forward(tern_module *module, tern_scope *scope, tern_tensor *x);

/* Moves the parameters and buffers under `module` to a device, so that their ops run there; borrows the
 * device. If the parts of a model are on several devices, its forward moves tensors from one to the next with
 * tern_to. Call it before the seal (E_STATE): place first, then ddp, then optimizer, then steps.
 * torch.nn.Module.to. */
TERN_API int tern_module_to(tern_module *module, tern_device *device, tern_error *err);

/* Casts the floating-point parameters and buffers under `module` to `dtype`: f64 to compute in double
 * precision, bf16 or f16 (where running statistics of batch norms become f32), or back to f32. Cast inputs
 * yourself (tern_cast). Call it before the seal (E_STATE) and before amp, which does this for its levels O2
 * and O3. torch.nn.Module.to(dtype), double(), float(), half(), bfloat16(). */
TERN_API int tern_module_cast(tern_module *module, tern_dtype dtype, tern_error *err);

/* Put the whole tree into training or evaluation mode. In training, batch norm uses the batch's statistics
 * and dropout drops elements; in evaluation, batch norm uses its running statistics and dropout does
 * nothing. */
TERN_API void tern_train(tern_module *module);
TERN_API void tern_eval(tern_module *module);

/* Return the number of parameter tensors in the tree, and of their elements; a shared parameter counts
 * once. */
TERN_API int tern_module_parameter_count(const tern_module *module);
TERN_API int64_t tern_module_element_count(const tern_module *module);

/* The state dict: parameters and buffers in PyTorch's order and with its names ("layer1.0.conv1.weight"). The
 * tensors are borrowed; the names are valid as long as the module. */
typedef struct tern_state_entry {
    const char *name;
    tern_tensor *tensor;
    bool is_buffer;
} tern_state_entry;
/* Return the number of entries, and entry `index`, from 0. */
TERN_API int tern_state_count(const tern_module *module);
TERN_API tern_state_entry tern_state_get(const tern_module *module, int index);
/* Returns a tensor of the state dict by its name; NULL if there is none. */
TERN_API tern_tensor *tern_state_find(const tern_module *module, const char *name);

/* Forgets all gradients of the tree. An optimizer's step does this too. */
TERN_API void tern_zero_grad(tern_module *module);

/* Sets whether a tensor gets gradients. A parameter that requires none (a frozen one) gets none from later
 * calls, and optimizers skip it. An input of a step (a tensor of the scope that is not the result of an op
 * with a gradient) gets one from the ops that use it from now on, on each rank its own; tern_grad_get returns
 * their sum until the scope ends. E_INVALID: neither of these; E_DTYPE: integers.
 * torch.Tensor.requires_grad_. */
TERN_API int tern_requires_grad_set(tern_tensor *tensor, bool required, tern_error *err);
TERN_API bool tern_requires_grad_get(const tern_tensor *tensor);
/* Sets this for all parameters of the tree. torch.nn.Module.requires_grad_. */
TERN_API void tern_module_requires_grad_set(tern_module *module, bool required);

/* Updates an exponential moving average of a model: average = decay average + (1 - decay) model for every
 * parameter, average = model for every buffer; decay 0 makes a copy. Both trees must have the same state dict
 * (E_SHAPE or E_INVALID names the first difference). torch.optim.swa_utils.get_ema_multi_avg_fn. */
TERN_API void tern_ema_update(tern_scope *scope, tern_module *average, const tern_module *model,
                              double decay);

/* Computes the running statistics of all batch norms under `module` anew, as plain means over the batches of
 * a pass of the loader: calls the module with each batch's x, in training mode without gradients. Parameters
 * and the module's mode stay. For weights that their averages lag behind, or that no step has made.
 * Collective if batch norms are synchronised: all ranks need as many batches. Ends the scope after each
 * batch; returns the first error. torch.optim.swa_utils.update_bn. */
TERN_API int tern_update_bn(tern_module *module, tern_scope *scope, tern_loader *loader, tern_error *err);

/* Prints a table of the layers: kind, output shape, number of parameters and size of the output, and the
 * totals. It calls the model in evaluation mode with zeros of the given shape, f32, or indices for an
 * embedding. */
TERN_API int tern_summary(tern_module *module, tern_device *device, int ndim, const int64_t *shape,
                          tern_error *err);

/* ---- layers ---- */

typedef struct tern_linear_opts {
    size_t size;
    bool bias; /* default true */
} tern_linear_opts;
TERN_API tern_linear_opts tern_linear_defaults(void);

/* torch.nn.Linear(in, out): weight (out, in) and bias (out), initialised from `rng` as in PyTorch, bit for
 * bit. (.., in) -> (.., out) */
TERN_API tern_module *tern_linear_new(int64_t in, int64_t out, const tern_linear_opts *opts, tern_rng *rng,
                                      tern_error *err);
/* Calls a linear module, then max(y, 0) if `relu`, as one op. */
TERN_API tern_tensor *tern_linear_act_forward(tern_module *linear, tern_scope *scope, tern_tensor *x,
                                              bool relu);

/* torch.nn.Embedding(count, size): weight (count, size), drawn from the normal distribution as in PyTorch,
 * bit for bit; the row padding_idx is 0. Indices (..) of i64 or i32 -> (.., size) */
TERN_API tern_module *tern_embedding_new(int64_t count, int64_t size, const tern_embedding_opts *opts,
                                         tern_rng *rng, tern_error *err);

/* torch.nn.Dropout(p): tern_dropout in training; in evaluation it returns x. */
TERN_API tern_module *tern_dropout_new(double p, tern_error *err);
/* torch.nn.Dropout2d(p), Dropout3d(p): the same for whole channels. */
TERN_API tern_module *tern_dropout2d_new(double p, tern_error *err);
TERN_API tern_module *tern_dropout3d_new(double p, tern_error *err);

/* torch.nn.Conv2d(in, out, (kernel_h, kernel_w)): weight (out, in / groups, kernel_h, kernel_w) and bias
 * (out), initialised from `rng` as in PyTorch, bit for bit. (N, in, H, W) -> (N, out, H', W'); conv.h has the
 * formulas. */
TERN_API tern_module *tern_conv2d_new(int64_t in, int64_t out, int64_t kernel_h, int64_t kernel_w,
                                      const tern_conv2d_opts *opts, tern_rng *rng, tern_error *err);

/* torch.nn.Conv1d(in, out, kernel): weight (out, in / groups, kernel). (N, in, L) -> (N, out, L') */
TERN_API tern_module *tern_conv1d_new(int64_t in, int64_t out, int64_t kernel, const tern_conv1d_opts *opts,
                                      tern_rng *rng, tern_error *err);
/* torch.nn.Conv3d(in, out, (kernel_d, kernel_h, kernel_w)). (N, in, D, H, W) -> (N, out, D', H', W') */
TERN_API tern_module *tern_conv3d_new(int64_t in, int64_t out, int64_t kernel_d, int64_t kernel_h,
                                      int64_t kernel_w, const tern_conv3d_opts *opts, tern_rng *rng,
                                      tern_error *err);
/* torch.nn.ConvTranspose2d, 1d and 3d: weight (in, out / groups, kernel ..), otherwise as the
 * convolutions. */
TERN_API tern_module *tern_conv_transpose2d_new(int64_t in, int64_t out, int64_t kernel_h, int64_t kernel_w,
                                                const tern_conv_transpose2d_opts *opts, tern_rng *rng,
                                                tern_error *err);
TERN_API tern_module *tern_conv_transpose1d_new(int64_t in, int64_t out, int64_t kernel,
                                                const tern_conv_transpose1d_opts *opts, tern_rng *rng,
                                                tern_error *err);
TERN_API tern_module *tern_conv_transpose3d_new(int64_t in, int64_t out, int64_t kernel_d, int64_t kernel_h,
                                                int64_t kernel_w, const tern_conv_transpose3d_opts *opts,
                                                tern_rng *rng, tern_error *err);

/* torch.nn.ReLU, SiLU, Sigmoid, Tanh, GELU (with `approximate` by tanh), LeakyReLU (torch's default slope is
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
    double eps;               /* added to the variance; default 1e-5                                    */
    double momentum;          /* weight of a batch in the running statistics; default 0.1               */
    bool affine;              /* with weight and bias; default true                                     */
    bool track_running_stats; /* false: use the batch's statistics in evaluation too; default true      */
    bool cumulative;          /* the running statistics are the mean over all batches so far, whatever the
                               * momentum: PyTorch's momentum=None; default false                       */
} tern_batch_norm_opts;
TERN_API tern_batch_norm_opts tern_batch_norm_defaults(void);

/* torch.nn.BatchNorm1d, 2d, 3d(channels): weight 1, bias 0, and buffers running_mean 0, running_var 1,
 * num_batches_tracked 0. Inputs (N, C) or (N, C, L); (N, C, H, W); (N, C, D, H, W) */
TERN_API tern_module *tern_batch_norm1d_new(int64_t channels, const tern_batch_norm_opts *opts,
                                            tern_error *err);
TERN_API tern_module *tern_batch_norm2d_new(int64_t channels, const tern_batch_norm_opts *opts,
                                            tern_error *err);
TERN_API tern_module *tern_batch_norm3d_new(int64_t channels, const tern_batch_norm_opts *opts,
                                            tern_error *err);
/* Calls a batch norm and the rest of a residual block as one op: y = batch_norm(x) + residual, then max(y, 0)
 * if `relu`. `residual` may be NULL. */
TERN_API tern_tensor *tern_batch_norm_act_forward(tern_module *batch_norm, tern_scope *scope, tern_tensor *x,
                                                  tern_tensor *residual, bool relu);

typedef struct tern_norm_opts {
    size_t size;
    double eps;  /* added to the variance; default 1e-5 */
    bool affine; /* with weight and bias; default true  */
} tern_norm_opts;
TERN_API tern_norm_opts tern_norm_defaults(void);

/* torch.nn.LayerNorm(shape), over the last `ndim` dimensions; weight 1 and bias 0 have that shape. */
TERN_API tern_module *tern_layer_norm_new(int ndim, const int64_t *shape, const tern_norm_opts *opts,
                                          tern_error *err);
/* torch.nn.RMSNorm(shape, eps): weight 1 has the shape; opts->ndim is not used. tern_rms_norm without a
 * weight is elementwise_affine=False. */
TERN_API tern_module *tern_rms_norm_new(int ndim, const int64_t *shape, const tern_rms_norm_opts *opts,
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

/* torch.nn.Sequential: children named "0", "1", ... A ReLU after a linear or a batch norm runs as one op with
 * it. */
TERN_API tern_module *tern_sequential_new(tern_error *err);
/* Adds a child, as tern_module_add does. Returns the child. */
TERN_API tern_module *tern_sequential_add(tern_module *sequential, tern_module *child, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
