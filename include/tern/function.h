/* function.h - an op of one's own, with its gradient (torch.autograd.Function).
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
 *     static const tern_function cube = {"cube", cube_forward, cube_backward};
 *
 *     y = tern_function_apply(s, &cube, 1, &x, NULL, 0);
 *
 * Both may use ops, which record nothing there, or the elements themselves (tern_contiguous,
 * tern_tensor_data, tern_tensor_from). A function that returns its x, and as dx what it likes, is PyTorch's
 * Tensor.register_hook: it sees the gradient on its way, and may change it.
 *
 * Threads: as the scope. Replicas of tern_data_parallel_new call it on several threads at once. */
#ifndef TERN_FUNCTION_H
#define TERN_FUNCTION_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One application of a function, from its forward to its backward (ctx in PyTorch). */
typedef struct tern_function_call tern_function_call;

/* Read until the scope ends. */
typedef struct tern_function {
    const char *name; /* in errors */
    /* The result from the inputs; x itself is fine. NULL after a failure: an op's, or one of yours, with *err
     * filled (tern_error_set). What else it makes is recycled when it returns, but for what it saves. */
    tern_tensor *(*forward)(tern_function_call *call, tern_scope *scope, tern_tensor *const *x,
                            tern_error *err);
    /* dx[i] of the shape of input i, for those that tern_function_wants; NULL, as all are at first, is zeros.
     * dy itself, or what was saved, is fine; dy is only read, as others may have the same memory. A dtype
     * other than the input's is cast. Under autocast both run in the region of the forward. TERN_OK, or a
     * negative status with *err filled. */
    int (*backward)(tern_function_call *call, tern_scope *scope, tern_tensor *dy, tern_tensor **dx,
                    tern_error *err);
} tern_function;

/* y of `count` inputs on one device, none of them NULL. Gradients go to inputs only, so a parameter that the
 * function uses, or what was computed from one, is handed in as one. The first `bytes` of `attr`, which may
 * be NULL, are copied for both functions. An integer result has no gradient. */
TERN_API tern_tensor *tern_function_apply(tern_scope *scope, const tern_function *function, int count,
                                          tern_tensor *const *x, const void *attr, size_t bytes);

/* The copy of `attr`, zeros if that was NULL: forward may write there what backward is to read. Aligned to 64
 * bytes. ctx's attributes. */
TERN_API void *tern_function_attr(tern_function_call *call);

/* In forward: keeps a tensor, an input, the result or any other, for backward; in backward: that tensor, or
 * NULL. A slot that there is not is the scope's E_RANGE. ctx.save_for_backward, ctx.saved_tensors. */
#define TERN_FUNCTION_SAVES 6 /* slots, from 0 on */
TERN_API void tern_function_save(tern_function_call *call, int slot, tern_tensor *tensor);
TERN_API tern_tensor *tern_function_saved(const tern_function_call *call, int slot);

/* Whether the gradient of input i will be, or is, asked for; not the first time that tern_checkpoint
 * computes. ctx.needs_input_grad. */
TERN_API bool tern_function_wants(const tern_function_call *call, int i);

#ifdef __cplusplus
}
#endif
#endif
