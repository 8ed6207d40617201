/* data_parallel.h - tern_data_parallel from inside: replicas, and a pass of a batch through them. */
#ifndef TERN_SRC_PARALLEL_DATA_PARALLEL_H
#define TERN_SRC_PARALLEL_DATA_PARALLEL_H

#include "device/mirror.h"
#include "nn/nn.h"

#include <tern/data_parallel.h>

#define TERN__REPLICAS_MAX 256

/* A device, its thread and a scope there. Replica 0's gradients are the leaves' own. */
typedef struct tern__replica {
    tern_data_parallel *parallel;
    int index;
    tern_device *device;
    tern_scope *scope;
    tern__slot *slots; /* [leaf_count] once sealed; NULL of replica 0 */
    char *grads;       /* the slots' memory                           */
    size_t grad_bytes;
    tern__mirrors model; /* the parameters and buffers, on a device with memory of its own */
    int64_t forward_ns, backward_ns;
    uint64_t choices;        /* up to which it has those of the pass's device (kernels/choices.h) */
    struct tern__pass *pass; /* that its thread works on */
} tern__replica;

struct tern_data_parallel {
    tern_module *module;
    tern_data_parallel_opts opts;
    tern_device **own; /* devices opened here, [count], or NULL */
    tern__replica *replicas;
    int count;
    tern__mirrors sums;  /* one replica's gradients after the other's, on the first's device */
    tern__seal *seal;    /* once gradients were wanted                                       */
    tern_scope *scope;   /* whose end the replicas' scopes end with, in the step             */
    uint64_t generation; /* that the scope had                                               */
    uint64_t choices;    /* up to which replica 0's are the pass's device's, too             */
    bool warned;         /* about results without dimensions                                 */
};

/* What one replica has of a pass. */
typedef struct tern__part {
    tern_value input, output;
    tern_tensor **x;         /* [x_count] its chunks, in its scope             */
    tern_tensor **y;         /* [y_count] its results, in its scope            */
    tern_tensor **out;       /* [y_count] the same in the scope of the pass    */
    tern__view *dy;          /* [y_count] their gradients; data NULL: none     */
    tern__storage **dy_held; /* [y_count]                                      */
    tern__node *tape;        /* of its scope before the pass                   */
} tern__part;

/* A batch's way through the replicas and back; in the arena of the scope that it was called with. */
typedef struct tern__pass {
    tern_data_parallel *parallel;
    tern_scope *scope;
    tern_replica_fn fn;
    void *ctx;
    tern_tensor **x;        /* [x_count] the whole inputs, plain */
    tern__storage **x_held; /* [x_count] */
    int64_t *chunk;         /* [x_count] rows of a chunk         */
    int x_count, y_count;
    tern__part *parts;
    int count;           /* replicas that take part */
    tern__leaf **leaves; /* [leaf_count] that any of them uses */
    int leaf_count;
} tern__pass;

/* ---- replica.c ---- */

int tern__replica_open(tern__replica *replica, tern_error *err);
void tern__replica_close(tern__replica *replica);
/* Its error becomes the scope's, with the replica's name. */
int tern__replica_fail(const tern__replica *replica, tern_scope *scope, const char *func,
                       const tern_error *err);
/* Slots for the gradients of the sealed tree. */
int tern__replica_slots(tern__replica *replica, const tern__seal *seal, tern_error *err);
/* Every replica of the pass at once, each on its own thread; the first error becomes the scope's. */
int tern__replicas_forward(tern__pass *pass);
int tern__replicas_backward(tern__pass *pass);
/* All gradients of the pass's leaves added up, in the order of the replicas, into the leaves. */
int tern__replicas_sum(tern__pass *pass);

/* ---- scatter.c ---- */

/* Is it on a device with memory of its own, and the view elsewhere? */
bool tern__replica_lacks(const tern__replica *replica, const tern__view *view);
/* The same there, in the replica's scope. NULL: the pass has failed. */
tern_tensor *tern__replica_copy(const tern__pass *pass, int index, const tern__view *view);

/* Finds the tensors in `input`, cuts them and gives each part its chunks; *count is how many parts there are.
 */
int tern__scatter(tern__pass *pass, tern_value input);
/* Finds the parts' results; E_MISMATCH if they are not nested alike. */
int tern__results_find(tern__pass *pass);
/* The parts' `out`, put together. */
tern_value tern__gather(tern__pass *pass);
/* Chunk `part` of a view like pass->x[i]'s. */
tern__view tern__chunk_of(const tern__pass *pass, int i, int part, const tern__view *whole);

#endif
