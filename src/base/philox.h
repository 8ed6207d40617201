/* philox.h - Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011): computes four random words from a key and a
 * counter, without any state. So any position of a sequence can be drawn at any time, by any thread, and
 * again.
 *
 * A round multiplies two of the counter's words by constants. The products' high halves are mixed with the
 * other words and the key; their low halves become words themselves. After each round a constant is added to
 * the key. */
#ifndef TERN_SRC_BASE_PHILOX_H
#define TERN_SRC_BASE_PHILOX_H

#include "base/host_device.h"

#include <stdint.h>

#define TERN__PHILOX_ROUNDS 10

typedef struct tern__philox_words {
    uint32_t word[4];
} tern__philox_words;

/* The factors of the counter's words 0 and 2. */
#define TERN__PHILOX_EVEN 0xd2511f53u
#define TERN__PHILOX_ODD  0xcd9e8d57u

/* The key's words in a round. */
TERN__ANYWHERE uint32_t tern__philox_key0(uint64_t key, int round)
{
    return (uint32_t)key + (uint32_t)round * 0x9e3779b9u;
}

TERN__ANYWHERE uint32_t tern__philox_key1(uint64_t key, int round)
{
    return (uint32_t)(key >> 32) + (uint32_t)round * 0xbb67ae85u;
}

TERN__ANYWHERE tern__philox_words tern__philox(uint64_t key, tern__philox_words counter)
{
    uint32_t *c = counter.word;
    for (int r = 0; r < TERN__PHILOX_ROUNDS; r++) {
        uint64_t even = (uint64_t)c[0] * TERN__PHILOX_EVEN, odd = (uint64_t)c[2] * TERN__PHILOX_ODD;
        c[0] = (uint32_t)(odd >> 32) ^ c[1] ^ tern__philox_key0(key, r);
        c[2] = (uint32_t)(even >> 32) ^ c[3] ^ tern__philox_key1(key, r);
        c[1] = (uint32_t)odd;
        c[3] = (uint32_t)even;
    }
    return counter;
}

#endif
