/* convert_folder.c - a folder of Hugging Face becomes a file of GGUF (tern_gguf_save), or another folder,
 * with the adapters of a third one merged into its weights. */
#include "inspect/convert_folder.h"

#include "base/file.h"
#include "models/config.h"

#include <tern.h>

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char FUNC[] = "tern convert";

static const char *const gguf_types[] = {
    [TERN_GGUF_F32] = "f32", [TERN_GGUF_F16] = "f16", [TERN_GGUF_Q8_0] = "q8_0"};
static const tern_dtype folder_dtypes[] = {TERN_F32, TERN_BF16, TERN_F16};

/* ---- options ---- */

bool tern__convert_to_gguf(const char *out)
{
    const char *dot = strrchr(out, '.');
    return dot && !strcmp(dot, ".gguf");
}

static bool gguf_type_read(const char *name, tern_gguf_type *type)
{
    *type = tern_gguf_defaults().type;
    for (int i = 0; i <= TERN_GGUF_Q8_0 && name; i++)
        if (!strcmp(name, gguf_types[i])) *type = (tern_gguf_type)i;
    return !name || !strcmp(name, gguf_types[*type]);
}

static bool folder_dtype_read(const char *name, tern_dtype *dtype)
{
    *dtype = TERN_F32;
    for (size_t i = 0; i < TERN__COUNT(folder_dtypes) && name; i++)
        if (!strcmp(name, tern_dtype_name(folder_dtypes[i]))) *dtype = folder_dtypes[i];
    return !name || !strcmp(name, tern_dtype_name(*dtype));
}

int tern__convert_folder_check(const tern__folder_conversion *c)
{
    struct stat in, out;
    tern_gguf_type type;
    tern_dtype dtype;
    bool to_gguf = tern__convert_to_gguf(c->out), has_in = !stat(c->in, &in);
    if (has_in && !S_ISDIR(in.st_mode))
        tern__cli_complain(FUNC, "expected IN to be a folder for a %s, got the file \"%s\"",
                           to_gguf ? ".gguf" : "folder", c->in);
    else if (to_gguf && !gguf_type_read(c->dtype, &type))
        tern__cli_complain(FUNC, "--dtype: expected f32, f16 or q8_0 for a .gguf, got \"%s\"", c->dtype);
    else if (!to_gguf && !folder_dtype_read(c->dtype, &dtype))
        tern__cli_complain(FUNC, "--dtype: expected f32, bf16 or f16 for a folder, got \"%s\"", c->dtype);
    else if (has_in && !stat(c->out, &out) && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        tern__cli_complain(FUNC, "IN and OUT are the same folder, \"%s\"", c->out);
    else
        return TERN__EXIT_OK;
    return TERN__EXIT_USAGE;
}

/* ---- a folder ---- */

/* Copies a file, if it is there. */
static int file_copy(const tern__folder_conversion *c, const char *name, tern_error *err)
{
    size_t bytes = 0;
    tern__output out;
    char *from = tern__path_join(c->in, name, FUNC, err), *to = tern__path_join(c->out, name, FUNC, err);
    bool is_there = from && to && !access(from, F_OK);
    char *text = is_there ? tern__config_load(from, &bytes, FUNC, err) : NULL;
    if (text && !tern__output_open(&out, to, FUNC, err))
        tern__output_close(&out, tern__output_write(&out, text, bytes, err), false, err);
    tern__free(text);
    tern__free(from);
    tern__free(to);
    return err->code;
}

/* What belongs to the model but is not in it stays as it is. */
static int other_files_copy(const tern__folder_conversion *c, tern_error *err)
{
    static const char *const names[] = {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "vocab.txt",
        "chat_template.jinja",
        "generation_config.json",
    };
    for (size_t i = 0; i < TERN__COUNT(names) && !err->code; i++) file_copy(c, names[i], err);
    return err->code;
}

static int folder_convert(const tern__folder_conversion *c, tern_error *err)
{
    tern_dtype dtype;
    folder_dtype_read(c->dtype, &dtype);
    tern_module *model = tern_pretrained_open(c->in, NULL, err);
    if (model && c->adapter && !tern_lora_open(model, c->adapter, false, err)) tern_lora_merge(model, err);
    if (model && !err->code) tern_module_cast(model, dtype, err);
    if (model && !err->code) tern_pretrained_save(model, c->out, NULL, err);
    tern_module_free(model);
    return err->code ? err->code : other_files_copy(c, err);
}

int tern__convert_folder(const tern__folder_conversion *c, tern_error *err)
{
    tern_gguf_opts opts = tern_gguf_defaults();
    if (!tern__convert_to_gguf(c->out)) return folder_convert(c, err) ? TERN__EXIT_FAILED : TERN__EXIT_OK;
    gguf_type_read(c->dtype, &opts.type);
    opts.adapter = c->adapter;
    return tern_gguf_save(c->in, c->out, &opts, err) ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
