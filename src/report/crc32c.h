/* crc32c.h - CRC-32C (Castagnoli's polynomial; RFC 3720, appendix B.4), which zlib does not have. */
#ifndef TERN_SRC_REPORT_CRC32C_H
#define TERN_SRC_REPORT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t tern__crc32c(const void *data, size_t bytes);

#endif
