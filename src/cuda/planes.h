/* planes.h - (N, C, ..) of one to three spatial dimensions in any layout: where its elements are, and which
 * of them a thread takes. */
#ifndef TERN_SRC_CUDA_PLANES_H
#define TERN_SRC_CUDA_PLANES_H

#include "cuda/bunches.h"

extern "C" {
#include "kernels/space.h"
}

typedef struct tern__planes {
    void *data;
    int64_t image, channel, step[TERN__SPACE]; /* from one to the next, in elements */
} tern__planes;

static inline tern__planes tern__planes_of(const tern__view *view)
{
    tern__planes p = {};
    if (!view) return p;
    p.data = view->data;
    p.image = view->stride[0];
    p.channel = view->stride[1];
    for (int d = 2; d < view->ndim; d++) p.step[TERN__SPACE - view->ndim + d] = view->stride[d];
    return p;
}

/* Of a plane's first element. */
static __device__ __forceinline__ int64_t tern__plane_at(const tern__planes &p, int n, int c)
{
    return n * p.image + c * p.channel;
}

/* Of an element in its plane. */
static __device__ __forceinline__ int64_t tern__position_at(const tern__planes &p, int d, int h, int w)
{
    return d * p.step[0] + h * p.step[1] + w * p.step[2];
}

/* All elements of a result, `lanes` channels at a time. Neighbouring threads take neighbours in memory. */
typedef struct tern__sites {
    int64_t count, bunches, size[TERN__SPACE];
    int lanes;
    bool last; /* channels lie next to each other */
} tern__sites;

/* Of what is longer than any dimension is, 64 bits are computed with; nothing else has to be. */
typedef struct tern__site {
    int n, c, at[TERN__SPACE];
} tern__site;

static inline tern__sites tern__sites_of(const tern__view *view, int lanes)
{
    tern__space space = tern__space_of(view);
    tern__sites s = {};
    s.bunches = view->shape[1] / lanes;
    s.count = view->shape[0] * s.bunches * space.count;
    for (int d = 0; d < TERN__SPACE; d++) s.size[d] = space.size[d];
    s.lanes = lanes;
    s.last = view->layout == TERN__CHANNELS_LAST;
    return s;
}

/* *rest becomes what is left of it in the dimensions further out. */
static __device__ __forceinline__ int tern__index(int64_t *rest, int64_t size)
{
    int64_t whole = tern__quotient(*rest, size);
    int index = (int)((uint32_t)*rest - (uint32_t)whole * (uint32_t)size);
    *rest = whole;
    return index;
}

static __device__ __forceinline__ tern__site tern__site_of(const tern__sites &s, int64_t i)
{
    tern__site site;
    if (s.last) site.c = tern__index(&i, s.bunches) * s.lanes;
    for (int d = TERN__SPACE - 1; d >= 0; d--) site.at[d] = tern__index(&i, s.size[d]);
    if (!s.last) site.c = tern__index(&i, s.bunches) * s.lanes;
    site.n = (int)i;
    return site;
}

/* All are CHANNELS_LAST, and their channels can be taken in bunches of `dtype`'s size. */
static inline bool tern__planes_bunched(const tern__view *const *views, int count)
{
    bool bunched = tern__bunches_fit(views, count, views[0]->shape[1]);
    for (int i = 0; i < count; i++) bunched &= !views[i] || views[i]->layout == TERN__CHANNELS_LAST;
    return bunched;
}

#endif
