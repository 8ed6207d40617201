/* save.c - the models that GGUF has, with llama.cpp's names of keys and tensors. The model is opened as
 * tern_pretrained_open opens it, so that every kind of file is read; its tensors are converted one after the
 * other. */
#include "gguf/gguf.h"
#include "models/language_model.h"
#include "models/lora.h"
#include "ops/rotary_embedding.h"

#include "base/file.h"
#include "base/opts.h"

#include <tern/language_model.h>
#include <tern/state_dict.h>

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUNC "tern_gguf_save"

/* A layer's name in llama.cpp. */
typedef struct layer_name {
    const char *module, *gguf; /* without "transformer.h.0." and "blk.0." */
    tern__gguf_order order;    /* of its weight, and of its bias          */
} layer_name;

/* One of llama.cpp's architectures. */
typedef struct architecture {
    const tern__pretrained_kind *kind;
    const char *blocks; /* what comes before a block's number */
    const layer_name *layers;
    void (*add_keys)(tern__gguf *g, const tern__config *config);
} architecture;

/* `config` is what tern_pretrained_save would write. */
typedef struct gguf_model {
    const architecture *architecture;
    const tern_module *module;
    tern__config config;
    tern_gguf_type type;
    int64_t head_dim; /* of Llama                                                         */
    float *divisors;  /* of the frequencies of rotary positions, head_dim / 2; NULL: none */
} gguf_model;

static int64_t config_need(const tern__config *config, const char *name)
{
    int64_t value = 0;
    tern__config_int(config, name, true, &value);
    return value;
}

static double config_real(const tern__config *config, const char *name, double fallback)
{
    double value = fallback;
    tern__config_real(config, name, &value);
    return value;
}

static void gguf_refuse(const tern__config *config, const char *name, const char *value)
{
    if (!tern__is_set(config->err))
        tern__error_set(config->err, config->func, TERN_E_UNSUPPORTED,
                        "%s: \"%s\" is %s, which llama.cpp does not have", config->path, name, value);
}

/* ---- GPT-2 ---- */

static void gpt2_add_keys(tern__gguf *g, const tern__config *config)
{
    int64_t width = config_need(config, "n_embd"), inner = 4 * width;
    const char *activation = tern__config_text(config, "activation_function");
    if (activation && strcmp(activation, "gelu_new") != 0)
        gguf_refuse(config, "activation_function", activation);
    tern__config_int(config, "n_inner", false, &inner);
    tern__gguf_u32(g, ".block_count", config_need(config, "n_layer"));
    tern__gguf_u32(g, ".context_length", config_need(config, "n_positions"));
    tern__gguf_u32(g, ".embedding_length", width);
    tern__gguf_u32(g, ".feed_forward_length", inner);
    tern__gguf_u32(g, ".attention.head_count", config_need(config, "n_head"));
    tern__gguf_f32(g, ".attention.layer_norm_epsilon", config_real(config, "layer_norm_epsilon", 0));
}

static const layer_name gpt2_layers[] = {
    {"transformer.wte", "token_embd", TERN__GGUF_ROWS},
    {"transformer.wpe", "position_embd", TERN__GGUF_ROWS},
    {"transformer.ln_f", "output_norm", TERN__GGUF_ROWS},
    {"lm_head", "output", TERN__GGUF_ROWS},
    {"ln_1", "attn_norm", TERN__GGUF_ROWS},
    {"attn.c_attn", "attn_qkv", TERN__GGUF_COLUMNS},
    {"attn.c_proj", "attn_output", TERN__GGUF_COLUMNS},
    {"ln_2", "ffn_norm", TERN__GGUF_ROWS},
    {"mlp.c_fc", "ffn_up", TERN__GGUF_COLUMNS},
    {"mlp.c_proj", "ffn_down", TERN__GGUF_COLUMNS},
    {NULL, NULL, TERN__GGUF_ROWS},
};

/* ---- Llama ---- */

/* The scaling of a config, whose object is NULL without one. */
static tern__config rope_of(const tern__config *config)
{
    tern__config rope = *config;
    rope.object = cJSON_GetObjectItemCaseSensitive(config->object, "rope_scaling");
    if (!cJSON_IsObject(rope.object)) rope.object = NULL;
    return rope;
}

static bool rope_type_is(const tern__config *rope, const char *want)
{
    const char *type = rope->object ? tern__config_text(rope, "rope_type") : NULL;
    return type && !strcmp(type, want);
}

static int64_t rope_original_positions(const tern__config *config, const tern__config *rope)
{
    int64_t positions = config_need(config, "max_position_embeddings");
    tern__config_int(rope, "original_max_position_embeddings", false, &positions);
    return positions;
}

/* llama.cpp's yarn has the attention_factor that follows from the factor, and rounds the bounds. */
static void llama_add_yarn(tern__gguf *g, const tern__config *config, const tern__config *rope)
{
    bool truncate = true;
    tern__config_bool(rope, "truncate", &truncate);
    if (!truncate) gguf_refuse(rope, "truncate", "false");
    if (config_real(rope, "attention_factor", 0) != 0)
        gguf_refuse(rope, "attention_factor", "given for yarn");
    tern__gguf_u32(g, ".rope.scaling.original_context_length", rope_original_positions(config, rope));
    tern__gguf_f32(g, ".rope.scaling.yarn_beta_fast", config_real(rope, "beta_fast", 32));
    tern__gguf_f32(g, ".rope.scaling.yarn_beta_slow", config_real(rope, "beta_slow", 1));
}

/* The frequencies of llama3 are a tensor. */
static void llama_add_rope(tern__gguf *g, const tern__config *config)
{
    tern__config rope = rope_of(config);
    bool is_yarn = rope_type_is(&rope, "yarn");
    tern__gguf_f32(g, ".rope.freq_base", config_real(config, "rope_theta", 10000));
    tern__gguf_u32(g, ".rope.dimension_count", config_need(config, "head_dim"));
    if (!rope.object || rope_type_is(&rope, "llama3")) return;
    if (!is_yarn && !rope_type_is(&rope, "linear"))
        gguf_refuse(&rope, "rope_type", tern__config_text(&rope, "rope_type"));
    tern__gguf_string(g, ".rope.scaling.type", is_yarn ? "yarn" : "linear");
    tern__gguf_f32(g, ".rope.scaling.factor", config_real(&rope, "factor", 1));
    if (is_yarn) llama_add_yarn(g, config, &rope);
}

static void llama_add_keys(tern__gguf *g, const tern__config *config)
{
    tern__gguf_u32(g, ".block_count", config_need(config, "num_hidden_layers"));
    tern__gguf_u32(g, ".context_length", config_need(config, "max_position_embeddings"));
    tern__gguf_u32(g, ".embedding_length", config_need(config, "hidden_size"));
    tern__gguf_u32(g, ".feed_forward_length", config_need(config, "intermediate_size"));
    tern__gguf_u32(g, ".attention.head_count", config_need(config, "num_attention_heads"));
    tern__gguf_u32(g, ".attention.head_count_kv", config_need(config, "num_key_value_heads"));
    tern__gguf_u32(g, ".attention.key_length", config_need(config, "head_dim"));
    tern__gguf_u32(g, ".attention.value_length", config_need(config, "head_dim"));
    tern__gguf_f32(g, ".attention.layer_norm_rms_epsilon", config_real(config, "rms_norm_eps", 0));
    tern__gguf_u32(g, ".vocab_size", config_need(config, "vocab_size"));
    llama_add_rope(g, config);
}

/* Returns the numbers by which llama.cpp divides the frequencies, for the caller to free, or NULL. */
static float *llama_rope_divisors(tern__gguf *g, const tern__config *config, int64_t pairs)
{
    tern__config rope = rope_of(config);
    if (!rope_type_is(&rope, "llama3")) return NULL;
    float *divisors = tern__alloc((size_t)pairs * sizeof(*divisors), g->func, g->err);
    tern_rotary_table_opts plain = tern_rotary_table_defaults();
    plain.base = config_real(config, "rope_theta", 10000);
    tern_rotary_table_opts scaled = plain;
    scaled.scaling = TERN_ROPE_LLAMA3;
    scaled.factor = config_real(&rope, "factor", 1);
    scaled.low_freq_factor = config_real(&rope, "low_freq_factor", 1);
    scaled.high_freq_factor = config_real(&rope, "high_freq_factor", 4);
    scaled.original_positions = rope_original_positions(config, &rope);
    for (int64_t k = 0; k < pairs && divisors; k++)
        divisors[k] = (float)(tern__rotary_frequency(&plain, k, pairs, 0) /
                              tern__rotary_frequency(&scaled, k, pairs, 0));
    return divisors;
}

static const layer_name llama_layers[] = {
    {"model.embed_tokens", "token_embd", TERN__GGUF_ROWS},
    {"model.norm", "output_norm", TERN__GGUF_ROWS},
    {"lm_head", "output", TERN__GGUF_ROWS},
    {"input_layernorm", "attn_norm", TERN__GGUF_ROWS},
    {"self_attn.q_proj", "attn_q", TERN__GGUF_PAIRS},
    {"self_attn.k_proj", "attn_k", TERN__GGUF_PAIRS},
    {"self_attn.v_proj", "attn_v", TERN__GGUF_ROWS},
    {"self_attn.o_proj", "attn_output", TERN__GGUF_ROWS},
    {"post_attention_layernorm", "ffn_norm", TERN__GGUF_ROWS},
    {"mlp.gate_proj", "ffn_gate", TERN__GGUF_ROWS},
    {"mlp.up_proj", "ffn_up", TERN__GGUF_ROWS},
    {"mlp.down_proj", "ffn_down", TERN__GGUF_ROWS},
    {NULL, NULL, TERN__GGUF_ROWS},
};

/* ---- all architectures ---- */

static const architecture architectures[] = {
    {&tern__gpt2_kind, "transformer.h.", gpt2_layers, gpt2_add_keys},
    {&tern__llama_kind, "model.layers.", llama_layers, llama_add_keys},
};

/* Returns the architecture of a folder's config.json, before its weights are read. */
static const architecture *find_architecture(const char *folder, tern_error *err)
{
    char *path = tern__path_join(folder, "config.json", FUNC, err);
    cJSON *root = path ? tern__config_read(path, FUNC, err) : NULL;
    tern__config config = {root, path, FUNC, err};
    const tern__pretrained_kind *kind = root ? tern__pretrained_kind_find(&config) : NULL;
    const architecture *found = NULL;
    for (size_t i = 0; i < TERN__COUNT(architectures) && kind; i++)
        if (architectures[i].kind == kind) found = &architectures[i];
    if (kind && !found)
        tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                        "%s: \"model_type\" is %s, but a GGUF file is made of gpt2 or llama", path,
                        kind->model_type);
    cJSON_Delete(root);
    tern__free(path);
    return found;
}

/* Writes llama.cpp's name of a parameter: "model.layers.3.mlp.up_proj.weight" is "blk.3.ffn_up.weight". */
static tern__gguf_order tensor_name(const architecture *a, const char *name, char *out, size_t room)
{
    size_t prefix = strlen(a->blocks);
    const char *rest = name, *suffix = strrchr(name, '.');
    char block[32] = "";
    if (!strncmp(name, a->blocks, prefix)) {
        char *end;
        snprintf(block, sizeof(block), "blk.%ld.", strtol(name + prefix, &end, 10));
        rest = end + 1;
    }
    const layer_name *layer = a->layers;
    while (layer->module &&
           (strncmp(rest, layer->module, (size_t)(suffix - rest)) != 0 || layer->module[suffix - rest]))
        layer++;
    snprintf(out, room, "%s%s%s", block, layer->gguf, suffix);
    return layer->order;
}

static void add_parameter(tern__gguf *g, const gguf_model *m, tern_state_entry entry)
{
    const tern__view *view = &entry.tensor->view;
    tern__gguf_tensor tensor = {.data = view->data,
                                .ndim = view->ndim,
                                .shape = {view->shape[0], view->ndim == 2 ? view->shape[1] : 1},
                                .head_rows = m->head_dim};
    tensor.order = tensor_name(m->architecture, entry.name, tensor.name, sizeof(tensor.name));
    bool is_matrix = view->ndim == 2 && strcmp(tensor.name, "position_embd.weight") != 0;
    tensor.type = is_matrix ? m->type : TERN_GGUF_F32;
    tern__gguf_add(g, tensor);
}

static void add_tensors(tern__gguf *g, const gguf_model *m)
{
    if (m->divisors)
        tern__gguf_add(g, (tern__gguf_tensor){.name = "rope_freqs.weight",
                                              .data = m->divisors,
                                              .ndim = 1,
                                              .shape = {m->head_dim / 2, 1},
                                              .type = TERN_GGUF_F32});
    for (int i = 0; i < tern_state_count(m->module); i++)
        if (!tern__state_repeats(m->module, i) && !tern__lora_owns(tern_state_get(m->module, i).tensor))
            add_parameter(g, m, tern_state_get(m->module, i));
}

static void add_keys(tern__gguf *g, const gguf_model *m, const char *name)
{
    static const int64_t file_types[] = {[TERN_GGUF_F32] = 0, [TERN_GGUF_F16] = 1, [TERN_GGUF_Q8_0] = 7};
    tern__gguf_string(g, "general.architecture", g->architecture);
    tern__gguf_string(g, "general.type", "model");
    tern__gguf_string(g, "general.name", name);
    m->architecture->add_keys(g, &m->config);
    tern__gguf_u32(g, "general.file_type", file_types[m->type]);
    tern__gguf_u32(g, "general.quantization_version", 2);
}

/* ---- saving ---- */

tern_gguf_opts tern_gguf_defaults(void)
{
    return (tern_gguf_opts){.size = sizeof(tern_gguf_opts), .type = TERN_GGUF_F16};
}

/* Adds everything and writes the file. */
static void gguf_save_model(tern__gguf *g, gguf_model *m, const char *folder, const char *name,
                            const char *path)
{
    cJSON *object = cJSON_CreateObject();
    m->config.object = object;
    m->architecture->kind->write(m->module, object);
    if (m->architecture->kind == &tern__llama_kind) {
        m->head_dim = config_need(&m->config, "head_dim");
        m->divisors = llama_rope_divisors(g, &m->config, m->head_dim / 2);
    }
    add_keys(g, m, name);
    add_tensors(g, m);
    tern__gguf_add_vocabulary(g, folder, config_need(&m->config, "vocab_size"));
    tern__gguf_write(g, path);
    tern__free(m->divisors);
    cJSON_Delete(object);
}

int tern_gguf_save(const char *folder, const char *path, const tern_gguf_opts *opts, tern_error *err)
{
    tern_gguf_opts o = tern_gguf_defaults();
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, FUNC, err) ||
        tern__need(folder, "folder", FUNC, err) || tern__need(path, "path", FUNC, err))
        return err->code;
    if ((unsigned)o.type > TERN_GGUF_Q8_0)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "type is %d", (int)o.type);
    gguf_model m = {.architecture = find_architecture(folder, err), .type = o.type};
    if (!m.architecture) return err->code;
    char full[PATH_MAX], *config = tern__path_join(folder, "config.json", FUNC, err);
    snprintf(full, sizeof(full), "%s", folder);
    if (!strcmp(folder, ".") && !getcwd(full, sizeof(full))) snprintf(full, sizeof(full), "model");
    const char *name = o.name ? o.name : basename(full);
    tern_module *model = config ? tern_pretrained_open(folder, NULL, err) : NULL;
    bool adapts = model && o.adapter;
    if (adapts && !tern_lora_open(model, o.adapter, false, err)) tern_lora_merge(model, err);
    tern__gguf g = {.architecture = m.architecture->kind->model_type, .func = FUNC, .err = err};
    m.config = (tern__config){NULL, config, FUNC, err};
    m.module = model;
    if (model && !err->code) gguf_save_model(&g, &m, folder, name, path);
    tern__gguf_free(&g);
    tern_module_free(model);
    tern__free(config);
    return err->code;
}
