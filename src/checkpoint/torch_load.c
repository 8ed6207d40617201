/* torch_load.c - loads an archive of torch.save: data.pkl has the object, data/0, data/1 .. its storages,
 * `byteorder` and `version` the byte order and the format's version. */
#include "base/text.h"
#include "checkpoint/torch.h"

#include <stdlib.h>
#include <string.h>

static const char FUNC[] = "tern_load";

enum { NEWEST = 10 }; /* PyTorch's own kMaxSupportedFileFormatVersion */

static int torch_refuse(const tern__zip *zip, int code, const char *what, tern_error *err)
{
    return tern__error_set(err, FUNC, code, "%s: %s", zip->in->path, what);
}

/* Reads a small entry as text; "" if there is none. */
static int read_small(const tern__zip *zip, const char *name, char out[16], tern_error *err)
{
    tern__zip_entry *entry = tern__zip_find(zip, name);
    memset(out, 0, 16);
    if (!entry) return TERN_OK;
    if (entry->bytes < 16) return tern__zip_read(zip, entry, out, err);
    return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: \"%s\" has %lld bytes, expected a word",
                           zip->in->path, name, (long long)entry->bytes);
}

static int torch_check_version(const tern__zip *zip, tern_error *err)
{
    char text[16], *end;
    int status = read_small(zip, "version", text, err);
    if (!status && !*text) status = read_small(zip, ".data/version", text, err);
    if (status) return status;
    long version = strtol(text, &end, 10);
    if (version < 1 || (*end && *end != '\n'))
        return torch_refuse(zip, TERN_E_FORMAT, "it has no version: not a torch.save file", err);
    if (version <= NEWEST) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                           "%s: its format version is %ld, tern supports up to %d", zip->in->path, version,
                           NEWEST);
}

static int check_byteorder(const tern__zip *zip, tern_error *err)
{
    char text[16];
    int status = read_small(zip, "byteorder", text, err);
    if (status || !*text || strcmp(text, "little") == 0) return status;
    bool is_big = strcmp(text, "big") == 0;
    return torch_refuse(zip, is_big ? TERN_E_UNSUPPORTED : TERN_E_FORMAT,
                        is_big ? "written on a big-endian machine" : "byteorder is neither little nor big",
                        err);
}

/* The storages that the object names; their bytes are read once all are known. */
typedef struct loading {
    tern__zip *zip;
    tern__zip_read_to *reads;
    tern__storage **storages; /* parallel to reads: a reference each */
    const tern__file_dtype **dtypes;
    int64_t count;
} loading;

static tern__zip_entry *find_storage(const tern__zip *zip, const char *key, int64_t bytes, tern_error *err)
{
    char name[256], quote[TERN__QUOTE_TEXT];
    bool is_whole = snprintf(name, sizeof(name), "data/%s", key) < (int)sizeof(name);
    tern__zip_entry *entry = is_whole ? tern__zip_find(zip, name) : NULL;
    if (entry && entry->bytes == bytes) return entry;
    tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: storage %s has %lld bytes, expected %lld", zip->in->path,
                    tern__quote(name, strlen(name), quote), (long long)(entry ? entry->bytes : -1),
                    (long long)bytes);
    return NULL;
}

/* Each key is asked for once and has its own entry, so the arrays have a place for each. */
static tern__storage *load_storage(void *ctx, const char *key, const tern__file_dtype *dtype, int64_t bytes,
                                   tern_error *err)
{
    loading *l = ctx;
    tern__zip_entry *entry = find_storage(l->zip, key, bytes, err);
    if (!entry || tern__input_charge(l->zip->in, bytes, err)) return NULL;
    tern__storage *storage = tern__storage_new((size_t)bytes, FUNC, err);
    if (!storage) return NULL;
    l->reads[l->count] = (tern__zip_read_to){entry, storage->data};
    l->dtypes[l->count] = dtype;
    l->storages[l->count++] = tern__storage_hold(storage);
    return storage;
}

int tern__bools_check(const tern__input *in, const void *data, int64_t bytes, tern_error *err)
{
    const uint8_t *values = data;
    for (int64_t i = 0; i < bytes; i++)
        if (values[i] > 1)
            return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: a bool is %d, expected 0 or 1", in->path,
                                   values[i]);
    return TERN_OK;
}

static int read_storages(const loading *l, tern_error *err)
{
    int status = tern__zip_read_all(l->zip, l->reads, l->count, err);
    for (int64_t i = 0; !status && i < l->count; i++)
        if (l->dtypes[i]->dtype == TERN_BOOL)
            status = tern__bools_check(l->zip->in, l->reads[i].out, l->reads[i].entry->bytes, err);
    return status ? status : tern__zip_check(l->zip, err);
}

static tern_object *load_pickle(loading *l, bool records, tern_error *err)
{
    tern__zip_entry *pickle = tern__zip_find(l->zip, "data.pkl");
    tern__pickle_source source = {
        .in = l->zip->in, .what = "data.pkl", .records = records, .storage = load_storage, .ctx = l};
    if (!pickle)
        torch_refuse(l->zip, TERN_E_FORMAT, "a zip archive without data.pkl: not a torch.save file", err);
    if (!pickle || torch_check_version(l->zip, err) || check_byteorder(l->zip, err)) return NULL;
    if (tern__zip_find(l->zip, "constants.pkl")) {
        torch_refuse(l->zip, TERN_E_UNSUPPORTED, "a TorchScript program, not data of torch.save", err);
        return NULL;
    }
    if (tern__zip_read(l->zip, pickle, NULL, err) || tern__zip_place(l->zip, pickle, &source.offset, err))
        return NULL;
    source.end = source.offset + pickle->bytes;
    tern_object *object = tern__pickle_read(&source, err);
    if (!object || !read_storages(l, err)) return object;
    tern_object_free(object);
    return NULL;
}

static tern_object *torch_load(tern__zip *zip, bool records, tern_error *err)
{
    loading l = {.zip = zip};
    size_t one = sizeof(*l.reads) + sizeof(*l.storages) + sizeof(*l.dtypes), count = (size_t)zip->count;
    char *room =
        tern__input_charge(zip->in, (int64_t)(count * one), err) ? NULL : tern__alloc(count * one, FUNC, err);
    if (!room) return NULL;
    l.reads = (tern__zip_read_to *)room;
    l.storages = (tern__storage **)(l.reads + count);
    l.dtypes = (const tern__file_dtype **)(l.storages + count);
    tern_object *object = load_pickle(&l, records, err);
    for (int64_t i = 0; i < l.count; i++) tern__storage_drop(l.storages[i]);
    tern__free(room);
    return object;
}

tern_object *tern__torch_load(tern__input *in, bool records, tern_error *err)
{
    tern__zip zip;
    tern_object *object = tern__zip_open(&zip, in, err) ? NULL : torch_load(&zip, records, err);
    tern__zip_close(&zip);
    return object;
}
