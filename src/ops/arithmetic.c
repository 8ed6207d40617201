/* arithmetic.c - element-wise ops on two tensors, and tern_where. */
#include "ops/pointwise.h"

#define DY   TERN__DY
#define A    TERN__IN0
#define B    TERN__IN1
#define C    TERN__IN2
#define Y    TERN__Y
#define ZERO TERN__ZERO

#define TWO(name, NAME, ...)                                                                                 \
    static const tern__pointwise_op name##_op = {#name, TERN__##NAME, 2, __VA_ARGS__};                       \
    tern_tensor *tern_##name(tern_scope *scope, tern_tensor *a, tern_tensor *b)                              \
    {                                                                                                        \
        return tern__pointwise(scope, __func__, &name##_op, (tern_tensor *[]){a, b}, NULL);                  \
    }

TWO(add, ADD, .takes = TERN__ALL, .grad = {{TERN__COPY, {DY}}, {TERN__COPY, {DY}}})
TWO(sub, SUB, .takes = TERN__NUMBERS, .grad = {{TERN__COPY, {DY}}, {TERN__NEG, {DY}}})
TWO(mul, MUL, .takes = TERN__ALL, .grad = {{TERN__MUL, {DY, B}}, {TERN__MUL, {DY, A}}})
TWO(div, DIV, .grad = {{TERN__DIV, {DY, B}}, {TERN__DIV_GRAD, {DY, Y, B}}})
TWO(pow, POW, .grad = {{TERN__POW_GRAD_BASE, {DY, A, B}}, {TERN__POW_GRAD_EXPONENT, {DY, Y, A}}})
TWO(maximum, MAXIMUM, .takes = TERN__ALL,
    .grad = {{TERN__MAXIMUM_GRAD, {DY, A, B}}, {TERN__MAXIMUM_GRAD, {DY, B, A}}})
TWO(minimum, MINIMUM, .takes = TERN__ALL,
    .grad = {{TERN__MAXIMUM_GRAD, {DY, B, A}}, {TERN__MAXIMUM_GRAD, {DY, A, B}}})
TWO(eq, EQ, .takes = TERN__ALL, .compares = true)
TWO(ne, NE, .takes = TERN__ALL, .compares = true)
TWO(lt, LT, .takes = TERN__ALL, .compares = true)
TWO(le, LE, .takes = TERN__ALL, .compares = true)
TWO(gt, GT, .takes = TERN__ALL, .compares = true)
TWO(ge, GE, .takes = TERN__ALL, .compares = true)

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
