/* wait.h - blocking: the one place in which a rank waits for others, whatever moves the data.
 *
 * A wait has a goal. While it lasts, everything that the family has in progress goes on, through the
 * function that the call floor gives (tern_group.progress). A wait that takes long tells the peers what it
 * is for, warns of stopped ranks, looks for a deadlock, notices ranks that have left, and ends with the
 * group's time-out in an error that says what the others do. */
#ifndef TERN_SRC_COMM_MEET_WAIT_H
#define TERN_SRC_COMM_MEET_WAIT_H

#include "comm/meet/shm.h"

#define TERN__SPINS_MAX 150 /* about 15 us */

/* What a wait is for. A goal of the caller's contains it as its first member. NULL members: see each. */
struct tern__goal {
    bool (*is_met)(const tern__goal *goal);
    /* Sets ranks[r], [world] of the group and false before, for each rank that this one may be waiting for,
     * and writes the wait's name: "all_reduce of 8 f32, sum (work 2)". */
    void (*describe)(const tern__goal *goal, bool *ranks, char *what, size_t size);
    /* Fails, for all ranks, if a rank that has left makes the goal impossible. NULL: see find_gone. */
    int (*check)(const tern__goal *goal, tern_error *err);
    /* Instead of `check`, for messages between hosts, which may still be under way when their sender has
     * left: returns a rank that has left and without which the goal cannot be met, or -1. NULL: nothing is
     * checked. */
    int (*find_gone)(const tern__goal *goal);
    /* Fails with the error of a time-out. NULL: "rank 0 waited 5 s in <name>", what the ranks do. */
    int (*fail_late)(const tern__goal *goal, tern_error *err);
    /* Notes the ranks that this wait itself misses, besides those of the hooks (tern__progress_hook.miss).
     * Returns false if they cannot be told, or if there is something left to do. NULL: no deadlock is
     * looked for. */
    bool (*miss)(const tern__goal *goal);
    /* Writes what another rank may have done instead, for the errors of a deadlock and a time-out, or "".
     * NULL: nothing. */
    void (*hint)(const tern__goal *goal, char *text, size_t size);
    bool stays_met;   /* what was done before a failure stays done: the wait succeeds in spite of it */
    bool is_message;  /* the name includes the peer */
    bool is_polled;   /* nobody wakes this rank when the goal is met */
    const char *verb; /* "rank 0 waited 5 s <verb> <name>"; NULL: "in" */
};

/* Blocks until the goal is met or an error occurs. With a limit (tern_group.limit) it returns TERN_PENDING
 * at its end, or once the family is woken. */
int tern__wait(tern_group *group, const tern__goal *goal, tern_error *err);

/* ---- blame.c ---- */

/* Tells the peers on all hosts that this rank is waiting in `what` ("barrier (work 5) in the group of ranks
 * 1, 2") for `ranks` [world] of the group. A wait that has taken late_s calls it repeatedly; only changes
 * are written. If is_named, the text that the peers get lists these ranks; otherwise `what` already names
 * them. A wait of 10 s warns if one of them is stopped. */
void tern__wait_say(const tern_group *group, const char *what, const bool *ranks, bool is_named);
/* Withdraws that text after a wait that succeeded. A rank that gives up does not call this, so that peers
 * still learn what it was waiting in. */
void tern__wait_forget(const tern_group *group);
/* The same after a wait that its limit has ended. Its caller mostly waits on at once, so the text stays for a
 * moment. */
void tern__wait_pause(const tern_group *group);
/* Appends what the `ranks` [world] are doing while this rank waits in `what` for them. The shared memory
 * knows it of the ranks of this host; ranks of other hosts are asked. */
void tern__wait_blame(const tern_group *group, const char *what, const bool *ranks, char *text, size_t size);

#endif
