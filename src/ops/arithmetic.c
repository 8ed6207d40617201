/* arithmetic.c - ops on two tensors, and where. */
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

TWO(add, ADD, .any_dtype = true, .grad = {{TERN__COPY, {DY}}, {TERN__COPY, {DY}}})
TWO(sub, SUB, .any_dtype = true, .grad = {{TERN__COPY, {DY}}, {TERN__NEG, {DY}}})
TWO(mul, MUL, .any_dtype = true, .grad = {{TERN__MUL, {DY, B}}, {TERN__MUL, {DY, A}}})
TWO(div, DIV, .grad = {{TERN__DIV, {DY, B}}, {TERN__DIV_GRAD, {DY, Y, B}}})
TWO(pow, POW, .grad = {{TERN__POW_GRAD_BASE, {DY, A, B}}, {TERN__POW_GRAD_EXPONENT, {DY, Y, A}}})
TWO(maximum, MAXIMUM, .any_dtype = true,
    .grad = {{TERN__MAXIMUM_GRAD, {DY, A, B}}, {TERN__MAXIMUM_GRAD, {DY, B, A}}})
TWO(minimum, MINIMUM, .any_dtype = true,
    .grad = {{TERN__MAXIMUM_GRAD, {DY, B, A}}, {TERN__MAXIMUM_GRAD, {DY, A, B}}})
TWO(eq, EQ, .any_dtype = true, .compares = true)
TWO(ne, NE, .any_dtype = true, .compares = true)
TWO(lt, LT, .any_dtype = true, .compares = true)
TWO(le, LE, .any_dtype = true, .compares = true)
TWO(gt, GT, .any_dtype = true, .compares = true)
TWO(ge, GE, .any_dtype = true, .compares = true)

static const tern__pointwise_op where_op = {
    "where",
    TERN__WHERE,
    3,
    .any_dtype = true,
    .chooses = true,
    .grad = {{0}, {TERN__WHERE, {A, DY, ZERO}}, {TERN__WHERE, {A, ZERO, DY}}},
};

tern_tensor *tern_where(tern_scope *scope, tern_tensor *condition, tern_tensor *a, tern_tensor *b)
{
    return tern__pointwise(scope, __func__, &where_op, (tern_tensor *[]){condition, a, b}, NULL);
}
