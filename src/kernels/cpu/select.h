/* select.h - keeps the best of many candidates, in order. A candidate has a key, of which larger ones are
 * better, and its index, of which smaller ones are. The best so far are a heap whose root is the worst of
 * them, so most candidates are compared once and dropped. */
#ifndef TERN_SRC_KERNELS_CPU_SELECT_H
#define TERN_SRC_KERNELS_CPU_SELECT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct tern__candidate {
    uint64_t key;
    int64_t index;
} tern__candidate;

/* Keys in the order of the numbers; NaN is the largest. */
static inline uint64_t tern__key_of_real(double x)
{
    uint64_t bits, sign = UINT64_C(1) << 63;
    memcpy(&bits, &x, sizeof(bits));
    if (x != x) return UINT64_MAX;
    if (x == 0) return sign; /* -0 is 0 */
    return bits & sign ? ~bits : bits | sign;
}

static inline uint64_t tern__key_of_int(int64_t x)
{
    return (uint64_t)x ^ UINT64_C(1) << 63;
}

static inline bool tern__candidate_beats(tern__candidate a, tern__candidate b)
{
    return a.key > b.key || (a.key == b.key && a.index < b.index);
}

/* Lets the element at the root of a heap of n sink to its place. */
static inline void tern__heap_sink(tern__candidate *heap, int64_t root, int64_t n)
{
    tern__candidate moved = heap[root];
    for (int64_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && tern__candidate_beats(heap[child], heap[child + 1])) child++;
        if (!tern__candidate_beats(moved, heap[child])) break;
        heap[root] = heap[child];
    }
    heap[root] = moved;
}

/* Adds a candidate to the best `most`, of which there are *n. Candidates come in the order of their
 * indices. */
static inline void tern__heap_offer(tern__candidate *heap, int64_t *n, int64_t most, tern__candidate c)
{
    if (*n == most) {
        if (most == 0 || c.key <= heap[0].key) return;
        heap[0] = c;
        tern__heap_sink(heap, 0, most);
        return;
    }
    heap[(*n)++] = c;
    if (*n == most)
        for (int64_t i = most / 2 - 1; i >= 0; i--) tern__heap_sink(heap, i, most);
}

/* Sorts the n best, the best first. They were all that were offered, or are a heap. */
static inline void tern__heap_sort(tern__candidate *heap, int64_t n, int64_t most)
{
    if (n < most)
        for (int64_t i = n / 2 - 1; i >= 0; i--) tern__heap_sink(heap, i, n);
    for (int64_t last = n - 1; last > 0; last--) {
        tern__candidate worst = heap[0];
        heap[0] = heap[last];
        heap[last] = worst;
        tern__heap_sink(heap, 0, last);
    }
}

#endif
