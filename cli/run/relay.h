/* relay.h - reads the ranks' output from pipes: copies whole lines with a prefix to the launcher's stdout and
 * stderr, every byte to the logs, and keeps the last lines for the report. */
#ifndef TERN_CLI_RUN_RELAY_H
#define TERN_CLI_RUN_RELAY_H

#include "run/output.h"

#include <poll.h>

typedef struct tern__relay tern__relay;

/* The caller frees it with tern__relay_free. */
tern__relay *tern__relay_new(int ranks, tern_error *err);
void tern__relay_free(tern__relay *relay);

/* Are the launcher's stdout and stderr the same file? */
bool tern__relay_joins(void);

/* Takes over the descriptors of a rank's two streams. There is at most one living rank of each number. */
void tern__relay_add(tern__relay *relay, int local, const tern__cli_output outputs[2]);

/* The relay's part of a poll: the number of entries it needs, what they wait for now, and the handling of
 * events. */
nfds_t tern__relay_poll_count(const tern__relay *relay);
void tern__relay_prepare(tern__relay *relay, struct pollfd *polls);
void tern__relay_handle(tern__relay *relay, const struct pollfd *polls);

/* Call it when the rank is dead. Passes on all that it had written by then and closes its pipes, even if an
 * orphan of the rank still holds them. */
void tern__relay_end(tern__relay *relay, int local);

/* Prints a line of the launcher on stderr, between the ranks' lines. */
void tern__relay_say(tern__relay *relay, const char *fmt, ...) TERN__PRINTF(2, 3);

/* Returns the last bytes that the rank wrote to the stream that keeps them; valid until it writes more. */
const char *tern__relay_tail(const tern__relay *relay, int local, size_t *bytes);

/* Is there nothing left to read? */
bool tern__relay_is_drained(const tern__relay *relay);
/* Is there nothing left to read or write? */
bool tern__relay_is_idle(const tern__relay *relay);

#endif
