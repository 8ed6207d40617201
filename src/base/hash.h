/* hash.h - FNV-1a, for digests that ranks compare and for tables. */
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

#endif
