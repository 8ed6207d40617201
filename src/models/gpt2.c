/* gpt2.c - GPT-2 (Radford et al. 2019), named as in transformers' modeling_gpt2.py: blocks of causal
 * attention and an MLP, each on a layer norm of the block's input and added to it. The linears are
 * transformers' Conv1D, whose weights are (in, out). */
#include "base/opts.h"
#include "models/language_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tern_module *new_conv1d(int64_t in, int64_t out, tern_error *err)
{
    return tern__is_set(err) ? NULL : tern__linear_new_turned(in, out, "tern_gpt2_new", err);
}

static tern_tensor *gpt2_dropout(const tern_module *module, tern_scope *s, tern_tensor *x, double p)
{
    return module->training && p > 0 ? tern_dropout(s, x, p) : x;
}

/* ---- attention ---- */

typedef struct gpt2_attention {
    tern_module base;
    tern_module *c_attn, *c_proj;
    int64_t heads;
    double attn_pdrop, resid_pdrop;
} gpt2_attention;

/* Queries, keys and values are parts of one product, (N, T, 3, heads, features), and attention takes them as
 * views. */
static tern_tensor *gpt2_attention_call(tern_module *module, tern_scope *s, tern_tensor *const *in,
                                        const void *opts)
{
    gpt2_attention *self = (gpt2_attention *)module;
    const int64_t *shape = in[TERN__STATES]->view.shape;
    int64_t n = shape[0], t = shape[1], width = shape[2];
    tern_tensor *parts[3] = {0};
    tern_tensor *qkv = tern_forward(self->c_attn, s, in[TERN__STATES]);
    qkv = tern_reshape(s, qkv, 4, (int64_t[]){n, t, 3 * self->heads, width / self->heads});
    if (!qkv || tern_split(s, qkv, self->heads, 2, parts, 3) != 3) return NULL;
    double dropout = module->training ? self->attn_pdrop : 0;
    tern_tensor *y =
        tern__decoder_attention(s, parts[0], parts[1], parts[2], in[TERN__ATTENTION_MASK], opts, dropout);
    y = tern_forward(self->c_proj, s, tern_reshape(s, y, 3, (int64_t[]){n, t, width}));
    return gpt2_dropout(module, s, y, self->resid_pdrop);
}

static tern_tensor *gpt2_attention_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    const tern__decoder_call plain = {0};
    return gpt2_attention_call(module, s, (tern_tensor *[TERN__DECODER_INPUTS]){x}, &plain);
}

static const tern__call_kind gpt2_attention_kind = {"tern_forward",
                                                    "gpt2_attention",
                                                    gpt2_attention_forward,
                                                    gpt2_attention_call,
                                                    .needed = 1,
                                                    .count = TERN__DECODER_INPUTS,
                                                    .opts = sizeof(tern__decoder_call)};

static tern_module *new_gpt2_attention(const tern_gpt2_opts *o, tern_error *err)
{
    gpt2_attention *self = tern__module_new(sizeof(*self), "gpt2_attention", gpt2_attention_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    self->heads = o->n_head;
    self->attn_pdrop = o->attn_pdrop;
    self->resid_pdrop = o->resid_pdrop;
    tern__options_add(m, "heads", 1, &o->n_head);
    self->c_attn = tern_module_add(m, "c_attn", new_conv1d(o->n_embd, 3 * o->n_embd, err), err);
    self->c_proj = tern_module_add(m, "c_proj", new_conv1d(o->n_embd, o->n_embd, err), err);
    if (self->c_attn && self->c_proj) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- MLP ---- */

typedef struct gpt2_mlp {
    tern_module base;
    tern_module *c_fc, *c_proj;
    tern_gpt2_activation activation;
    double resid_pdrop;
} gpt2_mlp;

static tern_tensor *gpt2_activate(tern_scope *s, tern_tensor *x, tern_gpt2_activation activation)
{
    switch (activation) {
    case TERN_GPT2_GELU_NEW: return tern_gelu(s, x, true);
    case TERN_GPT2_GELU: return tern_gelu(s, x, false);
    case TERN_GPT2_RELU: return tern_relu(s, x);
    case TERN_GPT2_SILU: return tern_silu(s, x);
    }
    return NULL;
}

static tern_tensor *gpt2_mlp_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    gpt2_mlp *self = (gpt2_mlp *)module;
    x = gpt2_activate(s, tern_forward(self->c_fc, s, x), self->activation);
    return gpt2_dropout(module, s, tern_forward(self->c_proj, s, x), self->resid_pdrop);
}

static tern_module *new_gpt2_mlp(const tern_gpt2_opts *o, tern_error *err)
{
    gpt2_mlp *self = tern__module_new(sizeof(*self), "gpt2_mlp", gpt2_mlp_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    int64_t inner = o->n_inner ? o->n_inner : 4 * o->n_embd;
    self->activation = o->activation_function;
    self->resid_pdrop = o->resid_pdrop;
    tern__options_add(m, "activation", 1, (int64_t[]){o->activation_function});
    self->c_fc = tern_module_add(m, "c_fc", new_conv1d(o->n_embd, inner, err), err);
    self->c_proj = tern_module_add(m, "c_proj", new_conv1d(inner, o->n_embd, err), err);
    if (self->c_fc && self->c_proj) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- block ---- */

typedef struct gpt2_block {
    tern_module base;
    tern_module *ln_1, *attn, *ln_2, *mlp;
} gpt2_block;

static tern_tensor *gpt2_block_call(tern_module *module, tern_scope *s, tern_tensor *const *in,
                                    const void *opts)
{
    gpt2_block *self = (gpt2_block *)module;
    tern_tensor *x = in[TERN__STATES];
    tern_tensor *own[] = {tern_forward(self->ln_1, s, x), in[TERN__ATTENTION_MASK], in[TERN__POSITION_IDS]};
    x = tern_add(s, x, tern__decoder_forward(&gpt2_attention_kind, self->attn, s, own, opts));
    return tern_add(s, x, tern_forward(self->mlp, s, tern_forward(self->ln_2, s, x)));
}

static tern_tensor *gpt2_block_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    const tern__decoder_call plain = {0};
    return gpt2_block_call(module, s, (tern_tensor *[TERN__DECODER_INPUTS]){x}, &plain);
}

static const tern__call_kind gpt2_block_kind = {"tern_forward",
                                                "gpt2_block",
                                                gpt2_block_forward,
                                                gpt2_block_call,
                                                .needed = 1,
                                                .count = TERN__DECODER_INPUTS,
                                                .opts = sizeof(tern__decoder_call)};

static tern_module *new_gpt2_norm(const tern_gpt2_opts *o, tern_error *err)
{
    tern_norm_opts norm = tern_norm_defaults();
    norm.eps = o->layer_norm_epsilon;
    return tern_layer_norm_new(1, &o->n_embd, &norm, err);
}

static tern_module *new_gpt2_block(const tern_gpt2_opts *o, tern_error *err)
{
    gpt2_block *self = tern__module_new(sizeof(*self), "gpt2_block", gpt2_block_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    self->ln_1 = tern_module_add(m, "ln_1", new_gpt2_norm(o, err), err);
    self->attn = tern_module_add(m, "attn", new_gpt2_attention(o, err), err);
    self->ln_2 = tern_module_add(m, "ln_2", new_gpt2_norm(o, err), err);
    self->mlp = tern_module_add(m, "mlp", new_gpt2_mlp(o, err), err);
    if (self->ln_1 && self->attn && self->ln_2 && self->mlp) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- body ---- */

typedef struct gpt2_body {
    tern_module base;
    tern_module *wte, *wpe, *h, *ln_f;
    double embd_pdrop;
} gpt2_body;

static tern_tensor *gpt2_body_call(tern_module *module, tern_scope *s, tern_tensor *const *x,
                                   const void *opts)
{
    gpt2_body *self = (gpt2_body *)module;
    const tern__decoder_call *call = opts;
    tern_tensor *in[TERN__DECODER_INPUTS], *tokens = x[TERN__TOKENS], *weight = tern__weight_of(self->wpe);
    if (tern__decoder_check(module, s, x, call, weight->view.shape[0])) return NULL;
    in[TERN__STATES] = tern_forward(self->wte, s, tokens);
    if (!in[TERN__STATES] || tern__decoder_settle(s, x, call, in)) return NULL;
    tern_tensor *positions =
        in[TERN__POSITION_IDS] ? tern_forward(self->wpe, s, in[TERN__POSITION_IDS])
                               : tern_slice(s, weight, 0, call->past, call->past + tokens->view.shape[1], 1);
    tern_tensor *states = tern_add(s, in[TERN__STATES], positions);
    in[TERN__STATES] = states ? gpt2_dropout(module, s, states, self->embd_pdrop) : NULL;
    return tern_forward(self->ln_f, s, tern__decoder_layers(&gpt2_block_kind, self->h, s, in, call));
}

static tern_tensor *gpt2_body_forward(tern_module *module, tern_scope *s, tern_tensor *tokens)
{
    const tern__decoder_call plain = {0};
    return gpt2_body_call(module, s, (tern_tensor *[TERN__DECODER_INPUTS]){tokens}, &plain);
}

static const tern__call_kind gpt2_body_kind = {"tern_forward",
                                               "gpt2_body",
                                               gpt2_body_forward,
                                               gpt2_body_call,
                                               .needed = 1,
                                               .count = TERN__DECODER_INPUTS,
                                               .opts = sizeof(tern__decoder_call)};

static int add_gpt2_blocks(gpt2_body *self, const tern_gpt2_opts *o, tern_error *err)
{
    self->h = tern_module_add(&self->base, "h",
                              tern__module_new(sizeof(tern_module), "module_list", NULL, err), err);
    for (int i = 0; i < o->n_layer && !tern__is_set(err); i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i);
        tern_module_add(self->h, name, new_gpt2_block(o, err), err);
    }
    return err->code;
}

static tern_module *new_gpt2_body(const tern_gpt2_opts *o, tern_error *err)
{
    gpt2_body *self = tern__module_new(sizeof(*self), "gpt2_body", gpt2_body_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    self->embd_pdrop = o->embd_pdrop;
    self->wte =
        tern_module_add(m, "wte", tern__embedding_new_zeros(o->vocab_size, o->n_embd, NULL, err), err);
    self->wpe =
        tern_module_add(m, "wpe", tern__embedding_new_zeros(o->n_positions, o->n_embd, NULL, err), err);
    if (!tern__is_set(err) && !add_gpt2_blocks(self, o, err))
        self->ln_f = tern_module_add(m, "ln_f", new_gpt2_norm(o, err), err);
    if (self->ln_f) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- new ---- */

typedef struct gpt2 {
    tern__language_model base;
    tern_gpt2_opts opts;
} gpt2;

tern_gpt2_opts tern_gpt2_defaults(void)
{
    return (tern_gpt2_opts){.size = sizeof(tern_gpt2_opts),
                            .vocab_size = 50257,
                            .n_positions = 1024,
                            .n_embd = 768,
                            .n_layer = 12,
                            .n_head = 12,
                            .resid_pdrop = 0.1,
                            .embd_pdrop = 0.1,
                            .attn_pdrop = 0.1,
                            .layer_norm_epsilon = 1e-5,
                            .initializer_range = 0.02,
                            .tie_word_embeddings = true};
}

/* Returns the number of elements of all matrices. */
static double gpt2_elements(const tern_gpt2_opts *o)
{
    double width = (double)o->n_embd, inner = o->n_inner ? (double)o->n_inner : 4 * width;
    double tokens = (double)o->vocab_size * (o->tie_word_embeddings ? 1 : 2);
    return width * (tokens + (double)o->n_positions + o->n_layer * (4 * width + 2 * inner));
}

static int gpt2_check(const tern_gpt2_opts *o, tern_error *err)
{
    const char *func = "tern_gpt2_new";
    if (o->vocab_size < 1 || o->n_positions < 1 || o->n_embd < 1 || o->n_head < 1 || o->n_layer < 0 ||
        o->n_inner < 0)
        return tern__error_set(
            err, func, TERN_E_RANGE,
            "gpt2: expected at least 1 token, position, feature and head, got vocab_size %lld, "
            "n_positions %lld, n_embd %lld, n_head %lld, n_layer %d, n_inner %lld",
            (long long)o->vocab_size, (long long)o->n_positions, (long long)o->n_embd, (long long)o->n_head,
            o->n_layer, (long long)o->n_inner);
    if (o->n_embd % o->n_head)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "gpt2: n_embd %lld is not a multiple of n_head %lld", (long long)o->n_embd,
                               (long long)o->n_head);
    const double p[] = {o->resid_pdrop, o->embd_pdrop, o->attn_pdrop};
    for (int i = 0; i < 3; i++)
        if (!(p[i] >= 0 && p[i] <= 1))
            return tern__error_set(err, func, TERN_E_RANGE, "gpt2: expected a dropout in [0, 1], got %g",
                                   p[i]);
    if (!(o->layer_norm_epsilon >= 0) || !(o->initializer_range >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "gpt2: layer_norm_epsilon %g and initializer_range %g, expected at least 0",
                               o->layer_norm_epsilon, o->initializer_range);
    if ((unsigned)o->activation_function > TERN_GPT2_SILU)
        return tern__error_set(err, func, TERN_E_RANGE, "gpt2: activation_function is %d",
                               (int)o->activation_function);
    return tern__matrices_check(gpt2_elements(o), func, err);
}

/* Draws again the weights that add to the residual stream, once for each of the two in every block. */
static int gpt2_draw(gpt2 *self, tern_rng *rng, tern_error *err)
{
    static const char suffix[] = "c_proj.weight";
    tern_module *m = &self->base.base;
    double std = self->opts.initializer_range;
    int status = tern__weights_draw(m, std, rng, err);
    for (int i = 0; rng && !status && i < tern_state_count(m); i++) {
        tern_state_entry entry = tern_state_get(m, i);
        size_t length = strlen(entry.name), end = sizeof(suffix) - 1;
        if (length > end && !strcmp(entry.name + length - end, suffix))
            status = tern_init_normal(entry.tensor, 0, std / sqrt(2.0 * self->opts.n_layer), rng, err);
    }
    return status;
}

tern_module *tern_gpt2_new(const tern_gpt2_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_gpt2_opts o = tern_gpt2_defaults();
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) || gpt2_check(&o, err))
        return NULL;
    gpt2 *self = tern__language_model_new(sizeof(*self), &tern__gpt2_kind, err);
    if (!self) return NULL;
    self->opts = o;
    self->base.layers = o.n_layer;
    self->base.positions = o.n_positions;
    tern_module *m = &self->base.base, *body = new_gpt2_body(&o, err);
    tern_tensor *wte = body ? tern__weight_of(((gpt2_body *)body)->wte) : NULL;
    if (body && !tern__language_model_add(&self->base, body, wte, o.tie_word_embeddings, err) &&
        !gpt2_draw(self, rng, err))
        return m;
    tern_module_free(m);
    return NULL;
}

/* ---- config.json ---- */

static const char *const activations[] = {"gelu_new", "gelu", "relu", "silu"};

static void read_gpt2_activation(tern__config *config, tern_gpt2_activation *to)
{
    const char *name = tern__config_text(config, "activation_function");
    if (!name) return;
    bool is_tanh = !strcmp(name, "gelu_pytorch_tanh"), is_swish = !strcmp(name, "swish");
    for (int i = 0; i <= TERN_GPT2_SILU; i++)
        if (!strcmp(name, activations[i]) || (i == TERN_GPT2_GELU_NEW && is_tanh) ||
            (i == TERN_GPT2_SILU && is_swish)) {
            *to = (tern_gpt2_activation)i;
            return;
        }
    tern__config_refuse(config, "activation_function", name);
}

static tern_module *gpt2_open(tern__config *config, tern_rng *rng, tern_error *err)
{
    tern_gpt2_opts o = tern_gpt2_defaults();
    bool scales = true, by_layer = false, crosses = false;
    tern__config_int(config, "vocab_size", true, &o.vocab_size);
    tern__config_int(config, "n_positions", true, &o.n_positions);
    tern__config_int(config, "n_embd", true, &o.n_embd);
    tern__config_count(config, "n_layer", true, &o.n_layer);
    tern__config_int(config, "n_head", true, &o.n_head);
    tern__config_int(config, "n_inner", false, &o.n_inner);
    tern__config_real(config, "resid_pdrop", &o.resid_pdrop);
    tern__config_real(config, "embd_pdrop", &o.embd_pdrop);
    tern__config_real(config, "attn_pdrop", &o.attn_pdrop);
    tern__config_real(config, "layer_norm_epsilon", &o.layer_norm_epsilon);
    tern__config_real(config, "initializer_range", &o.initializer_range);
    tern__config_bool(config, "tie_word_embeddings", &o.tie_word_embeddings);
    tern__config_bool(config, "scale_attn_weights", &scales);
    tern__config_bool(config, "scale_attn_by_inverse_layer_idx", &by_layer);
    tern__config_bool(config, "add_cross_attention", &crosses);
    read_gpt2_activation(config, &o.activation_function);
    if (!scales) tern__config_refuse(config, "scale_attn_weights", "false");
    if (by_layer) tern__config_refuse(config, "scale_attn_by_inverse_layer_idx", "true");
    if (crosses) tern__config_refuse(config, "add_cross_attention", "true");
    return tern_gpt2_new(&o, rng, err);
}

static void gpt2_write(const tern_module *model, cJSON *config)
{
    const tern_gpt2_opts *o = &((const gpt2 *)model)->opts;
    cJSON_AddNumberToObject(config, "vocab_size", (double)o->vocab_size);
    cJSON_AddNumberToObject(config, "n_positions", (double)o->n_positions);
    cJSON_AddNumberToObject(config, "n_embd", (double)o->n_embd);
    cJSON_AddNumberToObject(config, "n_layer", o->n_layer);
    cJSON_AddNumberToObject(config, "n_head", (double)o->n_head);
    if (o->n_inner)
        cJSON_AddNumberToObject(config, "n_inner", (double)o->n_inner);
    else
        cJSON_AddNullToObject(config, "n_inner");
    cJSON_AddStringToObject(config, "activation_function", activations[o->activation_function]);
    cJSON_AddNumberToObject(config, "resid_pdrop", o->resid_pdrop);
    cJSON_AddNumberToObject(config, "embd_pdrop", o->embd_pdrop);
    cJSON_AddNumberToObject(config, "attn_pdrop", o->attn_pdrop);
    cJSON_AddNumberToObject(config, "layer_norm_epsilon", o->layer_norm_epsilon);
    cJSON_AddNumberToObject(config, "initializer_range", o->initializer_range);
    cJSON_AddBoolToObject(config, "tie_word_embeddings", o->tie_word_embeddings);
}

const tern__pretrained_kind tern__gpt2_kind = {
    .model_type = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .body = "transformer",
    .call = &gpt2_body_kind,
    .lora_targets = (const char *const[]){"c_attn", NULL},
    .lora_task = "CAUSAL_LM",
    .needless = (const char *const[]){".attn.bias", ".attn.masked_bias", NULL},
    .open = gpt2_open,
    .write = gpt2_write,
};
