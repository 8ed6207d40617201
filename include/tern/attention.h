/* attention.h - ops of transformers: attention, and the norms, gates, positions and sampling that go with it.
 * They behave as those of ops.h, which includes this header.
 *
 * Threads: as the scope. */
#ifndef TERN_ATTENTION_H
#define TERN_ATTENTION_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_attention_opts {
    size_t size;
    bool is_causal;  /* query i sees keys 0 .. i only, also if there are more or fewer keys than queries, and
                      * no mask is given; default false                                                    */
    double dropout;  /* probability in [0, 1] with which a weight of a key becomes 0; default 0             */
    double scale;    /* of the products of queries and keys; default 0: 1 / sqrt(D)                         */
    bool enable_gqa; /* q may have several heads for each head of k and v; default false                    */
    bool
        bthd; /* the positions come before the heads, as in the result of a linear: q (B, T, H, D), k (B, S, H, D),
                * v (B, S, H, E) -> (B, T, H, E), of four dimensions; default false */
} tern_attention_opts;
TERN_API tern_attention_opts tern_attention_defaults(void);

/* Returns softmax(scale q k^T + mask) v for each head: q (B, H, T, D), k (B, H, S, D), v (B, H, S, E) ->
 * (B, H, T, E); all may lack B, or B and H. With enable_gqa k and v may have G heads where H is a multiple of
 * G; head h of q then goes with head h / (H / G). A query for which no key takes part has result and gradient
 * 0. torch.nn.functional.scaled_dot_product_attention.
 *
 * The mask is NULL, bool (true: the key takes part), or of q's dtype or f32 beside 16 bits (added to the
 * scores); it is broadcast to (B, H, T, S). One that is added may have a gradient.
 *
 * The scores (T, S) are never in memory as a whole: they are computed in blocks with a running softmax
 * (Milakov and Gimelshein 2018), and again in backward, for which the tape keeps one number per query (Dao
 * 2023, "FlashAttention-2"). What is_causal hides is not computed. 16-bit types are computed in f32 and
 * rounded once; where the CPU multiplies bf16 (AVX-512 BF16), the softmax's results and the scores' gradients
 * are rounded to bf16 for their products, as in PyTorch. q, k and v may be views, such as parts of one
 * product with their heads permuted: they are copied as a whole only if the elements of their last dimension
 * are not adjacent in memory.
 *
 * A dropout above 0 is that of tern_dropout on the softmax's result (B, H, T, S): what is kept is divided by
 * 1 - dropout. The number of threads changes no bit.
 *
 * E_DTYPE: q, k and v have different dtypes, or the mask's fits none of the above; E_SHAPE; E_RANGE: dropout;
 * E_INVALID: a mask and is_causal. */
TERN_API tern_tensor *tern_scaled_dot_product_attention(tern_scope *scope, tern_tensor *q, tern_tensor *k,
                                                        tern_tensor *v, tern_tensor *mask,
                                                        const tern_attention_opts *opts);

typedef struct tern_rms_norm_opts {
    size_t size;
    int ndim;   /* number of dimensions, the last ones, to normalise over; default 1 */
    double eps; /* added to the mean square; below 0: the epsilon of x's dtype (2^-23 in f32, 2^-52 in f64,
                 * 2^-7 in bf16, 2^-10 in f16), as PyTorch's eps=None; default -1 */
} tern_rms_norm_opts;
TERN_API tern_rms_norm_opts tern_rms_norm_defaults(void);

/* Root mean square norm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) weight, with the mean of each
 * sample over the last `ndim` dimensions. weight has the shape of these, or is NULL; it may be f32 if x is of
 * a 16-bit type. Such an x is computed in f32 and rounded once. torch.nn.functional.rms_norm. */
TERN_API tern_tensor *tern_rms_norm(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                    const tern_rms_norm_opts *opts);

/* silu(gate) x and gelu(gate) x, as one op (Shazeer 2020, "GLU Variants Improve Transformer"). A matrix that
 * has gate and x side by side needs no copy: tern_slice makes the two views. torch.nn.functional.silu or
 * gelu, followed by a product. */
TERN_API tern_tensor *tern_swiglu(tern_scope *scope, tern_tensor *gate, tern_tensor *x);
TERN_API tern_tensor *tern_geglu(tern_scope *scope, tern_tensor *gate, tern_tensor *x, bool approximate);

/* Rotary position embedding (Su et al. 2021, "RoFormer"): turns pairs of elements of each row by an angle
 * that depends on the row's position. x (.., T, D); cos and sin (T, K), K <= D / 2, or any shape (.., K) that
 * repeats to x's rows as in broadcasting: (N, 1, T, K) for x (N, heads, T, D) whose sequences have positions
 * of their own, (T, 1, K) for x (N, T, heads, D). They have x's dtype, or are f32 if x is of a 16-bit type,
 * and get no gradient. Pair k, (a, b), becomes (a cos - b sin, b cos + a sin). It is elements k and k + K of
 * a row, as in transformers' Llama and GPT-NeoX (rotate_half; their tables have each column twice, these have
 * it once), or 2 k and 2 k + 1 if `interleaved`, as in the paper and GPT-J. Elements from 2 K on stay:
 * GPT-NeoX turns only the first rotary_pct D of them. The gradient turns back. */
TERN_API tern_tensor *tern_rotary_embedding(tern_scope *scope, tern_tensor *x, tern_tensor *cos,
                                            tern_tensor *sin, bool interleaved);

/* How the angles change for longer sequences than a model was trained with: transformers' rope_scaling. */
typedef enum tern_rope_scaling {
    TERN_ROPE_DEFAULT, /* not                                                                    */
    TERN_ROPE_LINEAR,  /* divided by `factor`                                                    */
    TERN_ROPE_DYNAMIC, /* a larger base if a position is original_positions or above             */
    TERN_ROPE_LLAMA3,  /* divided by `factor` where a wave is long; Llama 3.1's                  */
    TERN_ROPE_YARN,    /* so, too, with larger cosines and sines (Peng et al. 2023, "YaRN")      */
    TERN_ROPE_LONGROPE /* divided by a number for each pair, by others if a position is original_positions or
                        * above, with larger cosines and sines (Ding et al. 2024, "LongRoPE")    */
} tern_rope_scaling;

typedef struct tern_rotary_table_opts {
    size_t size;
    double base;                /* transformers' rope_theta; default 10000                            */
    tern_rope_scaling scaling;  /* default TERN_ROPE_DEFAULT                                          */
    double factor;              /* default 1                                                          */
    double low_freq_factor;     /* llama3: waves longer than original_positions / this are long; default 1 */
    double high_freq_factor;    /* llama3: those shorter than original_positions / this stay; default 4    */
    int64_t original_positions; /* all but linear: (original_)max_position_embeddings; default 8192       */
    double attention_factor;    /* yarn, longrope: of the cosines and sines; default 0: 1 if factor <= 1, else
                                 * for yarn 0.1 ln(factor) + 1, and for longrope
                                 * sqrt(1 + ln(factor) / ln(original_positions))                          */
    double beta_fast;           /* yarn: waves that turn more often in original_positions stay; default 32 */
    double beta_slow;           /* yarn: those that turn less often are long; default 1                   */
    bool truncate;              /* yarn: the pairs of these two are rounded outwards; default true        */
    const double *short_factor, *long_factor; /* longrope: K numbers each; default NULL                   */
} tern_rotary_table_opts;
TERN_API tern_rotary_table_opts tern_rotary_table_defaults(void);

/* Fills the tables (T, K) of tern_rotary_embedding, of any floating-point dtype: row t has the cosines and
 * sines of positions[t] base^(-k / K) for k in [0, K); `positions` NULL: 0, 1, .. T - 1. They are computed in
 * f64 and rounded once; transformers computes the angles in f32, which far from 0 are off by more. The tables
 * may be buffers of a module, kept tensors or those of a scope. TERN_OK, or E_INVALID (NULL, a scaling),
 * E_LIFETIME, E_SHAPE, E_DTYPE, E_RANGE (options). */
TERN_API int tern_rotary_table_fill(tern_tensor *cos, tern_tensor *sin, const int64_t *positions,
                                    const tern_rotary_table_opts *opts, tern_error *err);

/* Draws `count` categories for each row of weights, (N, C) -> (N, count) or (C) -> (count), i64: each time
 * with a probability in proportion to its weight, and without `replacement` none twice. Weights need not sum
 * up to 1. The draws are a function of the scope's seed, step and rank, like dropout's. No gradient. E_RANGE:
 * a weight that is negative or not finite; fewer categories with weights above 0 than are drawn.
 * torch.multinomial, with other random numbers. */
TERN_API tern_tensor *tern_multinomial(tern_scope *scope, tern_tensor *weights, int64_t count,
                                       bool replacement);

#ifdef __cplusplus
}
#endif
#endif
