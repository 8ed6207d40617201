/* convert.c - `tern convert`: writes a checkpoint, or a part of it, in another format. The object that was
 * read is rebuilt: modules that were pickled whole become state dicts, and tensors are cast to another dtype.
 * Then --key selects a part, which is flattened and renamed. Unchanged values are shared, not copied. Folders
 * are for convert_folder.c. */
#include "cli.h"
#include "flags.h"
#include "inspect/content.h"
#include "inspect/convert_folder.h"
#include "inspect/module_record.h"

#include "base/text.h"
#include "checkpoint/safetensors.h"

#include <tern.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char FUNC[] = "tern convert";

typedef struct settings {
    bool flatten;
    tern_load_opts load;
    const char *key, *strip, *prefix, *dtype_name, *adapter, *in, *out;
    int dtype;      /* -1: unchanged          */
    bool to_folder; /* or to a .gguf          */
    bool stripped;  /* --strip matched a name */
} settings;

/* ---- dtypes ---- */

typedef struct caster {
    const settings *set;
    tern_device *device; /* NULL without --dtype, as is the scope */
    tern_scope *scope;
} caster;

/* Returns the tensor itself, or a copy in the dtype of --dtype. Tensors that shared memory no longer do after
 * a cast. */
static tern_object *cast_tensor(caster *c, const tern_object *value, tern_error *err)
{
    const tern_tensor *tensor = tern_object_to_tensor(value);
    tern_dtype have = tensor->view.dtype, want = (tern_dtype)c->set->dtype;
    if (c->set->dtype < 0 || have == want || !tern__dtype_is_float(have))
        return tern__object_hold((tern_object *)value);
    tern_tensor *result = tern_cast(c->scope, (tern_tensor *)tensor, want);
    tern_tensor *made = result ? tern_keep(result, err) : NULL;
    tern_object *object = made ? tern_object_tensor(made, err) : NULL;
    tern_tensor_free(made);
    if (tern_scope_end(c->scope, err) == TERN_OK) return object;
    tern__object_drop(object);
    return NULL;
}

/* ---- rebuilding ---- */

static tern_object *rebuild_value(caster *c, const tern_object *value, tern_error *err);

static int rebuild_items(caster *c, tern_object *made, const tern_object *value, tern_error *err)
{
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < tern_object_count(value); i++) {
        tern_object *item = rebuild_value(c, tern_object_at(value, i), err);
        tern_object *key = (tern_object *)tern_object_key(value, i);
        status = !item ? TERN_E_MEMORY
                 : key ? tern__object_set(made, key, item, err)
                       : tern__object_append(made, item, err);
        tern__object_drop(item);
    }
    return status;
}

static tern_object *rebuild_container(caster *c, const tern_object *value, tern_error *err)
{
    tern_object_kind kind = tern_object_kind_get(value);
    tern_object *made = kind == TERN_OBJECT_DICT   ? tern_object_dict(err)
                        : kind == TERN_OBJECT_LIST ? tern_object_list(err)
                                                   : tern_object_tuple(err);
    if (!made || !rebuild_items(c, made, value, err)) return made;
    tern__object_drop(made);
    return NULL;
}

static tern_object *rebuild_value(caster *c, const tern_object *value, tern_error *err)
{
    switch (tern_object_kind_get(value)) {
    case TERN_OBJECT_TENSOR: return cast_tensor(c, value, err);
    case TERN_OBJECT_DICT:
    case TERN_OBJECT_LIST:
    case TERN_OBJECT_TUPLE: return rebuild_container(c, value, err);
    case TERN_OBJECT_RECORD:
        if (tern__module_record_is(value)) {
            tern_object *state = tern__module_record_state_dict(value, err);
            tern_object *made = state ? rebuild_container(c, state, err) : NULL;
            tern__object_drop(state);
            return made;
        }
        break;
    default: break;
    }
    return tern__object_hold((tern_object *)value);
}

/* ---- selecting and renaming: each function takes over `object` and returns another one ---- */

static tern_object *choose_part(const settings *set, tern_object *object, tern_error *err)
{
    if (!set->key || !object) return object;
    tern_object *found = (tern_object *)tern_object_get(object, set->key);
    if (found)
        tern__object_hold(found);
    else
        tern__error_set(err, FUNC, TERN_E_INVALID, "%s has no key \"%s\"; `tern inspect` shows what it has",
                        set->in, set->key);
    tern__object_drop(object);
    return found;
}

/* Adds `value` under a name that the dict must not have yet. */
static int set_new(tern_object *dict, const char *name, size_t bytes, const tern_object *value,
                   tern_error *err)
{
    char quote[TERN__QUOTE_TEXT];
    int64_t before = tern_object_count(dict);
    tern_object *key = tern__object_string(name, bytes, err);
    int status = key ? tern__object_set(dict, key, (tern_object *)value, err) : TERN_E_MEMORY;
    tern__object_drop(key);
    if (!status && tern_object_count(dict) == before)
        status = tern__error_set(err, FUNC, TERN_E_INVALID, "two tensors would have the name %s",
                                 tern__quote(name, bytes, quote));
    return status;
}

static int convert_add_tensors(tern_object *dict, const tern__content *content, tern_error *err)
{
    int64_t dropped = 0;
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < content->count; i++) {
        const tern__content_item *item = &content->items[i];
        if (tern__item_is_tensor(item))
            status = set_new(dict, item->name, item->name_bytes, item->value, err);
        else
            dropped++;
    }
    if (dropped) fprintf(stderr, "%s: left out %lld values that are not tensors\n", FUNC, (long long)dropped);
    return status;
}

static tern_object *flatten_object(const settings *set, tern_object *object, tern_error *err)
{
    if (!set->flatten || !object) return object;
    tern__content content = {0};
    tern_object *dict = tern_object_dict(err);
    int status = dict ? tern__content_list(&content, object, err) : TERN_E_MEMORY;
    if (!status) status = convert_add_tensors(dict, &content, err);
    tern__content_free(&content);
    tern__object_drop(object);
    if (!status) return dict;
    tern__object_drop(dict);
    return NULL;
}

/* Returns the new name of a string key; the caller frees it. */
static char *rename_key(settings *set, const tern_object *key, size_t *bytes, tern_error *err)
{
    const char *name = tern_object_to_string(key), *prefix = set->prefix ? set->prefix : "";
    size_t strip = set->strip ? strlen(set->strip) : 0, add = strlen(prefix);
    *bytes = (size_t)tern_object_count(key);
    if (strip && *bytes >= strip && memcmp(name, set->strip, strip) == 0) {
        name += strip;
        *bytes -= strip;
        set->stripped = true;
    }
    char *renamed = tern__alloc(add + *bytes + 1, FUNC, err);
    if (!renamed) return NULL;
    memcpy(renamed, prefix, add);
    memcpy(renamed + add, name, *bytes);
    *bytes += add;
    return renamed;
}

static int rename_item(settings *set, tern_object *made, const tern_object *key, const tern_object *value,
                       tern_error *err)
{
    size_t bytes;
    const char *old = tern_object_to_string(key);
    if (!old || tern__safetensors_is_metadata(key))
        return tern__object_set(made, (tern_object *)key, (tern_object *)value, err);
    char *name = rename_key(set, key, &bytes, err);
    int status = name ? set_new(made, name, bytes, value, err) : TERN_E_MEMORY;
    tern__free(name);
    return status;
}

static tern_object *rename_all(settings *set, tern_object *object, tern_error *err)
{
    if ((!set->strip && !set->prefix) || !object) return object;
    bool is_dict = tern_object_kind_get(object) == TERN_OBJECT_DICT;
    int status =
        is_dict ? TERN_OK
                : tern__error_set(err, FUNC, TERN_E_INVALID, "--strip and --prefix: expected a dict, got %s",
                                  tern_object_kind_name(tern_object_kind_get(object)));
    tern_object *made = status ? NULL : tern_object_dict(err);
    for (int64_t i = 0; made && !status && i < tern_object_count(object); i++)
        status = rename_item(set, made, tern_object_key(object, i), tern_object_at(object, i), err);
    tern__object_drop(object);
    if (!status && set->strip && !set->stripped)
        tern__cli_complain(FUNC, "--strip: no name begins with \"%s\"; `tern inspect` shows them",
                           set->strip);
    if (!status) return made;
    tern__object_drop(made);
    return NULL;
}

/* ---- metadata ---- */

/* Marks the tensors as PyTorch's ("format": "pt"), which readers of safetensors expect. */
static int add_metadata(tern_object *object, tern_error *err)
{
    if (tern_object_kind_get(object) != TERN_OBJECT_DICT) return TERN_OK; /* tern_save reports it */
    if (tern_object_get(object, TERN__SAFETENSORS_METADATA)) return TERN_OK;
    tern_object *metadata = tern_object_dict(err);
    tern_object_set(metadata, "format", tern_object_string("pt", err), err);
    tern_object *key = tern_object_string(TERN__SAFETENSORS_METADATA, err);
    int status = tern__is_set(err) ? err->code : tern__object_set(object, key, metadata, err);
    tern__object_drop(key);
    tern__object_drop(metadata);
    return status;
}

/* ---- the command ---- */

static tern_object *read_in(const settings *set, tern_error *err)
{
    caster c = {.set = set};
    tern_load_opts opts = set->load;
    opts.metadata = tern__safetensors_is_path(set->out);
    if (set->dtype >= 0) c.device = tern_device_open(NULL, err);
    if (set->dtype >= 0) c.scope = tern_scope_new(c.device, NULL, err);
    tern_object *read = tern__content_load(set->in, &opts, err), *made = NULL;
    if (read) made = rebuild_value(&c, read, err);
    tern__object_drop(read);
    tern_scope_free(c.scope);
    tern_device_close(c.device);
    return made;
}

static int convert_file(settings *set, tern_error *err)
{
    tern_object *object = read_in(set, err);
    object = choose_part(set, object, err);
    object = flatten_object(set, object, err);
    object = rename_all(set, object, err);
    if (object && tern__safetensors_is_path(set->out)) add_metadata(object, err);
    if (object && !err->code) tern_save(set->out, object, err);
    tern__object_drop(object);
    return err->code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}

static bool path_ends(const char *path, const char *suffix)
{
    const char *dot = strrchr(path, '.');
    return dot && !strcmp(dot, suffix);
}

/* ---- what OUT allows ---- */

static int choose_dtype(settings *set)
{
    for (int i = 0; i < TERN_DTYPE_COUNT && set->dtype_name; i++)
        if (tern__dtype_is_float((tern_dtype)i) && !strcmp(set->dtype_name, tern_dtype_name((tern_dtype)i)))
            set->dtype = i;
    if (!set->dtype_name || set->dtype >= 0) return TERN__EXIT_OK;
    tern__cli_complain(FUNC, "--dtype %s: only a .gguf has it", set->dtype_name);
    return TERN__EXIT_USAGE;
}

static tern__folder_conversion folder_conversion(const settings *set)
{
    return (tern__folder_conversion){
        .in = set->in, .out = set->out, .adapter = set->adapter, .dtype = set->dtype_name};
}

/* A folder is converted as a whole. */
static int check_folder(const settings *set)
{
    const char *option = set->key                                          ? "--key"
                         : set->flatten                                    ? "--flatten"
                         : set->strip                                      ? "--strip"
                         : set->prefix                                     ? "--prefix"
                         : set->load.records                               ? "--records"
                         : set->load.memory != tern_load_defaults().memory ? "--memory"
                                                                           : NULL;
    tern__folder_conversion conversion = folder_conversion(set);
    if (!option) return tern__convert_folder_check(&conversion);
    tern__cli_complain(FUNC, "%s is not for a %s, which is made of a whole folder", option,
                       tern__convert_to_gguf(set->out) ? ".gguf" : "folder");
    return TERN__EXIT_USAGE;
}

/* OUT is a folder if its name has no suffix, and IN is one. */
static int take_files(int count, char **files, settings *set)
{
    struct stat about;
    if (count != 2) {
        fprintf(stderr, "%s: expected two files, IN and OUT, got %d\n", FUNC, count);
        return TERN__EXIT_USAGE;
    }
    set->in = files[0];
    set->out = files[1];
    bool is_file =
        path_ends(set->out, ".pt") || path_ends(set->out, ".pth") || path_ends(set->out, ".safetensors");
    bool from_folder = !stat(set->in, &about) && S_ISDIR(about.st_mode);
    set->to_folder = tern__convert_to_gguf(set->out) || (!is_file && from_folder);
    if (set->to_folder) return check_folder(set);
    if (is_file && set->adapter) {
        tern__cli_complain(FUNC, "--adapter is for a .gguf or a folder, got \"%s\"", set->out);
        return TERN__EXIT_USAGE;
    }
    if (is_file) return choose_dtype(set);
    tern__cli_complain(
        FUNC, "expected OUT to end in .pt, .pth, .safetensors or .gguf, or IN to be a folder, got \"%s\"",
        set->out);
    return TERN__EXIT_USAGE;
}

static settings chosen = {.dtype = -1};

static const tern__cli_option options[] = {
    {"records", .on = &chosen.load.records,
     .help = "replace modules that were saved whole (torch.save(net)) by their state dicts, and read files "
             "with other things that tern does not have: classes, large ints, u16"},
    {"key", .value = "NAME",
     .help = "write only the value of this key: the \"model\" of {\"model\": .., \"epoch\": 3}",
     .text = &chosen.key},
    {"flatten", .on = &chosen.flatten,
     .help = "write only the tensors, named as `tern inspect` shows them: \"model.conv1.weight\""},
    {"strip", .value = "PREFIX", .text = &chosen.strip,
     .help = "remove this prefix from the names: \"module.\" of a DistributedDataParallel"},
    {"prefix", .value = "PREFIX", .help = "add this prefix to the names", .text = &chosen.prefix},
    {"dtype", .value = "f32|f64|bf16|f16|q8_0", .text = &chosen.dtype_name,
     .help = "cast tensors of these dtypes to one of them; of a .gguf, the type of matrices: f32, f16 (the "
             "default) or q8_0; of a folder f32 (the default), bf16 or f16"},
    {"adapter", .value = "FOLDER", .text = &chosen.adapter,
     .help = "of a .gguf or a folder: add low-rank adapters to the weights, of a folder with PEFT's files"},
    {"memory", .value = "N", .take = tern__memory_take, .to = &chosen.load.memory,
     .help = "allow IN's objects N MiB (default 16) of memory beyond the file's size"},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page tern__convert_page = {
    "IN OUT",
    "Writes the checkpoint IN as OUT. The suffix of OUT chooses the format: .pt or .pth (torch.save), or "
    ".safetensors, which holds only named tensors. Nothing in IN is executed.\n\n"
    "For .gguf, the format of llama.cpp, IN is a folder of Hugging Face with a GPT-2 or a Llama and its "
    "tokenizer. If IN is a folder and OUT has none of these suffixes, OUT becomes a folder, too, with the "
    "model, its tokenizer and its generation_config.json.\n",
    options,
};

/* Returns what tern__flags_read does, and TERN__EXIT_USAGE if the files are wrong. */
static int convert_read_options(int argc, char **argv)
{
    chosen.load = tern_load_defaults();
    int status = tern__flags_read(&tern__convert_page, FUNC, argc, argv);
    return status ? status : take_files(argc - optind, argv + optind, &chosen);
}

int tern__cli_convert(int argc, char **argv)
{
    tern_error err = {0};
    int status = convert_read_options(argc, argv);
    if (status) return status < 0 ? tern__cli_flush(FUNC) : status;
    tern__folder_conversion conversion = folder_conversion(&chosen);
    int exit = chosen.to_folder ? tern__convert_folder(&conversion, &err) : convert_file(&chosen, &err);
    tern_error_print(&err);
    return exit;
}
