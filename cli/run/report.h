/* report.h - the report on a failed job: the root cause, and the failures that followed. */
#ifndef TERN_CLI_RUN_REPORT_H
#define TERN_CLI_RUN_REPORT_H

#include "run/failure.h"
#include "run/relay.h"

#define TERN__REPORT_FAILURES 16

typedef struct tern__report {
    const char *program;
    int node;
    int count; /* failures of this attempt, including those that are not kept */
    tern__failure failures[TERN__REPORT_FAILURES]; /* by time, after them those because of a peer */
    int attempts;                                  /* earlier attempts, all of which failed */
    char earlier[4][192];                          /* descriptions of the first of them      */
} tern__report;

/* Adds a failure, unless this rank has one already. */
void tern__report_add(tern__report *report, const tern__failure *failure);
/* Returns the root cause of this attempt's failure: the first failure that is not because of a peer, or else
 * the first one; NULL if there is none. */
tern__failure *tern__report_root(tern__report *report);
/* Sets the root cause, as node 0 has decided. */
void tern__report_set_root(tern__report *report, const tern__failure *root);
/* Call it when the attempt has failed and there will be another. */
void tern__report_restart(tern__report *report);
/* Prints the report on the launcher's stderr; prints nothing if nothing failed. */
void tern__report_print(tern__report *report, const tern__launch *launch, tern__relay *relay);

#endif
