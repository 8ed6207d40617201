/* recompute.h - activation checkpointing: calls that keep only their inputs, and are computed again in
 * backward. It saves memory and costs time. nn.h, which includes this header, has the modules.
 *
 * Threads: as the scope. */
#ifndef TERN_RECOMPUTE_H
#define TERN_RECOMPUTE_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_module tern_module; /* nn.h */

/* Calls a module like tern_forward, but keeps only x for backward, which computes the call again. Both
 * computations draw the same random numbers from the scope, running statistics
 * are updated once, and gradients are those of tern_forward, also under tern_ddp. Other tensors that the
 * module uses must not want gradients (E_UNSUPPORTED). It must use the same parameters both times, even if it
 * draws from a generator of its own (E_STATE). A parameter that does not affect the result, such as one that
 * is used detached, gets zeros. The module may call tern_backward itself, on a loss of tensors that it has
 * detached (tern_detach, tern_requires_grad_set). That backward runs both times; its gradients reach
 * parameters and x only the second time. torch.utils.checkpoint.checkpoint. */
TERN_API tern_tensor *tern_checkpoint(tern_module *module, tern_scope *scope, tern_tensor *x);

/* Computes y[0..y_count) from x[0..x_count). A NULL among x was given as one, and a y that is not set is
 * NULL. */
typedef void (*tern_checkpoint_fn)(const void *attr, tern_scope *scope, tern_tensor *const *x,
                                   tern_tensor **y);

/* tern_checkpoint of a call with several inputs and results, such as a decoder layer (tgt, memory and
 * masks) or an attention:
 *
 *     static void decode(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
 *     {
 *         y[0] = tern_transformer_decoder_layer_forward(*(tern_module *const *)attr, s, x[0], x[1], NULL);
 *     }
 *
 *     tern_checkpoint_function(s, decode, 2, (tern_tensor *[]){x, memory}, 1, &x, &layer, sizeof(layer));
 *
 * Inputs may be NULL, of any dtype, on several devices, and given twice. Results may be inputs or NULL, and
 * replace the inputs if x and y are one list; those of integers have no gradient. The `bytes` bytes at
 * `attr`, which may be NULL, are copied for both computations: put pointers and numbers there, but tensors of
 * the scope among x, which outlive what made them. Returns TERN_OK or the scope's error; then all y are NULL.
 * E_STATE in tern_backward: as tern_checkpoint, or the second result has another shape or dtype. */
TERN_API int tern_checkpoint_function(tern_scope *scope, tern_checkpoint_fn function, int x_count,
                                      tern_tensor *const *x, int y_count, tern_tensor **y, const void *attr,
                                      size_t bytes);

/* Has every call of a module of this kind under `module`, or of `module` itself, computed as by
 * tern_checkpoint, or no longer, and returns how many such modules there are: "gpt2_block", "llama_layer",
 * "bert_layer", "transformer_encoder_layer", "transformer_decoder_layer" are the layers of models that
 * call them themselves; tern_summary prints the kinds. transformers' gradient_checkpointing_enable,
 * torch.distributed.algorithms._checkpoint.checkpoint_wrapper.apply_activation_checkpointing. */
TERN_API int tern_module_checkpoint_set(tern_module *module, const char *kind, bool enabled);

#ifdef __cplusplus
}
#endif
#endif
