/* ferry.h - between devices' own memory and the staging ring.
 *
 * Pieces cross in the stream of communication of the device that the memory is of, for which the ring is
 * pinned. A call's copies come after all that the step's stream was asked before the call. A piece is posted
 * when the event behind its copies has passed, and its place in the ring used again when the event behind
 * what came back has. When the call is done the step's stream follows its copies. So the host waits for a
 * device only where somebody waits for the call. Without devices all of this is a list that is empty. */
#ifndef TERN_SRC_COMM_FERRY_H
#define TERN_SRC_COMM_FERRY_H

#include "base/base.h"
#include "device/backend.h"

typedef struct tern__ferry tern__ferry;

/* The ferries of a ring of TERN__FLIGHTS places, one a device that was ever used. */
typedef struct tern__fleet {
    tern__ferry *first;
    tern_device *pinned; /* by which the ring is, or NULL */
    char *ring;
    size_t place_bytes, landing_bytes; /* and what one rank gives of a piece, at most */
    int world;
} tern__fleet;

/* Before the ring is given back: waits for what is on its way. */
void tern__fleet_close(tern__fleet *fleet);

/* What lies at `data` will be copied: from here on after what the step has been asked. Of the host's memory
 * nothing, as in tern__ferry_end. */
int tern__ferry_begin(tern__fleet *fleet, const void *data, tern_error *err);
/* To the ring or from it; the host's own memory at once. */
int tern__ferry_copy(tern__fleet *fleet, void *to, const void *from, size_t bytes, tern_error *err);
/* Behind the copies of `place` that were asked since it was last called. */
int tern__ferry_mark(tern__fleet *fleet, int place, tern_error *err);
/* TERN_OK, TERN_PENDING or an error: have the copies of `place` been done? */
int tern__ferry_test(tern__fleet *fleet, int place, tern_error *err);
int tern__ferry_wait(tern__fleet *fleet, int place, tern_error *err);
/* What the step is asked from here on finds at `data` what was copied there. */
int tern__ferry_end(tern__fleet *fleet, const void *data, tern_error *err);
/* Where what another rank gives to `data` comes first: `data` itself, or pinned memory. NULL: E_MEMORY. */
void *tern__ferry_landing(tern__fleet *fleet, void *data, int place, int rank, tern_error *err);

#endif
