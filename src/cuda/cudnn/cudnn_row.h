/* cudnn_row.h - a sequence ("row") of cuDNN calls: after the first failure the others do nothing. cuDNN's
 * graphs are built from descriptors, which are created, given attributes, and finalized. */
#ifndef TERN_SRC_CUDA_CUDNN_CUDNN_ROW_H
#define TERN_SRC_CUDA_CUDNN_CUDNN_ROW_H

#include "cuda/runtime.h"

#include <cudnn.h>

typedef cudnnBackendDescriptor_t desc;

/* The target of plans: the device of a handle, or a described device. */
typedef struct place {
    cudnnHandle_t handle; /* NULL: described */
    desc device;          /* the description */
} place;

typedef struct row {
    const place *at;
    tern_error *err;
    cudnnStatus_t code;
    const char *what;
} row;

static inline row row_of(const place *at, tern_error *err)
{
    return {at, err, CUDNN_STATUS_SUCCESS, ""};
}

static inline bool went(row *r, cudnnStatus_t code, const char *what)
{
    r->code = code;
    r->what = what;
    return code == CUDNN_STATUS_SUCCESS;
}

static inline bool is_well(const row *r)
{
    return r->code == CUDNN_STATUS_SUCCESS;
}

static inline desc make(row *r, cudnnBackendDescriptorType_t type)
{
    desc made = nullptr;
    if (is_well(r)) went(r, cudnnBackendCreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
    return made;
}

static inline void set(row *r, desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t count, const void *values)
{
    if (is_well(r))
        went(r, cudnnBackendSetAttribute(d, name, type, count, values), "cudnnBackendSetAttribute");
}

/* Returns how many there are; gets at most `most` of them. */
static inline int64_t get(row *r, desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t most, void *values)
{
    int64_t count = 0;
    if (is_well(r))
        went(r, cudnnBackendGetAttribute(d, name, type, most, &count, values), "cudnnBackendGetAttribute");
    return is_well(r) ? count : 0;
}

static inline void set_desc(row *r, desc d, cudnnBackendAttributeName_t name, desc value)
{
    set(r, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static inline void set_int64(row *r, desc d, cudnnBackendAttributeName_t name, int64_t value)
{
    set(r, d, name, CUDNN_TYPE_INT64, 1, &value);
}

/* Sets the device: its handle, or its description under `name`. */
static inline void set_handle(row *r, desc d, cudnnBackendAttributeName_t name)
{
    if (r->at->handle) set(r, d, name, CUDNN_TYPE_HANDLE, 1, &r->at->handle);
}

static inline void set_device(row *r, desc d, cudnnBackendAttributeName_t name)
{
    if (!r->at->handle) set_desc(r, d, name, r->at->device);
}

static inline void finalize(row *r, desc d)
{
    if (is_well(r)) went(r, cudnnBackendFinalize(d), "cudnnBackendFinalize");
}

static inline void destroy(desc d)
{
    if (d) cudnnBackendDestroyDescriptor(d);
}

/* Returns the failure, with cuDNN's message. */
static inline int failure_of(const row *r)
{
    if (is_well(r)) return TERN_OK;
    bool is_memory = r->code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                     r->code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    int status = is_memory ? TERN_E_MEMORY : TERN_E_SYSTEM;
    char more[256] = "";
    cudnnGetLastErrorString(more, sizeof(more));
    tern__error_set(r->err, "conv", status, "%s: %s: %s", r->what, cudnnGetErrorString(r->code), more);
    if (r->err && !r->err->native) r->err->native = (int)r->code;
    return status;
}

/* The same, but E_UNSUPPORTED without a message if cuDNN just does not support the case. */
static inline int status_of(const row *r)
{
    bool has_none = CUDNN_STATUS_CATEGORY(r->code) == CUDNN_STATUS_NOT_SUPPORTED;
    return has_none ? TERN_E_UNSUPPORTED : failure_of(r);
}

#endif
