/* idx.c - reads the pair of IDX files of (Fashion-)MNIST: each has a big-endian header (magic, counts), then
 * bytes. */
#include <tern/data.h>

#include "base/opts.h"
#include "data/gzip_file.h"

static const char FUNC[] = "tern_idx_open";

enum { IMAGES_MAGIC = 0x803, LABELS_MAGIC = 0x801, MAX_HEADER = 16 };

/* The header is not trusted: memory grows with the data that the file really has. */
#define FIRST_READ ((size_t)64 << 20)

typedef struct idx_dataset {
    tern_dataset base;
    uint8_t *images;  /* (length, rows, columns) */
    uint8_t *labels;  /* (length)                */
    float value[256]; /* of each byte value      */
} idx_dataset;

typedef struct idx_file {
    const char *path;
    tern__gzip_file packed;
    uint32_t dim[3];
    uint8_t *data; /* product of dim */
} idx_file;

tern_idx_opts tern_idx_defaults(void)
{
    return (tern_idx_opts){.size = sizeof(tern_idx_opts), .classes = 10, .mean = 0.0f, .std = 1.0f};
}

/* ---- one file ---- */

static int truncated(const idx_file *file, const char *what, size_t expected, size_t got, tern_error *err)
{
    return tern__error_set(err, FUNC, TERN_E_IO, "%s is truncated: expected %zu bytes of %s, got %zu",
                           file->path, expected, what, got);
}

static uint32_t big_endian(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static int read_header(idx_file *file, uint32_t magic, int ndim, tern_error *err)
{
    uint8_t header[MAX_HEADER];
    size_t size = 4 * (size_t)(1 + ndim);
    int64_t got = tern__gzip_some(&file->packed, header, size, err);
    if (got < 0) return (int)got;
    if (got < (int64_t)size) return truncated(file, "header", size, (size_t)got, err);
    if (big_endian(header) != magic)
        return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: expected magic 0x%08x, got 0x%08x", file->path,
                               magic, big_endian(header));
    for (int i = 0; i < ndim; i++) file->dim[i] = big_endian(header + 4 * (i + 1));
    return TERN_OK;
}

static int data_bytes(const idx_file *file, int ndim, size_t *bytes, tern_error *err)
{
    *bytes = 1;
    for (int i = 0; i < ndim; i++)
        if (file->dim[i] == 0 || __builtin_mul_overflow(*bytes, (size_t)file->dim[i], bytes) ||
            *bytes > INT64_MAX)
            return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: its header claims %u x %u x %u elements",
                                   file->path, file->dim[0], file->dim[1], file->dim[2]);
    return TERN_OK;
}

static int read_data(idx_file *file, size_t bytes, tern_error *err)
{
    size_t got = 0, room = 0;
    while (got < bytes) {
        size_t grown = room ? TERN__MIN(2 * room, bytes) : TERN__MIN(FIRST_READ, bytes);
        uint8_t *data = tern__realloc_array(file->data, room, grown, FUNC, err);
        if (!data) return TERN_E_MEMORY;
        file->data = data;
        room = grown;
        int64_t n = tern__gzip_some(&file->packed, data + got, room - got, err);
        if (n < 0) return (int)n;
        got += (size_t)n;
        if (got < room) return truncated(file, "data", bytes, got, err);
    }
    return TERN_OK;
}

static int expect_end(const idx_file *file, size_t bytes, tern_error *err)
{
    int64_t extra;
    int status = tern__gzip_end(&file->packed, &extra, err);
    if (status || !extra) return status;
    return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: expected %zu bytes of data, got more", file->path,
                           bytes);
}

static int read_opened(idx_file *file, uint32_t magic, int ndim, tern_error *err)
{
    size_t bytes;
    int status = read_header(file, magic, ndim, err);
    if (!status) status = data_bytes(file, ndim, &bytes, err);
    if (!status) status = read_data(file, bytes, err);
    return status ? status : expect_end(file, bytes, err);
}

static int idx_read_file(idx_file *file, uint32_t magic, int ndim, tern_error *err)
{
    int status = tern__gzip_open(&file->packed, file->path, FUNC, err);
    if (!status) status = read_opened(file, magic, ndim, err);
    tern__gzip_close(&file->packed);
    return status;
}

/* ---- the pair ---- */

static int check_pair(const idx_file *images, const idx_file *labels, int classes, tern_error *err)
{
    if (images->dim[0] != labels->dim[0])
        return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s has %u images but %s has %u labels",
                               images->path, images->dim[0], labels->path, labels->dim[0]);
    for (uint32_t i = 0; classes > 0 && i < labels->dim[0]; i++)
        if (labels->data[i] >= classes)
            return tern__error_set(err, FUNC, TERN_E_RANGE, "%s: label %u is %u, expected [0, %d]",
                                   labels->path, i, labels->data[i], classes - 1);
    return TERN_OK;
}

static int idx_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y, tern_error *err)
{
    (void)epoch;
    const idx_dataset *dataset = (const idx_dataset *)base;
    if (index < 0 || index >= base->length)
        return tern__error_set(err, "tern_idx_get", TERN_E_RANGE, "index is %lld, expected [0, %lld]",
                               (long long)index, (long long)base->length - 1);
    size_t pixels = (size_t)(base->shape[1] * base->shape[2]);
    const uint8_t *image = dataset->images + (size_t)index * pixels;
    for (size_t i = 0; i < pixels; i++) x[i] = dataset->value[image[i]];
    *(int64_t *)y = dataset->labels[index];
    return TERN_OK;
}

static void idx_free(tern_dataset *base)
{
    idx_dataset *dataset = (idx_dataset *)base;
    tern__free(dataset->images);
    tern__free(dataset->labels);
    tern__free(dataset);
}

static idx_dataset *idx_new(const idx_file *images, const idx_file *labels, const tern_idx_opts *opts,
                            tern_error *err)
{
    idx_dataset *dataset = tern__alloc(sizeof(*dataset), FUNC, err);
    if (!dataset) return NULL;
    dataset->base = (tern_dataset){.length = images->dim[0],
                                   .ndim = 3,
                                   .shape = {1, images->dim[1], images->dim[2]},
                                   .classes = opts->classes,
                                   .get = idx_get,
                                   .free = idx_free};
    dataset->images = images->data;
    dataset->labels = labels->data;
    for (int i = 0; i < 256; i++) dataset->value[i] = ((float)i / 255.0f - opts->mean) / opts->std;
    return dataset;
}

tern_dataset *tern_idx_open(const char *images, const char *labels, const tern_idx_opts *user,
                            tern_error *err)
{
    tern_idx_opts opts = tern_idx_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err)) return NULL;
    if (opts.classes < 0 || !(opts.std > 0.0f)) {
        tern__error_set(err, FUNC, TERN_E_INVALID,
                        "classes is %d and std %g, expected at least 0 and more than 0", opts.classes,
                        (double)opts.std);
        return NULL;
    }
    if (tern__need(images, "path of the images", FUNC, err) ||
        tern__need(labels, "path of the labels", FUNC, err))
        return NULL;
    idx_file image_file = {.path = images}, label_file = {.path = labels};
    idx_dataset *dataset = NULL;
    if (!idx_read_file(&image_file, IMAGES_MAGIC, 3, err) &&
        !idx_read_file(&label_file, LABELS_MAGIC, 1, err) &&
        !check_pair(&image_file, &label_file, opts.classes, err))
        dataset = idx_new(&image_file, &label_file, &opts, err);
    if (dataset) return &dataset->base;
    tern__free(image_file.data);
    tern__free(label_file.data);
    return NULL;
}
