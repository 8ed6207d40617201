/* agree.h - makes all ranks continue or fail together. */
#ifndef TERN_SRC_CHECKPOINT_AGREE_H
#define TERN_SRC_CHECKPOINT_AGREE_H

#include <tern/comm.h>

/* Collective. Returns TERN_OK if no rank has set *err. Otherwise copies the error of the first rank that has
 * one to *err on all ranks, with that rank's number in front. `group` may be NULL. */
int tern__agree(tern_group *group, const char *func, tern_error *err);

#endif
