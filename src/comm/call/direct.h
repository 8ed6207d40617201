/* direct.h - works that a back end does in a device's memory (window_of), without the ring.
 *
 * Either all ranks have their memory on devices, or none has. In a move with lists of counts, a rank may have
 * no data, and so no memory. Such a move goes through the ring unless all ranks say, together with their
 * counts, that their memory is on a device. */
#ifndef TERN_SRC_COMM_CALL_DIRECT_H
#define TERN_SRC_COMM_CALL_DIRECT_H

#include "comm/call/staging.h"

/* Makes a work direct if possible. With lists of counts, it only finds out what this rank will tell the other
 * ranks. */
int tern__direct_begin(tern_work *work, const tern_group *group, tern_error *err);
/* Makes a move with lists of counts direct, once all ranks have said that they can. `most`: the most elements
 * that one rank gives to another. */
int tern__direct_move(tern_work *work, const tern_group *group, uint64_t most, tern_error *err);

#endif
