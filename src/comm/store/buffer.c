/* buffer.c - a buffer of bytes that grows, and gives its memory back when it is empty and large. */
#include "comm/store/buffer.h"

#include <string.h>

enum { least_bytes = 256, kept_bytes = 16 << 10 };

bool tern__buffer_reserve(tern__buffer *buffer, size_t bytes)
{
    if (buffer->cap - buffer->bytes >= bytes) return true;
    size_t cap = TERN__MAX(TERN__MAX(2 * buffer->cap, buffer->bytes + bytes), (size_t)least_bytes);
    uint8_t *grown = tern__realloc_array(buffer->data, buffer->bytes, cap, __func__, NULL);
    if (!grown) return false;
    buffer->data = grown;
    buffer->cap = cap;
    return true;
}

bool tern__buffer_append(tern__buffer *buffer, const void *data, size_t bytes)
{
    if (!tern__buffer_reserve(buffer, bytes)) return false;
    if (bytes) memcpy(buffer->data + buffer->bytes, data, bytes);
    buffer->bytes += bytes;
    return true;
}

bool tern__buffer_append_string(tern__buffer *buffer, const void *data, size_t bytes)
{
    uint64_t length = bytes;
    return tern__buffer_reserve(buffer, sizeof(length) + bytes) &&
           tern__buffer_append(buffer, &length, sizeof(length)) && tern__buffer_append(buffer, data, bytes);
}

void tern__buffer_consume(tern__buffer *buffer, size_t bytes)
{
    buffer->bytes -= bytes;
    if (buffer->bytes)
        memmove(buffer->data, buffer->data + bytes, buffer->bytes);
    else if (buffer->cap > kept_bytes)
        tern__buffer_release(buffer);
}

void tern__buffer_release(tern__buffer *buffer)
{
    tern__free(buffer->data);
    *buffer = (tern__buffer){0};
}
