/* language_model.h - what language models have in common: a body that makes hidden states of tokens, and a
 * linear that makes logits of these. BERT has the states only. */
#ifndef TERN_SRC_MODELS_LANGUAGE_MODEL_H
#define TERN_SRC_MODELS_LANGUAGE_MODEL_H

#include "models/config.h"
#include "nn/init.h"
#include "nn/nn.h"

#include <tern/language_model.h>

/* One of transformers' classes. */
typedef struct tern__language_kind {
    const char *model_type, *architecture; /* in config.json: "gpt2", "GPT2LMHeadModel" */
    const char *body;                      /* the prefix of all names but the head's    */
    const char *const *buffers;            /* ends of the names of buffers in older files, which tern needs
                                            * not; NULL-terminated                      */
    tern_module *(*open)(tern__config *config, tern_rng *rng, tern_error *err);
    void (*write)(const tern_module *model, cJSON *config);
    /* Sees the name of each weight before any is read: parts that only some files have. May be NULL. */
    void (*see_name)(tern_module *model, const char *name, tern_error *err);
} tern__language_kind;

extern const tern__language_kind tern__gpt2_kind, tern__llama_kind, tern__bert_kind;

typedef struct tern__language_model {
    tern_module base;
    const tern__language_kind *kind;
    tern_module *body, *head; /* without a head the body is the model itself */
    tern_tensor *embeddings;  /* of the tokens                                */
    bool is_tied;             /* the head has that weight                     */
} tern__language_model;

/* E_MEMORY, if the f32 of a model's matrices are more than the machine's memory. Untouched memory can be had
 * beyond that, but filling it would end the process. */
int tern__matrices_check(double elements, const char *func, tern_error *err);
/* Makes a model of `bytes` bytes whose first field is a tern__language_model. */
void *tern__language_model_new(size_t bytes, const tern__language_kind *kind, tern_error *err);
/* Adds the body, and a head of `vocabulary` rows, or the embeddings as its weight. Takes the body over. */
int tern__language_model_add(tern__language_model *model, tern_module *body, tern_tensor *embeddings,
                             bool tied, tern_error *err);
/* Returns the first parameter of a linear or an embedding. tern_state_find would allocate a list of names. */
static inline tern_tensor *tern__weight_of(const tern_module *layer)
{
    return &layer->tree->members->tensor;
}
/* Return the model, or NULL if the module is none: a BERT; one with a head; either. */
tern__language_model *tern__bert_of(const tern_module *module);
tern__language_model *tern__language_model_of(const tern_module *module);
tern__language_model *tern__pretrained_of(const tern_module *module);

/* Fails unless tokens are (N, T) indices with a T up to `positions`. */
int tern__tokens_check(const tern_module *body, tern_scope *scope, const tern_tensor *tokens,
                       int64_t positions);

/* Draws every parameter called "weight" of two dimensions from normal(0, std); nothing with a NULL rng. */
int tern__weights_draw(tern_module *module, double std, tern_rng *rng, tern_error *err);

#endif
