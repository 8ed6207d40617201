/* snapshot.h - the snapshot's internals: its items and its directory. */
#ifndef TERN_SRC_CHECKPOINT_SNAPSHOT_H
#define TERN_SRC_CHECKPOINT_SNAPSHOT_H

#include "base/base.h"
#include "device/choices.h"

#include <tern/snapshot.h>

/* State of which each rank has its own. Each rank packs it into `bytes` bytes; rank 0 gathers them and turns
 * each into an object. */
typedef struct tern__own_state {
    size_t bytes;
    void (*pack)(const void *ctx, void *out);
    tern_object *(*show)(const void *packed, tern_error *err);
    bool spreads; /* when loading, ranks that are not in the file get rank 0's */
} tern__own_state;

typedef struct tern__snapshot_item {
    char *name;
    tern_snapshot_save_fn save; /* NULL: `own` is used */
    const tern__own_state *own;
    tern_snapshot_load_fn load;
    void *ctx;
    void (*add_devices)(const void *ctx,
                        tern__choosers *list); /* adds the devices it computes on; may be NULL */
    char *packed;                              /* of all ranks, with `own` */
} tern__snapshot_item;

typedef struct tern__snapshot_lock tern__snapshot_lock;

struct tern_snapshot {
    char *dir;
    tern__snapshot_lock *lock; /* on rank 0 */
    tern_group *group;         /* may be NULL */
    int rank, world;
    tern_snapshot_opts opts;
    tern__snapshot_item *items;
    int count;
    int64_t step;
    char *lines; /* buffer for the choices */
};

/* Adds a copy of `item`, under a copy of its name. */
int tern__snapshot_add(tern_snapshot *snapshot, const char *func, const tern__snapshot_item *item,
                       tern_error *err);

/* ---- snapshot_choices.c: collective ---- */

#define TERN__SNAPSHOT_LINES ((size_t)1 << 20) /* bytes; enough for more than two thousand cases */

/* Returns the text for the file, on rank 0; NULL without an error: nothing has been chosen. */
tern_object *tern__snapshot_choices_save(const tern_snapshot *snapshot, tern_error *err);
/* `lines`: the file's text, or NULL. */
int tern__snapshot_choices_load(const tern_snapshot *snapshot, const tern_object *lines, tern_error *err);

/* ---- snapshot_dir.c: called on rank 0 only ---- */

/* Holds "step-9223372036854775807.pt". */
#define TERN__SNAPSHOT_NAME 32

/* Makes the directory, locks it, and removes stale temporary files from it. E_IO, also if another job has it.
 */
int tern__snapshot_dir_open(const char *dir, tern__snapshot_lock **lock, tern_error *err);
void tern__snapshot_name(int64_t step, char name[TERN__SNAPSHOT_NAME]);
/* Points `latest` to this snapshot. */
int tern__snapshot_publish(const char *dir, const char *name, tern_error *err);
/* Removes all but the newest `keep` snapshots up to `step`. Warns about files that cannot be removed. */
void tern__snapshot_prune(const char *dir, int64_t step, int keep);
/* Lists the steps in the directory in the order in which to try them: the one that `latest` names, the lower
 * ones in descending order, then the others. The caller frees *steps. Returns their number, or a negative
 * status. */
int tern__snapshot_list(const char *dir, int64_t **steps, tern_error *err);

/* ---- snapshot_lock.c: called on rank 0 only ---- */

/* Takes the directory for this process. A directory that cannot be written, or whose file system has no
 * locks, counts as free. E_IO: another job has it, which the error names; E_MEMORY. */
tern__snapshot_lock *tern__snapshot_lock_open(const char *dir, tern_error *err);
/* NULL is allowed. */
void tern__snapshot_lock_close(tern__snapshot_lock *lock);

#endif
