/* data_parallel.h - one process, several devices: a batch is split over replicas of a model.
 *
 * A replica is a device, a scope and, on the CPU, a thread. Parameters and buffers are the model's own, read
 * in place by all replicas, but copied to other GPUs once a forward. Each replica computes its rows, the
 * results are put together, and backward goes through all of them at once; the gradients are their sum, so a
 * loss that is a mean over the whole batch has the same gradients as on one device. Batch norm takes each
 * replica's own rows, and the running statistics are those of replica 0, as in torch.nn.DataParallel. Under
 * tern_ddp it is the model's data parallel share of a rank.
 *
 * While the replicas compute, the calling thread's OpenMP team is given up (omp_pause_soft): its threads
 * would spin on the replicas' cores.
 *
 * Threads: a data parallel belongs to the thread of the scopes it is called with. */
#ifndef TERN_DATA_PARALLEL_H
#define TERN_DATA_PARALLEL_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_data_parallel tern_data_parallel;

typedef struct tern_data_parallel_opts {
    size_t size;
    tern_device *const *devices; /* groups of cores or GPUs; borrowed. NULL: one a core of this rank's */
    int device_count;
    tern_device *output_device; /* where the results are; default the first device */
    int dim; /* along which inputs are split and results joined; default 0, the batch      */
} tern_data_parallel_opts;
TERN_API tern_data_parallel_opts tern_data_parallel_defaults(void);

/* E_INVALID: a device that is no group of cores nor a GPU, or is there twice, parts of the model placed
 * elsewhere than on the first device; E_RANGE: no device or more than 256, a dim below 0; E_SYSTEM, E_MEMORY.
 * Borrows the module. Yours: tern_data_parallel_free, before module and devices.
 * torch.nn.DataParallel(module, device_ids, output_device, dim). */
TERN_API tern_data_parallel *tern_data_parallel_new(tern_module *module, const tern_data_parallel_opts *opts,
                                                    tern_error *err);
TERN_API void tern_data_parallel_free(tern_data_parallel *parallel);
TERN_API int tern_data_parallel_count(const tern_data_parallel *parallel);

/* tern_forward of the module on every replica, x (n, ..) in chunks of ceil(n / devices) rows; with fewer rows
 * than devices there are fewer replicas. The results one after the other; those without dimensions become a
 * vector, with a warning. An error names the replica: "replica 1 on cpu:1: ..". */
TERN_API tern_tensor *tern_data_parallel_forward(tern_data_parallel *parallel, tern_scope *scope,
                                                 tern_tensor *x);

/* ---- any function of the model, with inputs and results of any nesting ---- */

/* A tensor, or a list of `count` values, or neither; `name` is its key where the list is a dictionary. */
typedef struct tern_value {
    const char *name;
    tern_tensor *tensor;
    struct tern_value *items;
    int count;
} tern_value;

/* Runs on a replica's thread, in its scope; `ctx` is shared by all. What it returns lives in the scope. */
typedef tern_value (*tern_replica_fn)(tern_module *module, tern_scope *scope, tern_value input, void *ctx);

/* `fn` on every replica with its chunks of all tensors in `input`, as many replicas as the tensor with the
 * fewest chunks has; without a tensor each replica gets the same. The results, which must be nested alike
 * (E_MISMATCH), are put together tensor by tensor. An empty value after a failure. */
TERN_API tern_value tern_data_parallel_apply(tern_data_parallel *parallel, tern_scope *scope,
                                             tern_replica_fn fn, tern_value input, void *ctx);
/* Room for `count` values until the scope ends; NULL after a failure. */
TERN_API tern_value *tern_value_list(tern_scope *scope, int count);

/* ---- what it costs ---- */

typedef struct tern_replica_stats {
    const char *device; /* its name, borrowed                                                       */
    size_t bytes;       /* of the device's tensors and of the replica's own gradients               */
    double forward_s, backward_s; /* of its last forward and backward                               */
} tern_replica_stats;
/* Of replica 0 <= index < count; zeros for any other. */
TERN_API tern_replica_stats tern_data_parallel_stats(const tern_data_parallel *parallel, int index);
/* A line a replica on stdout: device, memory, times. */
TERN_API void tern_data_parallel_print(const tern_data_parallel *parallel);

#ifdef __cplusplus
}
#endif
#endif
