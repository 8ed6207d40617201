/* report.h - what the launcher says of a job that failed: the first failure, and what followed from it. */
#ifndef TERN_CLI_RUN_REPORT_H
#define TERN_CLI_RUN_REPORT_H

#include "run/failure.h"
#include "run/relay.h"

#define TERN__REPORT_FAILURES 16

typedef struct tern__report {
    const char *program;
    int node;
    int count;                                     /* of this attempt, those that are not kept included */
    tern__failure failures[TERN__REPORT_FAILURES]; /* by time */
    int attempts;                                  /* that failed before */
    char earlier[4][192];                          /* the first of them  */
} tern__report;

void tern__report_add(tern__report *report, const tern__failure *failure);
/* The first failure of this attempt, NULL if there was none. */
tern__failure *tern__report_root(tern__report *report);
/* Node 0 has decided which one it was. */
void tern__report_set_root(tern__report *report, const tern__failure *root);
/* The attempt has failed and there will be another. */
void tern__report_restart(tern__report *report);
/* To the launcher's stderr; nothing if nothing failed. */
void tern__report_print(tern__report *report, const tern__launch *launch, tern__relay *relay);

#endif
