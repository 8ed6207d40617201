/* torch_save.c - writes a nested object as torch.save does. First all tensors are collected, with their paths
 * for errors. Tensors of one dtype that overlap, such as tied weights or views, become one storage, which
 * covers their memory. So no tensor is copied, whatever its strides, and tensors that share memory share it
 * again after loading. */
#include "base/text.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/torch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char FUNC[] = "tern_save";

enum { DEEPEST = 500 };

typedef struct found {
    const tern_tensor *tensor; /* of a record: its bytes, without gaps */
    const tern__file_dtype *dtype;
    tern_tensor *copy;       /* the same tensor, if it was made to be without gaps */
    int64_t order;           /* in the walk */
    const char *begin, *end; /* the memory that its elements cover */
    int64_t storage;
} found;

typedef struct storage {
    const char *begin, *end;
    const tern__file_dtype *dtype;
    int64_t order; /* of its first tensor */
} storage;

typedef struct saving {
    const char *file;
    found *tensors;
    int64_t count;
    size_t room;
    storage *storages;
    int64_t storage_count;
    tern__pickle_place *places;
    tern_error *err;
} saving;

/* ---- the walk ---- */

static int torch_save_refuse(const saving *s, const tern__object_place *place, int code, const char *why)
{
    char where[TERN__PLACE_TEXT];
    return tern__error_set(s->err, FUNC, code, "%s: %s %s", s->file, tern__object_place_text(place, where),
                           why);
}

static void cover(found *f)
{
    const tern__view *view = &f->tensor->view;
    int64_t last = 0;
    for (int d = 0; d < view->ndim; d++) last += (view->shape[d] - 1) * view->stride[d];
    bool is_empty = tern__view_count(view) == 0;
    f->begin = view->data;
    f->end = f->begin + (is_empty ? 0 : (size_t)(last + 1) * tern_dtype_bytes(view->dtype));
}

static int add_tensor(saving *s, const tern_tensor *tensor, const tern__file_dtype *dtype, tern_tensor *copy)
{
    if (tern__array_reserve(&s->tensors, &s->room, s->count + 1, sizeof(*s->tensors), FUNC, s->err)) {
        tern_tensor_free(copy);
        return TERN_E_MEMORY;
    }
    s->tensors[s->count] = (found){.tensor = tensor, .dtype = dtype, .copy = copy, .order = s->count};
    cover(&s->tensors[s->count++]);
    return TERN_OK;
}

/* A record that stands for a tensor is written with its dtype, row-major. */
static int add_record(saving *s, const tern_object *record, const tern__object_place *place)
{
    char why[96];
    tern__tensor_record tensor;
    if (!tern__tensor_record_read(&tensor, record))
        return torch_save_refuse(s, place, TERN_E_UNSUPPORTED,
                                 "is a record, an instance of a class: tern_save saves data only");
    snprintf(why, sizeof(why), "has %s, a dtype that PyTorch does not have", tensor.dtype->name);
    if (!tensor.dtype->torch) return torch_save_refuse(s, place, TERN_E_UNSUPPORTED, why);
    if (tern__view_is_contiguous(&tensor.bytes->view)) return add_tensor(s, tensor.bytes, tensor.dtype, NULL);
    tern_tensor *copy = tern_keep(tensor.bytes, s->err);
    return copy ? add_tensor(s, copy, tensor.dtype, copy) : TERN_E_MEMORY;
}

static int torch_save_walk(saving *s, const tern_object *object, const tern__object_place *place, int depth)
{
    tern_object_kind kind = tern_object_kind_get(object);
    const tern_tensor *tensor = tern_object_to_tensor(object);
    if (tensor) return add_tensor(s, tensor, tern__file_dtype_of(tensor->view.dtype), NULL);
    if (kind == TERN_OBJECT_RECORD) return add_record(s, object, place);
    int64_t count = tern__object_child_count(object);
    if (count && depth == DEEPEST)
        return torch_save_refuse(s, place, TERN_E_RANGE, "is nested more than 500 deep");
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < count; i++)
        status = torch_save_walk(s, tern__object_child(object, i), &(tern__object_place){place, object, i},
                                 depth + 1);
    return status;
}

/* ---- storages ---- */

static int by_place(const void *a, const void *b)
{
    const found *x = a, *y = b;
    if (x->dtype != y->dtype) return x->dtype < y->dtype ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static int by_order(const void *a, const void *b)
{
    const storage *x = a, *y = b;
    return x->order < y->order ? -1 : 1;
}

static void torch_save_join(saving *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        found *f = &s->tensors[i];
        storage *last = s->storage_count ? &s->storages[s->storage_count - 1] : NULL;
        bool overlaps = last && last->dtype == f->dtype && f->begin < last->end && f->begin < f->end;
        if (overlaps) overlaps = (f->begin - last->begin) % (f->dtype->bits / 8) == 0;
        if (!overlaps) {
            last = &s->storages[s->storage_count++];
            *last = (storage){f->begin, f->end, f->dtype, f->order};
        }
        last->end = TERN__MAX(last->end, f->end);
        last->order = TERN__MIN(last->order, f->order);
        f->storage = s->storage_count - 1;
    }
}

/* Numbers the storages in the order of their first tensors, as PyTorch does. `numbers` is scratch memory. */
static void torch_save_place(saving *s, int64_t *numbers)
{
    for (int64_t i = 0; i < s->count; i++) {
        const found *f = &s->tensors[i];
        const storage *in = &s->storages[f->storage];
        int64_t bytes = in->dtype->bits / 8, element = in->dtype->storage ? bytes : 1;
        s->places[f->order] =
            (tern__pickle_place){in->order, (in->end - in->begin) / element, (f->begin - in->begin) / bytes};
    }
    qsort(s->storages, (size_t)s->storage_count, sizeof(*s->storages), by_order);
    for (int64_t i = 0; i < s->storage_count; i++) numbers[s->storages[i].order] = i;
    for (int64_t i = 0; i < s->count; i++) s->places[i].number = numbers[s->places[i].number];
}

static int torch_save_share(saving *s)
{
    size_t count = (size_t)s->count;
    s->storages = tern__alloc(count * sizeof(*s->storages), FUNC, s->err);
    s->places = tern__alloc(count * sizeof(*s->places), FUNC, s->err);
    int64_t *numbers = tern__alloc(count * sizeof(*numbers), FUNC, s->err);
    int status = s->storages && s->places && numbers ? TERN_OK : TERN_E_MEMORY;
    if (!status && count) {
        qsort(s->tensors, count, sizeof(*s->tensors), by_place);
        torch_save_join(s);
        torch_save_place(s, numbers);
    }
    tern__free(numbers);
    return status;
}

/* ---- the file ---- */

/* Sets the entries' folder: the file's name without its suffix, such as "resnet/"; "archive/" if that is not
 * UTF-8. */
static void prefix_of(const char *path, char out[272])
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    size_t bytes = dot && dot > name ? (size_t)(dot - name) : strlen(name);
    if (bytes == 0 || bytes > 255 || tern__utf8_check(name, bytes) >= 0) name = "archive", bytes = 7;
    snprintf(out, 272, "%.*s/", (int)bytes, name);
}

static int write_entries(saving *s, tern__zip_writer *zip, const tern__pickle *pickle)
{
    int status = tern__zip_add(zip, "data.pkl", pickle->data, pickle->bytes, s->err);
    if (!status) status = tern__zip_add(zip, "byteorder", "little", 6, s->err);
    for (int64_t i = 0; !status && i < s->storage_count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "data/%lld", (long long)i);
        const storage *one = &s->storages[i];
        status = tern__zip_add(zip, name, one->begin, (size_t)(one->end - one->begin), s->err);
    }
    return status ? status : tern__zip_add(zip, "version", "3\n", 2, s->err);
}

static int torch_save_write_file(saving *s, tern__output *out, const tern_object *object)
{
    char prefix[272];
    tern__pickle pickle = {0};
    tern__zip_writer zip = {.out = out, .prefix = prefix};
    prefix_of(out->path, prefix);
    int status = tern__pickle_write(&pickle, object, s->places, s->err);
    if (!status) status = write_entries(s, &zip, &pickle);
    tern__free(pickle.data);
    return tern__zip_end(&zip, status, s->err);
}

int tern__torch_save(tern__output *out, const tern_object *object, tern_error *err)
{
    saving *s = tern__alloc(sizeof(*s), FUNC, err);
    if (!s) return TERN_E_MEMORY;
    s->file = out->path;
    s->err = err;
    int status = torch_save_walk(s, object, NULL, 0);
    if (!status) status = torch_save_share(s);
    if (!status) status = torch_save_write_file(s, out, object);
    for (int64_t i = 0; i < s->count; i++) tern_tensor_free(s->tensors[i].copy);
    tern__free(s->tensors);
    tern__free(s->storages);
    tern__free(s->places);
    tern__free(s);
    return status;
}
