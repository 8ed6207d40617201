/* steps.h - one step of each transform (transform.h), and both steps of a tile: down the columns, then
 * along the rows. Elements from memory are converted to f32 when they are loaded. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_STEPS_H
#define TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_STEPS_H

#include "kernels/cpu/conv/winograd/transform.h"
#include "kernels/cpu/lanes.h"

#define BLOCK TERN__BLOCK
#define LANES TERN__LANES
#define OUT   TERN__WINOGRAD_OUT
#define IN    TERN__WINOGRAD_IN

/* The points, and the matrices' coefficients from them. */
#define A    0.625f
#define B    1.5f
#define AA   (A * A)
#define BB   (B * B)
#define SUM  (AA + BB)
#define PROD (AA * BB)
#define N_A  (2 * AA * (AA - BB))
#define N_B  (2 * BB * (BB - AA))

/* ---- one dimension ---- */

/* B' d */
TERN__INLINE void input_step(tern__lanes to[IN], const tern__lanes d[IN])
{
    tern__lanes even_a = d[4] - BB * d[2], odd_a = d[3] - BB * d[1];
    tern__lanes even_b = d[4] - AA * d[2], odd_b = d[3] - AA * d[1];
    to[0] = PROD * d[0] + (d[4] - SUM * d[2]);
    to[1] = even_a + A * odd_a;
    to[2] = even_a - A * odd_a;
    to[3] = even_b + B * odd_b;
    to[4] = even_b - B * odd_b;
    to[5] = PROD * d[1] + (d[5] - SUM * d[3]);
}

/* A' m */
TERN__INLINE void output_step(tern__lanes to[OUT], const tern__lanes m[IN])
{
    tern__lanes even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
    to[0] = m[0] + (even_a + even_b);
    to[1] = A * odd_a + B * odd_b;
    to[2] = AA * even_a + BB * even_b;
    to[3] = A * AA * odd_a + (B * BB * odd_b + m[5]);
}

/* A dy */
TERN__INLINE void grad_step(tern__lanes to[IN], const tern__lanes dy[OUT])
{
    tern__lanes even_a = dy[0] + AA * dy[2], odd_a = dy[1] + AA * dy[3];
    tern__lanes even_b = dy[0] + BB * dy[2], odd_b = dy[1] + BB * dy[3];
    to[0] = dy[0];
    to[1] = even_a + A * odd_a;
    to[2] = even_a - A * odd_a;
    to[3] = even_b + B * odd_b;
    to[4] = even_b - B * odd_b;
    to[5] = dy[3];
}

/* G g */
TERN__INLINE void weight_step(tern__lanes to[IN], const tern__lanes g[3])
{
    tern__lanes even_a = 1 / N_A * g[0] + AA / N_A * g[2], odd_a = A / N_A * g[1];
    tern__lanes even_b = 1 / N_B * g[0] + BB / N_B * g[2], odd_b = B / N_B * g[1];
    to[0] = 1 / PROD * g[0];
    to[1] = even_a + odd_a;
    to[2] = even_a - odd_a;
    to[3] = even_b + odd_b;
    to[4] = even_b - odd_b;
    to[5] = g[2];
}

/* G' m */
TERN__INLINE void weight_grad_step(tern__lanes to[3], const tern__lanes m[IN])
{
    tern__lanes even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
    to[0] = 1 / PROD * m[0] + (1 / N_A * even_a + 1 / N_B * even_b);
    to[1] = A / N_A * odd_a + B / N_B * odd_b;
    to[2] = AA / N_A * even_a + (BB / N_B * even_b + m[5]);
}

/* ---- dtypes ---- */

/* Defines `name`, which is inlined, once for each dtype as a constant. */
#define DEFINE_FOR_DTYPES(name, parameters, ...)                                                             \
    TERN__SIMD static void name##_f32 parameters                                                             \
    {                                                                                                        \
        name(__VA_ARGS__, TERN_F32);                                                                         \
    }                                                                                                        \
    TERN__SIMD static void name##_bf16 parameters                                                            \
    {                                                                                                        \
        name(__VA_ARGS__, TERN_BF16);                                                                        \
    }                                                                                                        \
    TERN__SIMD static void name##_f16 parameters                                                             \
    {                                                                                                        \
        name(__VA_ARGS__, TERN_F16);                                                                         \
    }
#define FOR_DTYPE(name, dtype)                                                                               \
    ((dtype) == TERN_F32 ? name##_f32 : (dtype) == TERN_BF16 ? name##_bf16 : name##_f16)

/* ---- two dimensions ---- */

/* A square of lines of lanes of one dtype. Those outside of a plane are zeros. */
typedef struct lines {
    const char *row[IN]; /* each row's first line within the plane, or a line of zeros */
    int64_t pitch[IN];   /* bytes to its next line; 0: zeros */
    int64_t row_pitch;   /* bytes from row to row if all lines are within */
    int left, right;     /* columns left .. right - 1 are within */
    bool whole;          /* all lines are */
} lines;

/* Lines of f32 that are all there, with distances in floats: the other rows follow the first. */
TERN__INLINE lines lines_of(const float *first, int64_t row_pitch, int64_t pitch)
{
    const int64_t size = sizeof(float);
    return (lines){
        .row = {(const char *)first}, .pitch = {pitch * size}, .row_pitch = row_pitch * size, .whole = true};
}

/* The loop around a step. In registers of half a block the lines between both steps are in memory anyway, and
 * unrolled loops would keep the address of every line there, too. */
#if TERN__LANES < 16
#define EACH_STEP _Pragma("GCC unroll 1")
#else
#define EACH_STEP _Pragma("GCC unroll 6")
#endif

/* One step for each column of `rows` lines of lanes, which begin at element v, and one for each line of the
 * results: a result goes to + (results i + j) * to_pitch. whole: from->whole, as a constant. */
#define DEFINE_BOTH(name, step, rows, results)                                                               \
    TERN__INLINE void name(float *to, int64_t to_pitch, const lines *from, bool whole, int v,                \
                           tern_dtype dtype)                                                                 \
    {                                                                                                        \
        tern__lanes half[results][rows];                                                                     \
        const char *column = from->row[0];                                                                   \
        EACH_STEP for (int j = 0; j < (rows); j++, column += from->pitch[0])                                 \
        {                                                                                                    \
            tern__lanes line[rows], result[results] = {{0}};                                                 \
            if (whole || (j >= from->left && j < from->right)) {                                             \
                _Pragma("GCC unroll 6") for (int i = 0; i < (rows); i++)                                     \
                {                                                                                            \
                    const char *at = whole ? column + i * from->row_pitch                                    \
                                           : from->row[i] + (j - from->left) * from->pitch[i];               \
                    line[i] = tern__lanes_get(at, dtype, v, LANES);                                          \
                }                                                                                            \
                step(result, line);                                                                          \
            }                                                                                                \
            _Pragma("GCC unroll 6") for (int i = 0; i < (results); i++) half[i][j] = result[i];              \
        }                                                                                                    \
        EACH_STEP for (int i = 0; i < (results); i++, to += (results)*to_pitch)                              \
        {                                                                                                    \
            tern__lanes result[results];                                                                     \
            step(result, half[i]);                                                                           \
            _Pragma("GCC unroll 6") for (int j = 0; j < (results); j++)                                      \
                tern__lanes_store(to + j * to_pitch, result[j], LANES);                                      \
        }                                                                                                    \
    }

#endif
