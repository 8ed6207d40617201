/* collective.h - the collectives that `tern bench` times, and send/recv between two ranks: their arguments,
 * their expected results, and the least number of bytes that each must move. */
#ifndef TERN_CLI_BENCH_COLLECTIVE_H
#define TERN_CLI_BENCH_COLLECTIVE_H

#include "base/base.h"

#include <tern.h>

typedef struct tern__collective tern__collective;

/* The arguments of a call. */
typedef struct tern__trial {
    const tern__collective *op;
    tern_group *world;
    int rank, ranks;
    tern_dtype dtype;
    size_t count; /* the call's count argument */
    void *in, *out;
} tern__trial;

/* What a buffer of a rank holds: nothing, its part (S / ranks bytes), or the whole (S bytes). */
typedef enum tern__holds { TERN__HOLDS_NONE, TERN__HOLDS_PART, TERN__HOLDS_WHOLE } tern__holds;

struct tern__collective {
    const char *name, *help;
    int (*call)(const tern__trial *trial, tern_error *err);
    tern__holds in, out; /* `out` NONE: works in place, in `in`             */
    bool has_root;       /* rank 0 is the root; if one buffer is a PART, only the root uses the WHOLE one */
    bool is_cut;         /* `count` counts the elements of a part */
};

/* Returns the collective of that name, or the i-th; NULL if there is none. */
const tern__collective *tern__collective_find(const char *name);
const tern__collective *tern__collective_at(int i);
/* Is it send/recv? A call then sends from rank 0 to rank 1 and back; other ranks do nothing. */
bool tern__collective_is_pair(const tern__collective *op);

/* Rounds `wish` up to a number of bytes that splits evenly over the ranks. 0 for a barrier. */
size_t tern__collective_bytes(const tern__collective *op, size_t wish, tern_dtype dtype, int ranks);
/* Returns the count argument of a call on so many bytes. */
size_t tern__collective_count(const tern__collective *op, size_t bytes, tern_dtype dtype, int ranks);
/* Returns the bytes of a buffer that holds nothing, a part or the whole. */
size_t tern__collective_holds(tern__holds holds, size_t bytes, int ranks);
/* Returns the bytes that each rank must read and write if all share the work (docs/collectives.md). */
double tern__collective_bound(const tern__collective *op, size_t bytes, int ranks);
/* Returns the bytes that cross a rank's link, counted as nccl-tests does (bus bandwidth). */
double tern__collective_bus(const tern__collective *op, size_t bytes, int ranks);

/* Fills `in` with small whole numbers: every dtype holds them and their sums exactly. */
void tern__collective_fill(const tern__trial *trial);
/* Compares the results of all ranks. Every rank gets E_MISMATCH if one of them is wrong. Collective. */
int tern__collective_check(const tern__trial *trial, tern_error *err);

#endif
