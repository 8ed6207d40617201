/* message.h - messages whose contents identify their sender, for tests of send and recv. */
#ifndef TERN_TESTS_COMM_MESSAGE_H
#define TERN_TESTS_COMM_MESSAGE_H

#include "group_fixture.h"

/* splitmix64 */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint64_t below(uint64_t *state, uint64_t limit)
{
    return next_random(state) % limit;
}

/* Fills the buffer with bytes that depend on the seed. */
static inline void message_put(char *buf, size_t bytes, uint64_t seed)
{
    size_t at = 0;
    for (uint64_t word; at < bytes; at += 8) {
        word = next_random(&seed);
        memcpy(buf + at, &word, TERN__MIN(8, bytes - at));
    }
}

static inline bool message_is(const char *buf, size_t bytes, uint64_t seed)
{
    size_t at = 0;
    for (uint64_t word; at < bytes; at += 8) {
        word = next_random(&seed);
        if (memcmp(buf + at, &word, TERN__MIN(8, bytes - at))) return false;
    }
    return true;
}

#endif
