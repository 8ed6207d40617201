/* run_dir.h - the folder of a run, for its curves and checkpoints. */
#ifndef TERN_EXAMPLES_RUN_DIR_H
#define TERN_EXAMPLES_RUN_DIR_H

#include "flags.h"

/* Finds the run's folder: --log-dir, or with --resume latest the folder of this program with the newest
 * checkpoint. Otherwise `dir` is "": a board then names a new folder. Call it on rank 0 only. */
void run_dir_find(const flags *f, char *dir, size_t size);

#endif
