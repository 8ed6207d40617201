/* pretrained_save.c - writes a folder that transformers reads: the weights first and config.json last, so
 * that a folder with a config is whole. */
#include "base/file.h"
#include "base/opts.h"
#include "models/language_model.h"
#include "models/lora.h"

#include <tern/checkpoint.h>
#include <tern/state_dict.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char FUNC[] = "tern_pretrained_save";

tern_pretrained_save_opts tern_pretrained_save_defaults(void)
{
    return (tern_pretrained_save_opts){.size = sizeof(tern_pretrained_save_opts),
                                       .max_shard_bytes = 5000000000};
}

typedef struct folder_writer {
    const char *folder;
    const tern_module *module;
    const tern__pretrained_kind *kind;
    int64_t most; /* bytes of a shard */
    int shards;   /* 1: no index      */
    int64_t total;
    tern_error *err;
} folder_writer;

/* The head's shared weight is left out, and so are adapters, which are merged. */
static bool is_left_out(const folder_writer *w, int index)
{
    return tern__state_repeats(w->module, index) || tern__lora_owns(tern_state_get(w->module, index).tensor);
}

/* Returns the `part`-th of `count` equal parts of a tensor's rows, as a copy. */
static tern_tensor *part_copy(const tern_tensor *tensor, int part, int count, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    tern__view rows = tensor->view;
    rows.shape[0] /= count;
    rows.data = (char *)rows.data + (size_t)part * tern__view_bytes(&rows);
    tern_tensor *copy = tern__tensor_new(rows.dtype, rows.ndim, rows.shape, err);
    if (copy) tern__view_copy(&copy->view, &rows, err);
    return copy;
}

/* Adds a parameter to a shard's dict and to the index's map, by its names in files. */
static void add_parameter(const folder_writer *w, const char *name, const tern_tensor *tensor,
                          const char *shard, tern_object *state, cJSON *map)
{
    tern__part_names names;
    int count = tern__pretrained_names(w->kind, name, names);
    for (int i = 0; i < count && !tern__is_set(w->err); i++) {
        tern_tensor *part = count > 1 ? part_copy(tensor, i, count, w->err) : NULL;
        cJSON_AddStringToObject(map, names[i], shard);
        tern_object_set(state, names[i], tern_object_tensor(part ? part : tensor, w->err), w->err);
        tern_tensor_free(part);
    }
}

/* Fails before anything is written if transformers has no name for a parameter. */
static int check_names(const folder_writer *w)
{
    tern__part_names names;
    for (int i = 0; i < tern_state_count(w->module); i++) {
        const char *name = tern_state_get(w->module, i).name;
        if (is_left_out(w, i) || tern__pretrained_names(w->kind, name, names)) continue;
        return tern__error_set(w->err, FUNC, TERN_E_UNSUPPORTED, "%s: transformers' %s has no \"%s\"",
                               w->module->kind, w->kind->architecture, name);
    }
    return TERN_OK;
}

/* Returns the shard of entry `index`, given that of the entry before: tensors fill shards in order, and one
 * that is larger than a shard has one of its own. */
static int next_shard(const folder_writer *w, int index, int shard, int64_t *filled)
{
    int64_t bytes = (int64_t)tern__view_bytes(&tern_state_get(w->module, index).tensor->view);
    bool is_new = *filled && *filled + bytes > w->most;
    *filled = is_new ? bytes : *filled + bytes;
    return shard + is_new;
}

static void count_shards(folder_writer *w)
{
    int64_t filled = 0;
    int shard = 0;
    for (int i = 0; i < tern_state_count(w->module); i++) {
        if (is_left_out(w, i)) continue;
        shard = next_shard(w, i, shard, &filled);
        w->total += (int64_t)tern__view_bytes(&tern_state_get(w->module, i).tensor->view);
    }
    w->shards = shard + 1;
}

static void shard_name(const folder_writer *w, int shard, char name[64])
{
    if (w->shards == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05d-of-%05d.safetensors", shard + 1, w->shards);
}

/* Writes a dict of tensors with the metadata that transformers asks for. */
static void write_shard(const folder_writer *w, int shard, tern_object *state)
{
    char name[64];
    shard_name(w, shard, name);
    tern_object *metadata = tern_object_dict(w->err);
    tern_object_set(metadata, "format", tern_object_string("pt", w->err), w->err);
    tern_object_set(state, "__metadata__", metadata, w->err);
    char *path = tern__path_join(w->folder, name, FUNC, w->err);
    if (path) tern_save(path, state, w->err);
    tern__free(path);
}

/* Writes the shards, and the index if there are several. */
static void write_weights(const folder_writer *w)
{
    cJSON *index = cJSON_CreateObject(), *metadata = cJSON_AddObjectToObject(index, "metadata");
    cJSON *map = cJSON_AddObjectToObject(index, "weight_map");
    cJSON_AddNumberToObject(metadata, "total_size", (double)w->total);
    tern_object *all = tern_module_state_dict(w->module, w->err), *state = tern_object_dict(w->err);
    int shard = 0;
    int64_t filled = 0;
    char name[64];
    for (int i = 0; i < tern_state_count(w->module) && !tern__is_set(w->err); i++) {
        if (is_left_out(w, i)) continue;
        int next = next_shard(w, i, shard, &filled);
        if (next != shard) {
            write_shard(w, shard, state);
            tern_object_free(state);
            state = tern_object_dict(w->err);
            shard = next;
        }
        tern_state_entry entry = tern_state_get(w->module, i);
        shard_name(w, shard, name);
        add_parameter(w, entry.name, tern_object_to_tensor(tern_object_get(all, entry.name)), name, state,
                      map);
    }
    if (!tern__is_set(w->err)) write_shard(w, shard, state);
    if (w->shards > 1) tern__config_write(w->folder, "model.safetensors.index.json", index, FUNC, w->err);
    tern_object_free(state);
    tern_object_free(all);
    cJSON_Delete(index);
}

static void write_config(const folder_writer *w)
{
    const tern__pretrained_kind *kind = w->kind;
    static const char *const names[] = {
        [TERN_F32] = "float32", [TERN_F64] = "float64", [TERN_BF16] = "bfloat16", [TERN_F16] = "float16"};
    tern_dtype dtype = tern_state_get(w->module, 0).tensor->view.dtype;
    if (tern__module_root((tern_module *)w->module)->tree->precision.set) dtype = TERN_F32;
    cJSON *config = cJSON_CreateObject();
    cJSON *architectures = cJSON_AddArrayToObject(config, "architectures");
    cJSON_AddItemToArray(architectures, cJSON_CreateString(kind->architecture));
    cJSON_AddStringToObject(config, "model_type", kind->model_type);
    cJSON_AddStringToObject(config, "torch_dtype", names[dtype]);
    kind->write(w->module, config);
    tern__config_write(w->folder, "config.json", config, FUNC, w->err);
    cJSON_Delete(config);
}

/* Other weights in the folder would be found before the new ones, or beside them. */
static void remove_old(const folder_writer *w)
{
    const char *name = w->shards > 1 ? "model.safetensors" : "model.safetensors.index.json";
    char *path = tern__path_join(w->folder, name, FUNC, w->err);
    if (path) unlink(path);
    tern__free(path);
}

int tern_pretrained_save(const tern_module *model, const char *folder, const tern_pretrained_save_opts *opts,
                         tern_error *err)
{
    tern_pretrained_save_opts o = tern_pretrained_save_defaults();
    tern_error own = {0};
    if (!err) err = &own;
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) ||
        tern__need(folder, "folder", __func__, err))
        return err->code;
    folder_writer w = {.folder = folder,
                       .module = model,
                       .kind = tern__pretrained_kind_of(model),
                       .most = o.max_shard_bytes,
                       .err = err};
    if (!w.kind)
        return tern__error_set(err, __func__, TERN_E_INVALID, "expected a language model or a vit, got %s",
                               model ? model->kind : "NULL");
    if (tern__lora_unmerged(model))
        return tern__error_set(err, __func__, TERN_E_STATE,
                               "%s has adapters: tern_lora_merge makes them a part of its weights, and "
                               "tern_lora_save writes them alone",
                               model->kind);
    if (o.max_shard_bytes < 1)
        return tern__error_set(err, __func__, TERN_E_RANGE, "max_shard_bytes is %lld, expected at least 1",
                               (long long)o.max_shard_bytes);
    if (tern__module_state(model, err) || check_names(&w) || tern__folder_make(folder, 0777, __func__, err))
        return err->code;
    count_shards(&w);
    write_weights(&w);
    if (!tern__is_set(err)) remove_old(&w);
    if (!tern__is_set(err)) write_config(&w);
    return err->code;
}
