/* run_dir.h - the folder of a run, for its curves and checkpoints. */
#ifndef TERN_EXAMPLES_RUN_DIR_H
#define TERN_EXAMPLES_RUN_DIR_H

#include "flags.h"

/* --log-dir; or with --resume latest that of this program's runs in which something was saved last; or "": a
 * new one is wanted, which a board names. For rank 0 alone. */
void run_dir_find(const flags *f, char *dir, size_t size);

#endif
