/* meeting.h - how the ranks of one host come together for a work: an ordered sequence of works, in which
 * each rank says what it means to do, all compare it, and each sees when the others have come and when they
 * are done. What is done once all have come is a mover's business (tern__meeting_mover); without one a work
 * is done when all have come.
 *
 * In shared memory, for p ranks and K slots, behind a tern__shared_head:
 *
 *     posted[p], retired[p]      written by rank r alone, only grow
 *     inside[p]                  written by rank r alone: the work whose chunks it is doing, otherwise 0
 *     closed[p]                  written by rank r alone: 1 once it has closed the meeting
 *     noted[p]                   written by rank r alone: tagged (number, detail), see tern__meeting_note
 *     slot[seq mod K]: desc[p]   written by rank r alone
 *                      part[p]   written by rank r alone, read only if its desc says TERN__WEIGHTED
 *                      the mover's words
 *
 * A rank that waits for a work looks at the descriptors alone, so that what it waits for and what it compares
 * come with one cache line. */
#ifndef TERN_SRC_COMM_MEET_MEETING_H
#define TERN_SRC_COMM_MEET_MEETING_H

#include "comm/meet/wait.h"
#include "comm/meet/work.h"

enum { TERN__WEIGHTED = 1, TERN__SHADOW = 2, TERN__IDLE = 4, TERN__VOTE = 8, TERN__PLACED = 16 };

/* What a rank says about its work. The fields up to `flags` are compared byte by byte, so every byte is
 * written. The last ones but `posted` are where the extents are. They are not compared of a work that is
 * placed: there each rank says where its own extent is, or carries its data here. */
typedef struct tern__desc {
    _Alignas(TERN__LINE) uint64_t number;
    uint64_t count; /* elements in the extents */
    uint64_t total; /* elements of the whole call, of which this may be a piece */
    uint8_t kind;
    uint8_t label; /* the id of its kind; 0: none */
    uint8_t dtype, op;
    uint32_t root, user, part, detail, flags;
    uint32_t window;
    _Atomic uint32_t posted; /* the low bits of the work's number, once all else is written */
    union {
        uint64_t place; /* the offset, or that of the table; if it is not placed, a digest of all extents */
        char carried[sizeof(uint64_t)];
    };
} tern__desc;

_Static_assert(sizeof(tern__desc) == TERN__LINE, "a descriptor is one line");

/* True if two ranks' works are the same in every byte, apart from where they are if they are placed. */
static inline bool tern__desc_is_equal(const tern__desc *one, const tern__desc *other)
{
    if (__builtin_memcmp(one, other, offsetof(tern__desc, window))) return false;
    return (one->flags & TERN__PLACED) || (one->window == other->window && one->place == other->place);
}

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

/* ---- a meeting ---- */

/* A work as this rank posted it. */
typedef struct tern__met {
    tern__post post;
    uint64_t count; /* elements in all extents */
    /* Valid once all ranks have posted it: */
    tern__tally tally;
    bool is_weighted, is_moot; /* moot: a weighted mean to which no rank contributes */
    int source;                /* of a broadcast; -1: no rank has data */
} tern__met;

/* What moves the data of a meeting's works. */
typedef struct tern__meeting_mover {
    /* Called before this rank's post of work `seq` becomes visible to the others. */
    void (*begin)(void *of, uint64_t seq);
    /* All ranks have posted `seq` and mean the same: does what this rank can do of it. Returns false if the
     * work moves nothing. */
    bool (*run)(void *of, uint64_t seq);
    bool (*is_done)(const void *of, uint64_t seq);
    /* True if the posts carry the work's data: all that a rank still does is to compute its own result. */
    bool (*is_carried)(const void *of, uint64_t seq);
    /* True if `rank` has not begun what only it can do. */
    bool (*owes)(const void *of, uint64_t seq, int rank);
} tern__meeting_mover;

struct tern__meeting {
    tern__progress_hook hook; /* first: the hook's functions cast it back */
    tern__shm_group *of;
    const tern__meeting_mover *mover; /* NULL: none */
    void *mover_of;
    void *base;
    size_t bytes;
    uint64_t slots; /* a power of two */
    tern__word *posted, *retired, *inside, *closed, *noted;
    char *slot;
    size_t slot_bytes;

    uint64_t own_posted, own_retired;
    uint64_t met;        /* the last work in which all have met, and which this rank has run */
    int met_next;        /* the ranks below this one have posted the work after it */
    uint64_t all_posted; /* min(posted) when last read; posted_last: the rank that had it */
    uint64_t all_retired;
    int posted_last, retired_last;
    tern__met *works; /* [slots] */
    bool *shadows;    /* [slots + 1][world], the tallies point here; last row: all false */
    double *weights;  /* [slots][world], the tallies point here */
};

static inline tern__met *tern__meeting_work(const tern__meeting *meeting, uint64_t seq)
{
    return &meeting->works[seq & (meeting->slots - 1)];
}

static inline tern__desc *tern__meeting_desc(const tern__meeting *meeting, uint64_t seq)
{
    return (tern__desc *)(meeting->slot + (seq & (meeting->slots - 1)) * meeting->slot_bytes);
}

/* Returns part[world]. */
static inline tern__mean_part *tern__meeting_part(const tern__meeting *meeting, uint64_t seq)
{
    return (tern__mean_part *)(tern__meeting_desc(meeting, seq) + meeting->of->world);
}

/* Returns the mover's words. */
static inline void *tern__meeting_words(const tern__meeting *meeting, uint64_t seq)
{
    return tern__meeting_part(meeting, seq) + meeting->of->world;
}

/* ---- meeting.c ---- */

/* Collective. `slots` works may be in flight. A mover gets `mover_of` and has `words_bytes` of its own,
 * zeroed, in each slot; NULL: there is none. */
tern__meeting *tern__meeting_open(tern__shm_group *of, int slots, const tern__meeting_mover *mover,
                                  void *mover_of, size_t words_bytes, tern_error *err);
void tern__meeting_close(tern__meeting *meeting);
/* Posts a work and sets *seq to its number. Waits for peers only if `slots` works are in flight. */
int tern__meeting_post(tern__meeting *meeting, const tern__post *post, uint64_t *seq, tern_error *err);
int tern__meeting_progress(tern__meeting *meeting, tern_error *err);
/* TERN_OK if the work is done, TERN_PENDING, or an error. */
int tern__meeting_test(tern__meeting *meeting, uint64_t seq, tern_error *err);
int tern__meeting_wait(tern__meeting *meeting, uint64_t seq, tern_error *err);
/* Notes how far this rank is, by a label's `number` and `detail`: errors of ranks that time out quote it.
 */
void tern__meeting_note(const tern__meeting *meeting, const tern__label *label);
/* Returns the first work that this rank has not retired, for which all later ones wait, but at most the
 * last one that it has posted. */
static inline uint64_t tern__meeting_due(const tern__meeting *meeting)
{
    return TERN__MIN(meeting->own_retired + 1, meeting->own_posted);
}
/* True if `rank` has closed the meeting. */
static inline bool tern__meeting_is_closed(const tern__meeting *meeting, int rank)
{
    return atomic_load(&meeting->closed[rank].value);
}
/* For a wait until `seq` is done, or can be posted: see tern__goal.miss. */
bool tern__meeting_miss(tern__meeting *meeting, uint64_t seq);

/* ---- tally.c ---- */

/* Return min(posted) and min(retired) over the ranks now. */
uint64_t tern__meeting_all_posted(tern__meeting *meeting);
uint64_t tern__meeting_all_retired(tern__meeting *meeting);
/* Writes what this rank says about work `seq`. */
void tern__tally_say(tern__meeting *meeting, uint64_t seq, const tern__post *post, const tern__desc *desc);
/* Reads what all ranks have said about it. Fails for all if their descriptors differ. */
int tern__tally_take(tern__meeting *meeting, uint64_t seq, tern_error *err);

/* ---- late.c ---- */

/* Sets ranks[r] for the ranks that work `goal`, or the work that is due before it, waits for. */
void tern__meeting_missing(tern__meeting *meeting, uint64_t goal, bool *ranks);
/* Fail for all ranks: with E_TIMEOUT, because the work that is due waits for ranks; with E_PEER, if a rank
 * that has left is one of them. */
int tern__meeting_fail_late(tern__meeting *meeting, uint64_t goal, tern_error *err);
int tern__meeting_check_left(const tern__meeting *meeting, tern_error *err);
/* Writes tern__desc_hint for the work that is due and the first rank that has not posted it and waits
 * elsewhere. */
void tern__meeting_hint(const tern__meeting *meeting, char *text, size_t size);

/* ---- describe.c ---- */

void tern__desc_write(tern__desc *desc, const tern__post *post);
/* Writes "all_reduce of 100 f32, sum (work 5)". */
void tern__desc_text(const tern__desc *desc, uint64_t seq, char *text, size_t size);
/* True if two ranks describe the same work. Not all of the label of a shadow is compared. */
bool tern__desc_is_same(const tern__desc *desc, const tern__desc *like);
/* Writes "rank 0: <its work>; rank 2: <its work>" for two ranks whose works differ. */
void tern__desc_differ(const tern__desc *one, const tern__desc *other, int one_rank, int other_rank,
                       uint64_t seq, char *text, size_t size);
/* Keeps this work as this rank's last collective, for ranks on other hosts that ask. `where`: " in the
 * group of ranks 0, 2", or "". */
void tern__desc_say(tern__control *control, const tern__desc *desc, uint64_t seq, const char *where);
/* If this rank's work `seq`, which `rank` has not posted, has a label whose kind can say more about `rank`:
 * writes that. Otherwise writes "". */
void tern__desc_hint(const tern__meeting *meeting, uint64_t seq, int rank, tern__elsewhere where, char *text,
                     size_t size);
/* Returns what `rank` has done that has closed the channel of this rank's work `seq`: "freed its ddp". */
const char *tern__desc_left(const tern__meeting *meeting, uint64_t seq);
/* Writes "rank 1 (host, pid 77)", and if its process is stopped ", which is stopped (by SIGSTOP or a
 * debugger)". Returns whether it is. */
bool tern__rank_text(const tern_group *group, int rank, char *text, size_t size);
/* Writes the last work that `rank` has posted; false if there is none. The meeting may be NULL. */
bool tern__meeting_last_text(const tern__meeting *meeting, int rank, char *text, size_t size);
/* Writes ", which waits in barrier (work 5)", or else its last collective, as far as shared memory shows
 * it. */
void tern__meeting_last(const tern__shm_group *of, int rank, char *text, size_t size);
/* Adds a "reduce" or "wait" event to the timeline, with the work that it was for. */
void tern__work_trace(const tern__meeting *meeting, uint64_t seq, tern__track track, int64_t began);

#endif
