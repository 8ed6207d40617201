/* pane.h - a block of memory of which each rank makes a part for all others.
 *
 * Where the back end reaches the block, the block is a window. A device's memory that it does not reach has a
 * window of the host's before it, which is pinned: a rank's own part is put there before it goes over, and
 * the others' parts are taken from there, in the device's stream of communication. For other panes what puts
 * and takes does nothing. */
#ifndef TERN_SRC_OPTIM_PANE_H
#define TERN_SRC_OPTIM_PANE_H

#include "comm/group.h"
#include "device/backend.h"

typedef struct tern__pane {
    char *block;
    tern_device *device; /* in whose memory it is; NULL: the host's          */
    char *stage;         /* of the window before it; NULL: it is the window */
    tern__device_event *turn;
    uint32_t window;
    bool is_open;
} tern__pane;

/* `block` NULL: fresh memory of the host, zeroed. Collective. After a failure it is to be closed, too. */
int tern__pane_open(tern__pane *pane, const tern_group *group, void *block, size_t bytes, tern_error *err);
/* Waits for what is on its way. */
void tern__pane_close(tern__pane *pane, const tern_group *group);

/* Of which memory the works on it are; NULL: the host's. */
static inline tern_device *tern__pane_home(const tern__pane *pane)
{
    return pane->stage ? NULL : pane->device;
}

/* What is put from here on is what the step has been asked to write so far. */
int tern__pane_depart(const tern__pane *pane, tern_error *err);
int tern__pane_put(const tern__pane *pane, uint64_t offset, uint64_t bytes, tern_error *err);
/* Waits for what was put. */
int tern__pane_settle(const tern__pane *pane, tern_error *err);
int tern__pane_take(const tern__pane *pane, uint64_t offset, uint64_t bytes, tern_error *err);
/* What the step is asked from here on finds what was taken. */
int tern__pane_return(const tern__pane *pane, tern_error *err);

#endif
