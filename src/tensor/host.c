#include "tensor/host.h"
#include "device/device.h"

/* Bytes from the first element to the end of the last. */
static size_t reach_of(const tern__view *view)
{
    int64_t last = tern__view_count(view) - 1;
    if (last < 0) return 0;
    if (!tern__view_is_dense(view)) {
        last = 0;
        for (int d = 0; d < view->ndim; d++) last += (view->shape[d] - 1) * view->stride[d];
    }
    return (size_t)(last + 1) * tern_dtype_bytes(view->dtype);
}

int tern__host_open(tern__host *host, const tern__view *view, tern_error *err)
{
    *host = (tern__host){.view = *view, .bytes = reach_of(view)};
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
