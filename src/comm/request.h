/* request.h - a collective as the caller asked for it: checked, made a work of the group's queue, and waited
 * for or handed out. */
#ifndef TERN_SRC_COMM_REQUEST_H
#define TERN_SRC_COMM_REQUEST_H

#include "comm/staging.h"

typedef struct tern__request {
    const char *func; /* the public call */
    tern__kind kind;
    const void *in;
    void *out;
    size_t count;
    tern_dtype dtype;
    tern_reduce_op op;
    int root;
    double factor; /* of TERN_PREMUL_SUM */
    bool is_premul;
    bool wait_all; /* of a monitored barrier */
    bool is_vote;  /* of tern_group_new or tern_group_split: is named so while ranks wait in it */

    /* Of a coalesced call: `length` buffers, and what takes the place of the other one of `in` and `out`. */
    bool is_list;
    const tern_span *list;
    void *const *others;
    size_t length;

    /* Of a move with lists of counts, [size] each. */
    const size_t *in_counts, *out_counts; /* cut `in` and `out`; or */
    const tern_span *ins, *outs;          /* the parts themselves   */
} tern__request;

/* How many ranks' parts the buffers of an item hold; 0: nobody looks at that one. */
typedef struct tern__parts {
    size_t in, out;
} tern__parts;

tern__parts tern__request_parts(const tern_group *group, tern__kind kind, int root);

/* E_INVALID for no group, or *err if it is set, which then is the group's. */
int tern__request_given(tern_group *group, const char *func, tern_error *err);
int tern__request_run(tern_group *group, const tern__request *request, tern_error *err);
tern_work *tern__request_start(tern_group *group, const tern__request *request, tern_error *err);
/* What went wrong for this rank ends the group, so that no peer waits for it. Returns the code. */
int tern__request_fail(tern_group *group, const char *func, tern_error *why, tern_error *err);

#endif
