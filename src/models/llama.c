/* llama.c - Llama (Touvron et al. 2023), named as in transformers' modeling_llama.py: layers of causal
 * attention with rotary positions and grouped heads, and a gated MLP, each on a root mean square norm of the
 * layer's input and added to it. */
#include "base/opts.h"
#include "models/language_model.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int64_t llama_head_dim(const tern_llama_opts *o)
{
    return o->head_dim ? o->head_dim : o->hidden_size / o->num_attention_heads;
}

static int64_t llama_key_heads(const tern_llama_opts *o)
{
    return o->num_key_value_heads ? o->num_key_value_heads : o->num_attention_heads;
}

/* ---- rotary positions: the tables of all layers ---- */

/* The tables are no buffers of the tree: all ranks and replicas compute the same ones, and nobody writes
 * them. */
typedef struct llama_rope {
    tern_rotary_table_opts opts;
    double *factors;              /* longrope's, the short ones and then the long ones; or NULL */
    int64_t pairs;                /* K: half the features of a head                             */
    tern_tensor *tables[2];       /* cos and sin (max_position_embeddings, K), of f32           */
    tern_tensor *short_tables[2]; /* longrope's of contexts up to original_positions, or NULL   */
} llama_rope;

static int llama_rope_copy_factors(llama_rope *rope, const tern_llama_opts *o, tern_error *err)
{
    size_t bytes = (size_t)rope->pairs * sizeof(double);
    if (o->rope_scaling != TERN_ROPE_LONGROPE || !o->rope_short_factor || !o->rope_long_factor)
        return TERN_OK;
    rope->factors = tern__alloc(2 * bytes, "tern_llama_new", err);
    if (!rope->factors) return TERN_E_MEMORY;
    rope->opts.short_factor = memcpy(rope->factors, o->rope_short_factor, bytes);
    rope->opts.long_factor = memcpy(rope->factors + rope->pairs, o->rope_long_factor, bytes);
    return TERN_OK;
}

/* Fills tables for contexts up to original_positions, or beyond, whatever positions the tokens have. */
static int llama_rope_fill(const llama_rope *rope, bool is_short, tern_tensor *const tables[2],
                           tern_error *err)
{
    tern_rotary_table_opts opts = rope->opts;
    if (is_short) opts.long_factor = opts.short_factor;
    return tern_rotary_table_fill(tables[0], tables[1], NULL, &opts, err);
}

static int llama_rope_tables_new(const llama_rope *rope, int64_t positions, bool is_short,
                                 tern_tensor *tables[2], tern_error *err)
{
    for (int i = 0; i < 2; i++)
        tables[i] = tern__tensor_new(TERN_F32, 2, (int64_t[]){positions, rope->pairs}, err);
    return tables[0] && tables[1] ? llama_rope_fill(rope, is_short, tables, err) : err->code;
}

static int llama_rope_make(llama_rope *rope, const tern_llama_opts *o, tern_error *err)
{
    int64_t longest = o->max_position_embeddings;
    rope->opts = tern_rotary_table_defaults();
    rope->opts.base = o->rope_theta;
    rope->opts.scaling = o->rope_scaling;
    rope->opts.factor = o->rope_factor;
    rope->opts.low_freq_factor = o->rope_low_freq_factor;
    rope->opts.high_freq_factor = o->rope_high_freq_factor;
    rope->opts.original_positions = o->rope_original_positions ? o->rope_original_positions : longest;
    rope->opts.attention_factor = o->rope_attention_factor;
    rope->opts.beta_fast = o->rope_beta_fast;
    rope->opts.beta_slow = o->rope_beta_slow;
    rope->opts.truncate = o->rope_truncate;
    rope->pairs = llama_head_dim(o) / 2;
    int status = llama_rope_copy_factors(rope, o, err);
    if (!status) status = llama_rope_tables_new(rope, longest, false, rope->tables, err);
    if (status || o->rope_scaling != TERN_ROPE_LONGROPE || rope->opts.original_positions >= longest)
        return status;
    return llama_rope_tables_new(rope, longest, true, rope->short_tables, err);
}

static void llama_rope_free(llama_rope *rope)
{
    for (int i = 0; i < 2; i++) {
        tern_tensor_free(rope->tables[i]);
        tern_tensor_free(rope->short_tables[i]);
    }
    tern__free(rope->factors);
}

/* Returns tables for x (N, T, heads, D): (T, 1, K) of the positions after those of the cache, or (N or 1, T,
 * 1, K) of those that are given, (N or 1, T). They are of f64 if x is. */
static bool llama_rope_tables(const llama_rope *rope, tern_scope *s, const tern_tensor *x,
                              const tern__decoder_call *call, tern_tensor *ids, tern_tensor *tables[2])
{
    int64_t first = call->past, last = first + x->view.shape[1],
            rows = ids ? rope->tables[0]->view.shape[0] : last;
    bool is_double = x->view.dtype == TERN_F64;
    bool is_short = rope->short_tables[0] && (ids ? call->positions : last) <= rope->opts.original_positions;
    tern_tensor *const *kept = is_short ? rope->short_tables : rope->tables, *whole[] = {kept[0], kept[1]};
    for (int i = 0; i < 2 && is_double; i++)
        whole[i] = tern__result(s, TERN_F64, TERN__PLAIN, 2, (int64_t[]){rows, rope->pairs});
    tern_error err = {0};
    if (is_double && whole[0] && whole[1] && llama_rope_fill(rope, is_short, whole, &err))
        return tern__scope_fail_with(s, &err) == TERN_OK;
    for (int i = 0; i < 2; i++) {
        tables[i] = ids ? tern_embedding(s, ids, whole[i], NULL) : tern_slice(s, whole[i], 0, first, last, 1);
        int64_t shape[] = {ids ? ids->view.shape[0] : 1, x->view.shape[1], 1, rope->pairs};
        tables[i] = tern_reshape(s, tables[i], 4, shape);
    }
    return tables[0] && tables[1];
}

/* ---- attention ---- */

typedef struct llama_attention {
    tern_module base;
    tern_module *q_proj, *k_proj, *v_proj, *o_proj;
    const llama_rope *rope; /* the model's */
    int64_t heads, key_heads, head_dim;
    double dropout;
} llama_attention;

/* Returns a product of x as heads, (N, T, heads, head_dim). */
static tern_tensor *llama_heads(tern_scope *s, tern_module *projection, tern_tensor *x, int64_t heads,
                                int64_t head_dim)
{
    int64_t shape[] = {x->view.shape[0], x->view.shape[1], heads, head_dim};
    return tern_reshape(s, tern_forward(projection, s, x), 4, shape);
}

static tern_tensor *llama_attention_call(tern_module *module, tern_scope *s, tern_tensor *const *in,
                                         const void *opts)
{
    llama_attention *self = (llama_attention *)module;
    const tern__decoder_call *call = opts;
    tern_tensor *x = in[TERN__STATES], *tables[2];
    tern_tensor *q = llama_heads(s, self->q_proj, x, self->heads, self->head_dim);
    tern_tensor *k = llama_heads(s, self->k_proj, x, self->key_heads, self->head_dim);
    tern_tensor *v = llama_heads(s, self->v_proj, x, self->key_heads, self->head_dim);
    if (!q || !llama_rope_tables(self->rope, s, q, call, in[TERN__POSITION_IDS], tables)) return NULL;
    q = tern_rotary_embedding(s, q, tables[0], tables[1], false);
    k = tern_rotary_embedding(s, k, tables[0], tables[1], false);
    double dropout = module->training ? self->dropout : 0;
    tern_tensor *y = tern__decoder_attention(s, q, k, v, in[TERN__ATTENTION_MASK], call, dropout);
    int64_t shape[] = {x->view.shape[0], x->view.shape[1], self->heads * self->head_dim};
    return tern_forward(self->o_proj, s, tern_reshape(s, y, 3, shape));
}

static tern_tensor *llama_attention_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    const tern__decoder_call plain = {0};
    return llama_attention_call(module, s, (tern_tensor *[TERN__DECODER_INPUTS]){x}, &plain);
}

static const tern__call_kind llama_attention_kind = {"tern_forward",
                                                     "llama_attention",
                                                     llama_attention_forward,
                                                     llama_attention_call,
                                                     .needed = 1,
                                                     .count = TERN__DECODER_INPUTS,
                                                     .opts = sizeof(tern__decoder_call)};

static tern_module *new_llama_linear(int64_t in, int64_t out, bool bias, tern_error *err)
{
    return tern__is_set(err) ? NULL : tern__linear_new_zeros(in, out, bias, "tern_llama_new", err);
}

static tern_module *new_llama_attention(const tern_llama_opts *o, const llama_rope *rope, tern_error *err)
{
    llama_attention *self = tern__module_new(sizeof(*self), "llama_attention", llama_attention_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    self->rope = rope;
    self->heads = o->num_attention_heads;
    self->key_heads = llama_key_heads(o);
    self->head_dim = llama_head_dim(o);
    self->dropout = o->attention_dropout;
    tern__options_add(m, "heads", 2, (int64_t[]){self->heads, self->key_heads});
    tern__options_add_real(m, "rope_theta", o->rope_theta);
    int64_t hidden = o->hidden_size, wide = self->heads * self->head_dim,
            few = self->key_heads * self->head_dim;
    bool bias = o->attention_bias;
    self->q_proj = tern_module_add(m, "q_proj", new_llama_linear(hidden, wide, bias, err), err);
    self->k_proj = tern_module_add(m, "k_proj", new_llama_linear(hidden, few, bias, err), err);
    self->v_proj = tern_module_add(m, "v_proj", new_llama_linear(hidden, few, bias, err), err);
    self->o_proj = tern_module_add(m, "o_proj", new_llama_linear(wide, hidden, bias, err), err);
    if (self->q_proj && self->k_proj && self->v_proj && self->o_proj) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- MLP ---- */

typedef struct llama_mlp {
    tern_module base;
    tern_module *gate_proj, *up_proj, *down_proj;
} llama_mlp;

static tern_tensor *llama_mlp_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    llama_mlp *self = (llama_mlp *)module;
    tern_tensor *gate = tern_forward(self->gate_proj, s, x), *up = tern_forward(self->up_proj, s, x);
    return tern_forward(self->down_proj, s, tern_swiglu(s, gate, up));
}

static tern_module *new_llama_mlp(const tern_llama_opts *o, tern_error *err)
{
    llama_mlp *self = tern__module_new(sizeof(*self), "llama_mlp", llama_mlp_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    int64_t hidden = o->hidden_size, inner = o->intermediate_size;
    self->gate_proj = tern_module_add(m, "gate_proj", new_llama_linear(hidden, inner, o->mlp_bias, err), err);
    self->up_proj = tern_module_add(m, "up_proj", new_llama_linear(hidden, inner, o->mlp_bias, err), err);
    self->down_proj = tern_module_add(m, "down_proj", new_llama_linear(inner, hidden, o->mlp_bias, err), err);
    if (self->gate_proj && self->up_proj && self->down_proj) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- layer ---- */

typedef struct llama_layer {
    tern_module base;
    tern_module *self_attn, *mlp, *input_layernorm, *post_attention_layernorm;
} llama_layer;

static tern_tensor *llama_layer_call(tern_module *module, tern_scope *s, tern_tensor *const *in,
                                     const void *opts)
{
    llama_layer *self = (llama_layer *)module;
    tern_tensor *x = in[TERN__STATES];
    tern_tensor *own[] = {tern_forward(self->input_layernorm, s, x), in[TERN__ATTENTION_MASK],
                          in[TERN__POSITION_IDS]};
    x = tern_add(s, x, tern__decoder_forward(&llama_attention_kind, self->self_attn, s, own, opts));
    return tern_add(s, x, tern_forward(self->mlp, s, tern_forward(self->post_attention_layernorm, s, x)));
}

static tern_tensor *llama_layer_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    const tern__decoder_call plain = {0};
    return llama_layer_call(module, s, (tern_tensor *[TERN__DECODER_INPUTS]){x}, &plain);
}

static const tern__call_kind llama_layer_kind = {"tern_forward",
                                                 "llama_layer",
                                                 llama_layer_forward,
                                                 llama_layer_call,
                                                 .needed = 1,
                                                 .count = TERN__DECODER_INPUTS,
                                                 .opts = sizeof(tern__decoder_call)};

static tern_module *new_llama_norm(const tern_llama_opts *o, tern_error *err)
{
    tern_rms_norm_opts norm = tern_rms_norm_defaults();
    norm.eps = o->rms_norm_eps;
    return tern_rms_norm_new(1, &o->hidden_size, &norm, err);
}

static tern_module *new_llama_layer(const tern_llama_opts *o, const llama_rope *rope, tern_error *err)
{
    llama_layer *self = tern__module_new(sizeof(*self), "llama_layer", llama_layer_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    self->self_attn = tern_module_add(m, "self_attn", new_llama_attention(o, rope, err), err);
    self->mlp = tern_module_add(m, "mlp", new_llama_mlp(o, err), err);
    self->input_layernorm = tern_module_add(m, "input_layernorm", new_llama_norm(o, err), err);
    self->post_attention_layernorm =
        tern_module_add(m, "post_attention_layernorm", new_llama_norm(o, err), err);
    if (self->self_attn && self->mlp && self->input_layernorm && self->post_attention_layernorm) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- body ---- */

typedef struct llama_body {
    tern_module base;
    tern_module *embed_tokens, *layers, *norm;
    llama_rope rope;
    int64_t positions;
} llama_body;

/* Returns one more than the highest position, or -1 with the scope's error. */
static int64_t llama_positions(tern_scope *s, tern_tensor *ids)
{
    if (tern__view_count(&ids->view) == 0) return 0;
    tern_tensor *highest = tern_amax(s, ids, 0, NULL, false);
    return highest ? (int64_t)tern_item(highest) + 1 : -1;
}

/* Longrope's factors depend on the highest position; nothing else asks for it. */
static tern_tensor *llama_body_call(tern_module *module, tern_scope *s, tern_tensor *const *x,
                                    const void *opts)
{
    llama_body *self = (llama_body *)module;
    tern__decoder_call call = *(const tern__decoder_call *)opts;
    tern_tensor *in[TERN__DECODER_INPUTS];
    if (tern__decoder_check(module, s, x, &call, self->positions)) return NULL;
    in[TERN__STATES] = tern_forward(self->embed_tokens, s, x[TERN__TOKENS]);
    if (!in[TERN__STATES] || tern__decoder_settle(s, x, &call, in)) return NULL;
    if (in[TERN__POSITION_IDS] && self->rope.short_tables[0])
        call.positions = llama_positions(s, in[TERN__POSITION_IDS]);
    return tern_forward(self->norm, s, tern__decoder_layers(&llama_layer_kind, self->layers, s, in, &call));
}

static tern_tensor *llama_body_forward(tern_module *module, tern_scope *s, tern_tensor *tokens)
{
    const tern__decoder_call plain = {0};
    return llama_body_call(module, s, (tern_tensor *[TERN__DECODER_INPUTS]){tokens}, &plain);
}

static const tern__call_kind llama_body_kind = {"tern_forward",
                                                "llama_body",
                                                llama_body_forward,
                                                llama_body_call,
                                                .needed = 1,
                                                .count = TERN__DECODER_INPUTS,
                                                .opts = sizeof(tern__decoder_call)};

static void llama_body_release(tern_module *module)
{
    llama_rope_free(&((llama_body *)module)->rope);
}

static int add_llama_layers(llama_body *self, const tern_llama_opts *o, tern_error *err)
{
    tern_module *list = tern__module_new(sizeof(tern_module), "module_list", NULL, err);
    self->layers = tern_module_add(&self->base, "layers", list, err);
    for (int i = 0; i < o->num_hidden_layers && !tern__is_set(err); i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i);
        tern_module_add(self->layers, name, new_llama_layer(o, &self->rope, err), err);
    }
    return err->code;
}

static tern_module *new_llama_body(const tern_llama_opts *o, tern_error *err)
{
    llama_body *self = tern__module_new(sizeof(*self), "llama_body", llama_body_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    m->release = llama_body_release;
    self->positions = o->max_position_embeddings;
    tern_embedding_opts opts = tern_embedding_defaults();
    opts.padding_idx = o->pad_token_id;
    tern_module *table = tern__embedding_new_zeros(o->vocab_size, o->hidden_size, &opts, err);
    self->embed_tokens = tern_module_add(m, "embed_tokens", table, err);
    if (!tern__is_set(err) && !llama_rope_make(&self->rope, o, err) && !add_llama_layers(self, o, err))
        self->norm = tern_module_add(m, "norm", new_llama_norm(o, err), err);
    if (self->norm) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- new ---- */

typedef struct llama {
    tern__language_model base;
    tern_llama_opts opts;
} llama;

tern_llama_opts tern_llama_defaults(void)
{
    return (tern_llama_opts){.size = sizeof(tern_llama_opts),
                             .vocab_size = 32000,
                             .hidden_size = 4096,
                             .intermediate_size = 11008,
                             .num_hidden_layers = 32,
                             .num_attention_heads = 32,
                             .max_position_embeddings = 2048,
                             .rms_norm_eps = 1e-6,
                             .rope_theta = 10000,
                             .rope_factor = 1,
                             .rope_low_freq_factor = 1,
                             .rope_high_freq_factor = 4,
                             .initializer_range = 0.02,
                             .pad_token_id = -1,
                             .rope_beta_fast = 32,
                             .rope_beta_slow = 1,
                             .rope_truncate = true};
}

/* Returns the number of elements of all matrices, and of the tables of rotary positions. */
static double llama_elements(const tern_llama_opts *o)
{
    double tables = o->rope_scaling == TERN_ROPE_LONGROPE ? 2 : 1;
    double positions = tables * (double)o->max_position_embeddings * (double)llama_head_dim(o);
    double hidden = (double)o->hidden_size, heads = (double)(o->num_attention_heads + llama_key_heads(o));
    double layer = hidden * (2 * heads * (double)llama_head_dim(o) + 3 * (double)o->intermediate_size);
    double tokens = hidden * (double)o->vocab_size * (o->tie_word_embeddings ? 1 : 2);
    return tokens + o->num_hidden_layers * layer + positions;
}

static int llama_check(const tern_llama_opts *o, tern_error *err)
{
    const char *func = "tern_llama_new";
    if (o->vocab_size < 1 || o->hidden_size < 1 || o->intermediate_size < 1 || o->num_hidden_layers < 0 ||
        o->num_attention_heads < 1 || o->max_position_embeddings < 1 || o->num_key_value_heads < 0 ||
        o->head_dim < 0)
        return tern__error_set(
            err, func, TERN_E_RANGE,
            "llama: expected at least 1 token, feature, head and position, got vocab_size %lld, "
            "hidden_size %lld, intermediate_size %lld, num_hidden_layers %d, num_attention_heads "
            "%lld, num_key_value_heads %lld, head_dim %lld, max_position_embeddings %lld",
            (long long)o->vocab_size, (long long)o->hidden_size, (long long)o->intermediate_size,
            o->num_hidden_layers, (long long)o->num_attention_heads, (long long)o->num_key_value_heads,
            (long long)o->head_dim, (long long)o->max_position_embeddings);
    if (!o->head_dim && o->hidden_size % o->num_attention_heads)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "llama: hidden_size %lld is not a multiple of num_attention_heads %lld",
                               (long long)o->hidden_size, (long long)o->num_attention_heads);
    if (o->num_attention_heads % llama_key_heads(o))
        return tern__error_set(
            err, func, TERN_E_INVALID,
            "llama: num_attention_heads %lld is not a multiple of num_key_value_heads %lld",
            (long long)o->num_attention_heads, (long long)llama_key_heads(o));
    if (llama_head_dim(o) % 2)
        return tern__error_set(err, func, TERN_E_INVALID, "llama: head_dim %lld is odd",
                               (long long)llama_head_dim(o));
    if (!(o->attention_dropout >= 0 && o->attention_dropout <= 1))
        return tern__error_set(err, func, TERN_E_RANGE, "llama: expected a dropout in [0, 1], got %g",
                               o->attention_dropout);
    if (!(o->rms_norm_eps >= 0) || !(o->initializer_range >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "llama: rms_norm_eps %g and initializer_range %g, expected at least 0",
                               o->rms_norm_eps, o->initializer_range);
    return tern__matrices_check(llama_elements(o), func, err);
}

static int llama_draw(llama *self, tern_rng *rng, tern_error *err)
{
    const tern_llama_opts *o = &self->opts;
    int status = tern__weights_draw(&self->base.base, o->initializer_range, rng, err);
    if (status || !rng || o->pad_token_id < 0) return status;
    float *rows = self->base.embeddings->view.data;
    memset(rows + o->pad_token_id * o->hidden_size, 0, (size_t)o->hidden_size * sizeof(*rows));
    return TERN_OK;
}

tern_module *tern_llama_new(const tern_llama_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_llama_opts o = tern_llama_defaults();
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) || llama_check(&o, err))
        return NULL;
    llama *self = tern__language_model_new(sizeof(*self), &tern__llama_kind, err);
    if (!self) return NULL;
    self->opts = o;
    self->base.layers = o.num_hidden_layers;
    self->base.positions = o.max_position_embeddings;
    tern_module *m = &self->base.base, *body = new_llama_body(&o, err);
    tern_tensor *embeddings = body ? tern__weight_of(((llama_body *)body)->embed_tokens) : NULL;
    if (body) {
        self->opts.rope_short_factor = ((llama_body *)body)->rope.opts.short_factor;
        self->opts.rope_long_factor = ((llama_body *)body)->rope.opts.long_factor;
    }
    if (body && !tern__language_model_add(&self->base, body, embeddings, o.tie_word_embeddings, err) &&
        !llama_draw(self, rng, err))
        return m;
    tern_module_free(m);
    return NULL;
}

/* ---- config.json ---- */

static const char *const rope_types[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};

static double yarn_growth(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

/* DeepSeek's files have two scales in place of the attention_factor. */
static void read_yarn(const tern__config *rope, tern_llama_opts *o)
{
    double scale = 0, all = 0;
    tern__config_real(rope, "beta_fast", &o->rope_beta_fast);
    tern__config_real(rope, "beta_slow", &o->rope_beta_slow);
    tern__config_bool(rope, "truncate", &o->rope_truncate);
    tern__config_real(rope, "mscale", &scale);
    tern__config_real(rope, "mscale_all_dim", &all);
    if (scale != 0 && all != 0)
        o->rope_attention_factor = yarn_growth(o->rope_factor, scale) / yarn_growth(o->rope_factor, all);
}

/* Reads the options of a scaling; Phi's files have the original length beside it. Without a factor it is the
 * ratio of the lengths. The factors of longrope are for the caller to free. */
static void read_llama_scaling(const tern__config *config, const tern__config *rope, tern_llama_opts *o,
                               double *factors[2])
{
    static const char length[] = "original_max_position_embeddings";
    tern_rope_scaling scaling = o->rope_scaling;
    int64_t pairs = o->num_attention_heads > 0 ? llama_head_dim(o) / 2 : 0;
    bool is_null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(rope->object, "factor"));
    tern__config_int(rope, length, false, &o->rope_original_positions);
    if (scaling >= TERN_ROPE_LLAMA3) tern__config_int(config, length, false, &o->rope_original_positions);
    if (scaling == TERN_ROPE_LONGROPE || (scaling == TERN_ROPE_YARN && is_null)) {
        if (o->rope_original_positions)
            o->rope_factor = (double)o->max_position_embeddings / (double)o->rope_original_positions;
    } else if (scaling != TERN_ROPE_DEFAULT) {
        tern__config_need(rope, "factor");
    }
    tern__config_real(rope, "factor", &o->rope_factor);
    if (scaling == TERN_ROPE_LLAMA3) {
        tern__config_need(rope, "low_freq_factor");
        tern__config_need(rope, "high_freq_factor");
    }
    tern__config_real(rope, "low_freq_factor", &o->rope_low_freq_factor);
    tern__config_real(rope, "high_freq_factor", &o->rope_high_freq_factor);
    if (scaling == TERN_ROPE_YARN) read_yarn(rope, o);
    if (scaling == TERN_ROPE_LONGROPE) {
        o->rope_short_factor = factors[0] = tern__config_reals(rope, "short_factor", pairs);
        o->rope_long_factor = factors[1] = tern__config_reals(rope, "long_factor", pairs);
    }
    tern__config_real(rope, "attention_factor", &o->rope_attention_factor);
}

/* Reads rope_scaling, which newer files call rope_parameters; it has the base there, too. */
static void read_llama_rope(const tern__config *config, tern_llama_opts *o, double *factors[2])
{
    tern__config_real(config, "rope_theta", &o->rope_theta);
    tern__config rope = *config;
    rope.object = cJSON_GetObjectItemCaseSensitive(config->object, "rope_parameters");
    if (!cJSON_IsObject(rope.object))
        rope.object = cJSON_GetObjectItemCaseSensitive(config->object, "rope_scaling");
    if (!cJSON_IsObject(rope.object)) return;
    const char *type = tern__config_text(&rope, "rope_type");
    if (!type) type = tern__config_text(&rope, "type");
    int i = 0;
    while (type && i <= TERN_ROPE_LONGROPE && strcmp(type, rope_types[i]) != 0) i++;
    if (i > TERN_ROPE_LONGROPE) {
        tern__config_refuse(&rope, "rope_type", type);
        return;
    }
    o->rope_scaling = (tern_rope_scaling)i;
    tern__config_real(&rope, "rope_theta", &o->rope_theta);
    read_llama_scaling(config, &rope, o, factors);
}

static tern_module *llama_open(tern__config *config, tern_rng *rng, tern_error *err)
{
    tern_llama_opts o = tern_llama_defaults();
    int64_t parallel = 1;
    double *factors[2] = {NULL};
    tern__config_int(config, "vocab_size", true, &o.vocab_size);
    tern__config_int(config, "hidden_size", true, &o.hidden_size);
    tern__config_int(config, "intermediate_size", true, &o.intermediate_size);
    tern__config_count(config, "num_hidden_layers", true, &o.num_hidden_layers);
    tern__config_int(config, "num_attention_heads", true, &o.num_attention_heads);
    tern__config_int(config, "num_key_value_heads", false, &o.num_key_value_heads);
    tern__config_int(config, "head_dim", false, &o.head_dim);
    tern__config_int(config, "max_position_embeddings", true, &o.max_position_embeddings);
    tern__config_real(config, "rms_norm_eps", &o.rms_norm_eps);
    tern__config_real(config, "initializer_range", &o.initializer_range);
    tern__config_real(config, "attention_dropout", &o.attention_dropout);
    tern__config_bool(config, "attention_bias", &o.attention_bias);
    tern__config_bool(config, "mlp_bias", &o.mlp_bias);
    tern__config_bool(config, "tie_word_embeddings", &o.tie_word_embeddings);
    tern__config_int(config, "pad_token_id", false, &o.pad_token_id);
    tern__config_int(config, "pretraining_tp", false, &parallel); /* the same function in other pieces */
    const char *act = tern__config_text(config, "hidden_act");
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        tern__config_refuse(config, "hidden_act", act);
    read_llama_rope(config, &o, factors);
    tern_module *model = tern_llama_new(&o, rng, err);
    tern__free(factors[0]);
    tern__free(factors[1]);
    return model;
}

static void llama_write_rope(const tern_llama_opts *o, cJSON *config)
{
    cJSON_AddNumberToObject(config, "rope_theta", o->rope_theta);
    if (o->rope_scaling == TERN_ROPE_DEFAULT) {
        cJSON_AddNullToObject(config, "rope_scaling");
        return;
    }
    int pairs = (int)(llama_head_dim(o) / 2);
    cJSON *rope = cJSON_AddObjectToObject(config, "rope_scaling");
    cJSON_AddStringToObject(rope, "rope_type", rope_types[o->rope_scaling]);
    cJSON_AddNumberToObject(rope, "factor", o->rope_factor);
    if (o->rope_scaling == TERN_ROPE_LLAMA3) {
        cJSON_AddNumberToObject(rope, "low_freq_factor", o->rope_low_freq_factor);
        cJSON_AddNumberToObject(rope, "high_freq_factor", o->rope_high_freq_factor);
    }
    if (o->rope_scaling == TERN_ROPE_YARN) {
        cJSON_AddNumberToObject(rope, "beta_fast", o->rope_beta_fast);
        cJSON_AddNumberToObject(rope, "beta_slow", o->rope_beta_slow);
        cJSON_AddBoolToObject(rope, "truncate", o->rope_truncate);
    }
    if (o->rope_scaling == TERN_ROPE_LONGROPE) {
        cJSON_AddItemToObject(rope, "short_factor", cJSON_CreateDoubleArray(o->rope_short_factor, pairs));
        cJSON_AddItemToObject(rope, "long_factor", cJSON_CreateDoubleArray(o->rope_long_factor, pairs));
    }
    if (o->rope_attention_factor != 0)
        cJSON_AddNumberToObject(rope, "attention_factor", o->rope_attention_factor);
    if (o->rope_original_positions)
        cJSON_AddNumberToObject(rope, "original_max_position_embeddings", (double)o->rope_original_positions);
}

static void llama_write(const tern_module *model, cJSON *config)
{
    const tern_llama_opts *o = &((const llama *)model)->opts;
    cJSON_AddNumberToObject(config, "vocab_size", (double)o->vocab_size);
    cJSON_AddNumberToObject(config, "hidden_size", (double)o->hidden_size);
    cJSON_AddNumberToObject(config, "intermediate_size", (double)o->intermediate_size);
    cJSON_AddNumberToObject(config, "num_hidden_layers", o->num_hidden_layers);
    cJSON_AddNumberToObject(config, "num_attention_heads", (double)o->num_attention_heads);
    cJSON_AddNumberToObject(config, "num_key_value_heads", (double)llama_key_heads(o));
    cJSON_AddNumberToObject(config, "head_dim", (double)llama_head_dim(o));
    cJSON_AddNumberToObject(config, "max_position_embeddings", (double)o->max_position_embeddings);
    cJSON_AddStringToObject(config, "hidden_act", "silu");
    cJSON_AddNumberToObject(config, "rms_norm_eps", o->rms_norm_eps);
    cJSON_AddNumberToObject(config, "initializer_range", o->initializer_range);
    cJSON_AddNumberToObject(config, "attention_dropout", o->attention_dropout);
    cJSON_AddBoolToObject(config, "attention_bias", o->attention_bias);
    cJSON_AddBoolToObject(config, "mlp_bias", o->mlp_bias);
    cJSON_AddBoolToObject(config, "tie_word_embeddings", o->tie_word_embeddings);
    if (o->pad_token_id >= 0) cJSON_AddNumberToObject(config, "pad_token_id", (double)o->pad_token_id);
    llama_write_rope(o, config);
}

const tern__pretrained_kind tern__llama_kind = {
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .body = "model",
    .call = &llama_body_kind,
    .lora_targets = (const char *const[]){"q_proj", "v_proj", NULL},
    .lora_task = "CAUSAL_LM",
    .needless = (const char *const[]){".rotary_emb.inv_freq", NULL},
    .open = llama_open,
    .write = llama_write,
};
