/* debug.h - what the debug back end's files share: backend.c (the struct), flight.c (what is under way, and
 * whether its memory is left alone), call.c (the user's collectives), message.c (messages between two ranks),
 * say.c (the trace).
 *
 * The debug back end stands before another one, says what it is asked to do, and checks who asks. Each window
 * has a twin of the same size in the back end behind it: a work's data go to the twin when it is posted, and
 * the result comes back when this rank has seen that it is done. So until then the memory has to be what it
 * was, whatever the peers do to the twin. The user's own calls, whose data may lie in ordinary memory, are
 * watched beside that (call.c). */
#ifndef TERN_SRC_COMM_DEBUG_H
#define TERN_SRC_COMM_DEBUG_H

#include "comm/group.h"
#include "comm/native/native.h"

#define TERN__FLIGHT_TEXT (TERN__WORK_TEXT + 48)

/* Memory that something under way reads, or writes when it is done. */
typedef struct tern__debug_range {
    char *at;
    size_t bytes;
    bool is_written, is_kept; /* kept: nobody but the caller could change it meanwhile */
    uint64_t sum;             /* what it was, of kept ones                             */
    uint32_t window;
    bool is_in_place; /* a call's: the result comes to it, piece by piece */
    size_t offset;    /* in the window; of memory that is in none: TERN__NO_WINDOW */
} tern__debug_range;
#define TERN__NO_WINDOW UINT32_MAX

/* A work or a message that is not known to be done. */
typedef struct tern__flight {
    struct tern__flight *next;
    char text[TERN__FLIGHT_TEXT];
    int64_t began;
    tern__debug_range *ranges;
    int count, room;
} tern__flight;

/* A window, and its twin in the back end behind. */
typedef struct tern__debug_mirror {
    char *base, *twin; /* NULL once it is closed */
    size_t bytes;
    bool is_own; /* `base` is mapped here */
} tern__debug_mirror;

typedef struct tern__debug {
    tern_group *group;
    const tern__comm_backend *behind;
    void *state;
    int fd; /* of the trace */
    tern__debug_mirror *mirrors;
    uint32_t mirror_room;
    int channels; /* opened so far */
    tern__flight *flights;
    tern__flight *calls, *spare; /* the user's, and those that are over */
} tern__debug;

/* ---- say.c ---- */

/* Where TERN_DEBUG_FILE says, else standard error. */
int tern__debug_open(tern__debug *debug, tern_error *err);
void tern__debug_close(tern__debug *debug);
/* One line, with the rank and the time. */
void tern__debug_say(const tern__debug *debug, const char *fmt, ...) TERN__PRINTF(2, 3);
/* `status`, having said the error's text if it is one. */
int tern__debug_tell(const tern__debug *debug, int status, const tern_error *err);

/* ---- flight.c ---- */

/* Adds a range to a flight that has not begun. */
int tern__flight_add(tern__flight *flight, const tern__debug_range *range, tern_error *err);
/* Onto `list`. E_INVALID if another one on it uses its memory, and one of the two writes it. */
int tern__flight_begin(tern__flight **list, tern__flight *flight, tern_error *err);
/* E_STATE if its kept memory is not what it was. */
int tern__flight_check(const tern__flight *flight, tern_error *err);
/* Off the list; its ranges' room is kept for the next. */
void tern__flight_drop(tern__flight **list, tern__flight *flight);
/* "bytes 0 to 400 of window 3". */
void tern__range_text(const tern__debug_range *range, char *text, size_t size);

/* ---- call.c ---- */

/* A work of the user's that goes into the queue, has another piece done, or leaves the queue. Of a group
 * without the debug back end they do nothing. */
int tern__debug_call_begin(tern_work *work, tern_error *err);
int tern__debug_call_land(const tern_work *work, tern_error *err);
void tern__debug_call_end(tern_work *work);
void tern__debug_calls_free(tern__debug *debug);

/* ---- message.c ---- */

void *tern__debug_mailbox_open(void *state, tern_error *err);
void tern__debug_mailbox_close(void *mailbox);
int tern__debug_start(void *mailbox, tern__transfer *transfer, tern_error *err);
int tern__debug_carry(void *mailbox, tern_error *err);
int tern__debug_await(void *mailbox, const tern__transfer *transfer, tern_error *err);
void tern__debug_drop(void *mailbox, tern__transfer *transfer);

#endif
