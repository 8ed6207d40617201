/* hash.h - FNV-1a, for digests that ranks compare and for tables; CRC-32C, for records of boards. */
#ifndef TERN_SRC_BASE_HASH_H
#define TERN_SRC_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* The hash of no bytes. */
#define TERN__FNV UINT64_C(0xcbf29ce484222325)

/* Hashes a whole word at once: faster, but another hash than that of the word's bytes. */
static inline uint64_t tern__fnv_word(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * UINT64_C(0x100000001b3);
}

static inline uint64_t tern__fnv(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) hash = tern__fnv_word(hash, ((const uint8_t *)data)[i]);
    return hash;
}

/* Folds a hash to 32 bits. */
static inline uint32_t tern__fnv_fold(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32);
}

/* CRC-32C (Castagnoli's polynomial; RFC 3720, appendix B.4), which zlib does not have. */
static inline uint32_t tern__crc32c(const void *data, size_t bytes)
{
    /* The remainder of each half byte by the polynomial 0x1EDC6F41, with bits reversed. */
    static const uint32_t remainders[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *byte = (const uint8_t *)data;
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= byte[i];
        crc = crc >> 4 ^ remainders[crc & 15];
        crc = crc >> 4 ^ remainders[crc & 15];
    }
    return ~crc;
}

#endif
