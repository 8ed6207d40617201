/* planes.h - (N, C, ..) with one to three spatial dimensions in any layout: the offsets of its elements,
 * and which of them a thread takes. */
#ifndef TERN_SRC_CUDA_KERNELS_PLANES_H
#define TERN_SRC_CUDA_KERNELS_PLANES_H

#include "cuda/kernels/bunches.h"

extern "C" {
#include "kernels/space.h"
}

typedef struct tern__cuda_planes {
    void *data;
    int64_t image, channel, step[TERN__SPACE]; /* distances in elements */
} tern__cuda_planes;

static inline tern__cuda_planes tern__planes_of(const tern__view *view)
{
    tern__cuda_planes p = {};
    if (!view) return p;
    p.data = view->data;
    p.image = view->stride[0];
    p.channel = view->stride[1];
    for (int d = 2; d < view->ndim; d++) p.step[TERN__SPACE - view->ndim + d] = view->stride[d];
    return p;
}

/* The offset of a plane's first element. Indices are unsigned, since a sign would cost instructions. */
static __device__ __forceinline__ int64_t tern__plane_at(const tern__cuda_planes &p, uint32_t n, uint32_t c)
{
    return n * p.image + c * p.channel;
}

/* The offset of an element within its plane. */
static __device__ __forceinline__ int64_t tern__position_at(const tern__cuda_planes &p, uint32_t d,
                                                            uint32_t h, uint32_t w)
{
    return d * p.step[0] + h * p.step[1] + w * p.step[2];
}

/* Divides numbers below 2^31 by one that the host knows: a multiplication and a shift instead of a
 * function call. */
typedef struct tern__divisor {
    int64_t by;
    uint32_t factor;
    int shift;
} tern__divisor;

/* For divisors 1 to 2^31 - 1; for others only tern__quotient works. */
static inline tern__divisor tern__divisor_of(int64_t by)
{
    tern__divisor d = {by, 0, 0};
    if (by < 1 || by > INT32_MAX) return d;
    while ((int64_t)1 << d.shift < by) d.shift++;
    d.factor = (uint32_t)((((int64_t)1 << (31 + d.shift)) + by - 1) / by);
    return d;
}

static __device__ __forceinline__ int64_t tern__quotient_of(int64_t number, const tern__divisor &d)
{
    return tern__quotient(number, d.by);
}
static __device__ __forceinline__ uint32_t tern__quotient_of(uint32_t number, const tern__divisor &d)
{
    return (uint32_t)((uint64_t)number * d.factor >> 31) >> d.shift;
}

/* All elements of a result, `lanes` channels at a time. Neighbouring threads take elements that are
 * adjacent in memory. */
typedef struct tern__sites {
    int64_t count;
    tern__divisor bunches, size[TERN__SPACE];
    int lanes;
    bool last; /* channels are adjacent in memory */
} tern__sites;

/* 64 bits are needed only for products of dimensions; indices along a dimension have 32. */
typedef struct tern__site {
    int n, c, at[TERN__SPACE];
} tern__site;

static inline tern__sites tern__sites_of(const tern__view *view, int lanes)
{
    tern__space space = tern__space_of(view);
    int64_t bunches = view->shape[1] / lanes;
    tern__sites s = {};
    s.count = view->shape[0] * bunches * space.count;
    s.bunches = tern__divisor_of(bunches);
    for (int d = 0; d < TERN__SPACE; d++) s.size[d] = tern__divisor_of(space.size[d]);
    s.lanes = lanes;
    s.last = view->layout == TERN__CHANNELS_LAST;
    return s;
}

/* Splits off the index in this dimension; *rest becomes the index over the outer ones. */
template <class I> __device__ __forceinline__ int tern__index(I *rest, const tern__divisor &size)
{
    I whole = tern__quotient_of(*rest, size);
    int index = (int)((uint32_t)*rest - (uint32_t)whole * (uint32_t)size.by);
    *rest = whole;
    return index;
}

template <class I> __device__ __forceinline__ tern__site tern__site_from(const tern__sites &s, I i)
{
    tern__site site;
    if (s.last) site.c = tern__index(&i, s.bunches) * s.lanes;
    for (int d = TERN__SPACE - 1; d >= 0; d--) site.at[d] = tern__index(&i, s.size[d]);
    if (!s.last) site.c = tern__index(&i, s.bunches) * s.lanes;
    site.n = (int)i;
    return site;
}

static __device__ __forceinline__ tern__site tern__site_of(const tern__sites &s, int64_t i)
{
    return s.count <= INT32_MAX ? tern__site_from(s, (uint32_t)i) : tern__site_from(s, i);
}

/* Whether all are CHANNELS_LAST with channels that can be read in bunches of `dtype`. */
static inline bool tern__planes_bunched(const tern__view *const *views, int count)
{
    bool bunched = tern__bunches_fit(views, count, views[0]->shape[1]);
    for (int i = 0; i < count; i++) bunched &= !views[i] || views[i]->layout == TERN__CHANNELS_LAST;
    return bunched;
}

#endif
