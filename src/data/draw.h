/* draw.h - the random numbers of a sample. Number i depends on (seed, epoch, index) and i alone, as
 * tern/data.h specifies. No generator is shared, so the number of workers or ranks and a resume change
 * nothing. */
#ifndef TERN_SRC_DATA_DRAW_H
#define TERN_SRC_DATA_DRAW_H

#include <stdint.h>

/* SplitMix64 (Steele, Lea, Flood 2014). */
static inline uint64_t tern__splitmix(uint64_t state)
{
    uint64_t z = state + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t tern__draw_key(uint64_t seed, int64_t epoch, int64_t index)
{
    return tern__splitmix(tern__splitmix(tern__splitmix(seed) + (uint64_t)epoch) + (uint64_t)index);
}

/* Returns number `i` of the sequence that `key` starts. */
static inline uint64_t tern__draw_number(uint64_t key, uint64_t i)
{
    return tern__splitmix(key + i * 0x9e3779b97f4a7c15u);
}

/* Maps a number to [0, n): the high word of the product. */
static inline int64_t tern__draw_place(uint64_t number, int64_t n)
{
    return (int64_t)(((unsigned __int128)number * (uint64_t)n) >> 64);
}

/* Maps a number to [0, 1). */
static inline double tern__draw_share(uint64_t number)
{
    return (double)(number >> 11) * 0x1p-53;
}

/* Maps a number to [low, high). */
static inline double tern__draw_between(uint64_t number, double low, double high)
{
    return low + tern__draw_share(number) * (high - low);
}

#endif
