/* lora.h - the linears of a model and their low-rank adapters. */
#ifndef TERN_SRC_MODELS_LORA_H
#define TERN_SRC_MODELS_LORA_H

#include "nn/nn.h"

#include <tern/lora.h>

/* A linear and its name under the model, "transformer.h.0.attn.c_attn". */
typedef struct tern__lora_linear {
    tern__linear *linear;
    char name[256];
    bool is_target;
} tern__lora_linear;

typedef struct tern__lora_linears {
    const tern_module *model;
    tern__lora_linear *list; /* [count] in the order of registration, without the adapters' own */
    int count;
    const char *func; /* for errors */
    tern_error *err;
} tern__lora_linears;

/* Finds all linears of a model; the caller frees the list (tern__free). E_INVALID: no module; E_MEMORY. */
int tern__lora_linears_open(tern__lora_linears *linears, const tern_module *model, const char *func,
                            tern_error *err);
/* Marks the linears that one of PEFT's target_modules means: a name, the end of one after a dot, or
 * "all-linear". Returns how many it means. */
int tern__lora_target(const tern__lora_linears *linears, const char *target);
/* E_RANGE: r, lora_alpha or lora_dropout. */
int tern__lora_opts_check(const tern_lora_opts *opts, const char *func, tern_error *err);
/* Fails unless the model may still get adapters, and has none. */
int tern__lora_check_new(const tern__lora_linears *linears);
/* Adds adapters, drawn or of zeros, to the marked linears; with `trains` only they require gradients, else
 * nothing does. */
int tern__lora_attach(const tern__lora_linears *linears, const tern_lora_opts *opts, tern_rng *rng,
                      bool trains);

/* Returns the first linear that calls its adapter, or NULL. */
const tern__linear *tern__lora_unmerged(const tern_module *model);
/* True if the tensor is a parameter of an adapter. */
bool tern__lora_owns(const tern_tensor *parameter);

#endif
