/* relay.h - what ranks 1.. print: whole lines with the rank's number before them, to the launcher's own
 * stdout and stderr. */
#ifndef TERN_CLI_RELAY_H
#define TERN_CLI_RELAY_H

#include "base/base.h"

#include <poll.h>

typedef struct tern__relay tern__relay;

/* Yours: tern__relay_free. */
tern__relay *tern__relay_new(int ranks, tern_error *err);
void tern__relay_free(tern__relay *relay);

/* Takes over the reading ends of a rank's two pipes. */
void tern__relay_add(tern__relay *relay, int rank, int out_fd, int err_fd);

/* Its part of a poll: how many entries it needs, what they wait for now, and what to do with the answers. */
nfds_t tern__relay_poll_count(const tern__relay *relay);
void tern__relay_prepare(tern__relay *relay, struct pollfd *polls);
void tern__relay_handle(tern__relay *relay, const struct pollfd *polls);

/* The rank is dead: passes on what it had written by then and closes its pipes, even if a process that it
 * left behind still holds them. */
void tern__relay_end(tern__relay *relay, int rank);

/* A line of the launcher's own, on stderr, between the ranks' lines. */
void tern__relay_say(tern__relay *relay, const char *fmt, ...) TERN__PRINTF(2, 3);

/* Nothing is left to be written. */
bool tern__relay_is_idle(const tern__relay *relay);

#endif
