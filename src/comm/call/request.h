/* request.h - a collective as the caller asks for it. It is checked, becomes a work in the group's queue, and
 * is waited for or returned as a handle. */
#ifndef TERN_SRC_COMM_CALL_REQUEST_H
#define TERN_SRC_COMM_CALL_REQUEST_H

#include "comm/call/staging.h"

typedef struct tern__request {
    const char *func; /* the public call */
    tern__kind kind;
    const void *in;
    void *out;
    size_t count;
    tern_dtype dtype;
    tern_reduce_op op;
    int root;
    double factor; /* for TERN_PREMUL_SUM */
    bool is_premul;
    bool wait_all; /* for a monitored barrier */
    bool is_vote;  /* of tern_group_new or tern_group_split: named so in errors */

    /* In a coalesced call: `length` buffers, and their counterparts for the other one of `in` and `out`. */
    bool is_list;
    const tern_span *list;
    void *const *others;
    size_t length;

    /* In a move with lists of counts, [world] each. */
    const size_t *in_counts, *out_counts; /* cut `in` and `out`; or */
    const tern_span *ins, *outs;          /* the parts themselves */
} tern__request;

/* The number of ranks' parts in an operand's two sides; 0: the buffer is not used. */
typedef struct tern__parts {
    size_t in, out;
} tern__parts;

/* E_INVALID: a buffer of `count` elements is NULL. */
int tern__call_fail_null(const char *func, size_t count, tern_dtype dtype, tern_error *err);

tern__parts tern__request_parts(const tern_group *group, tern__kind kind, int root);

int tern__request_run(tern_group *group, const tern__request *request, tern_error *err);
tern_work *tern__request_start(tern_group *group, const tern__request *request, tern_error *err);

/* E_INVALID if `group` is NULL. If *err is set already, it becomes the group's error and is returned. */
int tern__call_given(tern_group *group, const char *func, tern_error *err);
/* Ends the group with this rank's error, so that no peer waits for it. Returns the code. */
int tern__call_fail(tern_group *group, const char *func, tern_error *why, tern_error *err);

#endif
