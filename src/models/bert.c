/* bert.c - BERT's encoder (Devlin et al. 2018), with the names and the order of construction of
 * transformers' BertModel: the sum of three embeddings, layers of a transformer whose norms follow their
 * sums, and a pooler. */
#include "base/opts.h"
#include "models/language_model.h"
#include "ops/ops.h"

#include <tern/models.h>

#include <stdio.h>
#include <string.h>

/* ---- a layer ---- */

typedef struct bert_layer {
    tern_module base;
    tern_module *projection[3]; /* attention.self.query, key and value */
    tern_module *attention_dense, *attention_norm, *intermediate, *output_dense, *output_norm;
    int64_t hidden, heads;
    double dropout, attention_dropout;
} bert_layer;

static tern_tensor *bert_dropout(const tern_module *module, tern_scope *s, tern_tensor *x, double p)
{
    return module->training && p > 0 ? tern_dropout(s, x, p) : x;
}

/* Projects x and shows the heads: (N, heads, T, hidden / heads). */
static tern_tensor *bert_heads(const bert_layer *self, tern_scope *s, tern_module *projection, tern_tensor *x)
{
    const int64_t *shape = x->view.shape, depth = self->hidden / self->heads;
    tern_tensor *y = tern_forward(projection, s, x);
    y = tern_reshape(s, y, 4, (int64_t[]){shape[0], shape[1], self->heads, depth});
    return tern_transpose(s, y, 1, 2);
}

/* Inputs of a layer: the states and the mask of attention, or NULL. */
static tern_tensor *bert_layer_call(tern_module *module, tern_scope *s, tern_tensor *const *in,
                                    const void *opts)
{
    bert_layer *self = (bert_layer *)module;
    tern_tensor *x = in[0], *heads[3];
    tern_attention_opts o = tern_attention_defaults();
    (void)opts;
    o.dropout = module->training ? self->attention_dropout : 0;
    for (int i = 0; i < 3; i++) heads[i] = bert_heads(self, s, self->projection[i], x);
    tern_tensor *y = tern_scaled_dot_product_attention(s, heads[0], heads[1], heads[2], in[1], &o);
    y = tern_reshape(s, tern_transpose(s, y, 1, 2), 3, x->view.shape);
    y = bert_dropout(module, s, tern_forward(self->attention_dense, s, y), self->dropout);
    x = tern_forward(self->attention_norm, s, tern_add(s, y, x));
    y = tern_gelu(s, tern_forward(self->intermediate, s, x), false);
    y = bert_dropout(module, s, tern_forward(self->output_dense, s, y), self->dropout);
    return tern_forward(self->output_norm, s, tern_add(s, y, x));
}

static tern_tensor *bert_layer_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    return bert_layer_call(module, s, (tern_tensor *[]){x, NULL}, NULL);
}

static const tern__call_kind bert_layer_kind = {"tern_bert_forward", "bert_layer", bert_layer_forward,
                                                bert_layer_call,     .needed = 1,  .count = 2};

/* Adds a module without a forward of its own, which only gives its children a name. */
static tern_module *add_group(tern_module *parent, const char *name, tern_error *err)
{
    return tern_module_add(parent, name, tern_sequential_new(err), err);
}

static tern_module *add_linear(tern_module *parent, const char *name, int64_t in, int64_t out, tern_rng *rng,
                               tern_error *err)
{
    return tern_module_add(parent, name, tern_linear_new(in, out, NULL, rng, err), err);
}

static tern_module *add_norm(tern_module *parent, const tern_bert_opts *o, tern_error *err)
{
    return tern_module_add(parent, "LayerNorm",
                           tern__layer_norm_new(o->hidden_size, o->layer_norm_eps, true, err), err);
}

static bool bert_layer_add_all(bert_layer *self, const tern_bert_opts *o, tern_rng *rng, tern_error *err)
{
    static const char *const names[] = {"query", "key", "value"};
    int64_t hidden = o->hidden_size;
    tern_module *attention = add_group(&self->base, "attention", err);
    tern_module *part = add_group(attention, "self", err);
    for (int i = 0; i < 3; i++) self->projection[i] = add_linear(part, names[i], hidden, hidden, rng, err);
    part = add_group(attention, "output", err);
    self->attention_dense = add_linear(part, "dense", hidden, hidden, rng, err);
    self->attention_norm = add_norm(part, o, err);
    part = add_group(&self->base, "intermediate", err);
    self->intermediate = add_linear(part, "dense", hidden, o->intermediate_size, rng, err);
    part = add_group(&self->base, "output", err);
    self->output_dense = add_linear(part, "dense", o->intermediate_size, hidden, rng, err);
    self->output_norm = add_norm(part, o, err);
    return !err->code;
}

static tern_module *bert_layer_new(const tern_bert_opts *o, tern_rng *rng, tern_error *err)
{
    bert_layer *self = tern__module_new(sizeof(*self), "bert_layer", bert_layer_forward, err);
    if (!self) return NULL;
    self->hidden = o->hidden_size;
    self->heads = o->num_attention_heads;
    self->dropout = o->hidden_dropout_prob;
    self->attention_dropout = o->attention_probs_dropout_prob;
    tern__options_add(&self->base, "heads", 1, &self->heads);
    tern__options_add_real(&self->base, "dropout", self->dropout);
    tern__options_add_real(&self->base, "attention_dropout", self->attention_dropout);
    if (bert_layer_add_all(self, o, rng, err)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

/* ---- the net ---- */

typedef struct bert {
    tern__language_model base;
    tern_module *word, *position, *type, *norm, *layers, *pooler; /* pooler: dense, or NULL */
    tern_bert_opts opts;
} bert;

enum { IDS, MASK, TYPES, POSITIONS, BERT_INPUTS };

static int bert_shape_fail(tern_scope *s, const char *func, const char *what, const char *want,
                           const tern_tensor *x)
{
    char have[TERN__SHAPE_TEXT];
    return tern__scope_fail(s, func, TERN_E_SHAPE, "bert: expected %s %s, got %s", what, want,
                            tern__shape_text(&x->view, have));
}

/* Whether x has the first `ndim` dimensions of (batch, tokens, tokens); with `shared`, a batch of 1 will
 * do. */
static bool is_for_tokens(const tern_tensor *x, int ndim, const int64_t *ids, bool shared)
{
    const int64_t *shape = x->view.shape;
    bool fits = x->view.ndim == ndim && (shape[0] == ids[0] || (shared && shape[0] == 1));
    for (int d = 1; d < ndim && fits; d++) fits = shape[d] == ids[1];
    return fits;
}

static int bert_check_inputs(const bert *self, tern_scope *s, tern_tensor *const *x)
{
    static const char *const func = "tern_bert_forward";
    char want[64], tokens[TERN__SHAPE_TEXT];
    const int64_t *ids = x[IDS]->view.shape;
    snprintf(want, sizeof(want), "(N, T) with T up to %lld", (long long)self->opts.max_position_embeddings);
    if (x[IDS]->view.ndim != 2 || ids[1] > self->opts.max_position_embeddings)
        return bert_shape_fail(s, func, "input_ids", want, x[IDS]);
    tern__shape_text(&x[IDS]->view, tokens);
    if (x[TYPES] && !is_for_tokens(x[TYPES], 2, ids, false))
        return bert_shape_fail(s, func, "token_type_ids", tokens, x[TYPES]);
    if (x[POSITIONS] && !is_for_tokens(x[POSITIONS], 2, ids, true))
        return bert_shape_fail(s, func, "position_ids", tokens, x[POSITIONS]);
    if (!x[MASK] || is_for_tokens(x[MASK], 2, ids, false) || is_for_tokens(x[MASK], 3, ids, false))
        return TERN_OK;
    return bert_shape_fail(s, func, "attention_mask (N, T) or (N, T, T) for input_ids", tokens, x[MASK]);
}

/* Indices that are known beforehand, on the device of `on`: of the first type, or the positions 0, 1 .. */
static tern_tensor *bert_indices(tern_scope *s, const tern_tensor *on, bool counted, int64_t count)
{
    int64_t *numbers = tern__scope_alloc(s, (size_t)TERN__MAX(count, 1) * sizeof(*numbers));
    for (int64_t i = 0; i < count && numbers && counted; i++) numbers[i] = i;
    if (!numbers) return NULL;
    return tern__beside(s, tern_tensor_from(s, numbers, TERN_I64, 2, (int64_t[]){1, count}), on);
}

static tern_tensor *bert_embed(const bert *self, tern_scope *s, tern_tensor *const *x)
{
    int64_t tokens = x[IDS]->view.shape[1];
    tern_tensor *y = tern_forward(self->word, s, x[IDS]);
    tern_tensor *positions = x[POSITIONS] ? x[POSITIONS] : bert_indices(s, y, true, tokens);
    tern_tensor *types = x[TYPES] ? x[TYPES] : bert_indices(s, y, false, 1);
    y = tern_add(s, y, tern_forward(self->type, s, types));
    y = tern_forward(self->norm, s, tern_add(s, y, tern_forward(self->position, s, positions)));
    return bert_dropout(&self->base.base, s, y, self->opts.hidden_dropout_prob);
}

/* Returns the mask as one of bool, (N, 1, 1 or T, T), on the device of `on`. */
static tern_tensor *bert_mask(tern_scope *s, tern_tensor *mask, const tern_tensor *on)
{
    if (!mask) return NULL;
    const int64_t *shape = mask->view.shape;
    int64_t queries = mask->view.ndim == 3 ? shape[1] : 1, keys = shape[mask->view.ndim - 1];
    tern_dtype dtype = mask->view.dtype;
    mask = tern_reshape(s, mask, 4, (int64_t[]){shape[0], 1, queries, keys});
    return dtype == TERN_BOOL ? mask : tern_ne(s, mask, tern__number(s, on, dtype, 0));
}

static tern_tensor *bert_call(tern_module *module, tern_scope *s, tern_tensor *const *x, const void *opts)
{
    bert *self = (bert *)module;
    (void)opts;
    if (bert_check_inputs(self, s, x)) return NULL;
    tern_tensor *y = bert_embed(self, s, x), *mask = bert_mask(s, x[MASK], y);
    if (s->error.code) return NULL; /* a mask that could not be made is not an absent one */
    for (const tern__module_tree *layer = self->layers->tree->children; layer; layer = layer->next)
        y = tern__forward_inputs(&bert_layer_kind, layer->module, s, (tern_tensor *[]){y, mask}, NULL);
    return y;
}

static tern_tensor *bert_forward(tern_module *module, tern_scope *s, tern_tensor *ids)
{
    return bert_call(module, s, (tern_tensor *[BERT_INPUTS]){ids}, NULL);
}

static tern_tensor *bert_pooler_call(tern_module *module, tern_scope *s, tern_tensor *const *x,
                                     const void *opts)
{
    bert *self = (bert *)module;
    (void)opts;
    if (!self->pooler) {
        tern__scope_fail(s, "tern_bert_pooler_forward", TERN_E_INVALID, "bert: it was made without a pooler");
        return NULL;
    }
    if (x[0]->view.ndim != 3 || x[0]->view.shape[2] != self->opts.hidden_size || x[0]->view.shape[1] < 1) {
        char want[64];
        snprintf(want, sizeof(want), "(N, T, %lld)", (long long)self->opts.hidden_size);
        bert_shape_fail(s, "tern_bert_pooler_forward", "states", want, x[0]);
        return NULL;
    }
    return tern_tanh(s, tern_forward(self->pooler, s, tern_select(s, x[0], 1, 0)));
}

tern_bert_call_opts tern_bert_call_defaults(void)
{
    return (tern_bert_call_opts){.size = sizeof(tern_bert_call_opts)};
}

tern_tensor *tern_bert_forward(tern_module *module, tern_scope *s, tern_tensor *input_ids,
                               const tern_bert_call_opts *opts)
{
    static const tern__call_kind kind = {"tern_bert_forward", "bert",      bert_forward,
                                         bert_call,           .needed = 1, .count = BERT_INPUTS};
    tern_bert_call_opts o = tern_bert_call_defaults();
    if (!s || tern__scope_opts(s, &o, sizeof(o), opts, __func__)) return NULL;
    tern_tensor *x[BERT_INPUTS] = {input_ids, o.attention_mask, o.token_type_ids, o.position_ids};
    return tern__forward_inputs(&kind, module, s, x, NULL);
}

tern_tensor *tern_bert_pooler_forward(tern_module *module, tern_scope *s, tern_tensor *states)
{
    static const tern__call_kind kind = {"tern_bert_pooler_forward", "bert",      bert_forward,
                                         bert_pooler_call,           .needed = 1, .count = 1};
    return tern__forward_inputs(&kind, module, s, &states, NULL);
}

/* ---- making ---- */

tern_bert_opts tern_bert_defaults(void)
{
    return (tern_bert_opts){.size = sizeof(tern_bert_opts),
                            .vocab_size = 30522,
                            .hidden_size = 768,
                            .num_hidden_layers = 12,
                            .num_attention_heads = 12,
                            .intermediate_size = 3072,
                            .max_position_embeddings = 512,
                            .type_vocab_size = 2,
                            .layer_norm_eps = 1e-12,
                            .hidden_dropout_prob = 0.1,
                            .attention_probs_dropout_prob = 0.1,
                            .initializer_range = 0.02,
                            .add_pooling_layer = true};
}

static bool is_probability(double p)
{
    return p >= 0 && p <= 1;
}

/* Returns the number of elements of all matrices. */
static double bert_elements(const tern_bert_opts *o)
{
    double hidden = (double)o->hidden_size, layer = 4 * hidden + 2 * (double)o->intermediate_size;
    double rows = (double)o->vocab_size + (double)o->max_position_embeddings + (double)o->type_vocab_size;
    return hidden * (rows + o->num_hidden_layers * layer + hidden);
}

/* The layers check the other sizes. */
static int bert_check_opts(const tern_bert_opts *o, tern_error *err)
{
    const char *func = "tern_bert_new";
    if (o->num_hidden_layers < 1)
        return tern__error_set(err, func, TERN_E_RANGE, "bert: num_hidden_layers is %d, expected at least 1",
                               o->num_hidden_layers);
    if (o->num_attention_heads < 1 || o->hidden_size < 1 || o->hidden_size % o->num_attention_heads)
        return tern__error_set(err, func, TERN_E_RANGE,
                               "bert: expected at least 1 head, and a hidden_size divisible by "
                               "num_attention_heads; got %lld heads, %lld features",
                               (long long)o->num_attention_heads, (long long)o->hidden_size);
    if (is_probability(o->hidden_dropout_prob) && is_probability(o->attention_probs_dropout_prob))
        return tern__matrices_check(bert_elements(o), func, err);
    return tern__error_set(err, func, TERN_E_RANGE,
                           "bert: hidden_dropout_prob is %g and attention_probs_dropout_prob %g, expected "
                           "numbers in [0, 1]",
                           o->hidden_dropout_prob, o->attention_probs_dropout_prob);
}

static tern_module *add_embedding(tern_module *parent, const char *name, int64_t rows, int64_t padding_idx,
                                  const tern_bert_opts *o, tern_rng *rng, tern_error *err)
{
    tern_embedding_opts opts = tern_embedding_defaults();
    opts.padding_idx = padding_idx;
    return tern_module_add(parent, name, tern_embedding_new(rows, o->hidden_size, &opts, rng, err), err);
}

static bool bert_add_embeddings(bert *self, tern_rng *rng, tern_error *err)
{
    const tern_bert_opts *o = &self->opts;
    tern_module *m = add_group(&self->base.base, "embeddings", err);
    self->word = add_embedding(m, "word_embeddings", o->vocab_size, o->pad_token_id, o, rng, err);
    self->base.embeddings = self->word ? tern__weight_of(self->word) : NULL;
    self->position = add_embedding(m, "position_embeddings", o->max_position_embeddings, -1, o, rng, err);
    self->type = add_embedding(m, "token_type_embeddings", o->type_vocab_size, -1, o, rng, err);
    self->norm = add_norm(m, o, err);
    return !err->code;
}

static void bert_add_pooler(bert *self, tern_rng *rng, tern_error *err)
{
    int64_t hidden = self->opts.hidden_size;
    self->opts.add_pooling_layer = true;
    self->pooler = add_linear(add_group(&self->base.base, "pooler", err), "dense", hidden, hidden, rng, err);
}

static bool bert_add_all(bert *self, tern_rng *rng, tern_error *err)
{
    if (!bert_add_embeddings(self, rng, err)) return false;
    self->layers = add_group(add_group(&self->base.base, "encoder", err), "layer", err);
    for (int i = 0; i < self->opts.num_hidden_layers && !err->code; i++)
        tern_sequential_add(self->layers, bert_layer_new(&self->opts, rng, err), err);
    if (self->opts.add_pooling_layer) bert_add_pooler(self, rng, err);
    return !err->code;
}

/* As transformers, draws all matrices again when all modules are made, in their order. */
static bool bert_init_weights(bert *self, tern_rng *rng, tern_error *err)
{
    const tern_bert_opts *o = &self->opts;
    tern_module *m = &self->base.base;
    int status = tern__module_state(m, err), count = tern_state_count(m);
    for (int i = 0; i < count && !status && rng; i++) {
        tern_state_entry entry = tern_state_get(m, i);
        if (tern_tensor_ndim(entry.tensor) == 2)
            status = tern_init_normal(entry.tensor, 0, o->initializer_range, rng, err);
        else if (strstr(entry.name, ".bias"))
            status = tern_init_constant(entry.tensor, 0, err);
    }
    if (status) return false;
    float *words = self->base.embeddings->view.data;
    if (o->pad_token_id >= 0)
        memset(words + o->pad_token_id * o->hidden_size, 0, (size_t)o->hidden_size * sizeof(*words));
    return true;
}

tern_module *tern_bert_new(const tern_bert_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_bert_opts o = tern_bert_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) || bert_check_opts(&o, err))
        return NULL;
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    bert *self = tern__module_new(sizeof(*self), "bert", bert_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base.base;
    self->base.kind = &tern__bert_kind;
    self->base.body = m;
    self->opts = o;
    tern__options_add_real(m, "dropout", o.hidden_dropout_prob);
    if (bert_add_all(self, rng, err) && bert_init_weights(self, rng, err)) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- folders ---- */

tern__language_model *tern__bert_of(const tern_module *module)
{
    bool is_one = module && module->tree && module->tree->forward == bert_forward;
    return is_one ? &((bert *)module)->base : NULL;
}

static tern_module *bert_open(tern__config *config, tern_rng *rng, tern_error *err)
{
    tern_bert_opts o = tern_bert_defaults();
    bool decodes = false, crosses = false;
    o.add_pooling_layer = rng != NULL; /* else bert_see_name tells */
    tern__config_int(config, "vocab_size", true, &o.vocab_size);
    tern__config_int(config, "hidden_size", true, &o.hidden_size);
    tern__config_count(config, "num_hidden_layers", true, &o.num_hidden_layers);
    tern__config_int(config, "num_attention_heads", true, &o.num_attention_heads);
    tern__config_int(config, "intermediate_size", true, &o.intermediate_size);
    tern__config_int(config, "max_position_embeddings", true, &o.max_position_embeddings);
    tern__config_int(config, "type_vocab_size", true, &o.type_vocab_size);
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(config->object, "pad_token_id"))) o.pad_token_id = -1;
    tern__config_int(config, "pad_token_id", false, &o.pad_token_id);
    tern__config_real(config, "layer_norm_eps", &o.layer_norm_eps);
    tern__config_real(config, "hidden_dropout_prob", &o.hidden_dropout_prob);
    tern__config_real(config, "attention_probs_dropout_prob", &o.attention_probs_dropout_prob);
    tern__config_real(config, "initializer_range", &o.initializer_range);
    tern__config_bool(config, "is_decoder", &decodes);
    tern__config_bool(config, "add_cross_attention", &crosses);
    const char *act = tern__config_text(config, "hidden_act");
    const char *positions = tern__config_text(config, "position_embedding_type");
    if (act && strcmp(act, "gelu") != 0) tern__config_refuse(config, "hidden_act", act);
    if (positions && strcmp(positions, "absolute") != 0)
        tern__config_refuse(config, "position_embedding_type", positions);
    if (decodes) tern__config_refuse(config, "is_decoder", "true");
    if (crosses) tern__config_refuse(config, "add_cross_attention", "true");
    return tern_bert_new(&o, rng, err);
}

/* BertForMaskedLM and others have no pooler. */
static void bert_see_name(tern_module *model, const char *name, tern_error *err)
{
    bert *self = (bert *)model;
    bool is_pooler = !strcmp(name, "pooler.dense.weight") || !strcmp(name, "bert.pooler.dense.weight");
    if (is_pooler && !self->pooler && !tern__is_set(err)) bert_add_pooler(self, NULL, err);
}

static void bert_write(const tern_module *model, cJSON *config)
{
    const tern_bert_opts *o = &((const bert *)model)->opts;
    cJSON_AddNumberToObject(config, "vocab_size", (double)o->vocab_size);
    cJSON_AddNumberToObject(config, "hidden_size", (double)o->hidden_size);
    cJSON_AddNumberToObject(config, "num_hidden_layers", o->num_hidden_layers);
    cJSON_AddNumberToObject(config, "num_attention_heads", (double)o->num_attention_heads);
    cJSON_AddNumberToObject(config, "intermediate_size", (double)o->intermediate_size);
    cJSON_AddNumberToObject(config, "max_position_embeddings", (double)o->max_position_embeddings);
    cJSON_AddNumberToObject(config, "type_vocab_size", (double)o->type_vocab_size);
    if (o->pad_token_id >= 0)
        cJSON_AddNumberToObject(config, "pad_token_id", (double)o->pad_token_id);
    else
        cJSON_AddNullToObject(config, "pad_token_id");
    cJSON_AddStringToObject(config, "hidden_act", "gelu");
    cJSON_AddNumberToObject(config, "layer_norm_eps", o->layer_norm_eps);
    cJSON_AddNumberToObject(config, "hidden_dropout_prob", o->hidden_dropout_prob);
    cJSON_AddNumberToObject(config, "attention_probs_dropout_prob", o->attention_probs_dropout_prob);
    cJSON_AddNumberToObject(config, "initializer_range", o->initializer_range);
}

const tern__pretrained_kind tern__bert_kind = {
    .model_type = "bert",
    .architecture = "BertModel",
    .body = "bert",
    .lora_targets = (const char *const[]){"query", "value", NULL},
    .lora_task = "FEATURE_EXTRACTION",
    .needless = (const char *const[]){"embeddings.position_ids", "embeddings.token_type_ids",
                                      ".LayerNorm.gamma", ".LayerNorm.beta", NULL},
    .open = bert_open,
    .write = bert_write,
    .see_name = bert_see_name,
};
