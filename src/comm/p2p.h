/* p2p.h - works that are messages: what tern_work_test and tern_work_wait do with them. */
#ifndef TERN_SRC_COMM_P2P_H
#define TERN_SRC_COMM_P2P_H

#include "comm/staging.h"

/* Of one that is sent from a device's memory: copies it to `buf`. */
int tern__p2p_fetch(const tern__transfer *transfer, tern_error *err);
/* Moves the family's messages on. */
int tern__p2p_carry(tern_group *group, tern_error *err);
int tern__p2p_test(tern_work *work, tern_error *err);
/* Frees the work. */
int tern__p2p_wait(tern_work *work, tern_error *err);

#endif
