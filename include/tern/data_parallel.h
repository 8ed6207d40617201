/* data_parallel.h - one process, several devices: a batch is split over replicas of a model.
 *
 * A replica is a device, a scope and, on the CPU, a thread. The replicas read the model's own parameters and
 * buffers in place; replicas on other GPUs get copies, once per forward. Each replica computes its rows, the
 * results are joined, and one backward goes through all replicas at once. The model's gradients are the sum
 * of the replicas', so a loss that is a mean over the whole batch has the same gradients as on one device.
 * Batch norm uses each replica's own rows; the running statistics are replica 0's, as in
 * torch.nn.DataParallel. Under tern_ddp, each rank may split its batch over replicas in this way.
 *
 * While the replicas compute, the calling thread's OpenMP team is released (omp_pause_soft): its threads
 * would spin on the replicas' cores.
 *
 * Threads: a data parallel belongs to the thread of the scopes that it is called with. */
#ifndef TERN_DATA_PARALLEL_H
#define TERN_DATA_PARALLEL_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_data_parallel tern_data_parallel;

typedef struct tern_data_parallel_opts {
    size_t size;
    tern_device *const *devices; /* groups of cores or GPUs; borrowed. NULL: one per core of this rank   */
    int device_count;
    tern_device *output_device; /* where results are placed; default: the first device                   */
    int dim; /* the dimension along which inputs are split and results joined; default 0, the batch */
} tern_data_parallel_opts;
/* Returns the default options. */
TERN_API tern_data_parallel_opts tern_data_parallel_defaults(void);

/* Makes replicas of a module, which is borrowed. Yours: tern_data_parallel_free, before module and devices.
 * NULL on error: E_INVALID (a device that is neither a group of cores nor a GPU, or is given twice; parts of
 * the model placed on another device than the first), E_RANGE (no device or more than 256, a negative dim),
 * E_SYSTEM, E_MEMORY. torch.nn.DataParallel(module, device_ids, output_device, dim). */
TERN_API tern_data_parallel *tern_data_parallel_new(tern_module *module, const tern_data_parallel_opts *opts,
                                                    tern_error *err);
TERN_API void tern_data_parallel_free(tern_data_parallel *parallel);
/* Returns the number of replicas. */
TERN_API int tern_data_parallel_count(const tern_data_parallel *parallel);

/* Calls the module (tern_forward) on every replica: x (n, ..) is split into chunks of ceil(n / devices) rows.
 * If there are fewer rows than devices, fewer replicas are used. Returns the results, one after the other
 * along dim; results without dimensions become a vector, with a warning. An error names the replica: "replica
 * 1 on cpu:1: ..". */
TERN_API tern_tensor *tern_data_parallel_forward(tern_data_parallel *parallel, tern_scope *scope,
                                                 tern_tensor *x);

/* ---- any function of the model, with nested inputs and results ---- */

/* A tensor, or a list of `count` values, or neither. `name` is the value's key if the list is a dict. */
typedef struct tern_value {
    const char *name;
    tern_tensor *tensor;
    struct tern_value *items;
    int count;
} tern_value;

/* A function for each replica. It runs on the replica's thread, in its scope, and gets the replica's part of
 * the input; all share `ctx`. The value that it returns lives in the scope. */
typedef tern_value (*tern_replica_fn)(tern_module *module, tern_scope *scope, tern_value input, void *ctx);

/* Calls `fn` on every replica, with its chunks of all tensors in `input`. There are as many replicas as the
 * tensor with the fewest chunks has; if `input` has no tensor, every replica gets all of it. Results must be
 * nested alike (E_MISMATCH) and are joined tensor by tensor. Returns an empty value after an error. */
TERN_API tern_value tern_data_parallel_apply(tern_data_parallel *parallel, tern_scope *scope,
                                             tern_replica_fn fn, tern_value input, void *ctx);
/* Allocates `count` values that live until the scope ends; NULL after an error. */
TERN_API tern_value *tern_value_list(tern_scope *scope, int count);

/* ---- memory and times ---- */

typedef struct tern_replica_stats {
    const char *device;           /* the device's name, borrowed                                    */
    size_t bytes;                 /* of the device's tensors and of the replica's own gradients     */
    double forward_s, backward_s; /* seconds of the last forward and backward                       */
} tern_replica_stats;
/* Returns the statistics of replica `index`, 0 <= index < count; zeros for any other index. */
TERN_API tern_replica_stats tern_data_parallel_stats(const tern_data_parallel *parallel, int index);
/* Prints one line per replica on stdout: device, memory, times. */
TERN_API void tern_data_parallel_print(const tern_data_parallel *parallel);

#ifdef __cplusplus
}
#endif
#endif
