/* save.c - tern_save: the file's name decides the format. */
#include "checkpoint/safetensors.h"
#include "checkpoint/torch.h"

#include <tern/checkpoint.h>

static int write_as(tern__output *out, const tern_object *object, tern_error *err)
{
    if (tern__safetensors_is_path(out->path)) return tern__safetensors_save(out, object, err);
    return tern__torch_save(out, object, err);
}

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
    status = write_as(&out, object, &why);
    if (status && !tern__is_set(err)) {
        tern__error_set(err, __func__, status, "%s", why.text);
        if (err) err->native = why.native;
    }
    return tern__output_close(&out, status, true, err);
}
