/* pointwise.h - what all pointwise ops share: broadcasting, dtypes, layouts, and gradients that are pointwise
 * kernels themselves. An op is a row of data and a function of two lines. */
#ifndef TERN_SRC_OPS_POINTWISE_H
#define TERN_SRC_OPS_POINTWISE_H

#include "ops/ops.h"

#define TERN__POINTWISE_ARGS 3

/* The operands of a gradient's kernel. */
typedef enum tern__operand {
    TERN__NONE,
    TERN__DY,
    TERN__IN0,
    TERN__IN1,
    TERN__IN2,
    TERN__Y,
    TERN__ZERO
} tern__operand;

typedef struct tern__pointwise_grad {
    tern__kernel kernel;
    tern__operand in[4]; /* all NONE: this input gets no gradient */
} tern__pointwise_grad;

/* The dtypes that an op accepts. */
typedef enum tern__takes { TERN__FLOATS, TERN__NUMBERS, TERN__ALL } tern__takes; /* all: bool too */

typedef struct tern__pointwise_op {
    const char *name;
    tern__kernel kernel;
    int inputs;
    tern__takes takes;
    bool compares; /* the result is bool                               */
    bool chooses;  /* the first input is a condition of any dtype      */
    bool masks;    /* the second input is a mask of any dtype          */
    tern__pointwise_grad grad[TERN__POINTWISE_ARGS];
} tern__pointwise_op;

/* Computes a pointwise op of inputs that are broadcast together. k: the kernel's constants, or NULL. `func`:
 * the public function, for errors. */
tern_tensor *tern__pointwise(tern_scope *scope, const char *func, const tern__pointwise_op *op,
                             tern_tensor *const *inputs, const double *k);

/* Sums `d`, which has the shape to which input i was broadcast, into the gradient of input i. */
int tern__sum_into(tern_scope *scope, tern__node *node, int i, const tern__view *d);

#endif
