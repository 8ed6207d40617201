/* token_dataset.c - a dataset of the windows of tokens, in a file or in memory. A sample of a file is read
 * when it is asked for: T + 1 ids in one pread, whose pages all ranks of a host share in the kernel's cache.
 */
#include "base/file.h"
#include "base/opts.h"
#include "data/scratch_pool.h"
#include "data/token_file.h"
#include "data/volume/npy.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include <tern/token_data.h>

#define FUNC "tern_token_dataset_open"
#define MOST (INT64_C(1) << 40) /* tokens of a window or a stride */

typedef struct token_dataset {
    tern_dataset base;
    int fd;     /* -1: the ids are in memory */
    char *path; /* for errors                */
    int32_t *memory;
    int64_t start, count; /* of the first id, in bytes; ids */
    int bytes;            /* of an id                       */
    bool is_signed;
    tern_token_dataset_opts opts;
    tern__scratch_pool pool;
} token_dataset;

typedef struct token_scratch {
    tern__scratch_entry entry;
    char *ids; /* of a window */
} token_scratch;

/* ---- samples ---- */

static int64_t id_at(const token_dataset *d, const char *from, int64_t i)
{
    uint16_t narrow;
    uint32_t wide;
    int64_t widest;
    if (d->bytes == 2) return memcpy(&narrow, from + 2 * i, 2), narrow;
    if (d->bytes == 8) return memcpy(&widest, from + 8 * i, 8), widest;
    memcpy(&wide, from + 4 * i, 4);
    return d->is_signed ? (int64_t)(int32_t)wide : (int64_t)wide;
}

/* Ids of i32 must fit, whatever the file has. */
static int window_convert(const token_dataset *d, const char *from, int64_t first, void *x, void *y,
                          tern_error *err)
{
    int64_t window = d->opts.window, most = d->opts.dtype == TERN_I32 ? INT64_C(1) << 31 : INT64_MAX;
    if (d->opts.vocab_size) most = TERN__MIN(most, d->opts.vocab_size);
    for (int64_t i = 0; i <= window; i++) {
        int64_t id = id_at(d, from, i);
        if (id < 0 || id >= most)
            return tern__error_set(err, "tern_token_dataset", TERN_E_RANGE,
                                   "%s: token %lld is %lld, expected 0 to %lld", d->path,
                                   (long long)(first + i), (long long)id, (long long)most - 1);
        if (d->opts.dtype == TERN_I32) {
            if (i < window) ((int32_t *)x)[i] = (int32_t)id;
            if (i) ((int32_t *)y)[i - 1] = (int32_t)id;
        } else {
            if (i < window) ((int64_t *)x)[i] = id;
            if (i) ((int64_t *)y)[i - 1] = id;
        }
    }
    return TERN_OK;
}

/* Returns where the windows of an epoch begin. Over the epochs, the places are spread evenly over a stride:
 * each is the fraction of epoch times the golden ratio. */
static int64_t epoch_shift(const token_dataset *d, int64_t epoch)
{
    double turns = (double)epoch * 0.6180339887498949;
    return d->opts.shift ? (int64_t)((turns - floor(turns)) * (double)d->opts.stride) : 0;
}

static int tokens_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                      tern_error *err)
{
    const token_dataset *d = (const token_dataset *)base;
    tern__scratch_pool *pool = (tern__scratch_pool *)&d->pool;
    size_t bytes = (size_t)(d->opts.window + 1) * (size_t)d->bytes;
    int64_t first = index * d->opts.stride + epoch_shift(d, epoch);
    if (d->memory) return window_convert(d, (const char *)(d->memory + first), first, x, y, err);
    token_scratch *s = tern__scratch_pool_take(pool, sizeof(*s), FUNC, err);
    if (!s) return TERN_E_MEMORY;
    if (!s->ids) s->ids = tern__alloc(bytes, FUNC, err);
    int status = s->ids ? tern__file_read(d->fd, d->path, d->start + first * d->bytes, s->ids, bytes,
                                          "tern_token_dataset", err)
                        : TERN_E_MEMORY;
    if (!status) status = window_convert(d, s->ids, first, x, y, err);
    tern__scratch_pool_give(pool, s);
    return status;
}

static void tokens_free(tern_dataset *base)
{
    token_dataset *d = (token_dataset *)base;
    for (token_scratch *s; (s = tern__scratch_pool_close(&d->pool));) {
        tern__free(s->ids);
        tern__free(s);
    }
    if (d->fd >= 0) close(d->fd);
    tern__free(d->memory);
    tern__free(d->path);
    tern__free(d);
}

/* ---- headers ---- */

static int npy_read(token_dataset *d, tern_error *err)
{
    tern__gzip_file file;
    tern__npy_array array = {0};
    tern_error why = {0};
    if (!tern__gzip_open(&file, d->path, FUNC, &why)) {
        tern__npy_header_read(&file, &array, &d->start, &why);
        tern__gzip_close(&file);
    }
    if (why.code) return tern__error_set(err, FUNC, why.code, "%s", why.text);
    bool is_id = (array.kind == 'u' && (array.bytes == 2 || array.bytes == 4)) ||
                 (array.kind == 'i' && (array.bytes == 4 || array.bytes == 8));
    if (!is_id || array.swapped || array.ndim != 1)
        return tern__error_set(
            err, FUNC, TERN_E_FORMAT, "%s has %d dimensions of %c%d%s, expected one of u2, u4, i4 or i8",
            d->path, array.ndim, array.kind, array.bytes, array.swapped ? " with swapped bytes" : "");
    d->bytes = array.bytes;
    d->is_signed = array.kind == 'i';
    d->count = array.shape[0];
    return TERN_OK;
}

static int bin_read(token_dataset *d, int64_t size, tern_error *err)
{
    int32_t words[3] = {0, 0, 0};
    bool has_header = size >= TERN__TOKEN_HEADER;
    if (has_header && tern__file_read(d->fd, d->path, 0, words, sizeof(words), FUNC, err)) return TERN_E_IO;
    bool is_u16 = words[0] == TERN__TOKEN_U16 && words[1] == 1,
         is_u32 = words[0] == TERN__TOKEN_U32 && words[1] == 7;
    if (!is_u16 && !is_u32)
        return tern__error_set(err, FUNC, TERN_E_FORMAT,
                               "%s: its header is not llm.c's: magic and version %d and %d, expected %d and "
                               "1 or %d and 7; a file of u16 "
                               "without a header needs `raw`",
                               d->path, words[0], words[1], TERN__TOKEN_U16, TERN__TOKEN_U32);
    d->start = TERN__TOKEN_HEADER;
    d->bytes = is_u16 ? 2 : 4;
    d->count = words[2];
    return TERN_OK;
}

static int file_read(token_dataset *d, tern_error *err)
{
    struct stat about;
    d->fd = tern__file_open(d->path, O_RDONLY, 0, &about, FUNC, err);
    if (d->fd < 0) return TERN_E_IO;
    int64_t size = about.st_size;
    int status = TERN_OK;
    if (d->opts.raw) {
        d->bytes = 2;
        d->count = size / 2;
    } else
        status = tern__token_path_is_npy(d->path) ? npy_read(d, err) : bin_read(d, size, err);
    if (status) return status;
    if (d->count < 0 || d->count > (INT64_MAX - d->start) / d->bytes ||
        d->start + d->count * d->bytes != size)
        return tern__error_set(
            err, FUNC, TERN_E_IO,
            "%s has %lld bytes, but %lld tokens of %d bytes were expected: it is not finished, or damaged",
            d->path, (long long)size, (long long)d->count, d->bytes);
    return TERN_OK;
}

/* ---- opening ---- */

tern_token_dataset_opts tern_token_dataset_defaults(void)
{
    return (tern_token_dataset_opts){
        .size = sizeof(tern_token_dataset_opts), .window = 1024, .dtype = TERN_I64};
}

static int opts_check(tern_token_dataset_opts *o, const char *func, tern_error *err)
{
    if (!o->stride) o->stride = o->window;
    if (o->window < 1 || o->window > MOST || o->stride < 1 || o->stride > MOST || o->vocab_size < 0)
        return tern__error_set(err, func, TERN_E_RANGE, "window %lld, stride %lld, vocab_size %lld",
                               (long long)o->window, (long long)o->stride, (long long)o->vocab_size);
    if (o->dtype != TERN_I64 && o->dtype != TERN_I32)
        return tern__error_set(err, func, TERN_E_DTYPE, "dtype %s, expected i64 or i32",
                               tern_dtype_name(o->dtype));
    return TERN_OK;
}

/* Returns a dataset without ids, that of `from`, a path or a word for errors. */
static token_dataset *dataset_new(const char *from, const tern_token_dataset_opts *opts, const char *func,
                                  tern_error *err)
{
    tern_token_dataset_opts own = tern_token_dataset_defaults();
    if (tern__opts_read(&own, sizeof(own), opts, func, err) || opts_check(&own, func, err)) return NULL;
    token_dataset *d = tern__alloc(sizeof(*d), func, err);
    if (!d) return NULL;
    *d = (token_dataset){
        .fd = -1, .opts = own, .path = tern__strdup(from, func, err), .pool = TERN__SCRATCH_POOL_INITIALIZER};
    if (d->path) return d;
    tokens_free(&d->base);
    return NULL;
}

/* Every epoch has as many windows as the one that begins last. */
static tern_dataset *dataset_finish(token_dataset *d, const char *func, tern_error *err)
{
    const tern_token_dataset_opts *o = &d->opts;
    int64_t least = o->window + (o->shift ? o->stride : 1);
    if (d->count < least) {
        tern__error_set(err, func, TERN_E_RANGE, "%s has %lld tokens, expected at least %lld: %s", d->path,
                        (long long)d->count, (long long)least,
                        o->shift ? "a window and a stride" : "a window and the token after it");
        tokens_free(&d->base);
        return NULL;
    }
    d->base = (tern_dataset){.length = (d->count - least) / o->stride + 1,
                             .ndim = 1,
                             .shape = {o->window},
                             .target_ndim = 1,
                             .target_shape = {o->window},
                             .target_dtype = o->dtype,
                             .get = tokens_get,
                             .free = tokens_free,
                             .dtype = o->dtype};
    return &d->base;
}

tern_dataset *tern_token_dataset_open(const char *path, const tern_token_dataset_opts *opts, tern_error *err)
{
    if (tern__is_set(err) || tern__need(path, "path", FUNC, err)) return NULL;
    token_dataset *d = dataset_new(path, opts, FUNC, err);
    if (!d) return NULL;
    if (!file_read(d, err)) return dataset_finish(d, FUNC, err);
    tokens_free(&d->base);
    return NULL;
}

tern_dataset *tern_token_dataset_new(const int32_t *ids, int64_t count, const tern_token_dataset_opts *opts,
                                     tern_error *err)
{
    if (tern__is_set(err) || tern__need(ids, "ids", __func__, err)) return NULL;
    token_dataset *d = dataset_new("the text", opts, __func__, err);
    if (!d) return NULL;
    d->count = TERN__MAX(count, 0);
    d->bytes = sizeof(*ids);
    d->is_signed = true;
    d->memory = tern__alloc((size_t)d->count * sizeof(*ids) + 1, __func__, err);
    if (!d->memory) {
        tokens_free(&d->base);
        return NULL;
    }
    memcpy(d->memory, ids, (size_t)d->count * sizeof(*ids));
    return dataset_finish(d, __func__, err);
}

int64_t tern_token_dataset_tokens(const tern_dataset *dataset)
{
    bool is_one = dataset && dataset->get == tokens_get;
    return is_one ? ((const token_dataset *)dataset)->count : 0;
}
