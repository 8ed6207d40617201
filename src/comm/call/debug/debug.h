/* debug.h - shared by the debug back end's files: backend.c (the struct of functions), flight.c (pending
 * works and the memory they use), call.c (the user's collectives), message.c (messages between two ranks),
 * say.c (the trace).
 *
 * The debug back end sits in front of another back end. It logs every call, passes it on, and checks that the
 * caller leaves the memory of pending works alone. Each window has a twin of the same size in the back end
 * behind. Posting a work copies its data to the twin; the result is copied back when this rank sees that the
 * work is done. Peers only write to the twin, so until then any change of the window is the caller's. The
 * user's collectives, whose data may be in ordinary memory, are checked separately (call.c). */
#ifndef TERN_SRC_COMM_CALL_DEBUG_DEBUG_H
#define TERN_SRC_COMM_CALL_DEBUG_DEBUG_H

#include "comm/move/backend.h"
#include "comm/meet/meeting.h"

#define TERN__FLIGHT_TEXT (TERN__WORK_TEXT + 48)

/* Memory that a pending work or message reads, or writes when it is done. */
typedef struct tern__debug_range {
    char *at;
    size_t bytes;
    bool is_written, is_kept; /* kept: only the caller could change it before the end */
    uint64_t sum;             /* checksum at the start, if is_kept                     */
    uint32_t window;
    bool is_in_place; /* a call's: the result replaces it, piece by piece */
    size_t offset;    /* in `window`, which is TERN__NO_WINDOW for other memory */
} tern__debug_range;
#define TERN__NO_WINDOW UINT32_MAX

/* A pending work or message: this rank has not seen yet that it is done. */
typedef struct tern__flight {
    struct tern__flight *next;
    char text[TERN__FLIGHT_TEXT];
    int64_t began;
    tern__debug_range *ranges;
    int count;
    size_t room;
} tern__flight;

/* A window, and its twin in the back end behind. */
typedef struct tern__debug_mirror {
    char *base, *twin; /* NULL once it is closed */
    size_t bytes;
    bool is_own;    /* this back end mapped `base` */
    bool is_sparse; /* base's pages are those of `fd` */
    int fd;
} tern__debug_mirror;

typedef struct tern__debug {
    tern__progress_hook hook; /* first: its function casts it back */
    tern_group *group;
    const tern__comm_backend *behind;
    void *state;
    int fd; /* the trace's */
    tern__debug_mirror *mirrors;
    size_t mirror_room;
    int channels; /* opened so far */
    tern__flight *flights;
    tern__flight *calls, *spare; /* the user's pending calls; finished ones, for reuse */
    struct tern__debug_message *messages, *spare_messages; /* pending ones; finished ones, for reuse */
} tern__debug;

/* ---- say.c ---- */

/* Opens the trace: the file TERN_DEBUG_FILE, or else standard error. */
int tern__debug_open(tern__debug *debug, tern_error *err);
void tern__debug_close(tern__debug *debug);
/* Writes one line, with the rank and the time. */
void tern__debug_say(const tern__debug *debug, const char *fmt, ...) TERN__PRINTF(2, 3);
/* Returns `status`; if it is an error, writes the error's text first. */
int tern__debug_tell(const tern__debug *debug, int status, const tern_error *err);

/* ---- flight.c ---- */

/* Adds a range to a flight that has not begun yet. */
int tern__flight_add(tern__flight *flight, const tern__debug_range *range, tern_error *err);
/* Puts the flight on `list`. E_INVALID if another one there uses the same memory and one of the two writes
 * it. */
int tern__flight_begin(tern__flight **list, tern__flight *flight, tern_error *err);
/* E_STATE if its kept memory has changed since it began. */
int tern__flight_check(const tern__flight *flight, tern_error *err);
/* Takes the flight off the list. It keeps the memory of its ranges, for reuse. */
void tern__flight_drop(tern__flight **list, tern__flight *flight);
/* Writes "bytes 0 to 400 of window 3". */
void tern__range_text(const tern__debug_range *range, char *text, size_t size);

/* ---- call.c ---- */

/* Called when one of the user's works enters the queue, when one of its pieces is done, and when it leaves
 * the queue. Without the debug back end they do nothing. */
int tern__debug_call_begin(tern_work *work, uint64_t number, tern_error *err);
int tern__debug_call_land(const tern_work *work, tern_error *err);
void tern__debug_call_end(tern_work *work);
void tern__debug_calls_free(tern__debug *debug);

/* ---- message.c ---- */

/* Checks the messages that the back end behind has finished, and hands their results to the caller's. */
int tern__debug_progress(tern__progress_hook *debug, tern_error *err);
/* See tern__comm_backend. */
int tern__debug_transfer_start(void *debug, tern__transfer *transfer, tern_error *err);
int tern__debug_transfer_wait(void *debug, const tern__transfer *transfer, tern_error *err);
bool tern__debug_transfer_drop(void *debug, tern__transfer *transfer, bool if_unmet);
void tern__debug_messages_free(tern__debug *debug);

#endif
