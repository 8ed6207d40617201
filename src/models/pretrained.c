/* pretrained.c - opens a folder that transformers has written. config.json says which model it is; the
 * weights are in one file or in shards, which are read one after the other, so that beside the model only one
 * of them is in memory. Names that are not tern's, and parameters that files have in parts, are translated
 * before the model sees them. */
#include "base/file.h"
#include "base/opts.h"
#include "base/text.h"
#include "models/language_model.h"

#include <tern/checkpoint.h>
#include <tern/state_dict.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char FUNC[] = "tern_pretrained_open";

/* ---- weights ---- */

typedef struct weights {
    tern_module *module;
    const tern__pretrained_kind *kind;
    const tern__language_model *model; /* NULL: it is none */
    const char *folder;
    bool is_full;         /* of a language model: names have the body's prefix, or are a head's */
    tern_object *missing; /* names that no file has had so far; NULL: no file was read    */
    tern_object *parts;   /* of parameters of which other shards have the rest, by their names */
    tern_error *err;
} weights;

/* True if a name of the model's, or a piece of it, begins so. */
static bool is_full_name(const tern__pretrained_kind *kind, const char *name)
{
    size_t length = strlen(kind->body);
    return (!strncmp(name, kind->body, length) && name[length] == '.') || !strncmp(name, "lm_head.", 8);
}

/* Every name is seen before the weights of its file are read, those of shards before the first one is. */
static void see_name(weights *w, const char *name)
{
    w->is_full = w->is_full || (w->model && is_full_name(w->kind, name));
    if (w->kind->see_name) w->kind->see_name(w->module, name, w->err);
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), most = strlen(end);
    return length >= most && !strcmp(name + length - most, end);
}

static bool is_needless(const tern__pretrained_kind *kind, const char *name)
{
    for (const char *const *end = kind->needless; *end; end++)
        if (ends_with(name, *end)) return true;
    return false;
}

/* The first files of BERT name a norm's weight and bias as TensorFlow does. Adds the names of today. */
static void add_norm_names(tern_object *state, tern_error *err)
{
    static const char *const names[][2] = {{".LayerNorm.gamma", ".LayerNorm.weight"},
                                           {".LayerNorm.beta", ".LayerNorm.bias"}};
    int64_t count = tern_object_count(state);
    for (int64_t i = 0; i < 2 * count && !tern__is_set(err); i++) {
        const char *name = tern_object_to_string(tern_object_key(state, i / 2)), *const *pair = names[i % 2];
        tern_tensor *tensor = tern_object_to_tensor(tern_object_at(state, i / 2));
        char today[512] = "";
        if (!name || !tensor || !ends_with(name, pair[0])) continue;
        tern__text_append(today, sizeof(today), "%.*s%s", (int)(strlen(name) - strlen(pair[0])), name,
                          pair[1]);
        if (!tern_object_get(state, today))
            tern_object_set(state, today, tern_object_tensor(tensor, err), err);
    }
}

static void check_unexpected(const weights *w, const tern_object *names, const char *path)
{
    for (int64_t i = 0; i < tern_object_count(names) && !tern__is_set(w->err); i++) {
        const char *name = tern_object_to_string(tern_object_at(names, i));
        if (!is_needless(w->kind, name))
            tern__error_set(w->err, FUNC, TERN_E_INVALID, "%s: %s has no \"%s\"", path, w->module->kind,
                            name);
    }
}

/* A name is missing if no file has it. */
static void note_one(const weights *w, tern_object *missing, const char *name)
{
    if (!w->missing || tern_object_get(w->missing, name))
        tern_object_set(missing, name, tern_object_none(w->err), w->err);
}

/* Keeps the names that this file lacks, too. `names` are those of the body alone if `is_body`. */
static void note_missing(weights *w, const tern_object *names, bool is_body)
{
    tern_object *missing = tern_object_dict(w->err);
    for (int64_t i = 0; i < tern_object_count(names) && !tern__is_set(w->err); i++) {
        char full[512] = "";
        tern__text_append(full, sizeof(full), "%s%s%s", is_body ? w->kind->body : "", is_body ? "." : "",
                          tern_object_to_string(tern_object_at(names, i)));
        note_one(w, missing, full);
    }
    if (is_body && w->model->head && !w->model->is_tied) note_one(w, missing, "lm_head.weight");
    tern_object_free(w->missing);
    w->missing = missing;
}

/* ---- other names ---- */

/* Returns the index of a key, or -1. */
static int64_t key_index(const tern_object *state, const char *name)
{
    for (int64_t i = 0; i < tern_object_count(state); i++) {
        const char *key = tern_object_to_string(tern_object_key(state, i));
        if (key && !strcmp(key, name)) return i;
    }
    return -1;
}

/* Returns the parts, of equal shapes, one after the other in their first dimension; NULL on failure. */
static tern_tensor *parts_join(const weights *w, const tern_tensor *like, int count,
                               const tern_tensor *const *parts, tern__part_names names)
{
    char have[TERN__SHAPE_TEXT], want[TERN__SHAPE_TEXT];
    tern__view rows = like->view;
    rows.shape[0] /= count;
    for (int i = 0; i < count; i++) {
        if (tern__view_same_shape(&parts[i]->view, &rows)) continue;
        tern__error_set(w->err, FUNC, TERN_E_SHAPE, "%s: \"%s\" is %s, expected %s", w->folder, names[i],
                        tern__shape_text(&parts[i]->view, have), tern__shape_text(&rows, want));
        return NULL;
    }
    tern_tensor *whole = tern__tensor_new(parts[0]->view.dtype, rows.ndim, like->view.shape, w->err);
    for (int i = 0; i < count && whole; i++) {
        tern__view to = whole->view;
        to.shape[0] = rows.shape[0];
        to.data = (char *)to.data + (size_t)i * tern__view_bytes(&to);
        if (!tern__view_copy(&to, &parts[i]->view, w->err)) continue;
        tern_tensor_free(whole);
        whole = NULL;
    }
    return whole;
}

/* Adds a parameter to `own` if the file has it, or the last of its parts. */
static void parameter_rename(const weights *w, const tern_object *state, tern_state_entry entry, bool *known,
                             tern_object *own)
{
    tern__part_names names;
    const tern_tensor *parts[TERN__NAME_PARTS] = {0};
    int count = tern__pretrained_names(w->kind, entry.name, names), found = 0, have = 0;
    for (int i = 0; i < count; i++) {
        int64_t at = key_index(state, names[i]);
        if (at >= 0) known[at] = true;
        found += at >= 0;
        parts[i] =
            tern_object_to_tensor(at >= 0 ? tern_object_at(state, at) : tern_object_get(w->parts, names[i]));
        have += parts[i] != NULL;
    }
    if (!found) return;
    if (have == count) {
        tern_tensor *whole = count > 1 ? parts_join(w, entry.tensor, count, parts, names) : NULL;
        if (whole || count == 1)
            tern_object_set(own, entry.name, tern_object_tensor(whole ? whole : parts[0], w->err), w->err);
        tern_tensor_free(whole);
        return;
    }
    for (int i = 0; i < count; i++)
        if (parts[i]) tern_object_set(w->parts, names[i], tern_object_tensor(parts[i], w->err), w->err);
}

/* Returns a file's tensors under tern's names; other names stay. Frees `state`. */
static tern_object *state_rename(const weights *w, tern_object *state)
{
    int64_t count = tern_object_count(state);
    tern_object *own = tern_object_dict(w->err);
    bool *known = tern__alloc((size_t)count + 1, FUNC, w->err);
    for (int i = 0; known && i < tern_state_count(w->module) && !tern__is_set(w->err); i++)
        parameter_rename(w, state, tern_state_get(w->module, i), known, own);
    for (int64_t i = 0; i < count && !tern__is_set(w->err); i++) {
        const char *key = tern_object_to_string(tern_object_key(state, i));
        if (!known[i] && key) tern_object_set(own, key, tern_object_none(w->err), w->err);
    }
    tern__free(known);
    tern_object_free(state);
    return own;
}

/* Returns the name in files of a missing parameter, or of its first missing part. */
static const char *missing_name(const weights *w, const char *name, tern__part_names names)
{
    int count = tern__pretrained_names(w->kind, name, names), i = 0;
    while (i < count - 1 && tern_object_get(w->parts, names[i])) i++;
    return names[i];
}

/* ---- files ---- */

/* Files of the body alone, as GPT2Model's, have no prefix. A model without a head reads its body alone out of
 * a file with other heads, as BertForMaskedLM's. */
static void read_state(weights *w, const tern_object *state, const char *path)
{
    tern_module_load_opts opts = tern_module_load_defaults();
    tern_object *report = NULL;
    char prefix[32] = "";
    tern_module *target = w->model && !w->is_full ? w->model->body : w->module;
    opts.strict = false;
    if (w->is_full) tern__text_append(prefix, sizeof(prefix), "%s.", w->kind->body);
    if (w->is_full && !w->model->head) opts.prefix = prefix;
    tern_module_state_dict_load(target, state, &opts, &report, w->err);
    check_unexpected(w, tern_object_get(report, "unexpected_keys"), path);
    note_missing(w, tern_object_get(report, "missing_keys"), w->model && target == w->model->body);
    tern_object_free(report);
}

static void read_file(weights *w, const char *name)
{
    tern_load_opts load = tern_load_defaults();
    load.memory = (size_t)256 << 20;
    char *path = tern__path_join(w->folder, name, FUNC, w->err);
    tern_object *state = path ? tern_load(path, &load, w->err) : NULL;
    if (state) add_norm_names(state, w->err);
    if (state && w->kind->names) state = state_rename(w, state);
    for (int64_t i = 0; i < tern_object_count(state); i++) {
        const char *key = tern_object_to_string(tern_object_key(state, i));
        if (key) see_name(w, key);
    }
    if (state && !tern__is_set(w->err)) read_state(w, state, path);
    tern_object_free(state);
    tern__free(path);
}

/* Reads each shard that the index names, once. */
static void read_shards(weights *w, const char *index)
{
    char *path = tern__path_join(w->folder, index, FUNC, w->err);
    cJSON *root = path ? tern__config_read(path, FUNC, w->err) : NULL;
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map"), *entry;
    if (root && (!cJSON_IsObject(map) || !map->child))
        tern__error_set(w->err, FUNC, TERN_E_FORMAT, "%s: \"weight_map\" is missing", path);
    if (!tern__is_set(w->err)) cJSON_ArrayForEach(entry, map) see_name(w, entry->string);
    tern_object *read = tern_object_dict(w->err);
    cJSON_ArrayForEach(entry, map)
    {
        const char *shard = cJSON_GetStringValue(entry);
        if (tern__is_set(w->err)) break;
        if (!shard || strchr(shard, '/')) {
            tern__error_set(w->err, FUNC, TERN_E_FORMAT, "%s: the shard of \"%s\" is no file's name", path,
                            entry->string);
        } else if (!tern_object_get(read, shard)) {
            tern_object_set(read, shard, tern_object_none(w->err), w->err);
            read_file(w, shard);
        }
    }
    tern_object_free(read);
    cJSON_Delete(root);
    tern__free(path);
}

static bool has_file(const char *folder, const char *name, tern_error *err)
{
    char *path = tern__path_join(folder, name, FUNC, err);
    bool has = path && !access(path, F_OK);
    tern__free(path);
    return has;
}

static void read_weights(weights *w)
{
    static const char *const files[] = {"model.safetensors", "model.safetensors.index.json",
                                        "pytorch_model.bin", "pytorch_model.bin.index.json"};
    size_t i = 0;
    while (i < TERN__COUNT(files) && !has_file(w->folder, files[i], w->err)) i++;
    if (i == TERN__COUNT(files)) {
        if (!tern__is_set(w->err))
            tern__error_set(w->err, FUNC, TERN_E_IO,
                            "%s has neither %s nor %s, nor an index of shards (.index.json)", w->folder,
                            files[0], files[2]);
        return;
    }
    if (i % 2)
        read_shards(w, files[i]);
    else
        read_file(w, files[i]);
    tern__part_names names;
    int64_t count = tern_object_count(w->missing);
    if (count && !tern__is_set(w->err))
        tern__error_set(w->err, FUNC, TERN_E_INVALID,
                        "%s: the weights of %lld names are missing, the first is \"%s\"", w->folder,
                        (long long)count,
                        missing_name(w, tern_object_to_string(tern_object_key(w->missing, 0)), names));
}

/* ---- config.json ---- */

const tern__pretrained_kind *tern__pretrained_kind_of(const tern_module *module)
{
    const tern__language_model *model = tern__pretrained_of(module);
    return model ? model->kind : tern__module_is_vit(module) ? &tern__vit_kind : NULL;
}

int tern__pretrained_names(const tern__pretrained_kind *kind, const char *name, tern__part_names theirs)
{
    if (kind->names) return kind->names(name, theirs);
    snprintf(theirs[0], TERN__NAME_TEXT, "%s", name);
    return 1;
}

const tern__pretrained_kind *tern__pretrained_kind_find(const tern__config *config)
{
    static const tern__pretrained_kind *const kinds[] = {&tern__gpt2_kind, &tern__llama_kind,
                                                         &tern__bert_kind, &tern__vit_kind};
    const char *type = tern__config_text(config, "model_type");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(config->object, "architectures");
    const char *architecture = cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
    for (size_t i = 0; i < TERN__COUNT(kinds); i++) {
        bool is_type = type && !strcmp(type, kinds[i]->model_type);
        if (is_type || (!type && architecture && !strcmp(architecture, kinds[i]->architecture)))
            return kinds[i];
    }
    if (!type && !architecture)
        tern__error_set(config->err, FUNC, TERN_E_FORMAT, "%s: \"model_type\" is missing", config->path);
    else
        tern__config_refuse(config, type ? "model_type" : "architectures", type ? type : architecture);
    return NULL;
}

static tern_module *make_model(const char *folder, tern_rng *rng, tern_error *err)
{
    char *path = tern__path_join(folder, "config.json", FUNC, err);
    cJSON *root = path ? tern__config_read(path, FUNC, err) : NULL;
    tern_module *model = NULL;
    if (root) {
        tern__config config = {root, path, FUNC, err};
        const tern__pretrained_kind *kind = tern__pretrained_kind_find(&config);
        if (kind) model = kind->open(&config, rng, err);
    }
    cJSON_Delete(root);
    tern__free(path);
    return model;
}

tern_pretrained_opts tern_pretrained_defaults(void)
{
    return (tern_pretrained_opts){.size = sizeof(tern_pretrained_opts)};
}

tern_module *tern_pretrained_open(const char *folder, const tern_pretrained_opts *opts, tern_error *err)
{
    tern_pretrained_opts o = tern_pretrained_defaults();
    tern_error own = {0};
    if (!err) err = &own;
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) ||
        tern__need(folder, "folder", __func__, err))
        return NULL;
    tern_module *model = make_model(folder, o.rng, err);
    if (!model || o.rng) return model;
    weights w = {.module = model,
                 .kind = tern__pretrained_kind_of(model),
                 .model = tern__pretrained_of(model),
                 .folder = folder,
                 .parts = tern_object_dict(err),
                 .err = err};
    read_weights(&w);
    tern_object_free(w.missing);
    tern_object_free(w.parts);
    if (!tern__is_set(err)) return model;
    tern_module_free(model);
    return NULL;
}
