/* nodelist.h - parses Slurm's compressed lists: of nodes, and of the number of tasks on each. */
#ifndef TERN_SRC_BASE_NODELIST_H
#define TERN_SRC_BASE_NODELIST_H

#include "base/base.h"

/* Finds the first node of a list: of "n[001-003,10],login" it is "n001". A name may have several ranges in
 * brackets, leading zeros, and text after them. Returns false if it is not a list of nodes or the name has
 * `size` characters or more. */
bool tern__nodelist_first(const char *list, char *name, size_t size);

/* Returns the number of tasks on node `node`, counted from 0: for "4(x2),1" 4, 4 and 1. -1: it is not such a
 * list, or it has no such node. */
int tern__nodelist_tasks(const char *list, int node);

#endif
