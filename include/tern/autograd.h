/* autograd.h - the scope of a training step, and the gradients of the ops in it.
 *
 * A scope holds the memory of a step's tensors (an arena), the record of its ops for backward (a tape), and
 * the step's first error. Every op takes the scope first. An op that fails returns NULL, and an op that is
 * given NULL as a tensor returns NULL without a further error. So you write a step without checks, and check
 * once, at tern_scope_end. If the scope itself is NULL (it could not be made), ops do nothing and return
 * NULL, and tern_scope_end returns E_INVALID.
 *
 * Threads: a scope belongs to one thread at a time. */
#ifndef TERN_AUTOGRAD_H
#define TERN_AUTOGRAD_H

#include <tern/comm.h>
#include <tern/device.h>
#include <tern/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_scope tern_scope;

/* Makes a scope for steps on `device` as a rank of `group`; borrows both. With `group` NULL nothing is
 * synchronised. E_STATE in a later tern_backward: it reaches the parameters of a tern_ddp of several ranks,
 * but the scope has no group, or one of another family of groups. NULL on error: E_INVALID, E_MEMORY. Yours:
 * tern_scope_free. */
TERN_API tern_scope *tern_scope_new(tern_device *device, tern_group *group, tern_error *err);
TERN_API void tern_scope_free(tern_scope *scope);

/* Ends the step: all tensors of the scope become invalid and their memory is reused. Moves the scope's first
 * error since the last end, if there was one, to *err and returns its code, else TERN_OK. That error has
 * already aborted the scope's group, at the time when it happened. */
TERN_API int tern_scope_end(tern_scope *scope, tern_error *err);

/* Free memory within a step: what is made after a mark lasts until the mark is released, not until the
 * step ends.
 *
 *     for (int64_t i = 0; i < blocks; i++) {
 *         int64_t mark = tern_scope_mark(s);
 *         tern_tensor *part = tern_slice(s, x, 0, i * n, (i + 1) * n, 1);
 *         sum = tern_add(s, sum, tern_sum(s, tern_tanh(s, part)));
 *         tern_scope_release(s, mark, 1, &sum);
 *     }
 *
 * tern_scope_release makes all tensors of the scope that were made since the mark invalid, except
 * kept[0..count), which may be NULL or older. Their memory is used again at once, unless backward needs it
 * or a kept tensor shows a part of it. What is kept counts as made before the mark, so marks may be
 * nested. Use this in a loop of your own, also in a forward, a backward (function.h) and with gradients
 * on. A module call and a function that return release in the same way. The mark itself needs no memory,
 * and need not be released. E_LIFETIME: the mark is of another step; E_INVALID: count. An op that is given
 * a tensor that was released is E_LIFETIME until the step ends. */
TERN_API int64_t tern_scope_mark(tern_scope *scope);
TERN_API void tern_scope_release(tern_scope *scope, int64_t mark, int count, tern_tensor *const *kept);

/* Sets the random stream of the scope's ops (tern_dropout): from now on they draw the numbers of step `step`
 * of this seed, for the scope's rank in its group. tern_scope_end moves on to the next step. A new scope has
 * seed 0 and step 0. A run that is resumed at a step draws the numbers that it would have drawn. */
TERN_API void tern_scope_seed(tern_scope *scope, uint64_t seed, uint64_t step);
/* Lets the ops that follow draw the numbers of another rank: of the one that would have computed this
 * microbatch if there were more ranks (tern_ddp_opts.microbatches). A new scope has its group's. */
TERN_API void tern_scope_seed_rank_set(tern_scope *scope, uint64_t rank);

/* Returns the scope's first error so far; its code is TERN_OK if there is none. Borrowed. */
TERN_API const tern_error *tern_scope_error(const tern_scope *scope);

/* Turns the recording of gradients on or off (torch.no_grad), and returns the old setting. On at first. */
TERN_API bool tern_grad_enabled_set(tern_scope *scope, bool enabled);

/* Makes a tensor of the scope with a copy of `data` (row-major), or of zeros if `data` is NULL. */
TERN_API tern_tensor *tern_tensor_from(tern_scope *scope, const void *data, tern_dtype dtype, int ndim,
                                       const int64_t *shape);

/* Computes the gradients of `loss`, a tensor of one element, for all parameters, and all inputs that want one
 * (tern_requires_grad_set), on which it depends. A gradient that exists already is added to. Under tern_ddp
 * all gradients are means over the ranks when this returns. It uses up the part of the tape that it goes
 * through: a second backward through that part is E_STATE. Returns TERN_OK or the scope's error. */
TERN_API int tern_backward(tern_scope *scope, tern_tensor *loss);

#ifdef __cplusplus
}
#endif
#endif
