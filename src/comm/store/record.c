/* record.c - reads and writes the records of a file store's file. */
#include "comm/store/record.h"

#include <string.h>
#include <tern/store.h>

typedef struct reader {
    tern__bytes in;
    size_t at;
    tern__record_state state;
} reader;

/* Takes a string. Checks its length against the limit before looking for that many bytes. */
static tern__bytes record_take(reader *r, size_t limit)
{
    uint32_t bytes = 0;
    if (r->state != TERN__RECORD_DONE) return (tern__bytes){0};
    if (r->in.bytes - r->at < sizeof(bytes)) {
        r->state = TERN__RECORD_CUT;
        return (tern__bytes){0};
    }
    memcpy(&bytes, r->in.data + r->at, sizeof(bytes));
    if (bytes > limit)
        r->state = TERN__RECORD_BAD;
    else if (r->in.bytes - r->at - sizeof(bytes) < bytes)
        r->state = TERN__RECORD_CUT;
    if (r->state != TERN__RECORD_DONE) return (tern__bytes){0};
    tern__bytes taken = {r->in.data + r->at + sizeof(bytes), bytes};
    r->at += sizeof(bytes) + bytes;
    return taken;
}

tern__record_state tern__record_apply(tern__table *table, tern__bytes in, size_t *used)
{
    reader r = {.in = in};
    tern__bytes key = record_take(&r, TERN_STORE_KEY_MAX + 1), value = record_take(&r, TERN_STORE_VALUE_MAX);
    *used = r.at;
    if (r.state != TERN__RECORD_DONE) return r.state;
    if (key.bytes && key.data[0] == '-')
        tern__table_delete(table, (tern__bytes){key.data + 1, key.bytes - 1});
    else if (!tern__table_set(table, key, value))
        return TERN__RECORD_BAD;
    return TERN__RECORD_DONE;
}

bool tern__record_append(tern__buffer *out, const tern__table *table, tern__bytes key)
{
    tern__bytes value = tern__table_get(table, key);
    bool deleted = !value.data;
    uint32_t key_bytes = (uint32_t)key.bytes + deleted, value_bytes = (uint32_t)value.bytes;
    return tern__buffer_append(out, &key_bytes, sizeof(key_bytes)) &&
           tern__buffer_append(out, "-", deleted) && tern__buffer_append(out, key.data, key.bytes) &&
           tern__buffer_append(out, &value_bytes, sizeof(value_bytes)) &&
           tern__buffer_append(out, value.data, value.bytes);
}
