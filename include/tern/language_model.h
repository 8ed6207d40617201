/* language_model.h - decoders that predict the next token, with the names and initial weights of Hugging
 * Face's transformers, and their folders (config.json and safetensors).
 *
 *     tern_module *model = tern_pretrained_open("gpt2", NULL, &err);
 *     tern_tensor *loss = tern_language_model_loss(model, scope, tokens, NULL, NULL);
 *
 * The fields of the options are those of transformers' configurations.
 *
 * Threads: as modules (nn.h). */
#ifndef TERN_LANGUAGE_MODEL_H
#define TERN_LANGUAGE_MODEL_H

#include <tern/loss.h>
#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- models ---- */

/* GPT-2's activation_function: "gelu_new" (with tanh), "gelu", "relu", "silu". */
typedef enum tern_gpt2_activation {
    TERN_GPT2_GELU_NEW,
    TERN_GPT2_GELU,
    TERN_GPT2_RELU,
    TERN_GPT2_SILU
} tern_gpt2_activation;

typedef struct tern_gpt2_opts {
    size_t size;
    int64_t vocab_size;                         /* default 50257                                        */
    int64_t n_positions;                        /* the longest context; default 1024                    */
    int64_t n_embd;                             /* a multiple of n_head; default 768                    */
    int n_layer;                                /* default 12                                           */
    int64_t n_head;                             /* default 12                                           */
    int64_t n_inner;                            /* features of the MLP; default 0: 4 n_embd             */
    tern_gpt2_activation activation_function;   /* default TERN_GPT2_GELU_NEW   */
    double resid_pdrop, embd_pdrop, attn_pdrop; /* dropouts in [0, 1]; default 0.1 each */
    double layer_norm_epsilon;                  /* default 1e-5                 */
    double initializer_range;                   /* default 0.02                 */
    bool tie_word_embeddings;                   /* lm_head has the weight of wte; default true */
} tern_gpt2_opts;
/* Returns the options of the smallest GPT-2, of 124 million parameters. */
TERN_API tern_gpt2_opts tern_gpt2_defaults(void);

/* GPT-2 (Radford et al. 2019): tokens (N, T), i64 or i32 -> logits (N, T, vocab_size). Names are those of
 * transformers' GPT2LMHeadModel: transformer.wte.weight, transformer.h.0.attn.c_attn.weight (in, out) ..
 * Initial weights are drawn from the same distributions: normal(0, initializer_range), divided by sqrt(2
 * n_layer) for c_proj.weight, biases 0. With a NULL `rng` all weights but the norms' are 0, to be loaded. A
 * context longer than n_positions is E_RANGE of the scope. NULL: E_RANGE (options), E_INVALID (n_embd is no
 * multiple of n_head), E_MEMORY, also if the weights are more than the machine's memory. */
TERN_API tern_module *tern_gpt2_new(const tern_gpt2_opts *opts, tern_rng *rng, tern_error *err);

typedef struct tern_llama_opts {
    size_t size;
    int64_t vocab_size;              /* default 32000                                       */
    int64_t hidden_size;             /* default 4096                                        */
    int64_t intermediate_size;       /* features of the MLP; default 11008                  */
    int num_hidden_layers;           /* default 32                                          */
    int64_t num_attention_heads;     /* default 32                                          */
    int64_t num_key_value_heads;     /* a divisor of these; default 0: as many              */
    int64_t head_dim;                /* even; default 0: hidden_size / num_attention_heads  */
    int64_t max_position_embeddings; /* the longest context; default 2048                   */
    double rms_norm_eps;             /* default 1e-6                                        */
    double rope_theta;               /* default 10000                                       */
    tern_rope_scaling rope_scaling;  /* with the next four, as in tern_rotary_table_opts    */
    double rope_factor;              /* default 1                                           */
    double rope_low_freq_factor;     /* default 1                                           */
    double rope_high_freq_factor;    /* default 4                                           */
    int64_t rope_original_positions; /* default 0: max_position_embeddings                  */
    bool attention_bias, mlp_bias;   /* default false                                       */
    bool tie_word_embeddings;        /* lm_head has the weight of embed_tokens; default false */
    double attention_dropout;        /* in [0, 1]; default 0                                */
    double initializer_range;        /* default 0.02                                        */
    int64_t pad_token_id;            /* the row of embed_tokens that is 0 and gets no gradient from the
                                      * embedding; default -1: none                         */
    double rope_attention_factor;    /* with the next five, as in tern_rotary_table_opts; default 0 */
    double rope_beta_fast;           /* default 32                                          */
    double rope_beta_slow;           /* default 1                                           */
    bool rope_truncate;              /* default true                                        */
    const double *rope_short_factor, *rope_long_factor; /* head_dim / 2 numbers each, copied; default NULL */
} tern_llama_opts;
/* Returns the options of LLaMA with 7 billion parameters. */
TERN_API tern_llama_opts tern_llama_defaults(void);

/* Llama (Touvron et al. 2023): as tern_gpt2_new, with the names of transformers' LlamaForCausalLM:
 * model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight, .. lm_head.weight; all weights are drawn
 * from normal(0, initializer_range). */
TERN_API tern_module *tern_llama_new(const tern_llama_opts *opts, tern_rng *rng, tern_error *err);

/* ---- calls ---- */

/* The keys and values of the tokens that a model has seen, so that a call computes only new tokens. */
typedef struct tern_kv_cache tern_kv_cache;

/* Makes a cache for `batch` sequences of up to max_tokens tokens. The first call makes its memory, on the
 * device and in the dtype of its keys: two numbers for each feature of the keys of each layer and token. Free
 * the cache before that device is closed. E_INVALID: not a language model; E_RANGE: batch < 1, or max_tokens
 * not in [1, the model's longest context]; E_MEMORY. transformers' StaticCache. */
TERN_API tern_kv_cache *tern_kv_cache_new(const tern_module *model, int64_t batch, int64_t max_tokens,
                                          tern_error *err);
/* Returns the number of tokens that it has of each sequence: get_seq_length. */
TERN_API int64_t tern_kv_cache_length(const tern_kv_cache *cache);
/* Forgets all tokens and keeps the memory. */
TERN_API void tern_kv_cache_reset(tern_kv_cache *cache);
/* Keeps the first `length` tokens of each sequence, and forgets those behind them. E_RANGE: it has fewer.
 * transformers' Cache.crop. */
TERN_API int tern_kv_cache_crop(tern_kv_cache *cache, int64_t length, tern_error *err);
/* Makes max_tokens larger; a smaller one changes nothing. The next call copies the tokens into new memory.
 * E_RANGE: more than the model's longest context. */
TERN_API int tern_kv_cache_reserve(tern_kv_cache *cache, int64_t max_tokens, tern_error *err);
TERN_API void tern_kv_cache_free(tern_kv_cache *cache);

typedef struct tern_language_model_call_opts {
    size_t size;
    tern_tensor *attention_mask; /* (N, cached tokens + T), of any dtype: not 0 where a token takes part;
                                  * default NULL: all do                                          */
    tern_tensor *position_ids;   /* (N, T) or (1, T), i64 or i32; default NULL: see below         */
    tern_kv_cache *cache;        /* takes the call's tokens in behind those that it has, and they attend to
                                  * all; default NULL                                             */
    int64_t logits_to_keep;      /* logits of so many last tokens only; default 0: of all         */
} tern_language_model_call_opts;
TERN_API tern_language_model_call_opts tern_language_model_call_defaults(void);

/* tern_forward with options: tokens (N, T) -> logits (N, T or logits_to_keep, vocab_size). The position of a
 * token is the number of tokens before it, those of the cache included; under an attention_mask, of those
 * that take part, as in transformers' generate(), so that sequences may be padded on either side. (A plain
 * call of transformers counts padding, too, unless it is given position_ids.) A token gets 0 from the
 * attention if neither it nor one before it takes part.
 *
 *     call.cache = tern_kv_cache_new(model, 1, 256, &err);
 *     call.logits_to_keep = 1;
 *     tern_grad_enabled_set(scope, false);
 *     tern_language_model_forward(model, scope, prompt, &call);  and so on with each next token
 *
 * A call that fails leaves the cache's tokens as they were. E_INVALID: not a language model, a cache of
 * another model; E_STATE: a cache while gradients are recorded; E_SHAPE: tokens, mask, ids, another batch
 * than the cache's; E_RANGE: more tokens than the model's context or the cache's max_tokens, an id,
 * logits_to_keep; E_DTYPE: tokens, ids, a cache that has tokens of another dtype. */
TERN_API tern_tensor *tern_language_model_forward(tern_module *model, tern_scope *scope, tern_tensor *tokens,
                                                  const tern_language_model_call_opts *opts);
/* Returns the hidden states after the last norm, (N, T, features), which lm_head makes logits of. */
TERN_API tern_tensor *tern_language_model_hidden(tern_module *model, tern_scope *scope, tern_tensor *tokens);

/* ---- loss ---- */

typedef struct tern_language_model_loss_opts {
    size_t size;
    bool shifted;             /* labels[n][t] is the token after tokens[n][t]; default false: it is that token
                               * itself, and the call shifts them                             */
    int64_t ignore_index;     /* positions with this label do not count; default -100         */
    double label_smoothing;   /* as in tern_cross_entropy; default 0                          */
    tern_reduction reduction; /* default: the mean over the positions that count              */
    tern_tensor *attention_mask; /* as in tern_language_model_call_opts; default NULL         */
} tern_language_model_loss_opts;
TERN_API tern_language_model_loss_opts tern_language_model_loss_defaults(void);

/* Returns the cross entropy of the next tokens. tokens and labels are (N, T), i64 or i32; NULL labels are the
 * tokens. As in transformers, the labels are shifted here: position t predicts labels[n][t + 1], and the last
 * position predicts nothing. The logits are not held as a whole (tern_linear_cross_entropy). `model` is a
 * module of tern_gpt2_new, tern_llama_new or tern_pretrained_open; another is E_INVALID. Under tern_ddp, call
 * it instead of tern_forward and tern_cross_entropy. transformers' model(tokens, labels=labels).loss. */
TERN_API tern_tensor *tern_language_model_loss(tern_module *model, tern_scope *scope, tern_tensor *tokens,
                                               tern_tensor *labels,
                                               const tern_language_model_loss_opts *opts);

/* ---- folders of Hugging Face ---- */

typedef struct tern_pretrained_opts {
    size_t size;
    tern_rng *rng; /* draws initial weights instead of reading any; default NULL: read the weights */
} tern_pretrained_opts;
TERN_API tern_pretrained_opts tern_pretrained_defaults(void);

/* Makes the model of a folder's config.json, and reads its weights: model.safetensors, or the shards of
 * model.safetensors.index.json, or pytorch_model.bin, or the shards of pytorch_model.bin.index.json. Names
 * may lack the prefix "transformer.", "model." or "bert.", as those of GPT2Model, LlamaModel and BertModel.
 * 16-bit weights become f32 (tern_module_cast changes that). transformers'
 * AutoModelForCausalLM.from_pretrained, for folders only: nothing is downloaded. A ViTForImageClassification
 * becomes a module of tern_vit_new (models.h), with torchvision's names.
 *
 * Of BERT's classes it reads the encoder (tern_bert_new), as BertModel.from_pretrained of transformers. If
 * names have the prefix, those without it belong to heads, such as cls.predictions of BertForMaskedLM, and
 * are passed over. The model has a pooler if the folder has one, where transformers would draw another.
 *
 * NULL on error: E_IO (a file is missing, and the error names it), E_FORMAT (config.json or an index is
 * damaged, or a field is missing or of another kind), E_UNSUPPORTED (another model, or an option that tern
 * does not have), E_INVALID (missing and unexpected names), E_SHAPE, E_DTYPE, E_MEMORY. */
TERN_API tern_module *tern_pretrained_open(const char *folder, const tern_pretrained_opts *opts,
                                           tern_error *err);

typedef struct tern_pretrained_save_opts {
    size_t size;
    int64_t max_shard_bytes; /* larger models become several files; default 5 GB */
} tern_pretrained_save_opts;
TERN_API tern_pretrained_save_opts tern_pretrained_save_defaults(void);

/* Writes config.json and model.safetensors, or shards with their index, into a folder, which is made if there
 * is none, so that transformers and tern_pretrained_open read them. A shared lm_head.weight is left out, as
 * transformers does. A BERT is written as a BertModel. A vit gets transformers' names; its labels are
 * LABEL_0, LABEL_1 .. Adapters that were merged (lora.h) are left out. E_INVALID: another module; E_STATE:
 * adapters that were not; E_UNSUPPORTED: a vit with a representation_size; E_RANGE: max_shard_bytes; E_IO,
 * E_MEMORY. */
TERN_API int tern_pretrained_save(const tern_module *model, const char *folder,
                                  const tern_pretrained_save_opts *opts, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
