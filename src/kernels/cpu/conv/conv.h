/* conv.h - a convolution as the algorithms of this folder see it: oneDNN's direct one (direct.c), Winograd's
 * (winograd.c), products of tiles (tiles.c) and sums over taps (taps.c). choice.h tells which of them
 * computes a case. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_H
#define TERN_SRC_KERNELS_CPU_CONV_H

#include "kernels/conv.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/kernel.h"

/* The operands, whichever of them is computed: input, weight, output, bias, or their gradients. */
enum { TERN__CONV_X, TERN__CONV_W, TERN__CONV_Y, TERN__CONV_B, TERN__CONV_OPERANDS };

typedef struct tern__conv_operand {
    const tern__view *view; /* NULL: absent            */
    bool result, add;
    int64_t offset;            /* elements before the first of the view */
    dnnl_data_type_t type;     /* that is computed with   */
    tern__dnnl_desc have;      /* as the caller has it    */
    const tern__dnnl_desc *to; /* as the algorithm has it */
    size_t bytes;              /* that takes              */
    void *data;                /* what the algorithm gets */
} tern__conv_operand;

/* call->kernel tells which of the three it is: CONV, CONV_DATA_GRAD or CONV_WEIGHT_GRAD. */
typedef struct tern__conv {
    const tern__call *call;
    const tern__conv_attr *attr;
    tern__conv_operand op[TERN__CONV_OPERANDS];
} tern__conv;

typedef struct tern__conv_algorithm {
    const char *name;
    bool rounds_f32; /* more than products in f32 and their sum do */
    bool (*takes)(const tern__conv *c);
    bool (*pays)(const tern__conv *c);      /* as a rule it is faster than those before it; NULL: always */
    size_t (*scratch)(const tern__conv *c); /* bytes of workspace, only of what it takes; NULL: none */
    int (*run)(tern__conv *c);
} tern__conv_algorithm;

extern const tern__conv_algorithm tern__conv_direct, tern__conv_winograd, tern__conv_tiles, tern__conv_taps;

/* The first of the attributes' three numbers that counts: depth's or height's. */
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

/* As much as before, but where x is longer than what y's elements see (of a transposed convolution with
 * output padding of a stride or more): there it ends early. */
int64_t tern__conv_padding_after(const tern__conv *c, int axis);

/* What tells one case from another: the key of all its primitives. */
tern__prim_key tern__conv_key(const tern__conv *c);

/* The call's kernel by `algorithm`, or by the one that is chosen for it (NULL). E_UNSUPPORTED: not taken, or
 * none is chosen. */
int tern__conv_run(const tern__call *call, const tern__conv_algorithm *algorithm);

/* ---- thin.c: strided convolutions of single points ---- */

bool tern__conv_is_thin(const tern__conv *c);

/* The same case with stride 1, over what is seen of x. It stays where it is while it is used. */
typedef struct tern__conv_thin {
    tern__conv c;
    tern__call call;
    tern__conv_attr attr;
    tern__view seen;
} tern__conv_thin;
/* Brings together what is seen of x, or makes room for its gradient. E_MEMORY. */
int tern__conv_thin_open(const tern__conv *c, tern__conv_thin *t);
/* Of a data gradient: to the places in x that it is seen of, stored or, where the caller adds, added. */
int tern__conv_thin_close(const tern__conv *c, const tern__conv_thin *t);

/* ---- operands.c: bringing what the algorithm wants ---- */

/* Finds the memory of op[i] in the format op[i].to (of op[i].bytes) and, if it is read, fills it: the
 * caller's own where that stands so already. Copies of weights are kept with the parameter where that pays
 * (kernels/pack.h). */
int tern__conv_bring(tern__conv *c, const tern__prim_key *key, int i);
/* Of a result that was computed elsewhere: into its place, stored or, where the caller adds, added. */
int tern__conv_take_back(tern__conv *c, const tern__prim_key *key, int i);
/* Of a weight gradient: db = or += all of dy that is of a channel; nothing without a bias. */
int tern__conv_sum_bias(const tern__conv *c);

/* ---- f64.c ---- */

/* Any of the three kernels in f64. E_UNSUPPORTED: operands of other dtypes, or with gaps. */
int tern__f64_conv(const tern__call *call);

#endif
