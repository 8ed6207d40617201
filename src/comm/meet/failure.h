/* failure.h - the first failure of a family, which all of its ranks report. */
#ifndef TERN_SRC_COMM_MEET_FAILURE_H
#define TERN_SRC_COMM_MEET_FAILURE_H

#include "comm/group.h"

/* TERN_OK as long as no rank has failed. The ranks of a host report the same first failure with the same
 * text. */
int tern__failure_check(const tern_group *group, tern_error *err);
/* Record a failure for all ranks; only the family's first one counts. _set_in adds the group's name to the
 * text. Return the first one recorded. */
int tern__failure_set(const tern_group *group, int code, const char *text, tern_error *err);
int tern__failure_set_in(const tern_group *group, int code, const char *text, tern_error *err);
/* Clears *err after a failure that came when what was awaited was already done; the next call will return it.
 * Returns TERN_OK. */
int tern__failure_forget(tern_error *err);

#endif
