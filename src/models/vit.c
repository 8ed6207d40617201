/* vit.c - the vision transformer (Dosovitskiy et al. 2020), with torchvision's names and order of
 * construction: an image's patches become tokens by a convolution, a learnt token for the class comes
 * before them, layers of a transformer follow, and the class token's result gives the scores. */
#include "base/opts.h"
#include "models/language_model.h"

#include <tern/models.h>
#include <tern/transformer.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- a layer ---- */

typedef struct vit_block {
    tern_module base;
    tern_module *ln_1, *self_attention, *ln_2, *mlp;
    double dropout;
    bool is_last; /* only its first token is used: the class token */
} vit_block;

static tern_tensor *vit_dropout(const tern_module *module, tern_scope *s, tern_tensor *x, double p)
{
    return module->training && p > 0 ? tern_dropout(s, x, p) : x;
}

static tern_tensor *vit_block_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    vit_block *self = (vit_block *)module;
    tern_tensor *y = tern_forward(self->ln_1, s, x), *query = y;
    if (self->is_last) {
        query = tern_slice(s, y, 1, 0, 1, 1);
        x = tern_slice(s, x, 1, 0, 1, 1);
    }
    y = tern_multihead_attention_forward(self->self_attention, s, query, y, y, NULL);
    x = tern_add(s, x, vit_dropout(module, s, y, self->dropout));
    return tern_add(s, x, tern_forward(self->mlp, s, tern_forward(self->ln_2, s, x)));
}

static bool mlp_add_dropout(tern_module *mlp, const char *name, double p, tern_error *err)
{
    return p == 0 || tern_module_add(mlp, name, tern_dropout_new(p, err), err);
}

/* torchvision's MLPBlock. A dropout of 0 is left out. */
static tern_module *mlp_new(const tern_vit_opts *o, tern_rng *rng, tern_error *err)
{
    tern_module *mlp = tern_sequential_new(err);
    tern_module *linear[2] = {0};
    linear[0] = tern_module_add(mlp, "0", tern_linear_new(o->hidden_dim, o->mlp_dim, NULL, rng, err), err);
    bool whole = tern_module_add(mlp, "1", tern_gelu_new(false, err), err);
    whole = whole && mlp_add_dropout(mlp, "2", o->dropout, err);
    linear[1] = tern_module_add(mlp, "3", tern_linear_new(o->mlp_dim, o->hidden_dim, NULL, rng, err), err);
    whole = whole && linear[1] && mlp_add_dropout(mlp, "4", o->dropout, err);
    for (int i = 0; i < 2 && whole && rng; i++)
        whole = !tern_init_xavier_uniform(tern__state_find(linear[i], "weight", err), 1, rng, err) &&
                !tern_init_normal(tern__state_find(linear[i], "bias", err), 0, 1e-6, rng, err);
    if (whole) return mlp;
    tern_module_free(mlp);
    return NULL;
}

static tern_module *vit_block_new(const tern_vit_opts *o, bool is_last, tern_rng *rng, tern_error *err)
{
    tern_multihead_attention_opts attention = tern_multihead_attention_defaults();
    attention.dropout = o->attention_dropout;
    attention.batch_first = true;
    vit_block *self = tern__module_new(sizeof(*self), "vit_block", vit_block_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    self->dropout = o->dropout;
    self->is_last = is_last;
    tern__options_add_real(m, "dropout", o->dropout);
    self->ln_1 = tern_module_add(m, "ln_1", tern__layer_norm_new(o->hidden_dim, o->eps, true, err), err);
    self->self_attention =
        tern_module_add(m, "self_attention",
                        tern_multihead_attention_new(o->hidden_dim, o->heads, &attention, rng, err), err);
    self->ln_2 = tern_module_add(m, "ln_2", tern__layer_norm_new(o->hidden_dim, o->eps, true, err), err);
    if (self->ln_2) self->mlp = tern_module_add(m, "mlp", mlp_new(o, rng, err), err);
    if (self->mlp) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- all layers ---- */

typedef struct vit_encoder {
    tern_module base;
    tern_tensor *pos_embedding; /* (1, tokens, hidden_dim) */
    tern_module *layers, *ln;
    double dropout;
} vit_encoder;

/* The class token is the only result that is used, so the last layer and norm are of it alone. */
static tern_tensor *vit_encoder_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    vit_encoder *self = (vit_encoder *)module;
    x = vit_dropout(module, s, tern_add(s, x, self->pos_embedding), self->dropout);
    x = tern_forward(self->layers, s, x);
    return tern_forward(self->ln, s, tern_select(s, x, 1, 0));
}

static tern_module *vit_layers_new(const tern_vit_opts *o, tern_rng *rng, tern_error *err)
{
    char name[32];
    tern_module *list = tern_sequential_new(err);
    for (int i = 0; i < o->layers && list; i++) {
        snprintf(name, sizeof(name), "encoder_layer_%d", i);
        if (tern_module_add(list, name, vit_block_new(o, i == o->layers - 1, rng, err), err)) continue;
        tern_module_free(list);
        return NULL;
    }
    return list;
}

static tern_module *vit_encoder_new(const tern_vit_opts *o, tern_rng *rng, tern_error *err)
{
    int64_t side = o->image_size / o->patch_size, shape[] = {1, side * side + 1, o->hidden_dim};
    vit_encoder *self = tern__module_new(sizeof(*self), "vit_encoder", vit_encoder_forward, err);
    if (!self) return NULL;
    tern_module *m = &self->base;
    self->dropout = o->dropout;
    tern__options_add_real(m, "dropout", o->dropout);
    self->pos_embedding = tern_parameter_add(m, "pos_embedding", TERN_F32, 3, shape, err);
    if (self->pos_embedding && (!rng || !tern_init_normal(self->pos_embedding, 0, 0.02, rng, err)))
        self->layers = tern_module_add(m, "layers", vit_layers_new(o, rng, err), err);
    if (self->layers)
        self->ln = tern_module_add(m, "ln", tern__layer_norm_new(o->hidden_dim, o->eps, true, err), err);
    if (self->ln) return m;
    tern_module_free(m);
    return NULL;
}

/* ---- the net ---- */

typedef struct vit {
    tern_module base;
    tern_tensor *class_token; /* (1, 1, hidden_dim) */
    tern_module *conv_proj, *encoder, *heads;
    tern_vit_opts opts;
} vit;

static int vit_check_input(const vit *self, tern_scope *s, const tern__view *x)
{
    char have[TERN__SHAPE_TEXT];
    if (x->ndim == 4 && x->shape[1] == self->opts.in_channels && x->shape[2] == self->opts.image_size &&
        x->shape[3] == self->opts.image_size)
        return TERN_OK;
    return tern__scope_fail(s, "tern_forward", TERN_E_SHAPE, "vit: expected (N, %lld, %lld, %lld), got %s",
                            (long long)self->opts.in_channels, (long long)self->opts.image_size,
                            (long long)self->opts.image_size, tern__shape_text(x, have));
}

static tern_tensor *vit_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    vit *self = (vit *)module;
    if (vit_check_input(self, s, &x->view)) return NULL;
    int64_t batch = x->view.shape[0], dim = self->opts.hidden_dim;
    x = tern_forward(self->conv_proj, s, x);
    const int64_t *sizes = tern_tensor_shape(x);
    x = tern_reshape(s, x, 3, (int64_t[]){batch, dim, sizes[2] * sizes[3]});
    x = tern_transpose(s, x, 1, 2);
    tern_tensor *token = tern_expand(s, self->class_token, 3, (int64_t[]){batch, 1, dim});
    x = tern_cat(s, 2, (tern_tensor *[]){token, x}, 1);
    return tern_forward(self->heads, s, tern_forward(self->encoder, s, x));
}

tern_vit_opts tern_vit_defaults(void)
{
    return (tern_vit_opts){.size = sizeof(tern_vit_opts),
                           .in_channels = 3,
                           .classes = 1000,
                           .image_size = 224,
                           .patch_size = 16,
                           .layers = 12,
                           .heads = 12,
                           .hidden_dim = 768,
                           .mlp_dim = 3072,
                           .eps = 1e-6};
}

tern_vit_opts tern_vit_preset(const char *name)
{
    static const struct {
        const char *name;
        int patch, layers, heads, hidden;
    } presets[] = {{"vit_tiny", 16, 12, 3, 192},   {"vit_b_16", 16, 12, 12, 768},
                   {"vit_b_32", 32, 12, 12, 768},  {"vit_l_16", 16, 24, 16, 1024},
                   {"vit_l_32", 32, 24, 16, 1024}, {"vit_h_14", 14, 32, 16, 1280}};
    tern_vit_opts o = tern_vit_defaults();
    o.layers = 0;
    for (size_t i = 0; i < TERN__COUNT(presets); i++) {
        if (!name || strcmp(name, presets[i].name)) continue;
        o.patch_size = presets[i].patch;
        o.layers = presets[i].layers;
        o.heads = presets[i].heads;
        o.hidden_dim = presets[i].hidden;
        o.mlp_dim = 4 * o.hidden_dim;
    }
    return o;
}

/* Returns the number of elements of all matrices. */
static double vit_elements(const tern_vit_opts *o)
{
    double hidden = (double)o->hidden_dim, layer = 4 * hidden + 2 * (double)o->mlp_dim,
           patch = (double)o->patch_size, side = (double)o->image_size / patch,
           features = o->representation_size ? (double)o->representation_size : hidden;
    double rows = (double)o->in_channels * patch * patch + side * side + (double)o->representation_size;
    return hidden * (rows + o->layers * layer) + features * (double)o->classes;
}

/* The layers check the other sizes. */
static int vit_check_opts(const tern_vit_opts *o, tern_error *err)
{
    const char *func = "tern_vit_new";
    if (o->layers < 1)
        return tern__error_set(err, func, TERN_E_RANGE, "vit: expected at least 1 layer, got %d", o->layers);
    if (o->patch_size < 1 || o->image_size < 1 || o->image_size % o->patch_size)
        return tern__error_set(
            err, func, TERN_E_RANGE,
            "vit: expected an image_size that is a multiple of patch_size, got %lld and %lld",
            (long long)o->image_size, (long long)o->patch_size);
    if (o->representation_size < 0)
        return tern__error_set(err, func, TERN_E_RANGE,
                               "vit: representation_size is %lld, expected at least 0",
                               (long long)o->representation_size);
    if (o->dropout >= 0 && o->dropout <= 1) return tern__matrices_check(vit_elements(o), func, err);
    return tern__error_set(err, func, TERN_E_RANGE, "vit: expected a dropout in [0, 1], got %g", o->dropout);
}

static tern_module *vit_heads_new(const tern_vit_opts *o, tern_rng *rng, tern_error *err)
{
    tern_module *heads = tern_sequential_new(err);
    int64_t features = o->hidden_dim;
    if (o->representation_size) {
        tern_module *linear = tern_linear_new(features, o->representation_size, NULL, rng, err);
        tern_module_add(heads, "pre_logits", linear, err);
        tern_module_add(heads, "act", tern_tanh_new(err), err);
        features = o->representation_size;
    }
    if (tern_module_add(heads, "head", tern_linear_new(features, o->classes, NULL, rng, err), err))
        return heads;
    tern_module_free(heads);
    return NULL;
}

/* What torchvision draws after all modules are made. */
static bool vit_init_weights(vit *self, const tern_vit_opts *o, tern_rng *rng, tern_error *err)
{
    tern_module *conv = self->conv_proj;
    tern_tensor *before = tern__state_find(self->heads, "pre_logits.weight", err);
    double fan_in = (double)(o->in_channels * o->patch_size * o->patch_size);
    int status =
        tern_init_trunc_normal(tern__state_find(conv, "weight", err), 0, sqrt(1 / fan_in), -2, 2, rng, err);
    if (!status) status = tern_init_constant(tern__state_find(conv, "bias", err), 0, err);
    if (!status && before) {
        double std = sqrt(1 / (double)o->hidden_dim);
        status = tern_init_trunc_normal(before, 0, std, -2, 2, rng, err);
        if (!status)
            status = tern_init_constant(tern__state_find(self->heads, "pre_logits.bias", err), 0, err);
    }
    if (!status) status = tern_init_constant(tern__state_find(self->heads, "head.weight", err), 0, err);
    if (!status) status = tern_init_constant(tern__state_find(self->heads, "head.bias", err), 0, err);
    return !status;
}

static bool vit_add_all(vit *self, const tern_vit_opts *o, tern_rng *rng, tern_error *err)
{
    tern_module *m = &self->base;
    tern_conv2d_opts conv = tern_conv2d_defaults();
    conv.stride[0] = conv.stride[1] = o->patch_size;
    int64_t token[] = {1, 1, o->hidden_dim};
    self->conv_proj = tern_module_add(
        m, "conv_proj",
        tern_conv2d_new(o->in_channels, o->hidden_dim, o->patch_size, o->patch_size, &conv, rng, err), err);
    if (!self->conv_proj) return false;
    self->class_token = tern_parameter_add(m, "class_token", TERN_F32, 3, token, err);
    if (!self->class_token) return false;
    self->encoder = tern_module_add(m, "encoder", vit_encoder_new(o, rng, err), err);
    if (!self->encoder) return false;
    self->heads = tern_module_add(m, "heads", vit_heads_new(o, rng, err), err);
    return self->heads && (!rng || vit_init_weights(self, o, rng, err));
}

tern_module *tern_vit_new(const tern_vit_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_vit_opts o = tern_vit_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) || vit_check_opts(&o, err))
        return NULL;
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    vit *self = tern__module_new(sizeof(*self), "vit", vit_forward, err);
    if (!self) return NULL;
    self->opts = o;
    if (vit_add_all(self, &o, rng, err)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

/* ---- transformers' folders ---- */

bool tern__module_is_vit(const tern_module *module)
{
    return module && module->tree && module->tree->forward == vit_forward;
}

/* A name that ends in a dot stands for all that begin so. Those of a layer follow its number. */
typedef struct vit_name {
    const char *ours, *theirs;
} vit_name;

static const vit_name vit_names[] = {{"class_token", "vit.embeddings.cls_token"},
                                     {"conv_proj.", "vit.embeddings.patch_embeddings.projection."},
                                     {"encoder.pos_embedding", "vit.embeddings.position_embeddings"},
                                     {"encoder.ln.", "vit.layernorm."},
                                     {"heads.head.", "classifier."}};
static const vit_name vit_layer_names[] = {{"ln_1.", "layernorm_before."},
                                           {"self_attention.out_proj.", "attention.output.dense."},
                                           {"ln_2.", "layernorm_after."},
                                           {"mlp.0.", "intermediate.dense."},
                                           {"mlp.3.", "output.dense."}};

/* Writes `prefix`, and the name that the list has for `name`. Returns 1, or 0 if the list has none. */
static int vit_name_find(const vit_name *list, size_t count, const char *prefix, const char *name,
                         char *theirs)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(list[i].ours);
        bool is_start = list[i].ours[length - 1] == '.';
        if (strncmp(name, list[i].ours, length) != 0 || (!is_start && name[length])) continue;
        snprintf(theirs, TERN__NAME_TEXT, "%s%s%s", prefix, list[i].theirs, name + length);
        return 1;
    }
    return 0;
}

/* torchvision's attention has the rows of query, key and value in one parameter. */
static int vit_their_names(const char *name, tern__part_names theirs)
{
    static const char in_proj[] = "self_attention.in_proj_", *const parts[TERN__NAME_PARTS] = {"query", "key",
                                                                                               "value"};
    int layer, used = 0;
    char prefix[48];
    if (sscanf(name, "encoder.layers.encoder_layer_%d.%n", &layer, &used) != 1 || !used)
        return vit_name_find(vit_names, TERN__COUNT(vit_names), "", name, theirs[0]);
    snprintf(prefix, sizeof(prefix), "vit.encoder.layer.%d.", layer);
    name += used;
    if (strncmp(name, in_proj, sizeof(in_proj) - 1) != 0)
        return vit_name_find(vit_layer_names, TERN__COUNT(vit_layer_names), prefix, name, theirs[0]);
    for (int i = 0; i < TERN__NAME_PARTS; i++)
        snprintf(theirs[i], TERN__NAME_TEXT, "%sattention.attention.%s.%s", prefix, parts[i],
                 name + sizeof(in_proj) - 1);
    return TERN__NAME_PARTS;
}

/* Draws weights even if they will be read: the layers begin with none. */
static tern_module *vit_open(tern__config *config, tern_rng *rng, tern_error *err)
{
    tern_vit_opts o = tern_vit_defaults();
    bool has_bias = true;
    const cJSON *labels = cJSON_GetObjectItemCaseSensitive(config->object, "id2label");
    o.classes = cJSON_IsObject(labels) ? cJSON_GetArraySize(labels) : 2; /* as transformers */
    o.eps = 1e-12;
    tern__config_int(config, "num_channels", false, &o.in_channels);
    tern__config_int(config, "image_size", true, &o.image_size);
    tern__config_int(config, "patch_size", true, &o.patch_size);
    tern__config_count(config, "num_hidden_layers", true, &o.layers);
    tern__config_int(config, "num_attention_heads", true, &o.heads);
    tern__config_int(config, "hidden_size", true, &o.hidden_dim);
    tern__config_int(config, "intermediate_size", true, &o.mlp_dim);
    tern__config_real(config, "layer_norm_eps", &o.eps);
    tern__config_real(config, "hidden_dropout_prob", &o.dropout);
    tern__config_real(config, "attention_probs_dropout_prob", &o.attention_dropout);
    tern__config_bool(config, "qkv_bias", &has_bias);
    const char *act = tern__config_text(config, "hidden_act");
    if (act && strcmp(act, "gelu") != 0) tern__config_refuse(config, "hidden_act", act);
    if (!has_bias) tern__config_refuse(config, "qkv_bias", "false");
    tern_rng *own = rng ? NULL : tern_rng_new(0, err);
    tern_module *model = tern_vit_new(&o, rng ? rng : own, err);
    tern_rng_free(own);
    return model;
}

static void vit_write(const tern_module *model, cJSON *config)
{
    const tern_vit_opts *o = &((const vit *)model)->opts;
    cJSON *labels = cJSON_AddObjectToObject(config, "id2label"),
          *indices = cJSON_AddObjectToObject(config, "label2id");
    for (int64_t i = 0; i < o->classes; i++) {
        char index[24], label[32];
        snprintf(index, sizeof(index), "%lld", (long long)i);
        snprintf(label, sizeof(label), "LABEL_%lld", (long long)i);
        cJSON_AddStringToObject(labels, index, label);
        cJSON_AddNumberToObject(indices, label, (double)i);
    }
    cJSON_AddNumberToObject(config, "num_channels", (double)o->in_channels);
    cJSON_AddNumberToObject(config, "image_size", (double)o->image_size);
    cJSON_AddNumberToObject(config, "patch_size", (double)o->patch_size);
    cJSON_AddNumberToObject(config, "num_hidden_layers", o->layers);
    cJSON_AddNumberToObject(config, "num_attention_heads", (double)o->heads);
    cJSON_AddNumberToObject(config, "hidden_size", (double)o->hidden_dim);
    cJSON_AddNumberToObject(config, "intermediate_size", (double)o->mlp_dim);
    cJSON_AddStringToObject(config, "hidden_act", "gelu");
    cJSON_AddNumberToObject(config, "layer_norm_eps", o->eps);
    cJSON_AddNumberToObject(config, "hidden_dropout_prob", o->dropout);
    cJSON_AddNumberToObject(config, "attention_probs_dropout_prob", o->attention_dropout);
    cJSON_AddBoolToObject(config, "qkv_bias", true);
}

const tern__pretrained_kind tern__vit_kind = {
    .model_type = "vit",
    .architecture = "ViTForImageClassification",
    .needless = (const char *const[]){"vit.pooler.dense.weight", "vit.pooler.dense.bias", NULL},
    .open = vit_open,
    .write = vit_write,
    .names = vit_their_names,
};
