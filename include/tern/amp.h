/* amp.h - mixed precision: what is big is computed in 16 bits, parameters and gradients stay f32. */
#ifndef TERN_AMP_H
#define TERN_AMP_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

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
 * they are given. f64 stays. Which op does what is PyTorch's list for the CPU, in src/amp/autocast.c. A
 * parameter is cast once in a region and step, not by every op that uses it. Module calls, tern_checkpoint,
 * tern_data_parallel and a ddp follow the scope; backward runs in the types that its ops ran in, wherever it
 * is called. Where the CPU has no instructions for the dtype a warning says so, once a process. Any other
 * dtype is the scope's E_DTYPE and changes nothing. torch.autocast("cpu"). */
TERN_API tern_dtype tern_autocast_set(tern_scope *scope, tern_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
