/* snapshot.h - all that a run consists of, in one file: written so that there is always a good one, and taken
 * up again as if the run had never stopped.
 *
 *     tern_snapshot *snap = tern_snapshot_new("runs/a", world, NULL, &err);
 *     tern_snapshot_add_module(snap, "model", net, &err);
 *     tern_snapshot_add_optim(snap, "optimizer", optim, &err);
 *     tern_snapshot_add_int(snap, "epoch", &epoch, &err);
 *     if (tern_snapshot_load(snap, NULL, &err) == 1)
 *         printf("goes on at step %lld\n", (long long)tern_snapshot_step(snap));
 *     ...
 *     tern_snapshot_save(snap, step, &err);
 *
 * The files are DIR/step-N.pt, of torch.save: a dict with a key for each thing added, "step", "world_size"
 * and, where clocks have chosen algorithms, "choices" (those of the devices of what was added: the scope's is
 * the one that computes), which torch.load(path, weights_only=True) reads from PyTorch 2 on. DIR/latest is
 * a link to the one that was saved last, and is replaced only when that is on the disk: whenever the process
 * is killed, it names a whole file.
 *
 * What is every rank's own (rng, scope) is in the file for each of them; of everything else rank 0's is,
 * which must be equal on all of them or rank 0's business, as buffers are under tern_ddp. A sharded
 * optimizer's slices come together. A run may go on with another number of ranks: a rank that the file does
 * not know has the scope of rank 0, whose draws are its own all the same, and keeps the state that its rng
 * has; a loader goes on as tern_loader_state_dict_load says.
 *
 * Threads: a snapshot belongs to the thread of its group. */
#ifndef TERN_SNAPSHOT_H
#define TERN_SNAPSHOT_H

#include <tern/amp.h>
#include <tern/schedule.h>
#include <tern/state_dict.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_snapshot tern_snapshot;

typedef struct tern_snapshot_opts {
    size_t size;
    int keep_last; /* so many are kept of those up to the last step; 0: all; default 3 */
} tern_snapshot_opts;
TERN_API tern_snapshot_opts tern_snapshot_defaults(void);

/* Makes the directory, and its parents, where there is none, and removes what processes that were killed left
 * half written in it. One job at a time writes to a directory, which all ranks of `group` see. Collective;
 * `group` may be NULL. Borrows the group and whatever is added. Yours: tern_snapshot_free. E_INVALID: no
 * directory's name; E_RANGE: keep_last < 0; E_IO; E_MEMORY. */
TERN_API tern_snapshot *tern_snapshot_new(const char *dir, tern_group *group, const tern_snapshot_opts *opts,
                                          tern_error *err);
TERN_API void tern_snapshot_free(tern_snapshot *snapshot);

/* What the run consists of, all ranks the same, in the order in which it is to be loaded: an optimizer before
 * its schedules. `name` is the key in the file, copied. E_INVALID: nothing given, or a name that is there
 * already, "step", "world_size" or "choices"; E_MEMORY. */
TERN_API int tern_snapshot_add_module(tern_snapshot *snapshot, const char *name, tern_module *module,
                                      tern_error *err);
TERN_API int tern_snapshot_add_optim(tern_snapshot *snapshot, const char *name, tern_optim *optim,
                                     tern_error *err);
TERN_API int tern_snapshot_add_schedule(tern_snapshot *snapshot, const char *name, tern_schedule *schedule,
                                        tern_error *err);
TERN_API int tern_snapshot_add_scaler(tern_snapshot *snapshot, const char *name, tern_scaler *scaler,
                                      tern_error *err);
TERN_API int tern_snapshot_add_amp(tern_snapshot *snapshot, const char *name, tern_amp *amp, tern_error *err);
TERN_API int tern_snapshot_add_loader(tern_snapshot *snapshot, const char *name, tern_loader *loader,
                                      tern_error *err);
TERN_API int tern_snapshot_add_rng(tern_snapshot *snapshot, const char *name, tern_rng *rng, tern_error *err);
TERN_API int tern_snapshot_add_scope(tern_snapshot *snapshot, const char *name, tern_scope *scope,
                                     tern_error *err);
TERN_API int tern_snapshot_add_int(tern_snapshot *snapshot, const char *name, int64_t *value,
                                   tern_error *err);

/* Anything else. `save` makes an object, the snapshot's, on all ranks, of which rank 0's is written and may
 * not be NULL; `load` takes nothing of what it is given. Both set *err when they fail (tern_error_set).
 */
typedef tern_object *(*tern_snapshot_save_fn)(void *ctx, tern_error *err);
typedef int (*tern_snapshot_load_fn)(void *ctx, const tern_object *state, tern_error *err);
TERN_API int tern_snapshot_add(tern_snapshot *snapshot, const char *name, tern_snapshot_save_fn save,
                               tern_snapshot_load_fn load, void *ctx, tern_error *err);

/* Writes DIR/step-`step`.pt, between two steps. Collective: it returns on all ranks when the file is on the
 * disk, or with the same error, which names the rank, and then the older ones and `latest` are as they were.
 * Called with an error already set, it fails on all ranks. E_RANGE: step < 0; E_IO; E_MEMORY; E_PEER; what a
 * `save` returns. */
TERN_API int tern_snapshot_save(tern_snapshot *snapshot, int64_t step, tern_error *err);

/* Loads everything that was added from `path`, or from the last good file of the directory if that is NULL:
 * from `latest`, and where that is damaged, with a warning, from the one before it. Returns 1, or 0 if there
 * is none (of path NULL only), or a negative status. Collective, as above: rank 0 chooses, all read. What the
 * file has beside is ignored. An error in the file leaves everything as it was; one of a thing that it does
 * not fit comes after those before it were loaded. E_INVALID: a key is missing; E_IO; E_FORMAT: damaged; what
 * a `load` returns. */
TERN_API int tern_snapshot_load(tern_snapshot *snapshot, const char *path, tern_error *err);

/* The step that was saved or loaded last; -1 before that. */
TERN_API int64_t tern_snapshot_step(const tern_snapshot *snapshot);

#ifdef __cplusplus
}
#endif
#endif
