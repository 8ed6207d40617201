/* ring_copy.h - copies between devices' memory and the staging ring.
 *
 * The ring is pinned for the device, and the copies run in the device's communication stream. A call's copies
 * wait for all work that the step's stream had before the call. A piece is posted when the event after its
 * copies has completed; its place in the ring is reused when the event after the results' copies has. When
 * the call is done, the step's stream waits for the copies. So the host waits for a device only if the caller
 * waits for the call. Without devices, the list of ring copies is empty and these functions do nothing. */
#ifndef TERN_SRC_COMM_CALL_RING_COPY_H
#define TERN_SRC_COMM_CALL_RING_COPY_H

#include "base/base.h"
#include "device/backend.h"

typedef struct tern__ring_copy tern__ring_copy;

/* The copies of a ring of TERN__FLIGHTS places, one for each device that was ever used. */
typedef struct tern__ring_copies {
    tern__ring_copy *first;
    tern_device *pinned; /* the device for which the ring is pinned, or NULL */
    char *ring;
    size_t place_bytes, landing_bytes; /* of a place; the most that one rank gives in a piece */
    int world;
} tern__ring_copies;

/* Waits for copies under way. Call it before the ring is freed. */
void tern__ring_copies_close(tern__ring_copies *copies);

/* Makes the copies of `data` wait for all work that is on the step's stream now. Like tern__ring_copy_end, it
 * does nothing for host memory. */
int tern__ring_copy_begin(tern__ring_copies *copies, const void *data, tern_error *err);
/* Copies to the ring or from it. Host memory is copied at once. */
int tern__ring_copy_run(tern__ring_copies *copies, void *to, const void *from, size_t bytes, tern_error *err);
/* Records the event after the copies of `place` that were enqueued since the last call. */
int tern__ring_copy_mark(tern__ring_copies *copies, int place, tern_error *err);
/* Returns TERN_OK if the copies of `place` are done, TERN_PENDING, or an error. */
int tern__ring_copy_test(tern__ring_copies *copies, int place, tern_error *err);
int tern__ring_copy_wait(tern__ring_copies *copies, int place, tern_error *err);
/* Makes the step's stream wait for the copies to `data`. */
int tern__ring_copy_end(tern__ring_copies *copies, const void *data, tern_error *err);
/* Returns the memory in which another rank's data for `data` lands: `data` itself, or pinned memory. NULL:
 * E_MEMORY. */
void *tern__ring_copy_landing(tern__ring_copies *copies, void *data, int place, int rank, tern_error *err);

#endif
