/* npy.c - loads and saves NumPy's .npy files: a header (npy_header.c), and the elements. */
#include "data/volume/npy.h"

#include "base/base.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

static const char LOAD[] = TERN__NPY_LOAD, SAVE[] = "tern_npy_save";

enum { CHUNK = 1 << 14 /* elements */, HEADER_ROOM = 512 /* for six dimensions */ };

/* ---- dtype and size ---- */

static int npy_dtype_of(const tern__gzip_file *file, const tern__npy_array *a, tern_dtype *dtype,
                        tern_error *err)
{
    static const struct {
        char kind;
        int bytes;
        tern_dtype dtype;
    } known[] = {{'f', 4, TERN_F32}, {'f', 8, TERN_F64}, {'f', 2, TERN_F16}, {'i', 8, TERN_I64},
                 {'i', 4, TERN_I32}, {'i', 2, TERN_I32}, {'u', 2, TERN_I32}, {'i', 1, TERN_I32},
                 {'u', 1, TERN_U8},  {'b', 1, TERN_BOOL}};
    for (size_t i = 0; i < TERN__COUNT(known); i++)
        if (known[i].kind == a->kind && known[i].bytes == a->bytes) {
            *dtype = known[i].dtype;
            return TERN_OK;
        }
    return tern__error_set(err, LOAD, TERN_E_UNSUPPORTED, "%s: tern cannot read elements of dtype %c%d",
                           file->path, a->kind, a->bytes);
}

/* Checks that the file can hold all elements, so that a damaged header allocates nothing. */
static int npy_check_size(const tern__gzip_file *file, tern__npy_array *a, int64_t header_bytes,
                          tern_error *err)
{
    int64_t bytes = a->bytes;
    a->count = 1;
    for (int d = 0; d < a->ndim; d++) {
        if (a->shape[d] < 1)
            return tern__error_set(err, LOAD, TERN_E_SHAPE, "%s: dimension %d is %lld", file->path, d,
                                   (long long)a->shape[d]);
        if (__builtin_mul_overflow(bytes, a->shape[d], &bytes) || bytes > file->most - header_bytes)
            return tern__error_set(err, LOAD, TERN_E_IO,
                                   "%s is truncated: its header claims more data than its %lld bytes",
                                   file->path, (long long)file->most);
        a->count *= a->shape[d];
    }
    return TERN_OK;
}

/* ---- elements ---- */

static void swap_bytes(uint8_t *data, size_t count, int bytes)
{
    for (size_t i = 0; i < count; i++, data += bytes)
        for (int b = 0; b < bytes / 2; b++) {
            uint8_t kept = data[b];
            data[b] = data[bytes - 1 - b];
            data[bytes - 1 - b] = kept;
        }
}

static int32_t npy_widened(const tern__npy_array *a, const uint8_t *element)
{
    int16_t i16;
    uint16_t u16;
    memcpy(&i16, element, a->bytes == 2 ? 2 : 0);
    memcpy(&u16, element, a->bytes == 2 ? 2 : 0);
    if (a->bytes == 1) return (int8_t)element[0];
    return a->kind == 'u' ? u16 : i16;
}

/* Reads i1, i2 and u2 as i32, which holds all of them. */
static int read_widened(const tern__gzip_file *file, const tern__npy_array *a, int32_t *out, tern_error *err)
{
    uint8_t chunk[2 * CHUNK];
    for (int64_t done = 0; done < a->count;) {
        size_t some = (size_t)TERN__MIN(a->count - done, (int64_t)CHUNK);
        int status = tern__gzip_read(file, chunk, some * (size_t)a->bytes, err);
        if (status) return status;
        if (a->swapped) swap_bytes(chunk, some, a->bytes);
        for (size_t i = 0; i < some; i++) *out++ = npy_widened(a, chunk + i * (size_t)a->bytes);
        done += (int64_t)some;
    }
    return TERN_OK;
}

static int read_elements(const tern__gzip_file *file, const tern__npy_array *a, tern_tensor *tensor,
                         tern_error *err)
{
    void *data = tensor->view.data;
    if (tern_dtype_bytes(tensor->view.dtype) != (size_t)a->bytes) return read_widened(file, a, data, err);
    int status = tern__gzip_read(file, data, (size_t)a->count * (size_t)a->bytes, err);
    if (!status && a->swapped && a->bytes > 1) swap_bytes(data, (size_t)a->count, a->bytes);
    for (int64_t i = 0; !status && a->kind == 'b' && i < a->count; i++)
        ((uint8_t *)data)[i] = ((uint8_t *)data)[i] != 0;
    return status;
}

static int expect_end(const tern__gzip_file *file, tern_error *err)
{
    int64_t extra;
    int status = tern__gzip_end(file, &extra, err);
    if (status || !extra) return status;
    return tern__error_set(err, LOAD, TERN_E_FORMAT, "%s: %lld bytes follow the array", file->path,
                           (long long)extra);
}

/* In Fortran order the first dimension is the fastest: makes a row-major copy of the memory, seen with
 * reversed strides. */
static tern_tensor *from_fortran(tern_tensor *stored, const tern__npy_array *a, tern_error *err)
{
    int64_t stride[TERN_NDIM_MAX], step = 1;
    for (int d = 0; d < a->ndim; d++) {
        stride[d] = step;
        step *= a->shape[d];
    }
    tern_tensor *turned = tern__tensor_over(stored->storage, stored->view.data, stored->view.dtype, a->ndim,
                                            a->shape, stride, LOAD, err);
    tern_tensor *copy = turned ? tern_keep(turned, err) : NULL;
    tern_tensor_free(turned);
    tern_tensor_free(stored);
    return copy;
}

static tern_tensor *read_array(const tern__gzip_file *file, tern_error *err)
{
    tern__npy_array a = {0};
    int64_t header_bytes;
    tern_dtype dtype = TERN_F32;
    if (tern__npy_header_read(file, &a, &header_bytes, err) || npy_dtype_of(file, &a, &dtype, err) ||
        npy_check_size(file, &a, header_bytes, err))
        return NULL;
    tern_tensor *tensor = tern__tensor_new(dtype, a.ndim, a.shape, err);
    if (!tensor) return NULL;
    if (read_elements(file, &a, tensor, err) || expect_end(file, err)) {
        tern_tensor_free(tensor);
        return NULL;
    }
    return a.fortran && a.ndim > 1 ? from_fortran(tensor, &a, err) : tensor;
}

tern_tensor *tern_npy_load(const char *path, tern_error *err)
{
    tern__gzip_file file;
    if (tern__is_set(err) || tern__need(path, "path", LOAD, err) || tern__gzip_open(&file, path, LOAD, err))
        return NULL;
    tern_tensor *tensor = read_array(&file, err);
    tern__gzip_close(&file);
    return tensor;
}

/* ---- writing ---- */

/* Writes magic, version 1, length and dictionary, padded with spaces to a multiple of 64 bytes. */
static size_t make_header(const tern__view *view, const char *descr, char out[HEADER_ROOM])
{
    int n = snprintf(out + 10, HEADER_ROOM - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int d = 0; d < view->ndim; d++)
        n += snprintf(out + 10 + n, (size_t)(HEADER_ROOM - 10 - n), "%lld,%s", (long long)view->shape[d],
                      d + 1 < view->ndim ? " " : "");
    n += snprintf(out + 10 + n, (size_t)(HEADER_ROOM - 10 - n), "), }");
    size_t total = tern__align_up((size_t)n + 11, 64);
    memset(out + 10 + n, ' ', total - 11 - (size_t)n);
    out[total - 1] = '\n';
    memcpy(out, "\x93NUMPY\x01", 8);
    out[8] = (char)((total - 10) & 255);
    out[9] = (char)((total - 10) >> 8);
    return total;
}

static int write_array(const char *path, const tern_tensor *tensor, const char *descr, tern_error *err)
{
    tern__gzip_file file;
    char header[HEADER_ROOM];
    size_t header_bytes = make_header(&tensor->view, descr, header);
    int status = tern__gzip_create(&file, path, SAVE, err);
    if (status) return status;
    status = tern__gzip_write(&file, header, header_bytes, err);
    if (!status) status = tern__gzip_write(&file, tensor->view.data, tern__view_bytes(&tensor->view), err);
    return tern__gzip_finish(&file, status, err);
}

int tern_npy_save(const char *path, const tern_tensor *tensor, tern_error *err)
{
    static const char *const descr[TERN_DTYPE_COUNT] = {
        [TERN_F32] = "<f4", [TERN_F64] = "<f8",  [TERN_F16] = "<f2", [TERN_I64] = "<i8", [TERN_I32] = "<i4",
        [TERN_U8] = "|u1",  [TERN_BOOL] = "|b1", [TERN_I8] = "|i1",  [TERN_I16] = "<i2"};
    tern_error own = {0};
    if (!err) err = &own;
    if (err->code || tern__need(path, "path", SAVE, err) || tern__tensor_check(tensor, SAVE, err))
        return err->code;
    if (!descr[tensor->view.dtype])
        return tern__error_set(err, SAVE, TERN_E_UNSUPPORTED, "%s: NumPy has no dtype %s", path,
                               tern_dtype_name(tensor->view.dtype));
    if (tern__view_is_contiguous(&tensor->view) && !tern__memory_device(tensor->view.data))
        return write_array(path, tensor, descr[tensor->view.dtype], err);
    tern_tensor *plain = tern_keep(tensor, err);
    if (plain) write_array(path, plain, descr[tensor->view.dtype], err);
    tern_tensor_free(plain);
    return err->code;
}
