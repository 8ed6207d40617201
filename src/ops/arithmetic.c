/* arithmetic.c - element-wise ops on two tensors, and tern_where. */
#include "ops/pointwise.h"

#define DY   TERN__DY
#define A    TERN__IN0
#define B    TERN__IN1
#define C    TERN__IN2
#define Y    TERN__Y
#define ZERO TERN__ZERO

static const tern__pointwise_op add_op = {"add", TERN__ADD, 2, .takes = TERN__ALL,
                                          .grad = {{TERN__COPY, {DY}}, {TERN__COPY, {DY}}}};
static const tern__pointwise_op sub_op = {"sub", TERN__SUB, 2, .takes = TERN__NUMBERS,
                                          .grad = {{TERN__COPY, {DY}}, {TERN__NEG, {DY}}}};
static const tern__pointwise_op mul_op = {"mul", TERN__MUL, 2, .takes = TERN__ALL,
                                          .grad = {{TERN__MUL, {DY, B}}, {TERN__MUL, {DY, A}}}};
static const tern__pointwise_op div_op = {"div", TERN__DIV, 2,
                                          .grad = {{TERN__DIV, {DY, B}}, {TERN__DIV_GRAD, {DY, Y, B}}}};
static const tern__pointwise_op pow_op = {
    "pow", TERN__POW, 2, .grad = {{TERN__POW_GRAD_BASE, {DY, A, B}}, {TERN__POW_GRAD_EXPONENT, {DY, Y, A}}}};
static const tern__pointwise_op maximum_op = {
    "maximum", TERN__MAXIMUM, 2, .takes = TERN__ALL,
    .grad = {{TERN__MAXIMUM_GRAD, {DY, A, B}}, {TERN__MAXIMUM_GRAD, {DY, B, A}}}};
static const tern__pointwise_op minimum_op = {
    "minimum", TERN__MINIMUM, 2, .takes = TERN__ALL,
    .grad = {{TERN__MAXIMUM_GRAD, {DY, B, A}}, {TERN__MAXIMUM_GRAD, {DY, A, B}}}};
static const tern__pointwise_op eq_op = {"eq", TERN__EQ, 2, .takes = TERN__ALL, .compares = true};
static const tern__pointwise_op ne_op = {"ne", TERN__NE, 2, .takes = TERN__ALL, .compares = true};
static const tern__pointwise_op lt_op = {"lt", TERN__LT, 2, .takes = TERN__ALL, .compares = true};
static const tern__pointwise_op le_op = {"le", TERN__LE, 2, .takes = TERN__ALL, .compares = true};
static const tern__pointwise_op gt_op = {"gt", TERN__GT, 2, .takes = TERN__ALL, .compares = true};
static const tern__pointwise_op ge_op = {"ge", TERN__GE, 2, .takes = TERN__ALL, .compares = true};

tern_tensor *tern_add(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &add_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_sub(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &sub_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_mul(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &mul_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_div(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &div_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_pow(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &pow_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_maximum(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &maximum_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_minimum(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &minimum_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_eq(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &eq_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_ne(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &ne_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_lt(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &lt_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_le(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &le_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_gt(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &gt_op, (tern_tensor *[]){a, b}, NULL);
}

tern_tensor *tern_ge(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &ge_op, (tern_tensor *[]){a, b}, NULL);
}

/* The gradient of x is the op itself, with dy in x's place. */
static const tern__pointwise_op swiglu_op = {
    "swiglu", TERN__SWIGLU, 2, .grad = {{TERN__SWIGLU_GRAD_GATE, {DY, A, B}}, {TERN__SWIGLU, {A, DY}}}};
static const tern__pointwise_op geglu_ops[] = {
    {"geglu", TERN__GEGLU, 2, .grad = {{TERN__GEGLU_GRAD_GATE, {DY, A, B}}, {TERN__GEGLU, {A, DY}}}},
    {"geglu", TERN__GEGLU_TANH, 2,
     .grad = {{TERN__GEGLU_TANH_GRAD_GATE, {DY, A, B}}, {TERN__GEGLU_TANH, {A, DY}}}},
};

tern_tensor *tern_swiglu(tern_scope *scope, tern_tensor *gate, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &swiglu_op, (tern_tensor *[]){gate, x}, NULL);
}

tern_tensor *tern_geglu(tern_scope *scope, tern_tensor *gate, tern_tensor *x, bool approximate)
{
    return tern__pointwise(scope, __func__, &geglu_ops[approximate], (tern_tensor *[]){gate, x}, NULL);
}

static const tern__pointwise_op where_op = {
    "where",
    TERN__WHERE,
    3,
    .takes = TERN__ALL,
    .chooses = true,
    .grad = {{0}, {TERN__WHERE, {A, DY, ZERO}}, {TERN__WHERE, {A, ZERO, DY}}},
};

/* Converts a floating-point condition to bool, so that integers are not computed in f64, which cannot hold
 * all of them. */
static tern_tensor *as_bool(tern_scope *scope, tern_tensor *condition)
{
    return tern_ne(scope, condition, tern_full(scope, condition->view.dtype, 0, NULL, 0));
}

tern_tensor *tern_where(tern_scope *scope, tern_tensor *condition, tern_tensor *a, tern_tensor *b)
{
    if (!TERN__ENTER(scope, __func__, 3, &condition, &a, &b)) return NULL;
    bool integers = !tern__dtype_is_float(a->view.dtype);
    if (integers && tern__dtype_is_float(condition->view.dtype) && !(condition = as_bool(scope, condition)))
        return NULL;
    return tern__pointwise(scope, __func__, &where_op, (tern_tensor *[]){condition, a, b}, NULL);
}
