/* relay.h - what ranks print into pipes: whole lines with a prefix before them to the launcher's own stdout
 * and stderr, every byte to logs, and the last lines for the report. */
#ifndef TERN_CLI_RUN_RELAY_H
#define TERN_CLI_RUN_RELAY_H

#include "run/output.h"

#include <poll.h>

typedef struct tern__relay tern__relay;

/* Yours: tern__relay_free. */
tern__relay *tern__relay_new(int ranks, tern_error *err);
void tern__relay_free(tern__relay *relay);

/* Are the launcher's own stdout and stderr the same file? */
bool tern__relay_joins(void);

/* Takes over the descriptors of a rank's two streams, at most one rank of a number at a time. */
void tern__relay_add(tern__relay *relay, int local, const tern__cli_output outputs[2]);

/* Its part of a poll: how many entries it needs, what they wait for now, and what to do with the answers. */
nfds_t tern__relay_poll_count(const tern__relay *relay);
void tern__relay_prepare(tern__relay *relay, struct pollfd *polls);
void tern__relay_handle(tern__relay *relay, const struct pollfd *polls);

/* The rank is dead: passes on what it had written by then and closes its pipes, even if a process that it
 * left behind still holds them. */
void tern__relay_end(tern__relay *relay, int local);

/* A line of the launcher's own, on stderr, between the ranks' lines. */
void tern__relay_say(tern__relay *relay, const char *fmt, ...) TERN__PRINTF(2, 3);

/* The last bytes that the rank of this number wrote to a stream that keeps them; valid until it writes more.
 */
const char *tern__relay_tail(const tern__relay *relay, int local, size_t *bytes);

/* Nothing is left to be read. */
bool tern__relay_is_drained(const tern__relay *relay);
/* Nothing is left to be written. */
bool tern__relay_is_idle(const tern__relay *relay);

#endif
