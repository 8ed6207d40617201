/* fault.h - what a kernel says of a label that is no class, without anybody waiting for it.
 *
 * The kernel leaves a record in the host's memory, the first one wins, and goes on as if the element were
 * ignored. The next kernel, copy or wait of the device finds the record and fails with the CPU's words: that
 * may be one call later than on a CPU, and is at the latest where a value made of it is read. */
#ifndef TERN_SRC_CUDA_FAULT_H
#define TERN_SRC_CUDA_FAULT_H

#include <cuda_runtime.h>

extern "C" {
#include "kernels/labels.h"
#include "tensor/view.h"
}

/* Labels, or with `is_index` an index of this shape, whose `classes` are rows. The texts are the host's: a
 * kernel only hands them on. */
typedef struct tern__fault_site {
    tern__labels labels;
    int is_index, ndim;
    int64_t shape[TERN_NDIM_MAX];
} tern__fault_site;

/* Lies in memory of the host that the device can write. */
typedef struct tern__fault {
    int taken;          /* by the first kernel that has something to say   */
    volatile int ready; /* and all of it is written                        */
    tern__fault_site site;
    int64_t number, label;
} tern__fault;

/* What a kernel is given. */
typedef struct tern__judge {
    tern__fault *fault;
    tern__fault_site site;
} tern__judge;

#if defined(__CUDACC__) || defined(TERN_CUDA_EMULATED) /* not in what the host's compiler makes */
static __device__ void tern__fault_raise(const tern__judge &judge, int64_t number, int64_t label)
{
    if (atomicCAS(&judge.fault->taken, 0, 1)) return;
    judge.fault->site = judge.site;
    judge.fault->number = number;
    judge.fault->label = label;
    __threadfence_system();
    judge.fault->ready = 1;
}

static __device__ __forceinline__ bool tern__in_classes(const tern__judge &judge, int64_t label)
{
    return label >= 0 && label < judge.site.labels.classes;
}

/* Is a label that is not to be ignored a class? */
static __device__ __forceinline__ bool tern__is_class(const tern__judge &judge, int64_t number, int64_t label)
{
    bool is = tern__in_classes(judge, label);
    if (!is) tern__fault_raise(judge, number, label);
    return is;
}

#endif

/* ---- fault.cc ---- */

int tern__fault_new(tern__fault **fault, tern_error *err);
void tern__fault_free(tern__fault *fault);
/* E_RANGE with the record's words; it is empty then, and nothing in `stream` leaves another one. */
int tern__fault_report(tern__fault *fault, cudaStream_t stream, tern_error *err);

/* Nothing was left, or what tern__fault_report makes of it. */
static inline int tern__fault_check(tern__fault *fault, cudaStream_t stream, tern_error *err)
{
    return fault->ready ? tern__fault_report(fault, stream, err) : TERN_OK;
}

#endif
