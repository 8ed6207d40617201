/* collective.h - the collectives, and a message of two ranks, as `tern bench` times them: what each is called
 * with, what has to come out, and how many bytes it cannot but move. */
#ifndef TERN_CLI_BENCH_COLLECTIVE_H
#define TERN_CLI_BENCH_COLLECTIVE_H

#include "base/base.h"

#include <tern.h>

typedef struct tern__collective tern__collective;

/* One that is about to be called. */
typedef struct tern__trial {
    const tern__collective *op;
    tern_group *world;
    int rank, ranks;
    tern_dtype dtype;
    size_t count; /* as the call takes it       */
    void *in, *out;
} tern__trial;

/* Of what a rank holds the whole, S bytes, a part is S / ranks. */
typedef enum tern__holds { TERN__HOLDS_NONE, TERN__HOLDS_PART, TERN__HOLDS_WHOLE } tern__holds;

struct tern__collective {
    const char *name, *help;
    int (*call)(const tern__trial *trial, tern_error *err);
    tern__holds in, out; /* `out` NONE: the result comes to `in` */
    bool has_root;       /* rank 0; what is WHOLE is only of its use, if the other is a PART */
    bool is_cut;         /* count is that of a part */
};

/* The one of that name, or NULL; the i-th, or NULL behind the last. */
const tern__collective *tern__collective_find(const char *name);
const tern__collective *tern__collective_at(int i);
/* A message: a call is its way from rank 0 to rank 1 and back, and other ranks only look on. */
bool tern__collective_is_pair(const tern__collective *op);

/* The least number of bytes, of at least `wish`, that can be cut among the ranks. 0 for a barrier. */
size_t tern__collective_bytes(const tern__collective *op, size_t wish, tern_dtype dtype, int ranks);
/* Elements for a call of so many bytes. */
size_t tern__collective_count(const tern__collective *op, size_t bytes, tern_dtype dtype, int ranks);
/* Of the buffer that a rank holds so much of. */
size_t tern__collective_holds(tern__holds holds, size_t bytes, int ranks);
/* Bytes that a rank has to pass over, read and write, if all share the work: docs/collectives.md. */
double tern__collective_bound(const tern__collective *op, size_t bytes, int ranks);
/* Bytes that go over a rank's link, as nccl-tests count. */
double tern__collective_bus(const tern__collective *op, size_t bytes, int ranks);

/* Numbers that any dtype holds, and whose sums it holds, too. */
void tern__collective_fill(const tern__trial *trial);
/* E_MISMATCH, on every rank, if any has another result than it should. Collective. */
int tern__collective_check(const tern__trial *trial, tern_error *err);

#endif
