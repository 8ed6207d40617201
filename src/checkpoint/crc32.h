/* crc32.h - the CRC-32 of zip archives. */
#ifndef TERN_SRC_CHECKPOINT_CRC32_H
#define TERN_SRC_CHECKPOINT_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* As zlib's crc32: of what `crc` is of and these bytes; 0 of nothing. */
uint32_t tern__crc32(uint32_t crc, const void *data, size_t bytes);

#endif
