/* agree.h - ranks that go on together or fail together. */
#ifndef TERN_SRC_CHECKPOINT_AGREE_H
#define TERN_SRC_CHECKPOINT_AGREE_H

#include <tern/comm.h>

/* Collective: TERN_OK if *err is set on no rank; else *err becomes on all ranks what it is on the first that
 * has one, with that rank's name in front. `group` may be NULL. */
int tern__agree(tern_group *group, const char *func, tern_error *err);

#endif
