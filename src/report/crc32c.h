/* crc32c.h - CRC-32C (Castagnoli's polynomial; RFC 3720, appendix B.4), which zlib does not have. */
#ifndef TERN_SRC_REPORT_CRC32C_H
#define TERN_SRC_REPORT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Takes four bits at a time. */
static inline uint32_t tern__crc32c(const void *data, size_t bytes)
{
    /* The remainder of each half byte by the polynomial 0x1EDC6F41, with bits reversed. */
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *byte = data;
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= byte[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

#endif
