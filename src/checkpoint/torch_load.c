/* torch_load.c - an archive of torch.save: data.pkl is the object, data/0, data/1, .. its storages, byteorder
 * and version what they say. */
#include "base/text.h"
#include "checkpoint/torch.h"

#include <stdlib.h>
#include <string.h>

static const char FUNC[] = "tern_load";

enum { NEWEST = 10 }; /* PyTorch's own kMaxSupportedFileFormatVersion */

static int refuse(const tern__zip *zip, int code, const char *what, tern_error *err)
{
    return tern__error_set(err, FUNC, code, "%s: %s", zip->in->path, what);
}

/* A small entry as text; "" if it is not there. */
static int read_small(const tern__zip *zip, const char *name, char out[16], tern_error *err)
{
    tern__zip_entry *entry = tern__zip_find(zip, name);
    memset(out, 0, 16);
    if (!entry) return TERN_OK;
    if (entry->bytes < 16) return tern__zip_read(zip, entry, out, err);
    return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: \"%s\" has %lld bytes, expected a word",
                           zip->in->path, name, (long long)entry->bytes);
}

static int check_version(const tern__zip *zip, tern_error *err)
{
    char text[16], *end;
    int status = read_small(zip, "version", text, err);
    if (!status && !*text) status = read_small(zip, ".data/version", text, err);
    if (status) return status;
    long version = strtol(text, &end, 10);
    if (version < 1 || (*end && *end != '\n'))
        return refuse(zip, TERN_E_FORMAT, "no version: not a file of torch.save", err);
    if (version <= NEWEST) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                           "%s: version %ld of the format, tern knows up to %d", zip->in->path, version,
                           NEWEST);
}

static int check_byteorder(const tern__zip *zip, tern_error *err)
{
    char text[16];
    int status = read_small(zip, "byteorder", text, err);
    if (status || !*text || strcmp(text, "little") == 0) return status;
    bool is_big = strcmp(text, "big") == 0;
    return refuse(zip, is_big ? TERN_E_UNSUPPORTED : TERN_E_FORMAT,
                  is_big ? "written on a big-endian machine" : "byteorder is neither little nor big", err);
}

static tern__storage *load_storage(void *ctx, const char *key, tern_dtype dtype, int64_t bytes,
                                   tern_error *err)
{
    const tern__zip *zip = ctx;
    char name[256], quote[TERN__QUOTE_TEXT];
    snprintf(name, sizeof(name), "data/%s", key);
    tern__zip_entry *entry = tern__zip_find(zip, name);
    if (!entry || entry->bytes != bytes) {
        tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: storage %s has %lld bytes, expected %lld",
                        zip->in->path, tern__quote(name, strlen(name), quote),
                        (long long)(entry ? entry->bytes : -1), (long long)bytes);
        return NULL;
    }
    if (tern__input_charge(zip->in, bytes, err)) return NULL;
    tern__storage *storage = tern__storage_new((size_t)bytes, FUNC, err);
    int status = storage ? tern__zip_read(zip, entry, storage->data, err) : TERN_E_MEMORY;
    if (!status && dtype == TERN_BOOL) status = tern__bools_check(zip->in, storage->data, bytes, err);
    if (!status) return storage;
    tern__storage_drop(storage);
    return NULL;
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

static tern_object *load(tern__zip *zip, bool records, tern_error *err)
{
    tern__zip_entry *pickle = tern__zip_find(zip, "data.pkl");
    tern__pickle_source source = {
        .in = zip->in, .what = "data.pkl", .records = records, .storage = load_storage, .ctx = zip};
    if (!pickle) refuse(zip, TERN_E_FORMAT, "a zip archive without data.pkl: not a file of torch.save", err);
    if (!pickle || check_version(zip, err) || check_byteorder(zip, err)) return NULL;
    if (tern__zip_find(zip, "constants.pkl")) {
        refuse(zip, TERN_E_UNSUPPORTED, "a TorchScript program, not data of torch.save", err);
        return NULL;
    }
    if (tern__zip_read(zip, pickle, NULL, err) || tern__zip_place(zip, pickle, &source.offset, err))
        return NULL;
    source.end = source.offset + pickle->bytes;
    tern_object *object = tern__pickle_read(&source, err);
    if (!object || !tern__zip_check(zip, err)) return object;
    tern_object_free(object);
    return NULL;
}

tern_object *tern__torch_load(tern__input *in, bool records, tern_error *err)
{
    tern__zip zip;
    tern_object *object = tern__zip_open(&zip, in, err) ? NULL : load(&zip, records, err);
    tern__zip_close(&zip);
    return object;
}
