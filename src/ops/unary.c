/* unary.c - functions of one tensor, element by element. */
#include "ops/pointwise.h"

#include <math.h>

#define DY TERN__DY
#define X  TERN__IN0
#define Y  TERN__Y

static const tern__pointwise_op neg_op = {"neg", TERN__NEG, 1, .takes = TERN__NUMBERS,
                                          .grad = {{TERN__NEG, {DY}}}};
static const tern__pointwise_op abs_op = {"abs", TERN__ABS, 1, .takes = TERN__NUMBERS,
                                          .grad = {{TERN__ABS_GRAD, {DY, X}}}};
static const tern__pointwise_op exp_op = {"exp", TERN__EXP, 1, .grad = {{TERN__MUL, {DY, Y}}}};
static const tern__pointwise_op log_op = {"log", TERN__LOG, 1, .grad = {{TERN__DIV, {DY, X}}}};
static const tern__pointwise_op sqrt_op = {"sqrt", TERN__SQRT, 1, .grad = {{TERN__SQRT_GRAD, {DY, Y}}}};
static const tern__pointwise_op tanh_op = {"tanh", TERN__TANH, 1, .grad = {{TERN__TANH_GRAD, {DY, Y}}}};
static const tern__pointwise_op sigmoid_op = {"sigmoid", TERN__SIGMOID, 1,
                                              .grad = {{TERN__SIGMOID_GRAD, {DY, Y}}}};
static const tern__pointwise_op relu_op = {"relu", TERN__RELU, 1, .grad = {{TERN__RELU_GRAD, {DY, Y}}}};
static const tern__pointwise_op silu_op = {"silu", TERN__SILU, 1, .grad = {{TERN__SILU_GRAD, {DY, X}}}};

tern_tensor *tern_neg(tern_scope *scope, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &neg_op, &x, NULL);
}

tern_tensor *tern_abs(tern_scope *scope, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &abs_op, &x, NULL);
}

tern_tensor *tern_exp(tern_scope *scope, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &exp_op, &x, NULL);
}

tern_tensor *tern_log(tern_scope *scope, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &log_op, &x, NULL);
}

tern_tensor *tern_sqrt(tern_scope *scope, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &sqrt_op, &x, NULL);
}

tern_tensor *tern_tanh(tern_scope *scope, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &tanh_op, &x, NULL);
}

tern_tensor *tern_sigmoid(tern_scope *scope, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &sigmoid_op, &x, NULL);
}

tern_tensor *tern_relu(tern_scope *scope, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &relu_op, &x, NULL);
}

tern_tensor *tern_silu(tern_scope *scope, tern_tensor *x)
{
    return tern__pointwise(scope, __func__, &silu_op, &x, NULL);
}

static const tern__pointwise_op gelu_ops[] = {
    {"gelu", TERN__GELU, 1, .grad = {{TERN__GELU_GRAD, {DY, X}}}},
    {"gelu", TERN__GELU_TANH, 1, .grad = {{TERN__GELU_TANH_GRAD, {DY, X}}}},
};

tern_tensor *tern_gelu(tern_scope *scope, tern_tensor *x, bool approximate)
{
    return tern__pointwise(scope, __func__, &gelu_ops[approximate], &x, NULL);
}

static const tern__pointwise_op leaky_relu_op = {"leaky_relu", TERN__LEAKY_RELU, 1,
                                                 .grad = {{TERN__LEAKY_RELU_GRAD, {DY, X}}}};

tern_tensor *tern_leaky_relu(tern_scope *scope, tern_tensor *x, double slope)
{
    return tern__pointwise(scope, __func__, &leaky_relu_op, &x, (double[]){slope, 0});
}

static const tern__pointwise_op affine_ops[] = {
    {"affine", TERN__AFFINE, 1, .grad = {{TERN__SCALE, {DY}}}},
    {"affine", TERN__SCALE, 1,
     .grad = {{TERN__SCALE, {DY}}}}, /* nothing is added, which would make 0 of -0 */
};

tern_tensor *tern_affine(tern_scope *scope, tern_tensor *x, double scale, double shift)
{
    return tern__pointwise(scope, __func__, &affine_ops[shift == 0], &x, (double[]){scale, shift});
}

static const tern__pointwise_op clamp_op = {"clamp", TERN__CLAMP, 1, .takes = TERN__NUMBERS,
                                            .grad = {{TERN__CLAMP_GRAD, {DY, X}}}};

/* A limit beyond an integer dtype's range limits nothing, unless it is on the wrong side: then no element
 * has a result. */
static bool clamp_can_hold(tern_scope *scope, tern_dtype dtype, double low, double high)
{
    bool above = !(low <= 0 || tern__integer_holds(dtype, low)),
         below = !(high >= 0 || tern__integer_holds(dtype, high));
    if (above || below)
        tern__scope_fail(scope, "tern_clamp", TERN_E_RANGE,
                         "clamp: the %s limit, %g, is outside of the range of %s", above ? "lower" : "upper",
                         above ? low : high, tern_dtype_name(dtype));
    return !above && !below;
}

tern_tensor *tern_clamp(tern_scope *scope, tern_tensor *x, double low, double high)
{
    bool integers = x && !tern__dtype_is_float(x->view.dtype);
    double k[2] = {integers ? ceil(low) : low, integers ? floor(high) : high};
    if (integers && scope && x->view.dtype != TERN_BOOL && !clamp_can_hold(scope, x->view.dtype, k[0], k[1]))
        return NULL;
    return tern__pointwise(scope, __func__, &clamp_op, &x, k);
}
