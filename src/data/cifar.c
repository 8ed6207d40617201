/* cifar.c - reads the binary version of CIFAR-10 and CIFAR-100. A record has one label (CIFAR-10) or a coarse
 * and a fine label (CIFAR-100), and then 32 x 32 pixels: a red plane, a green plane, a blue plane. */
#include <tern/image_data.h>

#include "base/file.h"
#include "base/opts.h"
#include "data/image_floats.h"

#include <fcntl.h>
#include <unistd.h>

static const char FUNC[] = "tern_cifar_open";

enum { SIDE = 32, PIXELS = SIDE * SIDE, VALUES = 3 * PIXELS, MAX_FILES = 5, COARSE = 20 };

typedef struct cifar {
    tern_dataset base;
    int64_t record; /* bytes */
    int label;      /* its offset in the record */
    uint8_t *data;  /* (length, record) */
} cifar;

tern_cifar_opts tern_cifar_defaults(void)
{
    return (tern_cifar_opts){.size = sizeof(tern_cifar_opts), .classes = 10};
}

static int cifar_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                     tern_error *err)
{
    (void)epoch;
    (void)err;
    const cifar *c = (const cifar *)base;
    const uint8_t *record = c->data + index * c->record;
    *(int64_t *)y = record[c->label];
    tern__image_floats(record + c->record - VALUES, 1, VALUES, x);
    return TERN_OK;
}

static void cifar_free(tern_dataset *base)
{
    tern__free(((cifar *)base)->data);
    tern__free(base);
}

/* ---- files ---- */

static int cifar_check_labels(const cifar *c, const char *path, int64_t from, int64_t to, tern_error *err)
{
    for (int64_t i = from; i < to; i++) {
        int label = c->data[i * c->record + c->label];
        if (label >= c->base.classes)
            return tern__error_set(err, FUNC, TERN_E_RANGE, "%s: record %lld has label %d, expected [0, %d]",
                                   path, (long long)(i - from), label, c->base.classes - 1);
    }
    return TERN_OK;
}

static int read_records(cifar *c, int fd, const char *path, int64_t bytes, tern_error *err)
{
    int64_t from = c->base.length;
    if (!bytes || bytes % c->record)
        return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s has %lld bytes, expected a multiple of %lld",
                               path, (long long)bytes, (long long)c->record);
    size_t was = (size_t)(from * c->record);
    uint8_t *data = tern__realloc_array(c->data, was, was + (size_t)bytes, FUNC, err);
    if (!data) return TERN_E_MEMORY;
    c->data = data;
    int status = tern__file_read(fd, path, 0, data + was, (size_t)bytes, FUNC, err);
    if (status) return status;
    c->base.length += bytes / c->record;
    return cifar_check_labels(c, path, from, c->base.length, err);
}

static int cifar_read_file(cifar *c, const char *path, tern_error *err)
{
    struct stat about;
    int fd = tern__file_open(path, O_RDONLY, 0, &about, FUNC, err);
    if (fd < 0) return TERN_E_IO;
    int status = read_records(c, fd, path, about.st_size, err);
    close(fd);
    return status;
}

static int add_file(cifar *c, const char *folder, const char *name, tern_error *err)
{
    char *path = tern__path_join(folder, name, FUNC, err);
    if (!path) return TERN_E_MEMORY;
    int status = cifar_read_file(c, path, err);
    tern__free(path);
    return status;
}

static int add_files(cifar *c, const char *folder, const tern_cifar_opts *o, tern_error *err)
{
    static const char *const train[MAX_FILES] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                                 "data_batch_4.bin", "data_batch_5.bin"};
    if (o->classes == 100) return add_file(c, folder, o->test ? "test.bin" : "train.bin", err);
    if (o->test) return add_file(c, folder, "test_batch.bin", err);
    int status = TERN_OK;
    for (int i = 0; i < MAX_FILES && !status; i++) status = add_file(c, folder, train[i], err);
    return status;
}

static int cifar_check_opts(const tern_cifar_opts *o, tern_error *err)
{
    if (o->classes != 10 && o->classes != 100)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "classes is %d, expected 10 or 100", o->classes);
    if (o->coarse && o->classes == 10)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "CIFAR-10 has no coarse labels");
    return TERN_OK;
}

tern_dataset *tern_cifar_open(const char *folder, const tern_cifar_opts *user, tern_error *err)
{
    tern_cifar_opts opts = tern_cifar_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err) ||
        cifar_check_opts(&opts, err) || tern__need(folder, "folder", FUNC, err))
        return NULL;
    cifar *c = tern__alloc(sizeof(*c), FUNC, err);
    if (!c) return NULL;
    int labels = opts.classes == 100 ? 2 : 1;
    *c = (cifar){.base = {.ndim = 3,
                          .shape = {3, SIDE, SIDE},
                          .classes = opts.coarse ? COARSE : opts.classes,
                          .get = cifar_get,
                          .free = cifar_free},
                 .record = labels + VALUES,
                 .label = opts.coarse ? 0 : labels - 1};
    if (!add_files(c, folder, &opts, err)) return &c->base;
    cifar_free(&c->base);
    return NULL;
}
