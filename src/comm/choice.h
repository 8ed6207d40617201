/* choice.h - the back end that a rank takes, as all ranks of a group compare it: two of different kinds would
 * wait for each other, or take what the other one means for something else. */
#ifndef TERN_SRC_COMM_CHOICE_H
#define TERN_SRC_COMM_CHOICE_H

#include "base/base.h"

#define TERN__BACKEND_NAME 48 /* "debug+nccl+native+gloo" */

/* As the user sees it, before the rank knows whether all are of one host. */
typedef struct tern__comm_choice {
    char on_one_host[TERN__BACKEND_NAME], on_several[TERN__BACKEND_NAME];
} tern__comm_choice;

/* By `wish`, which may be NULL; `has_mpi`: ranks that met by MPI. */
tern__comm_choice tern__comm_choose(const char *wish, bool has_mpi);
bool tern__comm_choice_is_sound(const tern__comm_choice *choice);

#endif
