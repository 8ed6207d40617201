/* direct.h - works that a back end does in a device's own memory (window_of), and not through the ring.
 *
 * All ranks have to have their memory on devices then, or none. In a move with lists of counts a rank may
 * have nothing, and no memory either; so it goes through the ring unless all ranks have said with their
 * counts that theirs is on a device. */
#ifndef TERN_SRC_COMM_DIRECT_H
#define TERN_SRC_COMM_DIRECT_H

#include "comm/staging.h"

/* Finds out whether the work is done so; with lists of counts only what this rank has to say. */
int tern__direct_begin(tern_work *work, const tern_group *group, tern_error *err);
/* A move of which all ranks have said so: `most` elements go from one of them to another, at most. */
int tern__direct_move(tern_work *work, const tern_group *group, uint64_t most, tern_error *err);

#endif
