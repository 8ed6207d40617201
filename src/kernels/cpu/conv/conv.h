/* conv.h - a convolution as the algorithms of this folder see it: oneDNN's direct one (direct.c),
 * Winograd's (winograd.c), products of tiles (tiles.c), sums over taps (taps.c) and products of unfolded
 * windows (unfold.c). choice.h chooses which of them computes a case. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_H
#define TERN_SRC_KERNELS_CPU_CONV_H

#include "kernels/conv.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/kernel.h"

/* The operands or their gradients: input, weight, output, bias. One of them is computed. */
enum { TERN__CONV_X, TERN__CONV_W, TERN__CONV_Y, TERN__CONV_B, TERN__CONV_OPERANDS };

typedef struct tern__conv_operand {
    const tern__view *view; /* NULL: absent            */
    bool result, add;
    int64_t offset;            /* offset of the view's first element */
    int32_t type;              /* of the computation: dnnl_data_type_t */
    tern__dnnl_desc have;      /* the caller's format */
    const tern__dnnl_desc *to; /* the algorithm's format */
    size_t bytes;              /* bytes in that format */
    void *data;                /* the memory that the algorithm uses */
} tern__conv_operand;

/* call->kernel is CONV, CONV_DATA_GRAD or CONV_WEIGHT_GRAD. */
typedef struct tern__conv {
    const tern__call *call;
    const tern__conv_attr *attr;
    tern__conv_operand op[TERN__CONV_OPERANDS];
} tern__conv;

typedef struct tern__conv_algorithm {
    const char *name;
    bool rounds_f32; /* rounds more than products in f32 and their sums do */
    bool (*takes)(const tern__conv *c);
    bool (*pays)(const tern__conv *c);      /* usually faster than the algorithms before it; NULL: always */
    size_t (*scratch)(const tern__conv *c); /* bytes of workspace for a case that it takes; NULL: none */
    int (*run)(tern__conv *c);
} tern__conv_algorithm;

extern const tern__conv_algorithm tern__conv_direct, tern__conv_winograd, tern__conv_tiles, tern__conv_taps,
    tern__conv_unfold;

/* The first of the attributes' three numbers that is used: depth's, or height's. */
static inline int tern__conv_first_axis(const tern__conv *c)
{
    return 5 - c->op[TERN__CONV_X].view->ndim;
}

/* The elements of a channel of x or of y, over all images. */
static inline int64_t tern__conv_positions(const tern__conv *c, int operand)
{
    const tern__view *view = c->op[operand].view;
    return tern__view_count(view) / view->shape[1];
}

/* The padding after an axis: equal to that before, but negative if x is longer than what y's windows cover
 * (a transposed convolution with output padding of a stride or more). */
int64_t tern__conv_padding_after(const tern__conv *c, int axis);

/* For a weight gradient: db = or += the sum of dy over each channel; nothing without a bias. */
int tern__conv_sum_bias(const tern__conv *c);
/* The key that identifies a case: that of all its primitives. */
tern__prim_key tern__conv_key(const tern__conv *c);

/* Runs the call's kernel by `algorithm`, or by the one chosen for it (NULL). E_UNSUPPORTED: the algorithm
 * does not take it, or none is chosen. */
int tern__conv_run(const tern__call *call, const tern__conv_algorithm *algorithm);

/* ---- thin.c: strided 1x1 convolutions ---- */

bool tern__conv_is_thin(const tern__conv *c);

/* The same case with stride 1, over the positions of x that are read. It must not move while in use. */
typedef struct tern__conv_thin {
    tern__conv c;
    tern__call call;
    tern__conv_attr attr;
    tern__view seen;
} tern__conv_thin;
/* Gathers the positions of x that are read, or allocates their gradient. E_MEMORY. */
int tern__conv_thin_open(const tern__conv *c, tern__conv_thin *t);
/* For a data gradient: scatters it to the positions in x, stored or, if the caller adds, added. */
int tern__conv_thin_close(const tern__conv *c, const tern__conv_thin *t);

/* ---- operands.c: operands in the algorithm's format ---- */

/* Finds memory for op[i] in the format op[i].to (of op[i].bytes) and fills it if it is read: the caller's
 * own memory if it has that format already. Copies of weights are kept with the parameter if that pays
 * (kernels/pack.h). */
int tern__conv_bring(tern__conv *c, const tern__prim_key *key, int i);
/* Copies a result that was computed elsewhere to its place, stored or, if the caller adds, added. */
int tern__conv_take_back(tern__conv *c, const tern__prim_key *key, int i);

/* ---- f64.c ---- */

/* Any of the three kernels in f64. E_UNSUPPORTED: operands of other dtypes, or not contiguous. */
int tern__f64_conv(const tern__call *call);

#endif
