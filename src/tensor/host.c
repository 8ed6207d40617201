/* host.c - copies device memory for the host and back. */
#include "tensor/host.h"
#include "device/device.h"

#include <string.h>

size_t tern__view_reach(const tern__view *view)
{
    int64_t last = 0;
    if (tern__view_is_dense(view))
        last = tern__view_count(view) - 1;
    else
        for (int d = 0; d < view->ndim; d++) last += (view->shape[d] - 1) * view->stride[d];
    return (size_t)(last + 1) * tern_dtype_bytes(view->dtype);
}

int tern__host_open(tern__host *host, const tern__view *view, tern_error *err)
{
    *host = (tern__host){.view = *view, .bytes = tern__view_count(view) ? tern__view_reach(view) : 0};
    if (!host->bytes || !tern__memory_device(view->data)) return TERN_OK;
    void *copy = tern__alloc_raw(host->bytes, TERN__LINE);
    if (!copy)
        return tern__error_set(err, "tern_tensor", TERN_E_MEMORY, "out of memory: %zu bytes", host->bytes);
    int status = tern__memory_copy(copy, view->data, host->bytes, err);
    if (status) {
        tern__free(copy);
        return status;
    }
    host->home = view->data;
    host->view.data = copy;
    return TERN_OK;
}

int tern__host_close(tern__host *host, bool written, tern_error *err)
{
    if (!host->home) return TERN_OK;
    int status = written ? tern__memory_copy(host->home, host->view.data, host->bytes, err) : TERN_OK;
    tern__free(host->view.data);
    host->home = NULL;
    return status;
}

int tern__host_item(const tern__view *view, double *value, tern_error *err)
{
    tern__host host;
    tern__view one = tern__view_make(view->dtype, TERN__PLAIN, 0, NULL);
    one.data = view->data;
    int status = tern__host_open(&host, &one, err);
    if (status) return status;
    *value = tern__view_get(&host.view, 0);
    return tern__host_close(&host, false, err);
}

static void host_copy(const tern__view *to, const tern__view *from)
{
    size_t bytes = tern_dtype_bytes(from->dtype);
    int64_t count = tern__view_count(from);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)to->data + (size_t)tern__view_offset(to, i) * bytes,
               (const char *)from->data + (size_t)tern__view_offset(from, i) * bytes, bytes);
}

static void convert(const tern__view *to, const tern__view *from)
{
    bool ints = !tern__dtype_is_float(to->dtype) && !tern__dtype_is_float(from->dtype);
    int64_t count = tern__view_count(to);
    for (int64_t i = 0; i < count; i++)
        if (ints)
            tern__view_set_int(to, i, tern__view_get_int(from, i));
        else
            tern__view_set(to, i, tern__view_get(from, i));
}

int tern__host_convert(const tern__view *to, const tern__view *from, tern_error *err)
{
    tern__host source, target;
    int status = tern__host_open(&source, from, err);
    if (status) return status;
    status = tern__host_open(&target, to, err);
    if (!status) {
        (to->dtype == from->dtype ? host_copy : convert)(&target.view, &source.view);
        status = tern__host_close(&target, true, err);
    }
    tern__host_close(&source, false, NULL);
    return status;
}
