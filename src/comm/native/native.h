/* native.h - what the native back end's files share: backend.c (the struct), segment.c (shared memory and how
 * ranks hand it to each other), window.c (the ranks' data), channel.c (the protocol), tally.c (what the ranks
 * said of a work), task.c (its chunks), wait.c (blocking, and what is said when it fails), missing.c (which
 * ranks a wait is for, and what the peers are told meanwhile), deadlock.c (ranks that wait for each other),
 * describe.c (a work in words). Messages between two ranks: mailbox.h. */
#ifndef TERN_SRC_COMM_NATIVE_H
#define TERN_SRC_COMM_NATIVE_H

#include "comm/group.h"
#include "comm/native/layout.h"

typedef struct tern__native tern__native;
typedef struct tern__channel tern__channel;
typedef struct tern__mailbox tern__mailbox;

/* A window as this rank sees it. */
typedef struct tern__window {
    size_t bytes;   /* as asked for                                    */
    size_t mapped;  /* bytes of each mapping                           */
    bool is_caller; /* bases[rank] is a range of the caller's          */
    bool *borrowed; /* [world] rank r's mapping, of this process       */
    char **bases;   /* [world] rank r's memory, mapped here            */
} tern__window;

/* Room, [world] each, to follow in who waits for whom. */
typedef struct tern__circle {
    int *ranks;
    uint64_t *turns;
    bool *known;
    bool *missing; /* tern__channel_missing's */
} tern__circle;

struct tern__native {
    tern_group *group;
    tern__native *root; /* of the family's root group: the lobby and the list of channels are its */
    tern__control *control;
    int rank, world, pid;
    char where[TERN__GROUP_TEXT]; /* " in the group of ranks 0, 2", or "" for the root */
    uint32_t serial;              /* of the next descriptor that is passed: the same on all ranks */
    int spins;                    /* before the next wait yields; 0: there are more ranks than CPUs   */
    tern__channel *first;         /* of the group's channels, that of its own collectives; NULL once closed */
    tern__lobby *lobby;
    tern__window **windows; /* by number; NULL once closed */
    uint32_t window_count, window_room;
    /* The root's: */
    tern__channel *channels; /* of all groups of the family                           */
    tern__mailbox *mailboxes;
    uint64_t acts;   /* how often this rank has done what others may wait for  */
    uint64_t looked; /* its acts when it last began to look what there is to do */
    double late_s;   /* who waits for longer may be in a deadlock              */
    tern__circle circle;
};

/* One work as this rank posted it, cut into chunks: slice w, `slice` elements long, is where rank w starts;
 * or one chunk a rank, its own. */
typedef struct tern__task {
    tern__post post;
    uint64_t count, slice, chunk; /* elements */
    uint64_t chunks;              /* of all slices together */
    bool is_own;
    /* Once all ranks have posted it: */
    tern__tally tally;
    bool is_weighted, is_moot; /* moot: a weighted mean that nobody has a part in */
    int source;                /* of a broadcast; -1: nobody's data */
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
    uint64_t claimed;    /* no chunk of it or of those before is left to take */
    uint64_t all_posted; /* as last seen: min(posted), and the rank that had it */
    uint64_t all_retired;
    int posted_last, retired_last;
    tern__task *tasks; /* [slots] */
    char **at;         /* [world] where a piece begins in every rank's window */
    char **to;         /* [world] and where a result goes, this rank's first  */
    bool *shadows;     /* [slots + 1][world], what tallies point to; last: nobody */
    double *weights;   /* [slots][world], the same                            */
};

static inline tern__desc *tern__slot_desc(const tern__channel *channel, uint64_t seq)
{
    return (tern__desc *)(channel->slot + (seq & (channel->slots - 1)) * channel->slot_bytes);
}

/* claim[world], then done. */
static inline tern__word *tern__slot_claim(const tern__channel *channel, uint64_t seq)
{
    return (tern__word *)(tern__slot_desc(channel, seq) + channel->native->world);
}

/* part[world]. */
static inline tern__mean_part *tern__slot_part(const tern__channel *channel, uint64_t seq)
{
    return (tern__mean_part *)(tern__slot_claim(channel, seq) + channel->native->world + 1);
}

/* What a blocking call waits for: one of the cases below. */
typedef struct tern__goal {
    bool (*is_met)(const struct tern__goal *goal);
    tern__channel *channel; /* of the work `seq`, or NULL */
    uint64_t seq;
    const tern__shared_head *head; /* all ranks have joined it, or NULL */
    int peer;                      /* else its descriptor under `serial` */
    uint32_t serial;
    tern__mailbox *mailbox; /* of the message `transfer`, or NULL */
    const tern__transfer *transfer;
} tern__goal;

/* ---- segment.c ---- */

/* Sealed shared memory of `bytes`: at *base, or mapped over *base where it is not NULL, contents kept. */
int tern__segment_create(void **base, size_t bytes, int *fd, tern_error *err);
/* Maps what `peer` created; E_MISMATCH if it is not of `bytes`. In the creator's own process the mapping is
 * the creator's, *borrowed: through two mappings a race detector sees nothing. */
int tern__segment_attach(const tern__native *native, int peer, int fd, size_t bytes, char **base,
                         bool *borrowed, tern_error *err);
/* Private pages with the same contents take the place of a mapping. */
int tern__segment_privatize(void *base, size_t bytes, tern_error *err);
size_t tern__segment_mapped(size_t bytes);

int tern__segment_send(tern__native *native, int peer, uint32_t serial, int fd, tern_error *err);
/* Progresses all channels while it waits. */
int tern__segment_recv(tern__native *native, int peer, uint32_t serial, int *fd, tern_error *err);

/* One segment for all ranks, zeroed: rank 0 makes it, the others map it. Returns when all have. It starts
 * with a tern__shared_head. The first one is the lobby. */
int tern__shared_open(tern__native *native, size_t bytes, void **base, tern_error *err);
/* `seq` ranks have joined. */
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
/* `rank` has closed it. */
bool tern__channel_is_closed(const tern__channel *channel, int rank);
/* The work that everything after it waits for. */
uint64_t tern__channel_blocker(const tern__channel *channel);
/* The same, or the last that this rank has posted, if that is before. */
static inline uint64_t tern__channel_due(const tern__channel *channel)
{
    return TERN__MIN(tern__channel_blocker(channel), channel->own_posted);
}
/* All have posted `seq`, and what nobody but `rank` can do of it is not begun. */
bool tern__channel_owes_chunk(tern__channel *channel, uint64_t seq, int rank);
/* min(posted) and min(retired), now. */
uint64_t tern__channel_all_posted(tern__channel *channel);
uint64_t tern__channel_all_retired(tern__channel *channel);

/* ---- tally.c ---- */

/* Writes what this rank says about work `seq`. */
void tern__tally_say(tern__channel *channel, uint64_t seq, const tern__post *post, const tern__desc *desc);
/* Reads what all ranks have said about it. Aborts if their descriptors differ. */
int tern__tally_take(tern__channel *channel, uint64_t seq, tern_error *err);

/* ---- task.c ---- */

void tern__task_cut(tern__task *task, const tern__post *post, uint64_t count, int world);
/* The number of chunks in slice `rank`. */
uint64_t tern__task_chunks(const tern__task *task, int rank);
void tern__task_run(tern__channel *channel, const tern__task *task, int owner, uint64_t chunk);

/* ---- wait.c ---- */

#define TERN__SPINS_MAX 150 /* about 15 us */

/* Progresses everything until the goal is met; or an error, which then is the group's. */
int tern__native_await(tern__native *native, const tern__goal *goal, tern_error *err);
/* TERN_OK as long as nobody failed. */
int tern__native_check(const tern__native *native, tern_error *err);
int tern__native_progress(tern__native *native, tern_error *err);
/* Clears a failure that came after the awaited work was done: the next call returns it. Returns TERN_OK. */
int tern__native_pardon(tern_error *err);
/* The first failure of the family, for all ranks. */
void tern__native_abort(const tern__native *native, int code, const char *text);
/* Aborts with `text` and the group's name. Returns the first failure. */
int tern__native_fail(const tern__native *native, int code, const char *text, tern_error *err);
/* `rank` has closed the group. */
bool tern__native_has_left(const tern__native *native, int rank);
/* "rank 1 (host, pid 77)", and if it is stopped ", which is stopped (by SIGSTOP or a debugger)". True if so.
 */
bool tern__native_who(const tern__native *native, int rank, char *text, size_t size);
/* Wakes sleeping ranks, if there are any. */
void tern__lobby_ring(tern__lobby *lobby);
/* For waits that look at more than the lobby: call listen, look whether there is anything to do, and if not
 * sleep until the bell that listen has read rings, for at most `ns`; call listened in the end. */
unsigned tern__native_listen(const tern__native *native);
void tern__native_sleep(const tern__native *native, unsigned bell, long ns);
void tern__native_listened(const tern__native *native);

/* ---- missing.c ---- */

/* What a rank has not done yet. */
typedef enum tern__lack {
    TERN__LACKS_NOTHING,
    TERN__LACKS_POST,  /* has not called the work that is due       */
    TERN__LACKS_END,   /* is in a chunk                             */
    TERN__LACKS_CHUNK, /* has a chunk to do that only it can do     */
    TERN__LACKS_LEAVE  /* has not seen the end of an earlier work, whose slot `goal` needs */
} tern__lack;

/* Why work `goal`, or the one that is due before it, waits for `rank`. */
tern__lack tern__channel_lack(tern__channel *channel, int rank, uint64_t goal);
/* [world] the ranks that it waits for; valid until the next call in the family. */
const bool *tern__channel_missing(tern__channel *channel, uint64_t goal);
/* Exact for the first TERN__SHARED_RANKS ranks; true for the rest. */
bool tern__shared_has_joined(const tern__shared_head *head, int rank);

/* Tells peers, of this host and of others, that this rank waits in `what` ("barrier (work 5) in the group of
 * ranks 1, 2") for the `ranks` [world] of the group. A wait calls it again and again once it has taken
 * late_s; only what has changed is written. is_named: the peers are told these ranks; else `what` names them.
 */
void tern__wait_say(const tern_group *group, const char *what, const bool *ranks, bool is_named);
/* The wait has succeeded. A rank that gives up never calls this: it has waited. */
void tern__wait_forget(const tern_group *group);
/* How long a wait lasts before it is told. */
double tern__wait_late_s(const tern_group *group);
/* Appends what the `ranks` [world] do while this rank waits in `what` for them: the ranks of this host say it
 * in the lobby, and those of other hosts are asked. */
void tern__wait_blame(const tern_group *group, const char *what, const bool *ranks, char *text, size_t size);
/* tern__wait_say for a goal. */
void tern__native_say(const tern__native *native, const tern__goal *goal);

/* ---- deadlock.c ---- */

/* The size of a lobby with the words of `world` waiters. */
size_t tern__lobby_bytes(int world);
/* Says that this rank, which has said what it waits in, is about to sleep until the goal is met, unless it
 * may still have something to do. True if said: then it does nothing until _end. */
bool tern__deadlock_begin(const tern__native *native, const tern__goal *goal);
/* Between the two. E_MISMATCH, for all ranks, if this one waits for itself by way of others. */
int tern__deadlock_check(const tern__native *native, tern_error *err);
void tern__deadlock_end(const tern__native *native);
/* What this rank waits in, in the lobby; and that it waits no more. */
void tern__deadlock_say(const tern__native *native, const char *text);
void tern__deadlock_forget(const tern__native *native);
/* How often the rank at `place` of the lobby has begun and ended, so far. */
uint64_t tern__deadlock_turn(const tern__native *native, int place);
/* How often `rank` of the group had acted when it last said so; and that this rank misses it since then. */
uint64_t tern__deadlock_acts(const tern__native *native, int rank);
void tern__deadlock_miss(const tern__native *native, int rank, uint64_t acts);
/* Says how many descriptors this rank has passed. By that a peer knows whether all have come and none is
 * `serial`: exact once it has left or sleeps. */
void tern__deadlock_tell_sent(const tern__native *native);
bool tern__deadlock_lacks_fd(const tern__native *native, int rank, uint32_t serial);
/* What `rank` of the group waits in; false if it does not, or not for long. */
bool tern__deadlock_text(const tern__native *native, int rank, char text[TERN__WORK_TEXT]);

/* ---- describe.c ---- */

/* "all_reduce of 100 f32, sum (work 5)". */
void tern__desc_text(const tern__desc *desc, uint64_t seq, char *text, size_t size);
/* "reduce" or "wait" for the timeline, with what it was for. */
void tern__work_trace(const tern__channel *channel, uint64_t seq, tern__track track, int64_t began);
typedef enum tern__elsewhere {
    TERN__ELSEWHERE_UNKNOWN,
    TERN__ELSEWHERE_LEFT, /* it has left, or freed its ddp */
    TERN__ELSEWHERE_WAITS /* it waits in another call      */
} tern__elsewhere;
/* If this rank's work `seq`, which `rank` has not posted, is a ddp's: ": rank 1 has done 12 backwards, ...",
 * with a question about the cause if it is known where `rank` is instead; else "". */
void tern__desc_hint(const tern__channel *channel, uint64_t seq, int rank, tern__elsewhere where, char *text,
                     size_t size);
/* The same of the work that is due and the first rank that has not posted it, which waits elsewhere. */
void tern__channel_hint(const tern__channel *channel, char *text, size_t size);
void tern__desc_write(tern__desc *desc, const tern__post *post);
/* The last that `rank` has posted; false if there is none. */
bool tern__channel_last(const tern__channel *channel, int rank, char *text, size_t size);
/* Keeps this work as the rank's last collective for ranks of other hosts that ask; `where`: " in the group of
 * ranks 0, 2", or "". */
void tern__desc_say(tern__control *control, const tern__desc *desc, uint64_t seq, const char *where);
/* ", which waits in barrier (work 5)", or what else shared memory tells of `rank`, for an error. */
void tern__native_last(const tern__native *native, int rank, char *text, size_t size);
/* True if two ranks describe the same work. Shadows' backwards are not compared. */
bool tern__desc_is_same(const tern__desc *desc, const tern__desc *like);
/* "rank 0: <its work>; rank 2: <its>", of two that differ. */
void tern__desc_differ(const tern__desc *one, const tern__desc *other, int one_rank, int other_rank,
                       uint64_t seq, char *text, size_t size);
void tern__desc_mismatch(const tern__channel *channel, uint64_t seq, int one, int other, char *text,
                         size_t size);

#endif
