/* values.cu - kernels on a few numbers that stay on the device: loss scales, and factors from norms. */
#include "cuda/kernels/elements.h"
#include "cuda/kernels.h"
#include "cuda/kernels/sums.h"

extern "C" {
#include "kernels/loss_scale.h"
#include "kernels/norm_factors.h"
#include "kernels/sections.h"
}

#define THREADS 256

static __global__ void run_update(const tern__loss_scale *from, tern__loss_scale *to, tern__scale_attr attr)
{
    tern__kernel_begin();
    tern__loss_scale scale = *from;
    tern__loss_scale_update(&scale, &attr);
    *to = scale;
}

int tern__cuda_scale_update(const tern__call *call)
{
    if (!tern__view_is_contiguous(call->in[0]) || !tern__view_is_contiguous(call->out[0]))
        return TERN_E_UNSUPPORTED;
    return tern__cuda_launch(call, run_update, 1, 1, 0, (const tern__loss_scale *)call->in[0]->data,
                             (tern__loss_scale *)call->out[0]->data, *(const tern__scale_attr *)call->attr);
}

namespace
{
typedef struct problem {
    const double *sums;
    double *factors;
    void *norm;
    int norm_dtype;
    const tern__section *table;
    int64_t rows, columns;
    tern__norm_attr attr;
} problem;
} // namespace

/* A block takes a section of the sums; J joins the threads' values of each column. */
template <class J> static __global__ void run_factors(problem p)
{
    tern__kernel_begin();
    tern__section section = tern__section_get(p.table, blockIdx.x, p.rows);
    double all[2] = {0, 0}; /* the first column and the last, of one or two columns */
#pragma unroll 4
    for (int64_t row = section.begin + threadIdx.x; row < section.begin + section.count; row += THREADS) {
        all[0] = J::of(all[0], p.sums[row * p.columns]);
        all[1] = J::of(all[1], p.sums[row * p.columns + p.columns - 1]);
    }
    tern__block_joins<J>(all, 0.0);
    if (threadIdx.x) return;
    double x = tern__norm_root(all[0], p.attr.p), y = tern__norm_root(all[1], p.attr.p);
    tern__norm_factors(&p.attr, x, y, p.factors + 3 * section.row);
    if (p.norm) tern__element_set<double>(p.norm, p.norm_dtype, 0, x);
}

int tern__cuda_norm_factors(const tern__call *call)
{
    const tern__view *sums = call->in[0], *norm = call->out[1];
    if (!tern__view_is_contiguous(sums) || !tern__view_is_contiguous(call->out[0])) return TERN_E_UNSUPPORTED;
    problem p = {};
    p.sums = (const double *)sums->data;
    p.factors = (double *)call->out[0]->data;
    p.norm = norm ? norm->data : nullptr;
    p.norm_dtype = norm ? norm->dtype : 0;
    p.table = tern__section_table(call->in[1]);
    p.rows = sums->shape[0];
    p.columns = sums->shape[1];
    p.attr = *(const tern__norm_attr *)call->attr;
    unsigned sections = (unsigned)tern__section_count(call->in[1]);
    if (sections == 0) return TERN_OK;
    return isinf(p.attr.p) ? tern__cuda_launch(call, run_factors<tern__high>, sections, THREADS, 0, p)
                           : tern__cuda_launch(call, run_factors<tern__add>, sections, THREADS, 0, p);
}
