/* choice.h - the name of the back end that a rank takes. All ranks of a group compare it when they meet:
 * ranks with different back ends would wait for each other, or misread each other's data. */
#ifndef TERN_SRC_COMM_BOOTSTRAP_CHOICE_H
#define TERN_SRC_COMM_BOOTSTRAP_CHOICE_H

#include "base/base.h"

#define TERN__BACKEND_NAME 48 /* "debug+nccl+native+gloo" */

/* The name that users see, for both cases: the rank does not know yet whether all ranks are on one host. */
typedef struct tern__comm_choice {
    char on_one_host[TERN__BACKEND_NAME], on_several[TERN__BACKEND_NAME];
} tern__comm_choice;

/* Returns the choice for the option `backend`, which may be NULL. `has_mpi`: the ranks have met over MPI. */
tern__comm_choice tern__comm_choose(const char *wish, bool has_mpi);
static inline const char *tern__comm_choice_name(const tern__comm_choice *choice, bool is_one_host)
{
    return is_one_host ? choice->on_one_host : choice->on_several;
}

#endif
