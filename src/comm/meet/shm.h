/* shm.h - the memory that the ranks of one host share besides their data. Every word has a cache line of
 * its own.
 *
 * A family (a group and the groups made from it) has one tern__shm on each host with two ranks or more: a
 * futex on which ranks sleep and the count of sleepers, which rank has failed first, the CPUs that the ranks
 * may use, and for each rank what it is waiting in and how it has failed. A group's view of it is a
 * tern__shm_group. A meeting (meeting.h) and a pair of ranks that exchange messages (move/window/mailbox.h)
 * have segments of their own. */
#ifndef TERN_SRC_COMM_MEET_SHM_H
#define TERN_SRC_COMM_MEET_SHM_H

#include "comm/group.h"

#include <stdatomic.h>

typedef struct tern__goal tern__goal;       /* wait.h */
typedef struct tern__meeting tern__meeting; /* meeting.h */

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

#define TERN__SHM_CPUS 1024

typedef struct tern__shm_state {
    tern__shared_head head;
    _Alignas(TERN__LINE) atomic_uint wakes;    /* the futex */
    _Alignas(TERN__LINE) atomic_uint sleepers; /* ranks in, or about to enter, futex_wait */
    _Alignas(TERN__LINE) atomic_uint aborted;  /* 1 + the slot of the rank that failed first; 0: none has */
    _Alignas(TERN__LINE) _Atomic(uint64_t) cpus[TERN__SHM_CPUS / 64]; /* union of all ranks' affinities */
    _Atomic(uint64_t)
        stopped; /* bits of the ranks (modulo 64) that a rank of this host has said are stopped */
} tern__shm_state;

#define TERN__WORK_TEXT 160

/* What a rank publishes when it has waited for long, and its failure. One per rank follows the state. */
typedef struct tern__waiter {
    _Alignas(TERN__LINE) atomic_uint has_failed; /* its failure is written, or being written: only once */
    int32_t code;                                /* code and text of its failure */
    char failure[TERN_ERROR_TEXT];
    _Alignas(TERN__LINE) _Atomic(uint64_t) turn; /* odd while it sleeps */
    _Atomic(uint64_t) acts; /* how often it has done something that others may wait for */
    _Atomic(uint64_t) said; /* even while `text` is being written, and before */
    _Atomic(int64_t) until; /* `text` is what it waits in until then, between sleeps, too */
    _Atomic(uint64_t) text[TERN__WORK_TEXT / 8]; /* what it is waiting in */
    _Atomic(uint64_t) hint[TERN__WORK_TEXT / 8]; /* what another rank has done instead */
    _Atomic(uint64_t) words[]; /* [world] for each rank that it misses: 1 + that rank's acts then;
                                * then [world]: descriptors passed to that rank */
} tern__waiter;

/* Returns the size of a state with the words of `world` waiters. */
static inline size_t tern__shm_bytes(int world)
{
    size_t words = 2 * (size_t)world * sizeof(uint64_t);
    return sizeof(tern__shm_state) + (size_t)world * tern__align_up(sizeof(tern__waiter) + words, TERN__LINE);
}

/* What a rank has to advance while it waits: a meeting, a channel or the messages of a group, or what a front
 * has to do for them. */
typedef struct tern__progress_hook {
    struct tern__progress_hook *next; /* of all groups of the family; in tern_group.hooks of one */
    /* Does what can be done now. Never blocks. */
    int (*progress)(struct tern__progress_hook *hook, tern_error *err);
    /* Notes as missed (tern__deadlock_miss) every rank of this host that holds up something of this rank.
     * Returns false if this rank could do something itself. */
    bool (*miss)(struct tern__progress_hook *hook);
} tern__progress_hook;

/* Scratch arrays, [world] each, for following which rank waits for which. */
typedef struct tern__circle {
    int *ranks;
    uint64_t *turns;
    bool *known;
} tern__circle;

typedef struct tern__shm {
    tern_group *root;
    tern_group
        *group; /* the ranks of this host: the root, or a part of it; their ranks are the slots below */
    int rank, world;
    int cpus; /* that the ranks may use together */
    tern__shm_state *state;
    tern__progress_hook *hooks;
    uint64_t acts;   /* how often this rank has done something that others may wait for */
    uint64_t looked; /* its acts when it last began to look for something to do */
    double late_s;   /* a longer wait may be a deadlock */
    tern__circle circle;
} tern__shm;

/* The ranks of a group that are on this host. */
typedef struct tern__shm_group {
    tern_group *group; /* of these ranks only */
    tern__shm *shm;    /* the family's; NULL: this rank is the family's only one on its host */
    int rank, world;
    char where[TERN__GROUP_TEXT]; /* " in the group of ranks 0, 2", or "" for the root */
    uint32_t serial;              /* of the next descriptor to pass; the same on all ranks */
    int spins;                    /* before the next wait yields; 0: more ranks than CPUs */
    tern__meeting *first;         /* the group's first meeting, for its own collectives; NULL once closed */
    const tern__word
        *closed; /* [world] a rank's is 1 once it has closed that meeting; NULL if there is none */
} tern__shm_group;

/* ---- shm.c ---- */

/* Advances everything that ranks of this host wait in, in all groups of the family. With nothing there it
 * notices no failure. */
int tern__shm_progress(tern__shm *shm, tern_error *err);
/* Runs a list of hooks; ends at the first error. */
static inline int tern__progress_hooks_run(tern__progress_hook *list, tern_error *err)
{
    int status = TERN_OK;
    for (tern__progress_hook *hook = list; hook && !status; hook = hook->next)
        status = hook->progress(hook, err);
    return status;
}
void tern__progress_hook_add(tern__progress_hook **list, tern__progress_hook *hook);
void tern__progress_hook_remove(tern__progress_hook **list, tern__progress_hook *hook);

/* Notes that this rank has done something that others may wait for. All of these allow shm == NULL. */
static inline void tern__shm_act(tern__shm *shm)
{
    if (shm) shm->acts++;
}
static inline bool tern__shm_has_sleepers(const tern__shm *shm)
{
    return shm && shm->state && atomic_load(&shm->state->sleepers) != 0;
}
/* Wakes sleeping ranks, if there are any. */
void tern__shm_wake(const tern__shm *shm);

/* Returns what the rank at that slot publishes. */
static inline tern__waiter *tern__shm_waiter(const tern__shm *shm, int slot)
{
    size_t each = (tern__shm_bytes(shm->world) - sizeof(tern__shm_state)) / (size_t)shm->world;
    return (tern__waiter *)((char *)(shm->state + 1) + (size_t)slot * each);
}

/* True if `rank` has closed the group. */
bool tern__shm_has_left(const tern__shm_group *of, int rank);

/* To sleep without losing a wake-up: call listen, then look for something to do. If there is nothing, sleep
 * until a rank wakes this one after listen, for at most `ns`. Call listened at the end. */
unsigned tern__shm_listen(const tern__shm *shm);
void tern__shm_sleep(const tern__shm *shm, unsigned wakes, long ns);
void tern__shm_listened(const tern__shm *shm);

/* ---- segment.c ---- */

/* Creates sealed shared memory of `bytes` and maps it: over *base, keeping the contents, if *base is not
 * NULL; otherwise anywhere, and sets *base. */
int tern__segment_create(void **base, size_t bytes, int *fd, tern_error *err);
/* Creates and maps a sparse segment: address space, whose parts the creator commits. */
int tern__segment_create_sparse(void **base, size_t bytes, int *fd, tern_error *err);
/* Returns a size for sparse segments of which every one of `ranks` ranks maps that of each. */
size_t tern__segment_sparse_bytes(int ranks);
/* Maps memory that no other rank reaches: a sparse segment, or else private pages, and leaves *fd alone. */
int tern__segment_create_alone(void **base, size_t bytes, bool is_sparse, int *fd, tern_error *err);
/* Gives a part of the caller's sparse segment zeroed pages, so that no access to it can fail, or returns its
 * pages to the system. Whole pages. E_MEMORY: the machine has none. */
int tern__segment_commit(int fd, char *base, size_t offset, size_t bytes, bool has_pages, tern_error *err);
/* Maps what `peer` created; E_MISMATCH if it is not of `bytes`. A rank in the creator's process uses the
 * creator's mapping (*borrowed), because a race detector cannot follow accesses through two mappings. */
int tern__segment_attach(const tern__shm_group *of, int peer, int fd, size_t bytes, bool is_sparse,
                         char **base, bool *borrowed, tern_error *err);
/* Replaces a mapping by private pages with the same contents. */
int tern__segment_privatize(void *base, size_t bytes, tern_error *err);
size_t tern__segment_mapped(size_t bytes);
/* The serial of a descriptor that no segment of the group has. */
#define TERN__SERIAL_OTHER UINT32_MAX
/* Returns the serial of the next segment that the ranks pass to each other, the same on all ranks. */
uint32_t tern__segment_serial(tern__shm_group *of);

int tern__segment_send(tern__shm_group *of, int peer, uint32_t serial, int fd, tern_error *err);
/* Receives the descriptor; the family goes on while it waits. */
int tern__segment_recv(tern__shm_group *of, int peer, uint32_t serial, int *fd, tern_error *err);

/* Opens one zeroed segment for all ranks: rank 0 creates it, the others map it. Returns when all have
 * mapped it. It starts with a tern__shared_head. The first one is the family's tern__shm_state. */
int tern__shared_open(tern__shm_group *of, size_t bytes, void **base, tern_error *err);
/* Waits until `count` ranks have joined. */
int tern__shared_await(tern__shm_group *of, const tern__shared_head *head, uint64_t count, tern_error *err);
void tern__shared_close(const tern__shm_group *of, void *base, size_t bytes);

/* ---- shm_open.c ---- */

/* Collective over the ranks of `group`, which are on one host. The family's first group with two ranks or
 * more opens the shared memory. */
int tern__shm_open(tern__shm_group *of, tern_group *group, tern_error *err);
void tern__shm_close(tern__shm_group *of);

/* ---- deadlock.c ---- */

/* Publishes that this rank is about to sleep until the goal is met, unless it may still have something to
 * do. What it is waiting in has been published before. Returns true if published; the rank then must do
 * nothing until _end. */
bool tern__deadlock_begin(tern__shm *shm, const tern__goal *goal);
/* Call it between the two. Returns E_MISMATCH, for all ranks, if this rank and all those that it waits for,
 * directly or through others, wait for each other. */
int tern__deadlock_check(const tern__shm *shm, tern_error *err);
void tern__deadlock_end(const tern__shm *shm);
/* Writes to the shared memory what this rank is waiting in. */
void tern__deadlock_say(const tern__shm *shm, const char *text);
/* Withdraws it at time `end`. */
void tern__deadlock_forget(const tern__shm *shm, int64_t end);
/* Returns how often the rank at that slot has begun and ended so far. */
uint64_t tern__deadlock_turn(const tern__shm *shm, int slot);
/* _acts returns how often a rank of `group` had acted when it last published that; _miss notes that this
 * rank has been waiting for it since then. */
uint64_t tern__deadlock_acts(const tern__shm *shm, const tern_group *group, int rank);
void tern__deadlock_miss(const tern__shm *shm, const tern_group *group, int rank, uint64_t acts);
/* _tell_sent publishes how many descriptors this rank has passed to each peer. _lacks_fd returns true if
 * all of them have arrived from `rank` of `group` and none is `serial`; exact once `rank` has left or
 * sleeps. */
void tern__deadlock_tell_sent(const tern__shm *shm);
bool tern__deadlock_lacks_fd(const tern__shm *shm, const tern_group *group, int rank, uint32_t serial);
/* Writes what `rank` of `group` is waiting in. Returns false if it is not waiting, or not for long. */
bool tern__deadlock_text(const tern__shm *shm, const tern_group *group, int rank, char text[TERN__WORK_TEXT]);

#endif
