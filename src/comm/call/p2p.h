/* p2p.h - works that are messages, as tern_work_test and tern_work_wait see them. */
#ifndef TERN_SRC_COMM_CALL_P2P_H
#define TERN_SRC_COMM_CALL_P2P_H

#include "comm/call/staging.h"

int tern__p2p_test(tern_work *work, tern_error *err);
/* Blocks until the message is done; TERN_PENDING at the end of a limited wait. */
int tern__p2p_wait_for(tern_work *work, tern_error *err);
/* Blocks until the message is done, and frees the work. */
int tern__p2p_wait(tern_work *work, tern_error *err);
/* Ends the messages that are pending when their group is closed: E_STATE here, E_PEER for the peers. */
void tern__p2p_close(tern_group *group);

#endif
