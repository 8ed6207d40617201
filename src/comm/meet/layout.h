/* layout.h - the memory that the ranks of one host share besides their data. Every word has a cache line of
 * its own.
 *
 * A family (the world and the groups made from it) has one lobby: the bell and the count of sleepers (to wake
 * sleeping ranks), the record of the first failure, and the CPUs that the ranks may use. A channel's words
 * follow its head, for p ranks and K slots:
 *
 *     posted[p], retired[p]      written by rank r alone, only grow
 *     inside[p]                  written by rank r alone: the work whose chunks it is doing, otherwise 0
 *     closed[p]                  written by rank r alone: 1 once it has closed the channel
 *     marked[p]                  written by rank r alone: tagged (backward, folded), see tern__comm_backend
 *     slot[seq mod K]: desc[p]         written by rank r alone
 *                      claim[p], done  tagged (seq, n): a word with another seq reads as n = 0
 *                      part[p]         written by rank r alone, read only if its desc says TERN__WEIGHTED */
#ifndef TERN_SRC_COMM_MEET_LAYOUT_H
#define TERN_SRC_COMM_MEET_LAYOUT_H

#include "base/base.h"

#include <stdatomic.h>

typedef struct tern__word {
    _Alignas(TERN__LINE) _Atomic(uint64_t) value;
} tern__word;

#define TERN__SHARED_RANKS 1024

/* The head of every shared segment. */
typedef struct tern__shared_head {
    _Alignas(TERN__LINE) atomic_uint joined; /* ranks that have mapped it; only grows */
    atomic_uint sharers;                     /* ranks that use the creator's mapping: those of its process */
    _Atomic(uint64_t) here[TERN__SHARED_RANKS / 64]; /* which of these ranks have joined; for errors */
} tern__shared_head;

enum { TERN__ABORT_NONE, TERN__ABORT_WRITING, TERN__ABORT_WRITTEN };

#define TERN__LOBBY_CPUS 1024

typedef struct tern__lobby {
    tern__shared_head head;
    _Alignas(TERN__LINE) atomic_uint bell;     /* futex */
    _Alignas(TERN__LINE) atomic_uint sleepers; /* ranks in, or about to enter, futex_wait */
    _Alignas(TERN__LINE) atomic_uint aborted;  /* TERN__ABORT_*; a CAS from NONE decides which rank writes */
    int32_t code;                              /* code and text of the failure */
    char text[TERN_ERROR_TEXT];
    _Alignas(TERN__LINE) _Atomic(uint64_t) cpus[TERN__LOBBY_CPUS / 64]; /* union of all ranks' affinities */
    _Atomic(uint64_t)
        stopped; /* bits of the ranks (modulo 64) that a rank of this host has said are stopped */
} tern__lobby;

#define TERN__WORK_TEXT 160

/* What a rank publishes when it has waited for long. One per rank of the family's root follows the lobby. */
typedef struct tern__waiter {
    _Alignas(TERN__LINE) _Atomic(uint64_t) turn; /* odd while it sleeps */
    _Atomic(uint64_t) acts; /* how often it has done something that others may wait for */
    _Atomic(uint64_t) said; /* odd while `text` is valid, between sleeps, too */
    _Atomic(uint64_t) text[TERN__WORK_TEXT / 8]; /* what it is waiting in */
    _Atomic(uint64_t) hint[TERN__WORK_TEXT / 8]; /* what another rank has done instead */
    _Atomic(uint64_t) words[]; /* [world] for each rank that it misses: 1 + that rank's acts then;
                                * then [world]: descriptors passed to that rank */
} tern__waiter;

enum { TERN__WEIGHTED = 1, TERN__SHADOW = 2, TERN__IDLE = 4, TERN__VOTE = 8 };

/* What a rank says about its work. Descriptors are compared byte by byte, so every byte is written. */
typedef struct tern__desc {
    _Alignas(TERN__LINE) uint32_t kind;
    uint32_t dtype, op, root, owner, bucket, folded, flags;
    uint64_t backward;
    uint64_t count;  /* elements in the extents */
    uint64_t total;  /* elements of the whole call, of which this may be a piece */
    uint64_t digest; /* of the extents */
} tern__desc;

_Static_assert(sizeof(tern__desc) == TERN__LINE, "a descriptor is one line");

/* A rank's weight and share in a mean. */
typedef struct tern__mean_part {
    _Alignas(TERN__LINE) double weight;
    double share;
} tern__mean_part;

/* ---- tagged counters: seq in the high bits, n in the low ---- */

#define TERN__TAG_BITS 24
#define TERN__TAG_MAX  ((UINT64_C(1) << TERN__TAG_BITS) - 1)

static inline uint64_t tern__tag(uint64_t seq, uint64_t n)
{
    return seq << TERN__TAG_BITS | n;
}

static inline uint64_t tern__tagged(uint64_t word, uint64_t seq)
{
    return word >> TERN__TAG_BITS == (seq & (UINT64_MAX >> TERN__TAG_BITS)) ? word & TERN__TAG_MAX : 0;
}

#endif
