/* nodelist.h - Slurm's short forms: a list of nodes, and how many tasks run on each. */
#ifndef TERN_SRC_BASE_NODELIST_H
#define TERN_SRC_BASE_NODELIST_H

#include "base/base.h"

/* The first node of "n[001-003,10],login" is "n001": ranges in brackets, several to a name, with the zeros
 * and the ends that they have. False: it is no list of nodes, or the name has `size` characters or more. */
bool tern__nodelist_first(const char *list, char *name, size_t size);

/* How many tasks run on node `node`, counted from 0: of "4(x2),1" 4, 4 and 1. -1: it is no such list, or has
 * no such node. */
int tern__nodelist_tasks(const char *list, int node);

#endif
