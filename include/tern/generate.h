/* generate.h - text from a language model, token by token.
 *
 *     tern_generate_opts opts = tern_generate_defaults();
 *     opts.max_new_tokens = 200;
 *     opts.do_sample = true;
 *     tern_token_ids ids = {0};
 *     tern_tokenizer_encode(tokenizer, "Once upon a time", 16, NULL, &ids, &err);
 *     tern_generate(model, scope, &ids, &opts, &err);            ids: the prompt and what follows it
 *
 * `tern generate FOLDER PROMPT` does it from the command line.
 *
 * Threads: a call belongs to the thread of its scope. */
#ifndef TERN_GENERATE_H
#define TERN_GENERATE_H

#include <tern/language_model.h>
#include <tern/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Gets each new token as soon as it is chosen. Returns false to end the text after it. */
typedef bool (*tern_generate_fn)(void *context, int32_t id);

typedef struct tern_generate_opts {
    size_t size;
    int64_t max_new_tokens;    /* default 20                                                              */
    int64_t max_length;        /* not 0: in place of max_new_tokens, tokens with the prompt's; default 0  */
    bool do_sample;            /* draw each token at random; default false: the most probable one         */
    double temperature;        /* logits are divided by it before they are drawn from; > 0; default 1     */
    int64_t top_k;             /* draw from so many most probable tokens; 0: from all; default 50         */
    double top_p;              /* draw from the fewest most probable tokens whose probabilities add up to
                                * at least this, in (0, 1]; of equal ones the first; default 1            */
    double repetition_penalty; /* tokens that are there have their logits divided by it where positive and
                                * multiplied where negative (Keskar et al. 2019); > 0; default 1          */
    const int32_t *eos_ids;    /* a text ends after one of these tokens; default none                     */
    int64_t eos_count;         /* default 0                                                               */
    tern_rng *rng;             /* draws; default NULL: a generator with seed 0                            */
    tern_generate_fn on_token; /* default NULL                                                            */
    void *context;             /* of on_token                                                             */
    tern_kv_cache *cache;      /* has seen the first tokens of the prompt, which are not computed again, and
                                * afterwards all but the last token of the text; grows; default NULL: one
                                * for this call                                                           */
} tern_generate_opts;
/* Returns the defaults of transformers' GenerationConfig. */
TERN_API tern_generate_opts tern_generate_defaults(void);

/* Appends tokens to the prompt in `ids` until one of eos_ids comes, max_new_tokens are there, on_token ends
 * the text, or the model's longest context is full. The model sees each token once (tern_kv_cache), in
 * evaluation mode and without gradients; afterwards the mode is as before. To go on with a text, or with one
 * that begins like it, give the same cache, cropped to the tokens that both begin with (tern_kv_cache_crop);
 * of a prompt that it has as a whole the last token is computed again. The scope must have no work of its
 * own: it is ended after each token. Equal logits: the lowest id. transformers' generate(), for one text;
 * greedy ids are the same.
 *
 * E_INVALID: not a language model, an empty prompt, pointers, a cache of another model or batch; E_RANGE:
 * options, an id that the model's vocabulary does not have (with its place), a prompt longer than the
 * longest context, or not shorter than max_length; E_STATE: the scope has work; E_FORMAT: a logit is NaN or
 * infinity, or all are -infinity; E_MEMORY. After an error `ids` has the tokens so far. */
TERN_API int tern_generate(tern_module *model, tern_scope *scope, tern_token_ids *ids,
                           const tern_generate_opts *opts, tern_error *err);

/* Chooses the token after `history`, of `count` ids, from the logits of all tokens, as tern_generate does.
 * Overwrites `logits`, of which some may be -infinity. Without an rng, each call draws the first number of
 * seed 0. E_RANGE, E_FORMAT, as above; E_INVALID: pointers; E_MEMORY. */
TERN_API int tern_generate_choose(float *logits, int64_t vocabulary, const int32_t *history, int64_t count,
                                  const tern_generate_opts *opts, int32_t *id, tern_error *err);

/* What a folder of Hugging Face says about generation. */
typedef struct tern_generation_config {
    tern_generate_opts opts; /* the defaults, and what generation_config.json sets of them; eos_ids are those
                              * of that file, or else of config.json                              */
    int32_t *eos_ids;        /* the memory of opts.eos_ids */
} tern_generation_config;
/* Reads generation_config.json and config.json of a folder; a file that is missing sets nothing. E_IO;
 * E_FORMAT: a file is damaged, or a field is of another kind; E_RANGE; E_UNSUPPORTED: a field asks for
 * something else that changes the text, such as num_beams 4; it is named. transformers'
 * GenerationConfig.from_pretrained. */
TERN_API int tern_generation_config_open(const char *folder, tern_generation_config *config, tern_error *err);
TERN_API void tern_generation_config_free(tern_generation_config *config);

#ifdef __cplusplus
}
#endif
#endif
