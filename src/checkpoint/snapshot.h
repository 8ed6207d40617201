/* snapshot.h - a snapshot from inside: what is in it, and its directory. */
#ifndef TERN_SRC_CHECKPOINT_SNAPSHOT_H
#define TERN_SRC_CHECKPOINT_SNAPSHOT_H

#include "base/base.h"
#include "kernels/choices.h"

#include <tern/snapshot.h>

/* A thing of which each rank has its own: `bytes` of it travel to rank 0, which shows them as an object. */
typedef struct tern__own_state {
    size_t bytes;
    void (*pack)(const void *ctx, void *out);
    tern_object *(*show)(const void *packed, tern_error *err);
    bool spreads; /* ranks that are not in the file get rank 0's */
} tern__own_state;

typedef struct tern__snapshot_item {
    char *name;
    tern_snapshot_save_fn save; /* NULL: it is every rank's own */
    const tern__own_state *own;
    tern_snapshot_load_fn load;
    void *ctx;
    void (*add_devices)(const void *ctx, tern__choosers *list); /* that it computes on; may be NULL */
    char *packed;                                               /* all ranks', where `own` is there */
} tern__snapshot_item;

struct tern_snapshot {
    char *dir;
    tern_group *group; /* or NULL */
    int rank, world;
    tern_snapshot_opts opts;
    tern__snapshot_item *items;
    int count;
    int64_t step;
    char *lines; /* room for choices */
};

/* Adds a copy of `item`, under a copy of its name. */
int tern__snapshot_add(tern_snapshot *snapshot, const char *func, const tern__snapshot_item *item,
                       tern_error *err);

/* ---- snapshot_choices.c: collective ---- */

#define TERN__SNAPSHOT_LINES ((size_t)1 << 20) /* bytes: more than two thousand cases */

/* What goes into the file, on rank 0; NULL without an error: nothing has been chosen. */
tern_object *tern__snapshot_choices_save(const tern_snapshot *snapshot, tern_error *err);
/* `lines` is what the file has, or NULL. */
int tern__snapshot_choices_load(const tern_snapshot *snapshot, const tern_object *lines, tern_error *err);

/* ---- snapshot_dir.c: rank 0's ---- */

/* Room for "step-9223372036854775807.pt". */
#define TERN__SNAPSHOT_NAME 32

/* Makes the directory and tidies it up. */
int tern__snapshot_dir_open(const char *dir, tern_error *err);
void tern__snapshot_name(int64_t step, char name[TERN__SNAPSHOT_NAME]);
/* `latest` becomes this one. */
int tern__snapshot_publish(const char *dir, const char *name, tern_error *err);
/* Keeps the newest `keep` of those up to `step`. What cannot be removed stays, with a warning. */
void tern__snapshot_prune(const char *dir, int64_t step, int keep);
/* The steps in the directory, those to be tried first in front: what `latest` names, then the lower ones
 * downwards, then the others. *steps is the caller's; returns how many, or a negative status. */
int tern__snapshot_list(const char *dir, int64_t **steps, tern_error *err);

#endif
