/* checkpoint.c - tern_save, where the file's name decides the format, and tern_load, which recognises it by
 * the first bytes. */
#include "base/opts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch.h"

#include <tern/checkpoint.h>

#include <string.h>

int tern_save(const char *path, const tern_object *object, tern_error *err)
{
    tern_error why = {0};
    tern__output out;
    if (tern__is_set(err)) return err->code;
    if (tern__need(path, "path", __func__, err) || tern__need(object, "object", __func__, err))
        return TERN_E_INVALID;
    int status = tern__output_tidy(path, __func__, err);
    if (!status) status = tern__output_open(&out, path, __func__, err);
    if (status) return status;
    status =
        (tern__safetensors_is_path(out.path) ? tern__safetensors_save : tern__torch_save)(&out, object, &why);
    if (status && !tern__is_set(err)) {
        tern__error_set(err, __func__, status, "%s", why.text);
        if (err) err->native = why.native;
    }
    return tern__output_close(&out, status, true, err);
}

static const char FUNC[] = "tern_load";

tern_load_opts tern_load_defaults(void)
{
    return (tern_load_opts){.size = sizeof(tern_load_opts), .memory = (size_t)16 << 20};
}

static tern_object *load_any(tern__input *in, const tern_load_opts *opts, tern_error *err)
{
    uint8_t head[4] = {0};
    if (tern__input_read(in, 0, head, (size_t)TERN__MIN(in->size, (int64_t)sizeof(head)), err)) return NULL;
    if (memcmp(head, "PK\3\4", 4) == 0) return tern__torch_load(in, opts->records, err);
    if (tern__legacy_is(in)) return tern__legacy_load(in, opts->records, err);
    if (tern__safetensors_is(in)) return tern__safetensors_load(in, opts->records, opts->metadata, err);
    tern__error_set(err, FUNC, TERN_E_FORMAT,
                    in->size ? "%s is neither a torch.save nor a safetensors file" : "%s is empty", in->path);
    return NULL;
}

tern_object *tern_load(const char *path, const tern_load_opts *opts, tern_error *err)
{
    tern_load_opts own = tern_load_defaults();
    tern_error why = {0};
    tern__input in;
    if (tern__is_set(err) || tern__opts_read(&own, sizeof(own), opts, FUNC, err) ||
        tern__need(path, "path", FUNC, err))
        return NULL;
    if (tern__input_open(&in, path, own.memory, err)) return NULL;
    tern_object *object = load_any(&in, &own, &why);
    tern__input_close(&in);
    if (object) return object;
    tern__error_set(err, FUNC, why.code, "%s", why.text);
    if (err) err->native = why.native;
    return NULL;
}
