/* legacy.c - loads files written by torch.save before PyTorch 1.6. Such a file has five pickles (a magic
 * number, the version 1001, the machine, the object, the keys of its storages), and then each storage's
 * number of elements and bytes. The object comes before the bytes of its tensors, so storages are allocated
 * when the object names them, and filled at the end. */
#include "base/text.h"
#include "checkpoint/bytes.h"
#include "checkpoint/torch.h"

#include <string.h>

static const char FUNC[] = "tern_load";

static const uint8_t magic[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};

typedef struct legacy {
    tern__input *in;
    tern__pickle_source source;
    tern_object *slots; /* dict key -> index in slots_of */
    struct slot {
        tern__storage *storage;
        const tern__file_dtype *dtype;
        int64_t bytes;
        bool is_filled;
    } * slots_of;
    int64_t count, room;
} legacy;

/* Returns the offset after the magic number, 0 if there is none. It follows the protocol and, from protocol 4
 * on, a frame's length. */
static int64_t magic_end(const tern__input *in)
{
    uint8_t head[11 + sizeof(magic)];
    if (in->size < (int64_t)sizeof(head) || tern__input_read(in, 0, head, sizeof(head), NULL)) return 0;
    size_t at = head[0] == 0x80 && head[2] == 0x95 ? 11 : 2;
    return head[0] == 0x80 && memcmp(head + at, magic, sizeof(magic)) == 0 ? (int64_t)(at + sizeof(magic))
                                                                           : 0;
}

bool tern__legacy_is(const tern__input *in)
{
    return magic_end(in) > 0;
}

/* ---- storages ---- */

static int add_slot(legacy *l, struct slot slot, const char *key, tern_error *err)
{
    if (l->count == l->room) {
        int64_t room = 2 * l->room + 64;
        size_t size = sizeof(slot);
        int status = tern__input_charge(l->in, room * (int64_t)size, err);
        void *grown = status ? NULL
                             : tern__realloc_array(l->slots_of, (size_t)l->count * size, (size_t)room * size,
                                                   FUNC, err);
        if (!grown) return TERN_E_MEMORY;
        l->slots_of = grown;
        l->room = room;
    }
    int status = tern__input_charge(
        l->in, TERN__OBJECT_PAIR_BYTES + 2 * TERN__OBJECT_BYTES + (int64_t)strlen(key), err);
    if (!status) status = tern_object_set(l->slots, key, tern_object_int(l->count, err), err);
    if (!status) l->slots_of[l->count++] = slot;
    return status;
}

static tern__storage *make_storage(void *ctx, const char *key, const tern__file_dtype *dtype, int64_t bytes,
                                   tern_error *err)
{
    legacy *l = ctx;
    if (tern__input_charge(l->in, bytes, err)) return NULL;
    tern__storage *storage = tern__storage_new((size_t)bytes, FUNC, err);
    if (storage && !add_slot(l, (struct slot){storage, dtype, bytes, false}, key, err))
        return tern__storage_hold(storage);
    tern__storage_drop(storage);
    return NULL;
}

static int refuse_key(const legacy *l, const tern_object *key, const char *what, tern_error *err)
{
    char quote[TERN__QUOTE_TEXT];
    const char *text = tern_object_to_string(key);
    return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: storage %s %s", l->in->path,
                           tern__quote(text ? text : "", text ? strlen(text) : 0, quote), what);
}

static int legacy_fill(legacy *l, const tern_object *key, tern_error *err)
{
    uint8_t head[8];
    int64_t number;
    const char *name = tern_object_to_string(key);
    if (!name || tern_object_to_int(tern_object_get(l->slots, name), &number, NULL))
        return refuse_key(l, key, "belongs to no tensor", err);
    struct slot *slot = &l->slots_of[number];
    int64_t elements = slot->bytes / (slot->dtype->bits / 8), offset = l->source.offset;
    if (slot->is_filled) return refuse_key(l, key, "occurs twice", err);
    if (l->in->size - offset < 8 || slot->bytes > l->in->size - offset - 8)
        return refuse_key(l, key, "is truncated: the file ends before it", err);
    int status = tern__input_read(l->in, offset, head, 8, err);
    if (!status && tern__bytes_get(head, 8) != (uint64_t)elements)
        return refuse_key(l, key, "does not have the number of elements that its tensors expect", err);
    if (!status) status = tern__input_read(l->in, offset + 8, slot->storage->data, (size_t)slot->bytes, err);
    if (!status && slot->dtype->dtype == TERN_BOOL)
        status = tern__bools_check(l->in, slot->storage->data, slot->bytes, err);
    l->source.offset = offset + 8 + slot->bytes;
    slot->is_filled = true;
    return status;
}

static int fill_all(legacy *l, const tern_object *keys, tern_error *err)
{
    int status = TERN_OK;
    if (tern_object_kind_get(keys) != TERN_OBJECT_LIST || tern_object_count(keys) != l->count)
        return tern__error_set(err, FUNC, TERN_E_FORMAT,
                               "%s: the file lists %lld storages, but its tensors use %lld", l->in->path,
                               (long long)tern_object_count(keys), (long long)l->count);
    for (int64_t i = 0; !status && i < l->count; i++) status = legacy_fill(l, tern_object_at(keys, i), err);
    if (!status && l->source.offset != l->in->size)
        status = tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: %lld bytes after the last storage",
                                 l->in->path, (long long)(l->in->size - l->source.offset));
    return status;
}

/* ---- the pickles ---- */

static int legacy_check_version(legacy *l, tern_error *err)
{
    int64_t version = 0;
    tern_object *object = tern__pickle_read(&l->source, err);
    if (!object) return TERN_E_FORMAT;
    tern_object_to_int(object, &version, NULL);
    tern_object_free(object);
    if (version == 1001) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                           "%s: version %lld of the older format, expected 1001", l->in->path,
                           (long long)version);
}

static int check_machine(legacy *l, tern_error *err)
{
    bool is_little = false;
    tern_object *object = tern__pickle_read(&l->source, err);
    if (!object) return TERN_E_FORMAT;
    int status = tern_object_to_bool(tern_object_get(object, "little_endian"), &is_little, NULL);
    tern_object_free(object);
    if (status)
        return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: the file does not state its byte order",
                               l->in->path);
    if (is_little) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_UNSUPPORTED, "%s: written on a big-endian machine", l->in->path);
}

static tern_object *legacy_load(legacy *l, bool records, tern_error *err)
{
    l->slots = tern_object_dict(err);
    if (!l->slots || legacy_check_version(l, err) || check_machine(l, err)) return NULL;
    l->source.records = records;
    tern_object *object = tern__pickle_read(&l->source, err);
    tern_object *keys = object ? tern__pickle_read(&l->source, err) : NULL;
    int status = keys ? fill_all(l, keys, err) : TERN_E_FORMAT;
    tern_object_free(keys);
    if (!status) return object;
    tern_object_free(object);
    return NULL;
}

tern_object *tern__legacy_load(tern__input *in, bool records, tern_error *err)
{
    legacy l = {.in = in};
    l.source = (tern__pickle_source){.in = in,
                                     .what = "pickle",
                                     .offset = magic_end(in),
                                     .end = in->size,
                                     .storage = make_storage,
                                     .ctx = &l};
    tern_object *object = legacy_load(&l, records, err);
    for (int64_t i = 0; i < l.count; i++) tern__storage_drop(l.slots_of[i].storage);
    tern__free(l.slots_of);
    tern_object_free(l.slots);
    return object;
}
