/* bytes.h - reads and writes little-endian numbers on any machine. */
#ifndef TERN_SRC_CHECKPOINT_BYTES_H
#define TERN_SRC_CHECKPOINT_BYTES_H

#include <stdint.h>

static inline uint64_t tern__bytes_get(const void *from, int bytes)
{
    const uint8_t *at = from;
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

static inline void *tern__bytes_put(void *to, uint64_t value, int bytes)
{
    uint8_t *at = to;
    for (int i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> 8 * i);
    return at + bytes;
}

#endif
