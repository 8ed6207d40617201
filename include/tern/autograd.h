/* autograd.h - the scope of a step and the gradients of what happened in it.
 *
 * A scope is an arena, a tape and the first error. Ops take it first, return NULL after a failure and take
 * NULL silently, so a step is written without checks and tern_scope_end is the one check. With a scope that
 * could not be made (NULL) all of a step is done in silence, too, and its end is E_INVALID.
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

/* `group` may be NULL: nothing is synchronised, and a backward that reaches the parameters of a tern_ddp of
 * several ranks is E_STATE, as it is on a scope of another family of groups than the ddp's. The scope borrows
 * both. Yours: tern_scope_free. */
TERN_API tern_scope *tern_scope_new(tern_device *device, tern_group *group, tern_error *err);
TERN_API void tern_scope_free(tern_scope *scope);

/* Ends the step: every tensor of the scope is gone, all memory is recycled, and the first error since the
 * last end, if any, is moved to *err. Returns its code, or TERN_OK. A scope's first error has aborted its
 * group by then. */
TERN_API int tern_scope_end(tern_scope *scope, tern_error *err);

/* What the scope's ops draw (tern_dropout) from now on is that of step `step` of this seed, on the rank of
 * its group; tern_scope_end goes on to the next step. Seed 0, step 0 at first. A run that is taken up again
 * at a step draws what it would have drawn. */
TERN_API void tern_scope_seed(tern_scope *scope, uint64_t seed, uint64_t step);

/* The scope's first error so far; code is TERN_OK if there is none. Borrowed. */
TERN_API const tern_error *tern_scope_error(const tern_scope *scope);

/* Gradients on or off (torch.no_grad); returns what it was. Starts on. */
TERN_API bool tern_grad_enabled_set(tern_scope *scope, bool enabled);

/* A tensor of the scope with a copy of `data` (row-major), or zeros if `data` is NULL. */
TERN_API tern_tensor *tern_tensor_from(tern_scope *scope, const void *data, tern_dtype dtype, int ndim,
                                       const int64_t *shape);

/* Gradients of `loss` (one element) for every parameter, and every input that wants one, that it depends on:
 * stored if it had none, added if it had. When it returns under tern_ddp, every parameter's gradient is the
 * mean over the ranks. The part of the tape that it used is gone: a second backward through it is E_STATE.
 * Returns TERN_OK or the scope's error. */
TERN_API int tern_backward(tern_scope *scope, tern_tensor *loss);

#ifdef __cplusplus
}
#endif
#endif
