/* run_dir.h - the folder of a run, for its curves and checkpoints, and run.json in it: the program, its
 * flags, version, host, ranks and time, and under "resumed" the same of every later start. By the flags of
 * the first start, --resume latest finds the run again. */
#ifndef TERN_EXAMPLES_RUN_DIR_H
#define TERN_EXAMPLES_RUN_DIR_H

#include "flags.h"

#define RUN_NOTE 2048

/* What run.json says of a start, beside the flags. */
typedef struct run_start {
    int ranks, threads;
    const char *backend, *device;
    int64_t step; /* from which it goes on */
} run_start;

/* Finds the run's folder: --log-dir, or with --resume latest the one in runs/ with the newest checkpoint
 * among those of this program with the same flags, except those that may change (flags_may_change).
 * Otherwise `dir` is "": a board then names a new folder. `note` becomes what the user should know, such as
 * why a run is not resumed, or "". It only reads. E_MISMATCH: --log-dir is a run of another program. */
void run_dir_find(const flags *f, char *dir, size_t size, char note[RUN_NOTE], tern_error *err);

/* Writes run.json, or with `resumed` adds this start to it if it exists. Returns whether the file is new.
 * E_IO. */
bool run_dir_record(const char *dir, const flags *f, const run_start *start, bool resumed, tern_error *err);

/* Removes the models that an earlier run has left, "best" and "last", as files or folders. E_IO. */
void run_dir_clear(const char *dir, tern_error *err);

/* Is the file in the folder? */
bool run_dir_has(const char *dir, const char *file);

/* Returns the flags, version, host, ranks, .. for the board's table of runs; the caller frees it. */
tern_object *run_dir_hparams(const flags *f, const run_start *start, tern_error *err);

#endif
