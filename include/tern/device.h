/* device.h - where tensors live and kernels run: "cpu", and "cuda" where its plug-in is.
 *
 * Threads: a device serves one thread at a time; its memory may be returned from any thread.
 *
 * OpenMP: a CPU's kernels run on the team of the thread that calls them, which is the team of the program's
 * own parallel regions, too; a second thread with a device has a second team. OMP_PROC_BIND and OMP_PLACES
 * place it. Between kernels it spins for some milliseconds. Where other programs want the cores each kernel
 * waits for a thread that does not run (28 ms a step instead of 1.5): start the program with
 * OMP_WAIT_POLICY=passive there, or with GOMP_SPINCOUNT=1000.
 *
 * Forks: a child computes on its parent's CPU devices, too, on threads of its own; those of a group of cores
 * then run where they are called. OpenMP's team of the thread that forks ends before, and the next region
 * makes one anew in the parent and in the child. A GPU is the parent's alone. */
#ifndef TERN_DEVICE_H
#define TERN_DEVICE_H

#include <tern/base.h>

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_device tern_device;

/* `name`: "cpu", "cpu:reference" (the plain kernels that every fast one is tested against), or NULL for
 * TERN_DEVICE or "cpu". The number of kernel threads is OMP_NUM_THREADS, of a list the first, or else the
 * cores this process may use (affinity, or where OpenMP binds threads all of its places, and cgroup quota)
 * divided by the ranks of this host that share them, at least 1. Who they are a group finds out when it is
 * opened; before that it is what tern run, torchrun, mpirun or srun says. So where none of them has started
 * the ranks, open the group first.
 *
 * "cpu:0", "cpu:1,3", "cpu:0-3" is a group of cores as a device of its own: numbers count the cores that this
 * process may use, from 0. Its kernels run on a thread of the device's that is bound to these cores, one
 * kernel thread a core; those that take no longer than handing them over run where they are called. It stands
 * where a program for several GPUs has cuda:0, cuda:1: for the parts of a model (tern_module_to, tern_to) and
 * for replicas (tern_data_parallel_new).
 *
 * "cuda:0" is the first of the GPUs that this process may use (CUDA_VISIBLE_DEVICES), "cuda" the one whose
 * number is that of this rank on its host, as LOCAL_RANK, mpirun or srun say, or the first: one rank a GPU.
 * Ranks that are to share one name it, and so do those whom srun shows several of their own
 * (--gpus-per-task=2): "cuda:0"; where a rank is shown one GPU it is that. The plug-in tern_cuda.so is found
 * as all plug-ins are. Such a device has memory of its own: tensors of a scope on it are made there,
 * tern_module_to moves a model's parameters, buffers, and with them gradients and the state of optimizers;
 * tern_tensor_read, tern_item and whatever else reads values wait until the device has written them. What it
 * has no kernel for is computed on the host, from copies: right, and slow.
 *
 * Yours: tern_device_close, after everything that lives on it. E_UNSUPPORTED: no such device, or none of its
 * plug-in or driver; E_RANGE: a core or GPU that this process may not use. */
TERN_API tern_device *tern_device_open(const char *name, tern_error *err);
TERN_API void tern_device_close(tern_device *device);

TERN_API const char *tern_device_name(const tern_device *device);
TERN_API int tern_device_threads_get(const tern_device *device);
/* n >= 1; takes effect with the next kernel. */
TERN_API int tern_device_threads_set(tern_device *device, int n, tern_error *err);

/* How convolutions are computed. Each case (shapes, direction, dtype) is timed with its first use by every
 * algorithm that has it, and the fastest is kept, as with torch.backends.cudnn.benchmark; the first 1024
 * cases of a device are, and further ones are as with `deterministic`. On GPUs f32 is multiplied as TF32
 * unless `exact` is set (torch.backends.cudnn.allow_tf32); products of matrices are f32's. */
typedef struct tern_device_conv_opts {
    size_t size;        /* sizeof(tern_device_conv_opts), set by tern_device_conv_defaults      */
    size_t workspace;   /* bytes that an algorithm may use beside its operands; default 0: the
                           device's own bound, 64 MiB, of a GPU a sixteenth of its memory       */
    bool exact;         /* f32 is multiplied and added in f32, no faster way that rounds more   */
    bool deterministic; /* a fixed table instead of clocks: the same choices in every run       */
} tern_device_conv_opts;

/* exact and deterministic are true where TERN_EXACT_CONV and TERN_DETERMINISTIC are 1 in the environment;
 * what is neither 0 nor 1 there is E_ENV of tern_device_open. */
TERN_API tern_device_conv_opts tern_device_conv_defaults(void);
/* For cases that come up from now on: those that were timed keep what was chosen. A device is opened with the
 * defaults. */
TERN_API int tern_device_conv_set(tern_device *device, const tern_device_conv_opts *opts, tern_error *err);

/* GPUs only: what repeats itself from step to step is launched as a few graphs instead of thousands of
 * kernels, for models whose kernels are so short that the host cannot start them fast enough. It is what
 * torch.cuda.CUDAGraph is for, and asks for nothing: inputs, sizes, rates and the way through the model may
 * change in any step, which then runs as without graphs, and the host's program runs in every step. What is
 * computed is the same to the bit. A step ends with its scope's (tern_scope_end); a value that is read in the
 * middle of it makes two parts of it. Both functions serve the device's thread. Off where a device is opened,
 * unless TERN_GRAPHS is 1 in the environment; on a CPU there is nothing to launch, and it stays off. */
TERN_API bool tern_device_graphs_get(const tern_device *device);
TERN_API int tern_device_graphs_set(tern_device *device, bool on, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
