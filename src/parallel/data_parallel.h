/* data_parallel.h - the internals of tern_data_parallel: replicas, and a pass of a batch through them. */
#ifndef TERN_SRC_PARALLEL_DATA_PARALLEL_H
#define TERN_SRC_PARALLEL_DATA_PARALLEL_H

#include "device/mirror.h"
#include "nn/nn.h"

#include <tern/data_parallel.h>

#define TERN__REPLICAS_MAX 256

/* A replica: a device, its thread and a scope there. Replica 0's gradients are the leaves' own. */
typedef struct tern__replica {
    tern_data_parallel *parallel;
    int index;
    tern_device *device;
    tern_scope *scope;
    tern__slot *slots; /* [leaf_count] once sealed; NULL for replica 0 */
    char *grads;       /* the slots' memory */
    size_t grad_bytes;
    tern__mirrors model; /* the parameters and buffers, on a device with memory of its own */
    int64_t forward_ns, backward_ns;
    uint64_t choices;        /* serial up to which it has the pass's device's choices (device/choices.h) */
    struct tern__pass *pass; /* the pass that its thread works on */
} tern__replica;

struct tern_data_parallel {
    tern_module *module;
    tern_data_parallel_opts opts;
    tern_device **own; /* devices opened here, [count], or NULL */
    tern__replica *replicas;
    int count;
    tern__mirrors sums; /* copies of one replica's gradients at a time, on the first device */
    tern__seal *seal;   /* NULL until gradients are needed */
    tern_scope *scope;  /* the replicas' scopes end with this one, in the step */
    uint64_t choices;   /* serial up to which the pass's device has replica 0's choices */
    bool warned;        /* has warned about results without dimensions */
};

/* One replica's part of a pass. */
typedef struct tern__part {
    tern_value input, output;
    tern_tensor **x;         /* [x_count] its chunks, in its scope */
    tern_tensor **y;         /* [y_count] its results, in its scope */
    tern_tensor **out;       /* [y_count] the same results in the pass's scope */
    tern__view *dy;          /* [y_count] their gradients; data NULL: none */
    tern__storage **dy_held; /* [y_count] the references that keep these alive */
    tern__node *tape;        /* the last entry of its scope's tape before the pass */
} tern__part;

/* One forward of a batch through the replicas, and its backward; allocated in the arena of the caller's
 * scope. */
typedef struct tern__pass {
    tern_data_parallel *parallel;
    tern_scope *scope;
    tern_replica_fn fn;
    void *ctx;
    tern_tensor **x;        /* [x_count] the whole inputs, plain */
    tern__storage **x_held; /* [x_count] */
    int64_t *chunk;         /* [x_count] rows of a chunk */
    int x_count, y_count;
    tern__part *parts;
    int count;           /* replicas that take part */
    tern__leaf **leaves; /* [leaf_count] used by any replica */
    int leaf_count;
} tern__pass;

/* ---- replica.c ---- */

int tern__replica_open(tern__replica *replica, tern_error *err);
void tern__replica_close(tern__replica *replica);
/* Makes `err` the scope's error, with the replica's name in front; returns its code. */
int tern__replica_fail(const tern__replica *replica, tern_scope *scope, const char *func,
                       const tern_error *err);
/* Makes slots for the gradients of the sealed tree. */
int tern__replica_slots(tern__replica *replica, const tern__seal *seal, tern_error *err);
/* Run all replicas of the pass at once, each on its own thread; the first error becomes the scope's. */
int tern__replicas_forward(tern__pass *pass);
int tern__replicas_backward(tern__pass *pass);
/* Adds up the gradients of the pass's leaves in the leaves, in the order of the replicas. */
int tern__replicas_sum(tern__pass *pass);

/* ---- scatter.c ---- */

/* True if the replica's device has memory of its own and the view is not in it. */
bool tern__replica_lacks(const tern__replica *replica, const tern__view *view);
/* Copies the view to the replica's device, into the replica's scope. NULL: the pass has failed. */
tern_tensor *tern__replica_copy(const tern__pass *pass, int index, const tern__view *view);

/* Cuts the tensors of `input` into chunks for the parts, and sets pass->count. */
int tern__scatter(tern__pass *pass, tern_value input);
/* Finds the tensors in the parts' results; E_MISMATCH if the results are nested differently. */
int tern__results_find(tern__pass *pass);
/* Joins the parts' `out`. */
tern_value tern__gather(tern__pass *pass);
/* Returns chunk `part` of a view shaped like pass->x[i]. */
tern__view tern__chunk_of(const tern__pass *pass, int i, int part, const tern__view *whole);

#endif
