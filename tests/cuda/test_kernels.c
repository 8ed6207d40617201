/* test_kernels.c - compares the plug-in's kernels with the reference. A row of the table is a call, run with
 * every floating-point type on random operands; it gives each operand's contents, layout and shape. A kernel
 * that declines a row fails the test: the reference would be compared with itself. */
#include "check.h"
#include "gpus.h"
#include "mismatches.h"
#include "operands.h"

#include "device/backend.h"
#include "device/choices.h"
#include "kernels/confusion.h"
#include "kernels/conv.h"
#include "kernels/dice_loss.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/loss_scale.h"
#include "kernels/matmul.h"
#include "kernels/nll_loss.h"
#include "kernels/norm_factors.h"
#include "kernels/optim.h"
#include "kernels/pointwise.h"
#include "kernels/reduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

static const tern__pointwise_attr five = {{5, 0}};
static const tern__factor_attr one = {1}, third = {1 / 3.0};
static const tern__dim_attr dim0 = {0}, dim1 = {1}, dim2 = {2};
static const tern__power_attr ones = {1}, squares = {2}, cubes = {3}, largest_size = {INFINITY};
static const tern__unscale_attr unscale = {1 / 3.0}, unscale_by_one = {1};
static const tern__sgd_attr sgd = {.step = {.lr = 0.1, .scale = 1, .decay = 0.01, .count = 2},
                                   .momentum = 0.9};
static const tern__scale_attr scale_update = {.growth = 2, .backoff = 0.5, .interval = 3, .most = 1e9};
static const tern__norm_attr clip = {.use = TERN__NORM_CLIP, .p = 3, .most = 2, .eps = 1e-6},
                             clip_largest = {.use = TERN__NORM_CLIP, .p = INFINITY, .most = 0.1},
                             limit = {.use = TERN__NORM_LIMIT, .p = 2, .most = 1},
                             trust = {.use = TERN__NORM_TRUST, .p = 2},
                             adapted = {.use = TERN__NORM_ADAPTED,
                                        .p = 2,
                                        .coefficient = 0.02,
                                        .decay = 0.1,
                                        .rate = 0.1,
                                        .eps = 1e-8};
static const tern__matmul_attr relu = {.relu = 1};
static const tern__conv_attr points = {{1, 1, 1}, {0}, {1, 1, 1}, 1};
static const tern__linear_grad_attr into_relu = {.is_relus = 1};
static const tern__dropout_attr dropout = {12345, 6, 7, 1u << 30, 4 / 3.0};
static const tern__embedding_attr no_padding = {-1}, padding = {2};
#define NLL(smoothing, gamma, mean, each)                                                                    \
    (&(const tern__nll_attr){"f", "op", IGNORED, smoothing, gamma, mean, each})
#define DICE(classes, probabilities, squared, over_batch, mean, each, entropy)                               \
    (&(const tern__dice_attr){"f", "op", classes, probabilities, squared, over_batch, IGNORED, mean, each,   \
                              1, entropy, 0.7})
#define CONFUSED(classes, predict)                                                                           \
    (&(const tern__confusion_attr){{"f", "op", NULL, classes, 1}, IGNORED, predict, 0.25})

/* An operand: its shape, layout and contents. */
#define OPERAND(kind, dtype, form, seen, classes, ...)                                                       \
    {                                                                                                        \
        kind, dtype, TERN__COUNT(((int64_t[]){__VA_ARGS__})), {__VA_ARGS__}, form, seen, classes             \
    }
#define SCALAR_OF(kind, dtype)                                                                               \
    {                                                                                                        \
        kind, dtype, 0, {0}, PLAIN, 0, 0                                                                     \
    }

/* Operands of the row's type; of another; labels; a result that is reduced over dimensions of x. */
#define OWN(dtype, form, ...) OPERAND(NUMBERS, dtype, form, 0, 0, __VA_ARGS__)
#define X(...)                OWN(OF_ROW, PLAIN, __VA_ARGS__)
#define XL(...)               OWN(OF_ROW, LAST, __VA_ARGS__)
#define XT(...)               OWN(OF_ROW, TURNED, __VA_ARGS__)
#define XG(...)               OWN(OF_ROW, GAPS, __VA_ARGS__)
#define XF(...)               OWN(OF_ROW, FOURS, __VA_ARGS__)
#define P(...)                OPERAND(LOGS, OF_ROW, PLAIN, 0, 0, __VA_ARGS__)
#define W(...)                OPERAND(POSITIVE, OF_ROW, PLAIN, 0, 0, __VA_ARGS__)
#define D(...)                OPERAND(POSITIVE, TERN_F64, PLAIN, 0, 0, __VA_ARGS__)
#define I(n, ...)             OPERAND(LABELS, TERN_I64, PLAIN, 0, n, __VA_ARGS__)
#define U(n, ...)             OPERAND(LABELS, TERN_U8, PLAIN, 0, n, __VA_ARGS__)
#define J(n, ...)             OPERAND(PLACES, TERN_I32, PLAIN, 0, n, __VA_ARGS__)
#define Y(mask, ...)          OPERAND(NUMBERS, OF_ROW, SEEN, mask, 0, __VA_ARGS__)
#define YI(mask, ...)         OPERAND(NUMBERS, TERN_I64, SEEN, mask, 0, __VA_ARGS__)
#define SCALAR                SCALAR_OF(NUMBERS, OF_ROW)
#define SCALAR_D              SCALAR_OF(POSITIVE, TERN_F64)

#define ENTROPY(what, attr, label, weight, ...)                                                              \
    {                                                                                                        \
        what, TERN__CROSS_ENTROPY, {X(__VA_ARGS__), label, weight}, {SCALAR, SCALAR_D, X(__VA_ARGS__)},      \
            attr, false                                                                                      \
    }
/* The same with its gradient. */
#define ENTROPY_BACK(what, attr, label, weight, ...)                                                         \
    {                                                                                                        \
        what, TERN__CROSS_ENTROPY, {X(__VA_ARGS__), label, weight},                                          \
            {SCALAR, SCALAR_D, X(__VA_ARGS__), X(__VA_ARGS__)}, attr, false                                  \
    }
#define ENTROPY_GRAD(what, attr, label, weight, sum, add, ...)                                               \
    {                                                                                                        \
        what, TERN__CROSS_ENTROPY_GRAD, {SCALAR, P(__VA_ARGS__), label, weight, sum}, {X(__VA_ARGS__)},      \
            attr, add                                                                                        \
    }

/* For n samples and c channels. */
#define DICE_LOSS(what, n, c, attr, x, target, loss, add)                                                    \
    {                                                                                                        \
        what, TERN__DICE_LOSS, {x, target}, {loss, D(n, c, 5)}, attr, add                                    \
    }
#define DICE_GRAD(what, n, c, attr, dloss, x, target, dx, add)                                               \
    {                                                                                                        \
        what, TERN__DICE_LOSS_GRAD, {dloss, x, target, D(n, c, 5)}, {dx}, attr, add                          \
    }

static const row rows[] = {
    {"fours out of gaps", TERN__COPY, {XF(3, 5, 8)}, {X(3, 5, 8)}, NULL, false},
    {"words out of gaps", TERN__COPY, {XF(41, 67, 8)}, {X(41, 67, 8)}, NULL, false},
    {"words into gaps", TERN__COPY, {X(1031, 16)}, {XF(1031, 16)}, NULL, false},
    {"turned", TERN__COPY, {XT(70, 200)}, {X(70, 200)}, NULL, false},
    {"turned, added", TERN__COPY, {XT(129, 65)}, {X(129, 65)}, NULL, true},
    {"channels to the end", TERN__COPY, {X(2, 3, 61, 53)}, {XL(2, 3, 61, 53)}, NULL, false},
    {"channels from the end", TERN__REORDER, {XL(3, 70, 9, 15)}, {X(3, 70, 9, 15)}, NULL, false},
    {"channels from the end, added", TERN__COPY, {XL(2, 2, 40, 31)}, {X(2, 2, 40, 31)}, NULL, true},
    {"taps to the end", TERN__COPY, {X(5, 130, 3, 3)}, {OWN(TERN_BF16, LAST, 5, 130, 3, 3)}, NULL, false},
    {"taps back", TERN__COPY, {OWN(TERN_F16, LAST, 3, 600, 3, 3)}, {X(3, 600, 3, 3)}, NULL, true},
    {"taps of a long kernel", TERN__COPY, {X(2, 8, 3, 9, 9)}, {XL(2, 8, 3, 9, 9)}, NULL, false},
    {"bytes",
     TERN__COPY,
     {OWN(TERN_U8, LAST, 2, 3, 90, 41)},
     {OWN(TERN_U8, PLAIN, 2, 3, 90, 41)},
     NULL,
     false},
    {"bytes with signs to real ones",
     TERN__COPY,
     {OWN(TERN_I8, LAST, 2, 5, 9, 7)},
     {X(2, 5, 9, 7)},
     NULL,
     false},
    {"real ones to bytes with signs",
     TERN__COPY,
     {X(2, 5, 9, 7)},
     {OWN(TERN_I8, LAST, 2, 5, 9, 7)},
     NULL,
     false},
    {"short whole numbers",
     TERN__COPY,
     {OWN(TERN_I16, LAST, 2, 3, 90, 41)},
     {OWN(TERN_I16, PLAIN, 2, 3, 90, 41)},
     NULL,
     false},
    {"short whole numbers to real ones",
     TERN__COPY,
     {OWN(TERN_I16, TURNED, 70, 44)},
     {X(70, 44)},
     NULL,
     false},
    {"real ones to short whole numbers",
     TERN__COPY,
     {XT(70, 44)},
     {OWN(TERN_I16, PLAIN, 70, 44)},
     NULL,
     false},
    {"bytes turned", TERN__COPY, {OWN(TERN_U8, TURNED, 99, 80)}, {OWN(TERN_U8, PLAIN, 99, 80)}, NULL, false},
    {"whole numbers",
     TERN__COPY,
     {OWN(TERN_I64, LAST, 2, 2, 9, 250)},
     {OWN(TERN_I64, PLAIN, 2, 2, 9, 250)},
     NULL,
     false},
    {"whole numbers to real ones",
     TERN__COPY,
     {OWN(TERN_I32, LAST, 2, 5, 9, 7)},
     {X(2, 5, 9, 7)},
     NULL,
     false},
    {"fours into gaps", TERN__COPY, {X(50, 12)}, {XF(50, 12)}, NULL, true},
    {"a part", TERN__FILL, {XF(5, 12)}, {XF(5, 12)}, &five, false},
    {"odd, added", TERN__FILL, {X(143)}, {X(143)}, &five, true},
    {"rows with gaps", TERN__ADD, {XG(4, 8), X(4, 8)}, {X(4, 8)}, NULL, false},
    {"short rows", TERN__ADD, {XF(40, 6), X(40, 6)}, {X(40, 6)}, NULL, true},
    {"one row, odd", TERN__MUL, {X(7, 143), X(7, 143)}, {X(7, 143)}, NULL, true},
    {"whole numbers, added", TERN__ADD, {I(90, 9, 15), I(90, 9, 15)}, {I(90, 9, 15)}, NULL, true},
    {"a number a channel", TERN__ADD, {XL(2, 8, 3, 5), Y(13, 2, 8, 3, 5)}, {XL(2, 8, 3, 5)}, NULL, false},
    {"a number a row", TERN__MUL, {XF(30, 8), Y(2, 30, 8)}, {X(30, 8)}, NULL, true},
    {"sixteen bytes at a time", TERN__MUL, {X(300, 1032), X(300, 1032)}, {X(300, 1032)}, NULL, false},
    {"sixteen bytes, added", TERN__RELU_GRAD, {X(9, 1000), X(9, 1000)}, {X(9, 1000)}, NULL, true},
    {"eight bytes in 16 bits", TERN__SUB, {X(7, 12), X(7, 12)}, {X(7, 12)}, NULL, false},
    {"sixteen bytes and a number", TERN__SUB, {X(64, 24), Y(3, 64, 24)}, {X(64, 24)}, NULL, false},
    {"from bf16, added", TERN__COPY, {OWN(TERN_BF16, PLAIN, 270, 516)}, {X(270, 516)}, NULL, true},
    {"to bf16", TERN__COPY, {X(31, 64)}, {OWN(TERN_BF16, PLAIN, 31, 64)}, NULL, false},
    {"from f16", TERN__COPY, {OWN(TERN_F16, FOURS, 31, 64)}, {X(31, 64)}, NULL, false},
    {"to f16, added", TERN__COPY, {X(31, 20)}, {OWN(TERN_F16, FOURS, 31, 20)}, NULL, true},
    {"all", TERN__SUM, {X(3, 5, 7)}, {Y(7, 3, 5, 7)}, &one, false},
    {"many", TERN__SUM, {X(40, 1003)}, {Y(3, 40, 1003)}, &third, true},
    {"many, by fours", TERN__SUM, {X(10, 4096)}, {Y(3, 10, 4096)}, &third, false},
    {"bias of planes", TERN__SUM, {X(3, 5, 24, 32)}, {Y(13, 3, 5, 24, 32)}, &one, true},
    {"bias of channels last", TERN__SUM, {XL(3, 64, 9, 7)}, {Y(13, 3, 64, 9, 7)}, &one, false},
    {"bias of odd channels last", TERN__SUM, {XL(3, 5, 40, 17)}, {Y(13, 3, 5, 40, 17)}, &one, false},
    {"rows with gaps", TERN__SUM, {XG(9, 33, 5)}, {Y(4, 9, 33, 5)}, &one, false},
    {"the middle", TERN__SUM, {X(4, 300, 12)}, {Y(2, 4, 300, 12)}, &one, true},
    {"short rows", TERN__SUM, {X(300, 3)}, {Y(2, 300, 3)}, &one, false},
    {"the outermost", TERN__AMAX, {X(2000, 6)}, {Y(1, 2000, 6)}, NULL, false},
    {"long rows", TERN__AMIN, {X(3, 5000)}, {Y(2, 3, 5000)}, NULL, false},
    {"integers", TERN__SUM, {I(90, 30, 40)}, {YI(1, 30, 40)}, &one, true},
    {"largest integers", TERN__AMAX, {I(90, 30, 400)}, {YI(3, 30, 400)}, NULL, false},
    {"last", TERN__SOFTMAX, {X(5, 33)}, {X(5, 33)}, &dim1, false},
    {"first, with gaps", TERN__SOFTMAX, {XG(6, 11)}, {X(6, 11)}, &dim0, true},
    {"channels last", TERN__LOG_SOFTMAX, {XL(2, 19, 5, 3)}, {XL(2, 19, 5, 3)}, &dim1, false},
    {"long lines", TERN__LOG_SOFTMAX, {X(2, 5000)}, {X(2, 5000)}, &dim1, false},
    {"many lines", TERN__SOFTMAX, {X(1100, 40)}, {X(1100, 40)}, &dim1, false},
    {"rows", TERN__SOFTMAX, {X(4099, 21)}, {X(4099, 21)}, &dim1, true},
    {"even rows", TERN__LOG_SOFTMAX, {XL(2, 20, 45, 50)}, {XL(2, 20, 45, 50)}, &dim1, false},
    {"rows of a power of two", TERN__SOFTMAX, {X(4096, 64)}, {X(4096, 64)}, &dim1, false},
    {"longest rows", TERN__LOG_SOFTMAX, {X(4097, 187)}, {X(4097, 187)}, &dim1, true},
    {"longest even rows", TERN__LOG_SOFTMAX, {X(4103, 186)}, {X(4103, 186)}, &dim1, true},
    {"rows and longer", TERN__SOFTMAX, {X(4096, 188)}, {X(4096, 188)}, &dim1, false},
    {"shortest rows", TERN__SOFTMAX, {X(5000, 1)}, {X(5000, 1)}, &dim1, false},
    {"lines of several stretches", TERN__SOFTMAX, {X(1030, 520)}, {X(1030, 520)}, &dim1, true},
    {"longest lines", TERN__LOG_SOFTMAX, {X(2, 40000)}, {X(2, 40000)}, &dim1, false},
    {"longest odd lines", TERN__SOFTMAX, {X(2, 16411)}, {X(2, 16411)}, &dim1, false},
    {"odd lines of blocks", TERN__LOG_SOFTMAX, {X(9, 4099)}, {X(9, 4099)}, &dim1, true},
    {"odd lines of warps", TERN__SOFTMAX, {X(1027, 203)}, {X(1027, 203)}, &dim1, true},
    {"odd lines of three pieces", TERN__LOG_SOFTMAX, {X(30, 9)}, {X(30, 9)}, &dim1, false},
    {"odd lines apart", TERN__SOFTMAX, {XF(11, 213)}, {X(11, 213)}, &dim1, false},
    {"lines side by side", TERN__SOFTMAX, {X(3, 5, 1400)}, {X(3, 5, 1400)}, &dim1, true},
    {"longer ones", TERN__LOG_SOFTMAX, {X(2, 11, 2056)}, {X(2, 11, 2056)}, &dim1, false},
    {"odd ones", TERN__SOFTMAX, {X(2, 9, 2101)}, {X(2, 9, 2101)}, &dim1, false},
    {"planes", TERN__SOFTMAX_GRAD, {X(2, 7, 9), W(2, 7, 9)}, {X(2, 7, 9)}, &dim1, true},
    {"longest ones", TERN__SOFTMAX, {X(2, 26, 2056)}, {X(2, 26, 2056)}, &dim1, false},
    {"lines side by side", TERN__SOFTMAX_GRAD, {X(2, 9, 2056), W(2, 9, 2056)}, {X(2, 9, 2056)}, &dim1, false},
    {"few side by side",
     TERN__LOG_SOFTMAX_GRAD,
     {X(3, 3, 1400), P(3, 3, 1400)},
     {X(3, 3, 1400)},
     &dim1,
     true},
    {"lines", TERN__LOG_SOFTMAX_GRAD, {X(3, 4, 50), P(3, 4, 50)}, {X(3, 4, 50)}, &dim2, false},
    {"many lines", TERN__SOFTMAX_GRAD, {X(1100, 40), W(1100, 40)}, {X(1100, 40)}, &dim1, false},
    {"odd lines of warps", TERN__SOFTMAX_GRAD, {X(1027, 203), W(1027, 203)}, {X(1027, 203)}, &dim1, true},
    {"longest odd lines", TERN__SOFTMAX_GRAD, {X(3, 40001), W(3, 40001)}, {X(3, 40001)}, &dim1, false},
    {"rows", TERN__SOFTMAX_GRAD, {X(4099, 21), W(4099, 21)}, {X(4099, 21)}, &dim1, true},
    {"even rows", TERN__LOG_SOFTMAX_GRAD, {X(4100, 6), P(4100, 6)}, {X(4100, 6)}, &dim1, false},
    {"longest rows", TERN__LOG_SOFTMAX_GRAD, {X(4096, 93), P(4096, 93)}, {X(4096, 93)}, &dim1, true},
    {"rows and longer", TERN__SOFTMAX_GRAD, {X(4096, 94), W(4096, 94)}, {X(4096, 94)}, &dim1, false},
    {"longest lines", TERN__LOG_SOFTMAX_GRAD, {X(2, 40000), P(2, 40000)}, {X(2, 40000)}, &dim1, false},
    {"weights", TERN__NLL_LOSS, {P(300, 10), I(10, 300), W(10)}, {SCALAR, SCALAR_D}, NLL(0, 0, 1, 0), false},
    {"smoothed",
     TERN__NLL_LOSS,
     {P(20, 100), U(100, 20), W(100)},
     {SCALAR, SCALAR_D},
     NLL(0.1, 0, 0, 0),
     true},
    {"planes", TERN__NLL_LOSS, {P(2, 3, 1500), I(3, 2, 1500)}, {SCALAR, SCALAR_D}, NLL(0, 2, 1, 0), false},
    {"an odd map", TERN__NLL_LOSS, {P(2, 3, 2101), U(3, 2, 2101)}, {SCALAR, SCALAR_D}, NLL(0, 0, 0, 0), true},
    {"each",
     TERN__NLL_LOSS,
     {P(2, 5, 70), I(5, 2, 70), W(5)},
     {X(2, 70), SCALAR_D},
     NLL(0.2, 1.5, 0, 1),
     false},
    {"mean", TERN__NLL_LOSS_GRAD, {SCALAR, I(5, 40), W(5), SCALAR_D}, {X(40, 5)}, NLL(0, 0, 1, 0), true},
    {"rows", TERN__NLL_LOSS_GRAD, {SCALAR, U(9, 4100), W(9), SCALAR_D}, {X(4100, 9)}, NLL(0, 0, 1, 0), true},
    {"rows, each", TERN__NLL_LOSS_GRAD, {X(4100), I(2, 4100)}, {X(4100, 2)}, NLL(0, 0, 0, 1), false},
    {"planes", TERN__NLL_LOSS_GRAD, {X(2, 30), I(9, 2, 30)}, {X(2, 9, 30)}, NLL(0, 0, 0, 1), false},
    ENTROPY("few classes", NLL(0, 0, 1, 0), I(10, 64), {0}, 64, 10),
    ENTROPY("many labels", NLL(0.1, 0, 1, 0), U(5, 2100), W(5), 2100, 5),
    ENTROPY("a block a line", NLL(0.1, 0, 0, 0), I(700, 20), W(700), 20, 700),
    {"a warp a line",
     TERN__CROSS_ENTROPY,
     {X(1100, 40), I(40, 1100)},
     {X(1100), SCALAR_D, X(1100, 40)},
     NLL(0.2, 0, 0, 1),
     false},
    ENTROPY("longest lines", NLL(0, 0, 1, 0), I(20000, 3), {0}, 3, 20000),
    ENTROPY("longest odd lines", NLL(0.1, 0, 1, 0), I(40001, 3), W(40001), 3, 40001),
    ENTROPY("odd lines of warps", NLL(0.1, 2, 1, 0), I(203, 1027), W(203), 1027, 203),
    ENTROPY("odd lines of blocks", NLL(0, 0, 0, 0), U(255, 19), {0}, 19, 257),
    ENTROPY("rows", NLL(0.1, 0, 1, 0), U(21, 4099), W(21), 4099, 21),
    ENTROPY("even rows", NLL(0, 2, 0, 0), I(6, 4100), {0}, 4100, 6),
    ENTROPY("planes", NLL(0, 2, 1, 0), I(40, 2, 150), {0}, 2, 40, 150),
    ENTROPY("a map", NLL(0, 0, 1, 0), U(21, 2, 2056), {0}, 2, 21, 2056),
    ENTROPY("a map of many classes", NLL(0.1, 0, 1, 0), U(30, 2, 2056), {0}, 2, 30, 2056),
    ENTROPY("a map of few classes", NLL(0.1, 0, 1, 0), I(2, 3, 1400), W(2), 3, 2, 1400),
    ENTROPY("an odd map", NLL(0.1, 0, 0, 0), I(9, 2, 2101), W(9), 2, 9, 2101),
    {"a map, each",
     TERN__CROSS_ENTROPY,
     {X(1, 3, 4104), I(3, 1, 4104)},
     {X(1, 4104), SCALAR_D, X(1, 3, 4104)},
     NLL(0, 2, 0, 1),
     false},
    {"channels last",
     TERN__CROSS_ENTROPY,
     {XL(2, 4, 45, 50), U(4, 2, 45, 50)},
     {SCALAR, SCALAR_D, XL(2, 4, 45, 50)},
     NLL(0, 0, 1, 0),
     false},
    ENTROPY("one", NLL(0, 0, 0, 0), I(33), {0}, 33),
    ENTROPY_BACK("few labels and back", NLL(0, 0, 1, 0), I(10, 64), {0}, 64, 10),
    ENTROPY_BACK("smooth and back", NLL(0.1, 0, 1, 0), U(5, 200), W(5), 200, 5),
    ENTROPY_BACK("a sum and back", NLL(0.1, 0, 0, 0), I(7, 31), W(7), 31, 7),
    ENTROPY_BACK("a full block and back", NLL(0, 2, 1, 0), I(32, 256), {0}, 256, 32),
    ENTROPY_BACK("odd classes and back", NLL(0.1, 2, 1, 0), I(31, 255), W(31), 255, 31),
    ENTROPY_BACK("one and back", NLL(0, 0, 0, 0), I(20), {0}, 20),
    ENTROPY_BACK("planes and back", NLL(0, 2, 1, 0), I(30, 2, 15), W(30), 2, 30, 15),
    ENTROPY_GRAD("mean", NLL(0.1, 0, 1, 0), I(100, 20), W(100), SCALAR_D, false, 20, 100),
    ENTROPY_GRAD("rows", NLL(0.1, 0, 1, 0), U(21, 4099), W(21), SCALAR_D, true, 4099, 21),
    ENTROPY_GRAD("even rows", NLL(0, 2, 0, 0), I(6, 4100), {0}, {0}, false, 4100, 6),
    ENTROPY_GRAD("longest lines", NLL(0, 0, 1, 0), I(40000, 3), {0}, SCALAR_D, false, 3, 40000),
    ENTROPY_GRAD("longest odd lines", NLL(0.1, 0, 1, 0), I(40001, 3), W(40001), SCALAR_D, false, 3, 40001),
    ENTROPY_GRAD("odd lines of warps", NLL(0.1, 2, 1, 0), I(203, 1027), W(203), SCALAR_D, true, 1027, 203),
    ENTROPY_GRAD("a map", NLL(0, 0, 1, 0), U(21, 2, 2056), {0}, SCALAR_D, false, 2, 21, 2056),
    ENTROPY_GRAD("a map of few classes", NLL(0.1, 0, 1, 0), U(2, 3, 1400), W(2), SCALAR_D, true, 3, 2, 1400),
    ENTROPY_GRAD("an odd map", NLL(0.1, 0, 0, 0), I(9, 2, 2101), W(9), {0}, false, 2, 9, 2101),
    {"a focal map",
     TERN__CROSS_ENTROPY_GRAD,
     {X(1, 4104), P(1, 3, 4104), I(3, 1, 4104), W(3)},
     {X(1, 3, 4104)},
     NLL(0, 2, 0, 1),
     false},
    {"channels last",
     TERN__CROSS_ENTROPY_GRAD,
     {SCALAR, XL(2, 4, 45, 50), U(4, 2, 45, 50)},
     {XL(2, 4, 45, 50)},
     NLL(0, 0, 0, 0),
     false},
    {"focal",
     TERN__CROSS_ENTROPY_GRAD,
     {X(2, 70), P(2, 5, 70), U(5, 2, 70)},
     {X(2, 5, 70)},
     NLL(0, 2, 0, 1),
     true},
    DICE_LOSS("classes", 2, 3, DICE(1, 0, 0, 0, 1, 0, 0.3), X(2, 3, 50, 50), I(3, 2, 50, 50), SCALAR, false),
    DICE_LOSS("masks", 2, 3, DICE(0, 0, 1, 1, 0, 0, 0.3), X(2, 3, 70), X(2, 3, 70), SCALAR, true),
    DICE_LOSS("masks by fours", 2, 3, DICE(0, 0, 0, 0, 1, 0, 0.3), X(2, 3, 5000), U(2, 2, 3, 5000), SCALAR,
              false),
    DICE_LOSS("a map of 27 classes", 2, 27, DICE(1, 0, 0, 1, 1, 0, 0.3), X(2, 27, 2056), U(27, 2, 2056),
              SCALAR, false),
    DICE_LOSS("a map of probabilities", 1, 3, DICE(1, 1, 1, 0, 0, 1, 0), W(1, 3, 9000), I(3, 1, 9000),
              X(1, 3), false),
    DICE_LOSS("an odd map", 1, 3, DICE(1, 0, 1, 0, 1, 0, 0.3), X(1, 3, 5001), I(3, 1, 5001), SCALAR, false),
    DICE_LOSS("a map of four classes", 2, 4, DICE(1, 0, 1, 1, 1, 0, 0.3), X(2, 4, 5000), J(4, 2, 5000),
              SCALAR, false),
    DICE_LOSS("one class", 5, 1, DICE(1, 0, 0, 0, 0, 0, 0.3), X(5, 1, 1600), U(1, 5, 1600), SCALAR, true),
    DICE_LOSS("a map of 24 classes", 2, 24, DICE(1, 0, 0, 0, 1, 0, 0.3), X(2, 24, 2054), J(24, 2, 2054),
              SCALAR, false),
    DICE_LOSS("an odd map of eight", 1, 8, DICE(1, 0, 0, 0, 0, 1, 0.3), X(1, 8, 5003), U(8, 1, 5003), X(1, 8),
              false),
    DICE_LOSS("an odd map of 27", 1, 27, DICE(1, 0, 0, 0, 1, 0, 0.3), X(1, 27, 1601), U(27, 1, 1601), SCALAR,
              false),
    DICE_LOSS("a map of 100 classes", 1, 100, DICE(1, 0, 1, 0, 1, 0, 0.3), X(1, 100, 4104), U(100, 1, 4104),
              SCALAR, false),
    DICE_LOSS("an odd map of 192", 1, 192, DICE(1, 0, 0, 0, 1, 0, 0.3), X(1, 192, 1101), J(192, 1, 1101),
              SCALAR, false),
    DICE_LOSS("a map of 193 classes", 2, 193, DICE(1, 0, 0, 1, 1, 0, 0.3), X(2, 193, 40), I(193, 2, 40),
              SCALAR, false),
    DICE_LOSS("an odd map of 384", 1, 384, DICE(1, 0, 1, 0, 1, 0, 0.3), X(1, 384, 301), J(384, 1, 301),
              SCALAR, false),
    DICE_LOSS("a map of 385 classes", 1, 385, DICE(1, 0, 1, 0, 0, 1, 0), X(1, 385, 4104), I(385, 1, 4104),
              X(1, 385), true),
    DICE_LOSS("probabilities of 385 classes", 2, 385, DICE(1, 1, 0, 0, 0, 1, 0), W(2, 385, 17), I(385, 2, 17),
              X(2, 385), false),
    DICE_LOSS("probabilities of 60 classes", 1, 60, DICE(1, 1, 0, 0, 0, 1, 0), W(1, 60, 4100), U(60, 1, 4100),
              X(1, 60), true),
    DICE_LOSS("long masks of labels", 2, 3, DICE(0, 0, 0, 1, 1, 0, 0.3), X(2, 3, 3900), I(2, 2, 3, 3900),
              SCALAR, false),
    DICE_LOSS("odd masks of labels", 2, 3, DICE(0, 0, 0, 1, 1, 0, 0.3), X(2, 3, 5001), J(2, 2, 3, 5001),
              SCALAR, false),
    DICE_LOSS("odd masks of bytes", 2, 3, DICE(0, 0, 1, 0, 1, 0, 0.3), X(2, 3, 9001), U(2, 2, 3, 9001),
              SCALAR, false),
    DICE_LOSS("odd masks of numbers", 1, 3, DICE(0, 0, 1, 0, 0, 1, 0), X(1, 3, 4099),
              OWN(TERN_F32, PLAIN, 1, 3, 4099), X(1, 3), false),
    DICE_LOSS("short odd masks", 5, 3, DICE(0, 1, 0, 0, 1, 0, 0), W(5, 3, 2), U(2, 5, 3, 2), SCALAR, false),
    DICE_LOSS("long masks of numbers", 2, 3, DICE(0, 1, 1, 0, 0, 1, 0), W(2, 3, 3900), W(2, 3, 3900), X(2, 3),
              false),
    DICE_LOSS("each", 3, 2, DICE(1, 1, 1, 0, 0, 1, 0), W(3, 2, 90), U(2, 3, 90), X(3, 2), false),
    DICE_GRAD("classes", 2, 3, DICE(1, 0, 1, 1, 1, 0, 0.3), SCALAR, X(2, 3, 99), I(3, 2, 99), X(2, 3, 99),
              true),
    DICE_GRAD("masks", 2, 3, DICE(0, 0, 0, 0, 0, 1, 0), X(2, 3), X(2, 3, 99), U(2, 2, 3, 99), X(2, 3, 99),
              false),
    DICE_GRAD("masks by fours", 2, 3, DICE(0, 0, 1, 1, 1, 0, 0.3), SCALAR, X(2, 3, 96), X(2, 3, 96),
              X(2, 3, 96), false),
    DICE_GRAD("a map of 27 classes", 2, 27, DICE(1, 0, 0, 1, 1, 0, 0.3), SCALAR, X(2, 27, 2056),
              U(27, 2, 2056), X(2, 27, 2056), false),
    DICE_GRAD("a map of 100 classes", 1, 100, DICE(1, 0, 1, 0, 1, 0, 0.3), SCALAR, X(1, 100, 4104),
              U(100, 1, 4104), X(1, 100, 4104), true),
    DICE_GRAD("an odd map of 192", 1, 192, DICE(1, 0, 0, 0, 1, 0, 0.3), SCALAR, X(1, 192, 1101),
              J(192, 1, 1101), X(1, 192, 1101), false),
    DICE_GRAD("a map of 193 classes", 2, 193, DICE(1, 0, 0, 1, 1, 0, 0.3), SCALAR, X(2, 193, 40),
              I(193, 2, 40), X(2, 193, 40), false),
    DICE_GRAD("an odd map of 384", 1, 384, DICE(1, 0, 1, 0, 1, 0, 0.3), SCALAR, X(1, 384, 301),
              J(384, 1, 301), X(1, 384, 301), false),
    DICE_GRAD("probabilities of 60 classes", 1, 60, DICE(1, 1, 1, 0, 0, 1, 0), X(1, 60), W(1, 60, 4100),
              U(60, 1, 4100), X(1, 60, 4100), false),
    DICE_GRAD("a map of 24 classes", 1, 24, DICE(1, 0, 1, 0, 1, 0, 0.3), SCALAR, X(1, 24, 4102),
              I(24, 1, 4102), X(1, 24, 4102), true),
    DICE_GRAD("a map of four classes", 2, 4, DICE(1, 0, 1, 0, 0, 1, 0), X(2, 4), X(2, 4, 2056), J(4, 2, 2056),
              X(2, 4, 2056), false),
    DICE_GRAD("a map of probabilities", 1, 2, DICE(1, 1, 1, 0, 1, 0, 0), SCALAR, W(1, 2, 4104), U(2, 1, 4104),
              X(1, 2, 4104), true),
    DICE_GRAD("an odd map of eight", 1, 8, DICE(1, 0, 0, 0, 1, 0, 0.3), SCALAR, X(1, 8, 901), U(8, 1, 901),
              X(1, 8, 901), false),
    DICE_GRAD("an odd map of 27", 1, 27, DICE(1, 1, 1, 0, 0, 1, 0), X(1, 27), X(1, 27, 901), I(27, 1, 901),
              X(1, 27, 901), false),
    DICE_GRAD("long masks of labels", 2, 3, DICE(0, 0, 0, 1, 1, 0, 0.3), SCALAR, X(2, 3, 3900),
              I(2, 2, 3, 3900), X(2, 3, 3900), false),
    DICE_GRAD("long masks by words", 2, 3, DICE(0, 0, 1, 0, 1, 0, 0.3), SCALAR, X(2, 3, 3900),
              J(2, 2, 3, 3900), X(2, 3, 3900), true),
    DICE_GRAD("odd masks of labels", 2, 3, DICE(0, 0, 0, 1, 1, 0, 0.3), SCALAR, X(2, 3, 5001),
              I(2, 2, 3, 5001), X(2, 3, 5001), false),
    DICE_GRAD("odd masks of bytes", 2, 3, DICE(0, 0, 1, 0, 1, 0, 0.3), SCALAR, X(2, 3, 9001),
              U(2, 2, 3, 9001), X(2, 3, 9001), true),
    DICE_GRAD("odd masks of numbers", 1, 3, DICE(0, 0, 1, 0, 0, 1, 0), X(1, 3), X(1, 3, 4099),
              OWN(TERN_F32, PLAIN, 1, 3, 4099), X(1, 3, 4099), false),
    DICE_GRAD("short odd masks", 5, 3, DICE(0, 1, 0, 0, 1, 0, 0), SCALAR, W(5, 3, 2), U(2, 5, 3, 2),
              X(5, 3, 2), false),
    DICE_GRAD("masks by fours, added", 2, 3, DICE(0, 0, 0, 0, 0, 1, 0), X(2, 3), X(2, 3, 96), U(2, 2, 3, 96),
              X(2, 3, 96), true),
    {"lines", TERN__ARGMAX, {X(20, 77)}, {I(1, 20), X(20)}, &dim1, false},
    {"planes", TERN__ARGMIN, {XL(3, 7, 4, 5)}, {I(1, 3, 4, 5), X(3, 4, 5)}, &dim1, false},
    {"integers", TERN__ARGMAX, {I(5, 2000, 20)}, {I(1, 2000), I(1, 2000)}, &dim1, false},
    {"lines", TERN__CHOICE_GRAD, {X(20), I(9, 20)}, {X(20, 9)}, &dim1, true},
    {"scores",
     TERN__CONFUSION,
     {X(50, 12), I(12, 50)},
     {I(5, 12, 12)},
     CONFUSED(12, TERN__PREDICT_LARGEST),
     false},
    {"maps",
     TERN__CONFUSION,
     {X(2, 5, 90), U(5, 2, 90)},
     {I(5, 5, 5)},
     CONFUSED(5, TERN__PREDICT_LARGEST),
     false},
    {"above", TERN__CONFUSION, {X(700), I(2, 700)}, {I(5, 2, 2)}, CONFUSED(2, TERN__PREDICT_ABOVE), true},
    {"many classes",
     TERN__CONFUSION,
     {X(50, 40), I(40, 50)},
     {I(5, 40, 40)},
     CONFUSED(40, TERN__PREDICT_LARGEST),
     false},
    {"scores", TERN__LABEL_RANK, {X(50, 40), I(40, 50)}, {I(1, 50)}, CONFUSED(40, 0), false},
    {"rows", TERN__EMBEDDING, {X(9, 8), J(9, 3, 7)}, {X(3, 7, 8)}, NULL, false},
    {"many rows", TERN__EMBEDDING, {X(40, 24), J(40, 700)}, {X(700, 24)}, NULL, false},
    {"odd rows", TERN__EMBEDDING, {X(40, 7), J(40, 23, 30)}, {X(23, 30, 7)}, NULL, false},
    {"rows", TERN__EMBEDDING_GRAD, {X(3000, 5), J(400, 3000)}, {X(400, 5)}, &no_padding, true},
    {"frequent rows", TERN__EMBEDDING_GRAD, {X(3000, 70), J(3, 3000)}, {X(3, 70)}, &padding, true},
    {"rare rows", TERN__EMBEDDING_GRAD, {X(60, 70), J(400, 60)}, {X(400, 70)}, &padding, true},
    {"a frequent one of rare rows",
     TERN__EMBEDDING_GRAD,
     {X(3000, 5), J(4, 3000)},
     {X(900, 5)},
     &padding,
     false},
    {"rows of all digits", TERN__EMBEDDING_GRAD, {X(900, 5), J(256, 900)}, {X(256, 5)}, &padding, false},
    {"many columns", TERN__EMBEDDING_GRAD, {X(30, 70), J(4, 30)}, {X(4, 70)}, &padding, false},
    {"odd", TERN__DROPOUT, {X(3, 1001)}, {X(3, 1001)}, &dropout, false},
    {"added", TERN__DROPOUT, {X(64)}, {X(64)}, &dropout, true},
    {"from an odd place", TERN__DROPOUT, {XG(1000)}, {X(1000)}, &dropout, false},
    {"to an odd place", TERN__DROPOUT, {X(1000)}, {XG(1000)}, &dropout, false},
    {"odd", TERN__COPY, {X(1001)}, {X(1001)}, NULL, false},
    {"from an odd place", TERN__COPY, {XG(1000)}, {X(1000)}, NULL, false},
    {"to an odd place", TERN__COPY, {X(1000)}, {XG(1000)}, NULL, false},
    {"from an odd place", TERN__SOFTMAX, {XG(1000)}, {X(1000)}, &dim0, false},
    {"to an odd place", TERN__SOFTMAX_GRAD, {X(1000), X(1000)}, {XG(1000)}, &dim0, false},
    {"planes", TERN__DROPOUT_CHANNELS, {X(3, 5, 4, 7)}, {X(3, 5, 4, 7)}, &dropout, false},
    {"planes by fours", TERN__DROPOUT_CHANNELS, {X(3, 5, 4, 8)}, {X(3, 5, 4, 8)}, &dropout, false},
    {"channels last by fours", TERN__DROPOUT_CHANNELS, {XL(3, 8, 4, 7)}, {XL(3, 8, 4, 7)}, &dropout, false},
    {"channels last", TERN__DROPOUT_CHANNELS, {XL(3, 5, 4, 7)}, {XL(3, 5, 4, 7)}, &dropout, true},
    {"1", TERN__POWER_SUM, {X(20001)}, {SCALAR_D}, &ones, false},
    {"2", TERN__POWER_SUM, {X(20001)}, {SCALAR_D}, &squares, true},
    {"3", TERN__POWER_SUM, {X(77)}, {SCALAR_D}, &cubes, false},
    {"largest", TERN__POWER_SUM, {X(20001)}, {SCALAR_D}, &largest_size, false},
    {"nothing", TERN__POWER_SUM, {X(0)}, {SCALAR_D}, &squares, false},
    {"odd", TERN__UNSCALE, {X(20001)}, {X(20001), SCALAR_D}, &unscale, false},
    {"times a number", TERN__UNSCALE, {X(20001), SCALAR_D}, {X(20001), SCALAR_D}, &unscale, true},
    {"dropped", TERN__UNSCALE, {X(901), SCALAR_D, SCALAR_D}, {X(901)}, &unscale, false},
    {"from an odd place", TERN__UNSCALE, {XG(2001)}, {X(2001), SCALAR_D}, &unscale, false},
    {"to an odd place", TERN__UNSCALE, {X(2001)}, {XG(2001), SCALAR_D}, &unscale, false},
    {"to another place", TERN__UNSCALE, {X(901)}, {X(901)}, &unscale_by_one, false},
    {"at odd places", TERN__POWER_SUM, {XG(2001)}, {SCALAR_D}, &squares, false},
    {"from an odd place", TERN__SGD, {XG(1003)}, {X(1003), X(1003)}, &sgd, false},
    {"at an odd place", TERN__SGD, {X(1003)}, {XG(1003), X(1003)}, &sgd, false},
    {"found", TERN__SCALE_UPDATE, {D(5)}, {D(5)}, &scale_update, false},
    {"many", TERN__NORM_FACTORS, {D(700, 1)}, {D(3), SCALAR_D}, &clip, false},
    {"largest", TERN__NORM_FACTORS, {D(7, 1)}, {D(3), SCALAR_D}, &clip_largest, false},
    {"LAMB", TERN__NORM_FACTORS, {D(20, 1)}, {D(3)}, &limit, false},
    {"pairs", TERN__NORM_FACTORS, {D(300, 2)}, {D(3)}, &trust, false},
    {"LARC", TERN__NORM_FACTORS, {D(1, 2)}, {D(3)}, &adapted, false},
    {"relu", TERN__MATMUL, {X(7, 5), X(5, 9)}, {X(7, 9)}, &relu, false},
    {"relu of a bias", TERN__MATMUL, {X(7, 5), X(5, 9), X(9)}, {X(7, 9)}, &relu, false},
    {"relu of a sum", TERN__MATMUL, {XG(7, 5), X(5, 9), X(9)}, {X(7, 9)}, &relu, true},
    {"relu of a batch", TERN__MATMUL, {X(3, 7, 5), Y(1, 3, 5, 9), X(9)}, {X(3, 7, 9)}, &relu, true},
    {"relu of batches", TERN__MATMUL, {X(3, 2, 7, 5), Y(1, 3, 2, 5, 9)}, {X(3, 2, 7, 9)}, &relu, false},
    {"relu, channels last", TERN__MATMUL, {XL(3, 2, 7, 5), X(3, 2, 5, 9)}, {XL(3, 2, 7, 9)}, &relu, true},
};

/* Products that the kernel for small products may compute in one launch: tiles that are whole, cut or a
 * corner, sums over k that are short, odd or in parts, and addresses that are aligned for reading four
 * elements or not. */
static const row products[] = {
    {"a bias beside it",
     TERN__CONV,
     {OWN(TERN_F32, LAST, 2, 8, 9, 11), OWN(TERN_F32, PLAIN, 24, 8, 1, 1), OWN(TERN_F32, PLAIN, 24)},
     {OWN(TERN_F32, LAST, 2, 24, 9, 11)},
     &points,
     true},
    {"as a linear's", TERN__MATMUL, {X(64, 784), XT(784, 64), X(64)}, {X(64, 64)}, &relu, false},
    {"with odd ends", TERN__MATMUL, {X(67, 129), XT(129, 37), X(37)}, {X(67, 37)}, NULL, false},
    {"neither turned", TERN__MATMUL, {X(65, 96), X(96, 36)}, {X(65, 36)}, NULL, false},
    {"the first turned", TERN__MATMUL, {XT(70, 33), X(33, 44), X(44)}, {X(70, 44)}, &relu, false},
    {"both turned", TERN__MATMUL, {XT(36, 100), XT(100, 40)}, {X(36, 40)}, NULL, false},
    {"of gaps", TERN__MATMUL, {XG(33, 70), XF(70, 40), X(40)}, {X(33, 40)}, &relu, false},
    {"of gaps by fours", TERN__MATMUL, {XF(33, 72), XF(72, 40)}, {X(33, 40)}, NULL, false},
    {"added", TERN__MATMUL, {X(66, 130), XT(130, 35), X(35)}, {X(66, 35)}, &relu, true},
    {"of few", TERN__MATMUL, {X(3, 1000), XT(1000, 2)}, {X(3, 2)}, NULL, false},
    {"of a ReLU",
     TERN__LINEAR_GRAD,
     {X(64, 40), X(64, 72), X(40, 72), X(64, 40)},
     {X(64, 72), X(40, 72), X(40)},
     NULL,
     false},
    {"odd, of a ReLU",
     TERN__LINEAR_GRAD,
     {X(67, 129), X(67, 35), X(129, 35), X(67, 129)},
     {X(67, 35), X(129, 35), X(129)},
     NULL,
     false},
    {"long, of a ReLU",
     TERN__LINEAR_GRAD,
     {XF(32, 700), XF(32, 36), XF(700, 36), XF(32, 700)},
     {XF(32, 36), XF(700, 36), X(700)},
     NULL,
     false},
    {"both in parts",
     TERN__LINEAR_GRAD,
     {X(130, 200), X(130, 36), X(200, 36), X(130, 200)},
     {X(130, 36), X(200, 36), X(200)},
     NULL,
     false},
    {"of weights and data",
     TERN__LINEAR_GRAD,
     {X(64, 10), X(64, 100), X(10, 100)},
     {X(64, 100), X(10, 100)},
     NULL,
     false},
    {"into a ReLU",
     TERN__LINEAR_GRAD,
     {X(64, 40), X(64, 72), X(40, 72)},
     {X(64, 72), X(40, 72), X(40)},
     &into_relu,
     false},
    {"odd, of a ReLU into one",
     TERN__LINEAR_GRAD,
     {X(67, 129), X(67, 35), X(129, 35), X(67, 129)},
     {X(67, 35), X(129, 35), X(129)},
     &into_relu,
     false},
    {"long, into a ReLU",
     TERN__LINEAR_GRAD,
     {XF(32, 700), XF(32, 36), XF(700, 36)},
     {XF(32, 36), XF(700, 36), X(700)},
     &into_relu,
     false},
    {"into a ReLU elsewhere",
     TERN__LINEAR_GRAD,
     {X(30, 40), XG(30, 50), X(40, 50), X(30, 40)},
     {X(30, 50), X(40, 50), X(40)},
     &into_relu,
     false},
    {"of a long batch",
     TERN__LINEAR_GRAD,
     {X(784, 10), X(784, 20), X(10, 20)},
     {X(784, 20), X(10, 20)},
     NULL,
     false},
    {"of weights alone", TERN__LINEAR_GRAD, {X(65, 64), X(65, 36)}, {{0}, X(64, 36), X(64)}, NULL, false},
    {"of a ReLU elsewhere",
     TERN__LINEAR_GRAD,
     {X(30, 40), X(30, 50), X(40, 50), XG(30, 40)},
     {X(30, 50), X(40, 50), X(40)},
     NULL,
     false},
    {"added",
     TERN__LINEAR_GRAD,
     {X(64, 40), X(64, 72), X(40, 72), X(64, 40)},
     {X(64, 72), X(40, 72), X(40)},
     NULL,
     true},
};

/* ---- running rows ---- */

/* In 16 bits one unit in the last place: f32 results are rounded twice, the reference's once. */
static double tolerance_of(tern_dtype dtype)
{
    return dtype == TERN_F64 ? 1e-12 : dtype == TERN_BF16 ? 0x1p-7 : dtype == TERN_F16 ? 0x1p-10 : 4e-6;
}

/* The error of a gradient computed from rounded log probabilities, from its largest element: a tie may
 * change a log probability by a unit in the last place, and so p by log p of its own units. */
static double owed(const tern__view *log_p, int64_t i)
{
    double value = log_p ? tern__view_get(log_p, i) : 0;
    return fabs(value) * exp(value);
}

/* How many of its own units an element of a result may be off: 1 - p of a focal loss is about -log p where
 * that is small, of which a tie may change the last place. */
static double units_of(const row *r, int out)
{
    return r->kernel == TERN__CROSS_ENTROPY && out == 0 ? 1 + ((const tern__nll_attr *)r->attr)->gamma : 1;
}

/* The magnitudes of what a product is added to: y's old elements and the bias; NULL: nothing. cuBLASLt may
 * round a product to 16 bits before; the emulation does not. To be freed by the caller. */
static double *addends_of(const tern__call *call, int out)
{
    const tern__view *y = call->out[out], *bias = call->kernel == TERN__MATMUL ? call->in[2] : NULL;
    bool is_product = call->kernel == TERN__MATMUL || call->kernel == TERN__LINEAR_GRAD;
    if (is_emulated() || !is_product || !y || !tern__dtype_is_half(y->dtype) || !(call->add[out] || bias))
        return NULL;
    int64_t count = tern__view_count(y), columns = y->shape[y->ndim - 1];
    double *addends = calloc((size_t)count, sizeof(*addends));
    assert_non_null(addends);
    for (int64_t i = 0; i < count; i++) {
        if (call->add[out]) addends[i] += fabs(tern__view_get(y, i));
        if (bias) addends[i] += fabs(tern__view_get(bias, i % columns));
    }
    return addends;
}

/* Tolerances go by the largest element: sums of both signs may be small themselves. The smallest numbers of
 * f16 are 2^-24 apart. A product that was rounded before other things were added to it is half a unit of its
 * own off. Reports the first element that is off. */
static void compare(const row *r, int out, tern_dtype dtype, const tern__view *got, const tern__view *want,
                    const tern__view *log_p, const double *addends)
{
    double largest = 0, step = tolerance_of(got->dtype) * units_of(r, out);
    double own = tolerance_of(dtype == TERN_F64 ? TERN_F64 : TERN_F32);
    int64_t count = tern__view_count(want);
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(tern__view_get(want, i)));
    for (int64_t i = 0; i < count; i++) {
        double a = tern__view_get(got, i), b = tern__view_get(want, i);
        double most = step * (fabs(b) + owed(log_p, i) * largest) + own * largest;
        if (addends) most += step / 2 * (fabs(b) + addends[i]);
        if (!tern__dtype_is_float(got->dtype)) most = 0;
        if (got->dtype == TERN_F16) most = fmax(most, 0x1p-24);
        if (fabs(a - b) <= most) continue;
        mismatch("%s, %s, %s: element %lld is %.9g, expected %.9g", tern__kernel_name(r->kernel), r->what,
                 tern_dtype_name(dtype), (long long)i, a, b);
        return;
    }
}

static void run_by(tern__kernel_fn kernel, const row *r, tern_dtype dtype, tern_device *device,
                   tern_device *reference)
{
    pair all[OPERANDS];
    tern_error err = {0};
    tern__call call = {.device = device, .kernel = r->kernel, .attr = r->attr, .err = &err};
    tern__call plain = call;
    plain.device = reference;
    for (int i = 0; i < OPERANDS; i++) {
        pair *p = &all[i];
        open_pair(p, i < INS ? &r->in[i] : &r->out[i - INS], dtype);
        if (!p->operand->kind) continue;
        move_there(p, device);
        *(i < INS ? &call.in[i] : &call.out[i - INS]) = p->memory ? &p->there : &p->device;
        *(i < INS ? &plain.in[i] : &plain.out[i - INS]) = &p->reference;
    }
    double *addends[OUTS];
    for (int i = 0; i < OUTS; i++) {
        call.add[i] = plain.add[i] = r->add;
        addends[i] = addends_of(&plain, i);
    }
    assert_int_equal(tern__kernel_run(&plain), TERN_OK);
    bool is_done = is_carried(&call, kernel, r->what, dtype);
    for (int i = 0; i < OPERANDS; i++) move_back(&all[i]);
    for (int i = 0; i < OUTS && is_done; i++) {
        const pair *p = &all[INS + i];
        bool is_of_log_p = r->kernel == TERN__CROSS_ENTROPY && i == 3;
        if (p->operand->kind)
            compare(r, i, dtype, &p->device, &p->reference, is_of_log_p ? plain.out[2] : NULL, addends[i]);
    }
    for (int i = 0; i < OUTS; i++) free(addends[i]);
    for (int i = 0; i < OPERANDS; i++) {
        if (!all[i].operand->kind) continue;
        drop_view(&all[i].device, all[i].operand);
        drop_view(&all[i].reference, all[i].operand);
    }
}

static void run_row(const row *r, tern_dtype dtype, tern_device *device, tern_device *reference)
{
    run_by(device->backend->kernels[r->kernel], r, dtype, device, reference);
}

static int does_nothing(const tern__call *call)
{
    (void)call;
    return TERN_OK;
}

static int fails(const tern__call *call)
{
    return tern__error_set(call->err, __func__, TERN_E_SYSTEM, "it fails");
}

static void a_wrong_kernel_hides_no_row(void **state)
{
    tern_error err = {0};
    tern_device *reference = tern_device_open("cpu:reference", &err);
    assert_ok(err);
    run_by(does_nothing, &rows[0], TERN_F32, *state, reference);
    run_by(fails, &rows[1], TERN_F32, *state, reference);
    run_by(does_nothing, &rows[2], TERN_F32, *state, reference);
    assert_int_equal(mismatches, 3);
    mismatches = 0;
    tern_device_close(reference);
}

static void as_the_reference(void **state)
{
    static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};
    tern_error err = {0};
    tern_device *reference = tern_device_open("cpu:reference", &err);
    assert_ok(err);
    for (size_t i = 0; i < TERN__COUNT(rows); i++)
        for (size_t d = 0; d < TERN__COUNT(dtypes); d++) run_row(&rows[i], dtypes[d], *state, reference);
    tern_device_close(reference);
}

static void a_frequent_row_is_summed_by_many_blocks(void **state)
{
    static const row frequent = {"a frequent row", TERN__EMBEDDING_GRAD, {X(3000, 512), J(2, 3000)},
                                 {X(2, 512)},      &no_padding,          false};
    tern_error err = {0};
    tern_device *reference = tern_device_open("cpu:reference", &err);
    assert_ok(err);
    largest_grid();
    run_row(&frequent, TERN_F32, *state, reference);
    assert_true(largest_grid() >= ENOUGH);
    tern_device_close(reference);
}

/* ---- products, whichever way is faster ---- */

/* Replaces all choices of the device so far by `way`. */
static void choose(tern_device *device, const char *way)
{
    static const char key[] = "\"choice\":\"";
    static char text[1 << 16], told[1 << 16];
    size_t bytes = tern__choices_write(device, text, sizeof(text) - 1), used = 0;
    assert_in_range(bytes, 1, sizeof(text) - 1);
    text[bytes] = 0;
    char *from = text;
    for (char *at; (at = strstr(from, key)); from = strchr(at + strlen(key), '"'))
        used +=
            (size_t)snprintf(told + used, sizeof(told) - used, "%.*s%s%s", (int)(at - from), from, key, way);
    used += (size_t)snprintf(told + used, sizeof(told) - used, "%s", from);
    assert_in_range(used, 1, sizeof(told) - 1);
    tern__choices_read(device, told, used);
}

/* Measuring tries all ways; then the choice is set to each of some. */
static void products_either_way(void **state)
{
    static const char *const ways[] = {NULL, "small 64", "small 256", "other"};
    tern_error err = {0};
    tern_device *device = *state, *reference = tern_device_open("cpu:reference", &err);
    bool deterministic = device->conv.deterministic;
    assert_ok(err);
    setenv("TERN_CONV_CACHE", "off", 1);
    device->conv.deterministic = false;
    for (size_t way = 0; way < TERN__COUNT(ways); way++) {
        if (ways[way]) choose(device, ways[way]);
        for (size_t i = 0; i < TERN__COUNT(products); i++) run_row(&products[i], TERN_F32, device, reference);
    }
    for (size_t i = 0; i < TERN__COUNT(products); i++) run_row(&products[i], TERN_BF16, device, reference);
    device->conv.deterministic = deterministic;
    unsetenv("TERN_CONV_CACHE");
    tern_device_close(reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_kernel_hides_no_row),
        cmocka_unit_test_teardown(as_the_reference, no_mismatch),
        cmocka_unit_test_teardown(a_frequent_row_is_summed_by_many_blocks, no_mismatch),
        cmocka_unit_test_teardown(products_either_way, no_mismatch),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
