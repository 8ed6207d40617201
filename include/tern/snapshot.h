/* snapshot.h - the complete state of a run in one file, from which it resumes as if it had never stopped.
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
 * The files are DIR/step-N.pt, in torch.save's format: a dict with a key for each thing added, "step",
 * "world_size" and, if algorithms were chosen by timing, "choices" (of the devices of what was added; the
 * scope's is the one that computes). torch.load(path, weights_only=True) reads them from PyTorch 2 on.
 * DIR/latest is a link to the file that was saved last, and is replaced only after that file is on the disk.
 * So it names a complete file whenever the process is killed.
 *
 * Generators (rng) and scopes are saved for every rank. Of everything else rank 0's is saved, which must be
 * equal on all ranks or belong to rank 0, as buffers do under tern_ddp. The slices of a sharded optimizer are
 * gathered. A run may resume with another number of ranks: a rank that is not in the file gets rank 0's scope
 * state (its draws still differ from rank 0's), and keeps the state of its rng; a loader resumes as
 * tern_loader_state_dict_load says.
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
    int keep_last; /* number of files to keep, the newest up to the last step; 0: all; default 3 */
} tern_snapshot_opts;
/* Returns the default options. */
TERN_API tern_snapshot_opts tern_snapshot_defaults(void);

/* Opens a directory for snapshots: makes it, with its parents, if it does not exist, and removes incomplete
 * checkpoints that killed processes have left. All ranks of `group` must see the directory. Collective;
 * `group` may be NULL. Borrows the group and everything that is added. Yours: tern_snapshot_free. NULL on
 * error: E_INVALID (no directory's name), E_RANGE (keep_last < 0), E_IO, E_MEMORY.
 *
 * Rank 0 keeps a lock on DIR/.lock until tern_snapshot_free, so a second job gets E_IO (native: EBUSY) with
 * the first one's name, process and host. The lock of a process that has died is free. A program that only
 * wants to load beside a running job opens a directory of its own and passes DIR/latest to
 * tern_snapshot_load. There is no lock if the directory cannot be written or its file system has none. */
TERN_API tern_snapshot *tern_snapshot_new(const char *dir, tern_group *group, const tern_snapshot_opts *opts,
                                          tern_error *err);
TERN_API void tern_snapshot_free(tern_snapshot *snapshot);

/* Add a part of the run, on all ranks alike, in the order in which parts will be loaded: an optimizer before
 * its schedules. `name` is the key in the file, copied. E_INVALID: NULL, or a name that is not UTF-8, is used
 * already or is "step", "world_size" or "choices"; E_MEMORY. */
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

/* Adds a part of another kind, by two functions. `save` makes an object, which the snapshot then owns, on all
 * ranks; rank 0's is written and must not be NULL. `load` reads the loaded object, which it does not own. On
 * error both fill *err (tern_error_set). `ctx` must outlive the snapshot, as the parts above must. */
typedef tern_object *(*tern_snapshot_save_fn)(void *ctx, tern_error *err);
typedef int (*tern_snapshot_load_fn)(const tern_object *state, void *ctx, tern_error *err);
TERN_API int tern_snapshot_add(tern_snapshot *snapshot, const char *name, tern_snapshot_save_fn save,
                               tern_snapshot_load_fn load, void *ctx, tern_error *err);

/* Writes DIR/step-`step`.pt; call it between two steps. Collective: it returns on all ranks when the file is
 * on the disk. After an error all ranks return it, it names the rank, and older files and `latest` are
 * unchanged. If *err is already set, the call fails on all ranks. E_RANGE: step < 0; E_IO; E_MEMORY; E_PEER;
 * and the errors of a `save`. */
TERN_API int tern_snapshot_save(tern_snapshot *snapshot, int64_t step, tern_error *err);

/* Loads everything that was added, from `path`, or if that is NULL from the last good file of the directory:
 * from `latest` or, if that is damaged, from the one before it, with a warning. If the directory cannot be
 * read, or a file not opened for lack of permission, descriptors or memory, it is E_IO: an older file would
 * lose steps. Returns 1; 0 if there is no file (only if path is NULL); or a negative status. Collective: rank
 * 0 chooses the file, all ranks read it; errors as above. Other keys in the file are ignored, whatever they
 * hold. If the file is damaged nothing is changed; if it does not fit one of the parts, the parts before that
 * are already loaded. E_INVALID: a key is missing; E_IO; E_FORMAT: damaged; and the errors of a `load`. */
TERN_API int tern_snapshot_load(tern_snapshot *snapshot, const char *path, tern_error *err);

/* Returns the step that was saved or loaded last; -1 before that. */
TERN_API int64_t tern_snapshot_step(const tern_snapshot *snapshot);

#ifdef __cplusplus
}
#endif
#endif
