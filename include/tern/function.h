/* function.h - ops of your own, with their gradients (torch.autograd.Function).
 *
 *     static tern_tensor *cube_forward(tern_function_call *call, tern_scope *s, tern_tensor *const *x,
 *                                      tern_error *err)                          y = x^3
 *     {
 *         tern_function_save(call, 0, x[0]);
 *         return tern_mul(s, x[0], tern_mul(s, x[0], x[0]));
 *     }
 *     static int cube_backward(tern_function_call *call, tern_scope *s, tern_tensor *dy, tern_tensor **dx,
 *                              tern_error *err)                                  dx = 3 x^2 dy
 *     {
 *         tern_tensor *x = tern_function_saved(call, 0);
 *         dx[0] = tern_mul(s, dy, tern_mul(s, tern_full(s, TERN_F32, 0, NULL, 3), tern_mul(s, x, x)));
 *         return TERN_OK;
 *     }
 *     static const tern_function cube = {
 *         .name = "cube", .forward = cube_forward, .backward = cube_backward};
 *
 *     y = tern_function_apply(s, &cube, 1, &x, NULL, 0);
 *
 * Both functions may use ops, which record nothing there, or read and write elements themselves
 * (tern_contiguous, tern_tensor_data, tern_tensor_from). A function that returns its x, and any dx, is
 * PyTorch's Tensor.register_hook: it sees the gradient on its way through, and may change it.
 *
 * Threads: as the scope. With tern_data_parallel_new the replicas call a function on several threads at
 * once. */
#ifndef TERN_FUNCTION_H
#define TERN_FUNCTION_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One application of a function, from its forward to its backward ("ctx" in PyTorch). */
typedef struct tern_function_call tern_function_call;

/* A function: its name, forward and backward. tern reads the struct until the scope ends. */
typedef struct tern_function {
    const char *name; /* shown in errors */
    /* Returns the result y; it may return x itself. On failure returns NULL: an op has failed, or forward has
     * filled *err (tern_error_set). Tensors that it makes are recycled when it returns, except the result and
     * those it has saved. Those that it needs no longer may be released before (tern_scope_release). */
    tern_tensor *(*forward)(tern_function_call *call, tern_scope *scope, tern_tensor *const *x,
                            tern_error *err);
    /* Stores in dx[i] a gradient of input i's shape, for each input that tern_function_wants. All dx are NULL
     * at first; NULL means zeros. dx[i] may be dy itself or a saved tensor. Do not write to dy: other ops may
     * share its memory. A gradient in another dtype than the input's is cast. Under autocast, backward runs
     * in the same region as forward did. Returns TERN_OK, or a negative status with *err filled. */
    int (*backward)(tern_function_call *call, tern_scope *scope, tern_tensor *dy, tern_tensor **dx,
                    tern_error *err);
    void *reserved[4]; /* NULL */
} tern_function;

/* Applies a function to x[0..count), `count` inputs on one device, none of them NULL, and returns y.
 * Gradients go only to these inputs: if the function uses a parameter, or a tensor computed from one, pass it
 * as an input. The `bytes` bytes at `attr`, which may be NULL, are copied for forward and backward. A result
 * of an integer dtype has no gradient. */
TERN_API tern_tensor *tern_function_apply(tern_scope *scope, const tern_function *function, int count,
                                          tern_tensor *const *x, const void *attr, size_t bytes);

/* Returns the copy of `attr`, or zeros if that was NULL, aligned to 64 bytes. Forward may write there what
 * backward will read. Stands for the attributes of PyTorch's ctx. */
TERN_API void *tern_function_attr(tern_function_call *call);

/* In forward, tern_function_save keeps a tensor (an input, the result, or any other) for backward, in slot
 * 0 to TERN_FUNCTION_SAVES - 1, also if it is released later. In backward, tern_function_saved returns it,
 * or NULL if the slot is empty. Any other slot is the scope's E_RANGE. ctx.save_for_backward,
 * ctx.saved_tensors. */
#define TERN_FUNCTION_SAVES 6 /* slots, from 0 on */
TERN_API void tern_function_save(tern_function_call *call, int slot, tern_tensor *tensor);
TERN_API tern_tensor *tern_function_saved(const tern_function_call *call, int slot);

/* Tells in forward whether a gradient of input i will be asked for, and in backward whether it is. False
 * while tern_checkpoint computes for the first time. ctx.needs_input_grad. */
TERN_API bool tern_function_wants(const tern_function_call *call, int i);

#ifdef __cplusplus
}
#endif
#endif
