/* buffer.h - bytes: a view of memory that somebody else owns, and a buffer that grows. */
#ifndef TERN_SRC_COMM_STORE_BUFFER_H
#define TERN_SRC_COMM_STORE_BUFFER_H

#include "base/base.h"

typedef struct tern__bytes {
    const uint8_t *data;
    size_t bytes;
} tern__bytes;

typedef struct tern__buffer {
    uint8_t *data;
    size_t bytes, cap;
} tern__buffer;

/* Makes room for `bytes` more. Returns false when out of memory, as do the functions that append. */
bool tern__buffer_reserve(tern__buffer *buffer, size_t bytes);
bool tern__buffer_append(tern__buffer *buffer, const void *data, size_t bytes);
/* Appends a string as on the wire: u64 length, then the bytes. */
bool tern__buffer_append_string(tern__buffer *buffer, const void *data, size_t bytes);
/* Removes `bytes` from the front. A buffer that becomes empty keeps its memory only if it is small. */
void tern__buffer_consume(tern__buffer *buffer, size_t bytes);
void tern__buffer_release(tern__buffer *buffer);

static inline tern__bytes tern__buffer_bytes(const tern__buffer *buffer)
{
    return (tern__bytes){buffer->data, buffer->bytes};
}

#endif
