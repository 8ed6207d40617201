/* direct.h - works that a back end does in a device's memory (window_of), without the ring.
 *
 * Either all ranks have their memory on devices, or none has. In a move with lists of counts, a rank may have
 * no data, and so no memory. Such a move goes through the ring unless all ranks tell, with their counts, that
 * their memory is on a device. */
#ifndef TERN_SRC_COMM_DIRECT_H
#define TERN_SRC_COMM_DIRECT_H

#include "comm/staging.h"

/* Makes a work direct, if it can be. With lists of counts, only finds out what this rank tells the others. */
int tern__direct_begin(tern_work *work, const tern_group *group, tern_error *err);
/* Makes a move direct for which all ranks can be. `most`: the most elements that one rank gives to another.
 */
int tern__direct_move(tern_work *work, const tern_group *group, uint64_t most, tern_error *err);

#endif
