/* fault.h - how a kernel reports a label that is no class, without making anyone wait.
 *
 * The kernel leaves a record in host memory, of which the first one wins, and continues as if the element
 * were ignored. The next kernel, copy or wait of the device finds the record and fails with the same
 * message as on a CPU. That may be one call later than on a CPU; at the latest it is when a value computed
 * from the label is read. */
#ifndef TERN_SRC_CUDA_FAULT_H
#define TERN_SRC_CUDA_FAULT_H

#include <cuda_runtime.h>

extern "C" {
#include "kernels/labels.h"
#include "tensor/view.h"
}

/* Labels, or with `is_index` an index of this shape into `classes` rows. The strings belong to the host: a
 * kernel only copies the pointers. */
typedef struct tern__fault_site {
    tern__labels labels;
    int is_index, ndim;
    int64_t shape[TERN_NDIM_MAX];
} tern__fault_site;

/* In host memory that the device can write. */
typedef struct tern__fault {
    int taken;          /* set by the first kernel that has something to report */
    volatile int ready; /* set when the record is complete */
    tern__fault_site site;
    int64_t number, label;
} tern__fault;

/* The argument of a kernel. */
typedef struct tern__judge {
    tern__fault *fault;
    tern__fault_site site;
} tern__judge;

#if defined(__CUDACC__) || defined(TERN_CUDA_EMULATED) /* not for the host's compiler */
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

/* Whether a label, not an ignored one, is a class. Reports it if not. */
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
/* Returns E_RANGE with the record's message. Afterwards the record is empty, and no kernel in `stream` can
 * leave another one. */
int tern__fault_report(tern__fault *fault, cudaStream_t stream, tern_error *err);

/* Returns TERN_OK if there is no record, else the result of tern__fault_report. */
static inline int tern__fault_check(tern__fault *fault, cudaStream_t stream, tern_error *err)
{
    return fault->ready ? tern__fault_report(fault, stream, err) : TERN_OK;
}

#endif
