/* device.h - where tensors live and kernels run: the CPU, groups of its cores, and GPUs (plug-in "cuda").
 *
 * Threads: a device serves one thread at a time. Memory of the device may be released from any thread.
 *
 * OpenMP: kernels of a CPU device run on the OpenMP team of the thread that calls them. The program's own
 * parallel regions use the same team; a second thread that uses a device has a second team. OMP_PROC_BIND and
 * OMP_PLACES place the team's threads. Between kernels these threads spin for some milliseconds. If other
 * programs use the same cores, a kernel may wait for a thread that is not running (28 ms a step instead of
 * 1.5): start the program with OMP_WAIT_POLICY=passive or GOMP_SPINCOUNT=1000 then. tern run sets the latter
 * if the cores are short when it starts.
 *
 * Forks: a forked child can use its parent's CPU devices; it computes on threads of its own. Kernels of a
 * device that is a group of cores run on the calling thread in the child. The OpenMP team of the thread that
 * forks ends before the fork; the next parallel region makes a new one, in the parent and in the child. A GPU
 * can be used by the parent only. */
#ifndef TERN_DEVICE_H
#define TERN_DEVICE_H

#include <tern/base.h>

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_device tern_device;

/* Opens a device. `name` is one of these; NULL means the value of TERN_DEVICE, or "cpu" if that is not set.
 *
 * "cpu" computes on OpenMP threads. "cpu:reference" is a CPU with plain kernels, slow, against which the fast
 * kernels are tested. The number of threads is OMP_NUM_THREADS (the first number if it is a list). If that is
 * not set it is the number of cores this process may use, divided by the number of ranks of this host that
 * share them, and at least 1. The cores a process may use are those of its CPU affinity (where OpenMP binds
 * threads: of all its places), limited by its cgroup's quota. Which ranks share the cores is known once a
 * group is open; before that tern believes the launcher (tern run, torchrun, mpirun, srun). Without a
 * launcher, open the group first.
 *
 * "cpu:0", "cpu:1,3" or "cpu:0-3" is a group of cores as a device of its own. Cores are numbered from 0 among
 * those this process may use. The device has one kernel thread per core, bound to these cores; a kernel that
 * takes no longer than handing it over runs on the calling thread. Use such devices where a program for
 * several GPUs has cuda:0 and cuda:1: for the parts of a model (tern_module_to, tern_to) and for replicas
 * (tern_data_parallel_new).
 *
 * "cuda:0" is the first GPU that this process may use (CUDA_VISIBLE_DEVICES). "cuda" is the GPU whose number
 * is this rank's number on its host (LOCAL_RANK, or mpirun's or srun's), or the first GPU without a launcher:
 * one rank per GPU. If the launcher shows a rank only one GPU, "cuda" is that GPU. Name "cuda:0" if ranks are
 * to share a GPU, or if srun shows each rank several of its own (--gpus-per-task=2). The plug-in tern_cuda.so
 * is searched for as every plug-in is. A GPU has memory of its own: ops of a scope on it allocate there, and
 * tern_module_to moves a model there, with its parameters, buffers, gradients and optimizer state.
 * tern_tensor_read, tern_item and other functions that read values wait until the GPU has written them. An op
 * without a kernel for the GPU runs on the host, on copies: correct, but slow.
 *
 * Yours: tern_device_close, after everything that lives on the device. NULL on error: E_UNSUPPORTED (no such
 * device, or its plug-in or driver is missing), E_RANGE (a core or GPU that this process may not use), E_ENV
 * (see tern_device_conv_defaults), E_SYSTEM, E_MEMORY. */
TERN_API tern_device *tern_device_open(const char *name, tern_error *err);
/* Closes a device; NULL is allowed. */
TERN_API void tern_device_close(tern_device *device);

/* Returns the device's name, such as "cpu" or "cuda:0"; borrowed. */
TERN_API const char *tern_device_name(const tern_device *device);
/* Returns how many cores this process may use, as above; `sharers` (or NULL) becomes the number of ranks of
 * this host that share them, or 1 before a group is open. If sharers x threads are more than the cores,
 * threads take turns. os.process_cpu_count. */
TERN_API int tern_device_cores(int *sharers);
/* Returns the number of threads that a kernel uses. */
TERN_API int tern_device_threads_get(const tern_device *device);
/* Sets that number, n >= 1 (E_RANGE), from the next kernel on. */
TERN_API int tern_device_threads_set(tern_device *device, int n, tern_error *err);

/* How convolutions are computed. When a convolution (shapes, direction, dtype) is met for the first time, it
 * is timed with every algorithm that can compute it, and the fastest is kept, as with
 * torch.backends.cudnn.benchmark. This holds for the first 1024 convolutions of a device; further ones are
 * computed as with `deterministic`. On GPUs f32 is multiplied as TF32 unless `exact` is set
 * (torch.backends.cudnn.allow_tf32); products of matrices are always computed in f32. */
typedef struct tern_device_conv_opts {
    size_t size;        /* sizeof(tern_device_conv_opts), set by tern_device_conv_defaults      */
    size_t workspace;   /* bytes that an algorithm may use beside its operands; default 0: the
                           device's own bound, 64 MiB on a CPU, 1/16 of a GPU's memory          */
    bool exact;         /* multiply and add f32 in f32; no faster algorithm that rounds more    */
    bool deterministic; /* choose from a fixed table, not by time: the same choice in every run */
} tern_device_conv_opts;

/* Returns the defaults. exact and deterministic are true if TERN_EXACT_CONV or TERN_DETERMINISTIC is 1 in the
 * environment; a value other than 0 and 1 makes tern_device_open fail with E_ENV. */
TERN_API tern_device_conv_opts tern_device_conv_defaults(void);
/* Sets the options for convolutions that the device meets from now on; those already timed keep their
 * algorithm. A device is opened with the defaults. */
TERN_API int tern_device_conv_set(tern_device *device, const tern_device_conv_opts *opts, tern_error *err);

/* Turns CUDA graphs on or off (torch.cuda.CUDAGraph). The parts of a step that repeat from step to step are
 * then launched as a few graphs instead of thousands of kernels. This helps models whose kernels are so short
 * that the host cannot start them fast enough. Nothing in the program has to change: inputs, shapes, learning
 * rates and the path through the model may differ in any step, which then runs without graphs, and the host's
 * program runs in every step. The results are the same to the bit. A step ends with its scope
 * (tern_scope_end); reading a value within a step splits it into two parts. Call both functions on the
 * device's thread. Off by default, unless TERN_GRAPHS is 1 in the environment. On a CPU it stays off. */
TERN_API bool tern_device_graphs_get(const tern_device *device);
TERN_API int tern_device_graphs_set(tern_device *device, bool on, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
