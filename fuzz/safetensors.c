/* safetensors.c - fuzzes the reader of safetensors. An accepted file is written and read again, and must be
 * the same. */
#include "fuzz.h"

#include "checkpoint/safetensors.h"
#include "checkpoint/dtypes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void expect(bool fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

static tern_object *load(int fd, tern_error *err)
{
    struct stat status;
    expect(fstat(fd, &status) == 0, "fstat");
    tern__input in = {.path = "fuzz", .fd = fd, .size = status.st_size, .room = status.st_size + (16 << 20)};
    return tern__safetensors_load(&in, true, true, err);
}

/* Returns a tensor, or the bytes of a record of one. */
static const tern_tensor *tensor_of(const tern_object *object)
{
    tern__tensor_record record;
    return tern__tensor_record_read(&record, object) ? record.bytes : tern_object_to_tensor(object);
}

static bool is_equal(const tern_object *a, const tern_object *b)
{
    const tern_tensor *x = tensor_of(a), *y = tensor_of(b);
    if (!x || !y) return !x && !y;
    return x->view.dtype == y->view.dtype && tern__view_same_shape(&x->view, &y->view) &&
           memcmp(x->view.data, y->view.data, tern__view_bytes(&x->view)) == 0;
}

/* Compares by key, since the writer sorts the entries. */
static void compare(const tern_object *a, const tern_object *b)
{
    expect(tern_object_count(a) == tern_object_count(b), "another number of entries");
    for (int64_t i = 0; i < tern_object_count(a); i++) {
        const tern_object *key = tern_object_key(a, i);
        const char *name = tern_object_to_string(key);
        if (strlen(name) == (size_t)tern_object_count(key))
            expect(is_equal(tern_object_at(a, i), tern_object_get(b, name)), name);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_load(data, size, 0);
    tern_error err = {0};
    int fd = memfd_create("fuzz", MFD_CLOEXEC), again = memfd_create("fuzz", MFD_CLOEXEC);
    expect(write(fd, data, size) == (ssize_t)size, "write");
    tern_object *object = load(fd, &err);
    expect(!object == (err.code != TERN_OK), "an object and an error, or neither");
    if (object) {
        tern_object *copy = NULL;
        static char buffer[1 << 16];
        tern__output out = {.path = "fuzz", .fd = again, .buffer = buffer};
        if (!tern__safetensors_save(&out, object, &err)) tern__output_flush(&out, &err);
        copy = load(again, &err);
        expect(copy != NULL, err.text);
        compare(object, copy);
        tern_object_free(copy);
    }
    tern_object_free(object);
    close(fd);
    close(again);
    return 0;
}
