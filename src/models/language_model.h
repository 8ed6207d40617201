/* language_model.h - what language models have in common: a body that makes hidden states of tokens, and a
 * linear that makes logits of these. BERT has the states only. */
#ifndef TERN_SRC_MODELS_LANGUAGE_MODEL_H
#define TERN_SRC_MODELS_LANGUAGE_MODEL_H

#include "models/pretrained.h"
#include "nn/init.h"
#include "nn/nn.h"

#include <tern/language_model.h>

extern const tern__pretrained_kind tern__gpt2_kind, tern__llama_kind, tern__bert_kind;

typedef struct tern__language_model {
    tern_module base;
    const tern__pretrained_kind *kind;
    tern_module *body, *head; /* without a head the body is the model itself */
    tern_tensor *embeddings;  /* of the tokens                                */
    bool is_tied;             /* the head has that weight                     */
    int layers;
    int64_t positions; /* the longest context                          */
    uint64_t number;   /* of all models, so that a cache knows its own  */
} tern__language_model;

/* E_MEMORY, if the f32 of a model's matrices are more than the machine's memory. Untouched memory can be had
 * beyond that, but filling it would end the process. */
int tern__matrices_check(double elements, const char *func, tern_error *err);
/* Makes a model of `bytes` bytes whose first field is a tern__language_model. */
void *tern__language_model_new(size_t bytes, const tern__pretrained_kind *kind, tern_error *err);
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

/* The inputs of a body: tokens, and the tensors of tern_language_model_call_opts, or NULL. Those of its
 * layers: states; a mask of bool that is broadcast to (N, heads, T, all tokens), or NULL; position ids, or
 * NULL. */
enum { TERN__TOKENS, TERN__ATTENTION_MASK, TERN__POSITION_IDS, TERN__DECODER_INPUTS, TERN__STATES = 0 };

/* The options of a body and of its layers. */
typedef struct tern__decoder_call {
    tern_kv_cache *cache; /* or NULL                    */
    int64_t past;         /* the number of its tokens   */
    int64_t positions;    /* one more than the highest of given positions; 0: none are given */
    int layer;            /* the one that is called     */
} tern__decoder_call;

/* Fails unless a body of so many positions can take these inputs. */
int tern__decoder_check(const tern_module *body, tern_scope *scope, tern_tensor *const *x,
                        const tern__decoder_call *call, int64_t positions);
/* Makes the layers' inputs of the body's, on the device of the states, which are there already. */
int tern__decoder_settle(tern_scope *scope, tern_tensor *const *x, const tern__decoder_call *call,
                         tern_tensor *in[TERN__DECODER_INPUTS]);
/* Calls a body, a layer or its attention. One whose forward was replaced takes only the first input; others,
 * or a cache, are E_INVALID then. */
tern_tensor *tern__decoder_forward(const tern__call_kind *kind, tern_module *module, tern_scope *scope,
                                   tern_tensor *const *in, const tern__decoder_call *call);
/* Calls the layers one after the other, and returns the last one's states. */
tern_tensor *tern__decoder_layers(const tern__call_kind *kind, const tern_module *list, tern_scope *scope,
                                  tern_tensor *const *in, const tern__decoder_call *call);
/* Returns the attention of queries to the keys and values of their own and earlier tokens, those of the cache
 * included. All are (N, T, heads, features). */
tern_tensor *tern__decoder_attention(tern_scope *scope, tern_tensor *q, tern_tensor *k, tern_tensor *v,
                                     tern_tensor *mask, const tern__decoder_call *call, double dropout);

/* Fails unless a call of `body` with these tokens, (N, T), may append to the cache. */
/* Whether it was made for one sequence of this model. */
bool tern__kv_cache_fits(const tern_kv_cache *cache, const tern__language_model *model);
int tern__kv_cache_check(const tern_kv_cache *cache, const tern_module *body, tern_scope *scope,
                         const tern_tensor *tokens);
/* Writes the keys and values of a layer behind those before, and replaces them by views of all. */
int tern__kv_cache_append(tern_kv_cache *cache, int layer, tern_scope *scope, tern_tensor *kv[2]);
/* Counts the tokens that all layers have appended. */
void tern__kv_cache_advance(tern_kv_cache *cache, int64_t tokens);

/* Draws every parameter called "weight" of two dimensions from normal(0, std); nothing with a NULL rng. */
int tern__weights_draw(tern_module *module, double std, tern_rng *rng, tern_error *err);

#endif
