/* native.h - what the native back end's files share: backend.c (the struct), segment.c (shared memory, and
 * how ranks pass it to each other), window.c (the ranks' data), channel.c (the protocol), tally.c (compares
 * what the ranks said about a work), task.c (a work's chunks), wait.c (blocking, and its error messages),
 * bell.c (what a blocked rank sleeps on), failure.c (the first failure), missing.c (which ranks a wait is
 * for, and what the peers are told meanwhile), deadlock.c (ranks that wait for each other), describe.c (a
 * work in words). For messages between two ranks see mailbox.h. */
#ifndef TERN_SRC_COMM_MOVE_WINDOW_NATIVE_H
#define TERN_SRC_COMM_MOVE_WINDOW_NATIVE_H

#include "comm/group.h"
#include "comm/meet/layout.h"

typedef struct tern__native tern__native;
typedef struct tern__channel tern__channel;
typedef struct tern__mailbox tern__mailbox;

/* A window as this rank sees it. */
typedef struct tern__window {
    size_t bytes;   /* as requested */
    size_t mapped;  /* bytes of each mapping */
    bool is_caller; /* bases[rank] is memory of the caller's */
    bool *borrowed; /* [world] bases[r] is rank r's own mapping, in this process */
    char **bases;   /* [world] rank r's memory, mapped here */
} tern__window;

/* Scratch arrays, [world] each, for following which rank waits for which. */
typedef struct tern__circle {
    int *ranks;
    uint64_t *turns;
    bool *known;
    bool *missing; /* for tern__channel_missing */
} tern__circle;

struct tern__native {
    tern_group *group;
    tern__native *root; /* of the family's root group, which has the lobby and the list of channels */
    tern__control *control;
    int rank, world, pid;
    char where[TERN__GROUP_TEXT]; /* " in the group of ranks 0, 2", or "" for the root */
    uint32_t serial;              /* of the next descriptor to pass; the same on all ranks */
    int spins;                    /* before the next wait yields; 0: more ranks than CPUs */
    tern__channel *first;         /* the group's first channel, for its own collectives; NULL once closed */
    tern__lobby *lobby;
    tern__window **windows; /* by number; NULL once closed */
    uint32_t window_count;
    size_t window_room;
    /* In the root only: */
    tern__channel *channels; /* of all groups of the family */
    tern__mailbox *mailboxes;
    uint64_t acts;   /* how often this rank has done something that others may wait for */
    uint64_t looked; /* its acts when it last began to look for something to do */
    double late_s;   /* a longer wait may be a deadlock */
    tern__circle circle;
};

/* One work as this rank posted it, cut into chunks. There is one slice of `slice` elements per rank, in which
 * that rank starts; or one chunk per rank, which only that rank does (is_own). */
typedef struct tern__task {
    tern__post post;
    uint64_t count, slice, chunk; /* elements */
    uint64_t chunks;              /* of all slices together */
    bool is_own;
    /* Valid once all ranks have posted it: */
    tern__tally tally;
    bool is_weighted, is_moot; /* moot: a weighted mean to which no rank contributes */
    int source;                /* of a broadcast; -1: no rank has data */
} tern__task;

struct tern__channel {
    tern__channel *next;
    tern__native *native;
    void *base;
    size_t bytes;
    uint64_t slots; /* a power of two */
    tern__word *posted, *retired, *inside, *closed, *marked;
    char *slot;
    size_t slot_bytes;

    uint64_t own_posted, own_retired;
    uint64_t claimed;    /* the last work up to which all chunks are taken */
    uint64_t all_posted; /* min(posted) when last read; posted_last: the rank that had it */
    uint64_t all_retired;
    int posted_last, retired_last;
    tern__task *tasks; /* [slots] */
    char **at;         /* [world] where the current piece starts in each rank's window */
    char **to;         /* [world] where its result goes, this rank's first */
    bool *shadows;     /* [slots + 1][world], the tallies point here; last row: all false */
    double *weights;   /* [slots][world], the tallies point here */
};

static inline tern__desc *tern__slot_desc(const tern__channel *channel, uint64_t seq)
{
    return (tern__desc *)(channel->slot + (seq & (channel->slots - 1)) * channel->slot_bytes);
}

/* Returns claim[world], which `done` follows. */
static inline tern__word *tern__slot_claim(const tern__channel *channel, uint64_t seq)
{
    return (tern__word *)(tern__slot_desc(channel, seq) + channel->native->world);
}

/* Returns part[world]. */
static inline tern__mean_part *tern__slot_part(const tern__channel *channel, uint64_t seq)
{
    return (tern__mean_part *)(tern__slot_claim(channel, seq) + channel->native->world + 1);
}

/* What a blocking call waits for: a work, all ranks' joining, a descriptor or a message. */
typedef struct tern__goal {
    bool (*is_met)(const struct tern__goal *goal);
    tern__channel *channel; /* of the work `seq`, or NULL */
    uint64_t seq;
    const tern__shared_head *head; /* which all ranks must join, or NULL */
    int peer;                      /* otherwise: whose descriptor under `serial` is awaited */
    uint32_t serial;
    tern__mailbox *mailbox; /* of the message `transfer`, or NULL */
    const tern__transfer *transfer;
} tern__goal;

/* ---- segment.c ---- */

/* Creates sealed shared memory of `bytes` and maps it: over *base, keeping the contents, if *base is not
 * NULL; otherwise anywhere, and sets *base. */
int tern__segment_create(void **base, size_t bytes, int *fd, tern_error *err);
/* Maps what `peer` created; E_MISMATCH if it is not of `bytes`. A rank in the creator's process uses the
 * creator's mapping (*borrowed), because a race detector cannot follow accesses through two mappings. */
int tern__segment_attach(const tern__native *native, int peer, int fd, size_t bytes, char **base,
                         bool *borrowed, tern_error *err);
/* Replaces a mapping by private pages with the same contents. */
int tern__segment_privatize(void *base, size_t bytes, tern_error *err);
size_t tern__segment_mapped(size_t bytes);
/* Returns the serial of the next segment that the ranks pass to each other, the same on all ranks. */
uint32_t tern__serial_next(tern__native *native);

int tern__segment_send(tern__native *native, int peer, uint32_t serial, int fd, tern_error *err);
/* Receives the descriptor; progresses all channels while it waits. */
int tern__segment_recv(tern__native *native, int peer, uint32_t serial, int *fd, tern_error *err);

/* Opens one zeroed segment for all ranks: rank 0 creates it, the others map it. Returns when all have mapped
 * it. It starts with a tern__shared_head. The first one is the lobby. */
int tern__shared_open(tern__native *native, size_t bytes, void **base, tern_error *err);
/* True if `seq` ranks have joined. */
bool tern__shared_is_joined(const tern__goal *goal);
void tern__shared_close(const tern__native *native, void *base, size_t bytes);

/* ---- window.c ---- */

int tern__window_open(void *state, void *base, size_t bytes, uint32_t *window, tern_error *err);
void *tern__window_base(void *state, uint32_t window);
char *tern__window_peer(void *state, uint32_t window, int rank);
void tern__window_close(void *state, uint32_t window);

/* ---- channel.c ---- */

void *tern__channel_open(void *state, int slots, tern_error *err);
void tern__channel_close(void *channel);
int tern__channel_post(void *channel, const tern__post *post, uint64_t *seq, tern_error *err);
int tern__channel_progress(void *channel, tern_error *err);
int tern__channel_test(void *channel, uint64_t seq, tern_error *err);
int tern__channel_wait(void *channel, uint64_t seq, tern_error *err);
void tern__channel_mark(void *channel, uint64_t backward, uint32_t folded);
const tern__tally *tern__channel_tally(void *channel, uint64_t seq);
/* True if `rank` has closed it. */
static inline bool tern__channel_is_closed(const tern__channel *channel, int rank)
{
    return atomic_load(&channel->closed[rank].value);
}
/* Returns the first work that this rank has not retired, for which all later ones wait. */
uint64_t tern__channel_blocker(const tern__channel *channel);
/* Returns the same, but at most the last work that this rank has posted. */
static inline uint64_t tern__channel_due(const tern__channel *channel)
{
    return TERN__MIN(tern__channel_blocker(channel), channel->own_posted);
}
/* True if all ranks have posted `seq`, and `rank` has not begun the chunk that only it can do. */
bool tern__channel_owes_chunk(tern__channel *channel, uint64_t seq, int rank);
/* Return min(posted) and min(retired) over the ranks now. */
uint64_t tern__channel_all_posted(tern__channel *channel);
uint64_t tern__channel_all_retired(tern__channel *channel);

/* ---- tally.c ---- */

/* Writes what this rank says about work `seq`. */
void tern__tally_say(tern__channel *channel, uint64_t seq, const tern__post *post, const tern__desc *desc);
/* Reads what all ranks have said about it. Aborts if their descriptors differ. */
int tern__tally_take(tern__channel *channel, uint64_t seq, tern_error *err);

/* ---- task.c ---- */

void tern__task_cut(tern__task *task, const tern__post *post, uint64_t count, int world);
/* Returns the number of chunks in the slice of `rank`. */
uint64_t tern__task_chunks(const tern__task *task, int rank);
void tern__task_run(tern__channel *channel, const tern__task *task, int owner, uint64_t chunk);

/* ---- wait.c ---- */

#define TERN__SPINS_MAX 150 /* about 15 us */

/* Progresses everything until the goal is met. An error becomes the group's. */
int tern__native_await(tern__native *native, const tern__goal *goal, tern_error *err);
int tern__native_progress(tern__native *native, tern_error *err);

/* ---- failure.c ---- */

/* Returns TERN_OK while no rank has failed. */
int tern__native_check(const tern__native *native, tern_error *err);
/* Clears *err after a failure that came when the awaited work was already done; the next call will return it.
 * Returns TERN_OK. */
int tern__native_pardon(tern_error *err);
/* Records a failure for all ranks; only the family's first one counts. */
void tern__native_abort(const tern__native *native, int code, const char *text);
/* Aborts with `text` and the group's name. Returns the first failure. */
int tern__native_fail(const tern__native *native, int code, const char *text, tern_error *err);
/* True if `rank` has closed the group. */
bool tern__native_has_left(const tern__native *native, int rank);

/* ---- bell.c ---- */

/* Wakes sleeping ranks, if there are any. */
void tern__lobby_ring(tern__lobby *lobby);
/* For waits that also wait for something outside the lobby. Call listen, then look for something to do. If
 * there is nothing, sleep until the bell rings after the value that listen returned, for at most `ns`. Call
 * listened at the end. */
unsigned tern__native_listen(const tern__native *native);
void tern__native_sleep(const tern__native *native, unsigned bell, long ns);
void tern__native_listened(const tern__native *native);

/* ---- missing.c ---- */

/* What a rank has not done yet. */
typedef enum tern__lack {
    TERN__LACKS_NOTHING,
    TERN__LACKS_POST,  /* has not called the work that is due */
    TERN__LACKS_END,   /* is in a chunk */
    TERN__LACKS_CHUNK, /* has not begun a chunk that only it can do */
    TERN__LACKS_LEAVE  /* has not retired the earlier work whose slot `goal` needs */
} tern__lack;

/* Returns why work `goal`, or the work that is due before it, waits for `rank`. */
tern__lack tern__channel_lack(tern__channel *channel, int rank, uint64_t goal);
/* Returns [world]: the ranks that it waits for. Valid until the next call in the family. */
const bool *tern__channel_missing(tern__channel *channel, uint64_t goal);
/* True if `rank` has joined. Exact for the first TERN__SHARED_RANKS ranks, always true for the rest. */
bool tern__shared_has_joined(const tern__shared_head *head, int rank);

/* Tells the peers on all hosts that this rank is waiting in `what` ("barrier (work 5) in the group of ranks
 * 1, 2") for `ranks` [world] of the group. A wait that has taken late_s calls it repeatedly; only changes are
 * written. If is_named, the text that the peers get lists these ranks; otherwise `what` already names
 * them. A wait of 10 s warns if one of them is stopped. */
void tern__wait_say(const tern_group *group, const char *what, const bool *ranks, bool is_named);
/* Withdraws that text after a wait that succeeded. A rank that gives up does not call this, so that peers
 * still learn what it was waiting in. */
void tern__wait_forget(const tern_group *group);
/* Seconds after which a wait is published. */
double tern__wait_late_s(const tern_group *group);
/* Appends what the `ranks` [world] are doing while this rank waits in `what` for them. The lobby knows it of
 * the ranks of this host; ranks of other hosts are asked. */
void tern__wait_blame(const tern_group *group, const char *what, const bool *ranks, char *text, size_t size);
/* Calls tern__wait_say for a goal. */
void tern__native_say(const tern__native *native, const tern__goal *goal);
/* Writes ", which waits in barrier (work 5)", or else its last collective, as far as shared memory shows
 * it. */
void tern__native_last(const tern__native *native, int rank, char *text, size_t size);
/* Writes tern__desc_hint for the work that is due and the first rank that has not posted it and waits
 * elsewhere. */
void tern__channel_hint(const tern__channel *channel, char *text, size_t size);

/* ---- deadlock.c ---- */

/* Returns the size of a lobby with the words of `world` waiters. */
size_t tern__lobby_bytes(int world);
/* Publishes that this rank is about to sleep until the goal is met, unless it may still have something to do.
 * What it is waiting in has been published before. Returns true if published; the rank then must do nothing
 * until _end. */
bool tern__deadlock_begin(const tern__native *native, const tern__goal *goal);
/* Call it between the two. Returns E_MISMATCH, for all ranks, if this rank and all those that it waits for,
 * directly or through others, wait for each other. */
int tern__deadlock_check(const tern__native *native, tern_error *err);
void tern__deadlock_end(const tern__native *native);
/* Write to the lobby what this rank is waiting in; withdraw it. */
void tern__deadlock_say(const tern__native *native, const char *text);
void tern__deadlock_forget(const tern__native *native);
/* Returns how often the rank at slot `place` of the lobby has begun and ended so far. */
uint64_t tern__deadlock_turn(const tern__native *native, int place);
/* _acts returns how often `rank` of the group had acted when it last published that; _miss notes that this
 * rank has been waiting for it since then. */
uint64_t tern__deadlock_acts(const tern__native *native, int rank);
void tern__deadlock_miss(const tern__native *native, int rank, uint64_t acts);
/* _tell_sent publishes how many descriptors this rank has passed to each peer. _lacks_fd returns true if all
 * of them have arrived from `rank` and none is `serial`; exact once `rank` has left or sleeps. */
void tern__deadlock_tell_sent(const tern__native *native);
bool tern__deadlock_lacks_fd(const tern__native *native, int rank, uint32_t serial);
/* Writes what `rank` of the group is waiting in. Returns false if it is not waiting, or not for long. */
bool tern__deadlock_text(const tern__native *native, int rank, char text[TERN__WORK_TEXT]);

/* ---- describe.c ---- */

/* Writes "rank 1 (host, pid 77)", and if its process is stopped ", which is stopped (by SIGSTOP or a
 * debugger)". Returns whether it is. */
bool tern__native_who(const tern__native *native, int rank, char *text, size_t size);
/* Writes "all_reduce of 100 f32, sum (work 5)". */
void tern__desc_text(const tern__desc *desc, uint64_t seq, char *text, size_t size);
/* Adds a "reduce" or "wait" event to the timeline, with the work that it was for. */
void tern__work_trace(const tern__channel *channel, uint64_t seq, tern__track track, int64_t began);
typedef enum tern__elsewhere {
    TERN__ELSEWHERE_UNKNOWN,
    TERN__ELSEWHERE_LEFT, /* it has left, or freed its ddp */
    TERN__ELSEWHERE_WAITS /* it waits in another call */
} tern__elsewhere;
/* If this rank's work `seq`, which `rank` has not posted, belongs to a ddp: writes ": rank 1 has done 12
 * backwards, ...", followed by a question about the cause if it is known where `rank` is instead. Otherwise
 * writes "". */
void tern__desc_hint(const tern__channel *channel, uint64_t seq, int rank, tern__elsewhere where, char *text,
                     size_t size);
void tern__desc_write(tern__desc *desc, const tern__post *post);
/* Writes the last work that `rank` has posted; false if there is none. */
bool tern__channel_last(const tern__channel *channel, int rank, char *text, size_t size);
/* Keeps this work as this rank's last collective, for ranks on other hosts that ask. `where`: " in the group
 * of ranks 0, 2", or "". */
void tern__desc_say(tern__control *control, const tern__desc *desc, uint64_t seq, const char *where);
/* True if two ranks describe the same work. The backward counts of shadows are not compared. */
bool tern__desc_is_same(const tern__desc *desc, const tern__desc *like);
/* Writes "rank 0: <its work>; rank 2: <its work>" for two ranks whose works differ. */
void tern__desc_differ(const tern__desc *one, const tern__desc *other, int one_rank, int other_rank,
                       uint64_t seq, char *text, size_t size);
void tern__desc_mismatch(const tern__channel *channel, uint64_t seq, int one, int other, char *text,
                         size_t size);

#endif
