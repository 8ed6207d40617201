/* attention.h - the attention of transformers, an op like those of ops.h, which includes this header. */
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
 * rounded once. q, k and v may be views, such as parts of one product with their heads permuted: they are
 * copied only if the elements of their last dimension are not adjacent in memory.
 *
 * A dropout above 0 is that of tern_dropout on the softmax's result (B, H, T, S): what is kept is divided by
 * 1 - dropout. The number of threads changes no bit.
 *
 * E_DTYPE: q, k and v have different dtypes, or the mask's fits none of the above; E_SHAPE; E_RANGE: dropout;
 * E_INVALID: a mask and is_causal. */
TERN_API tern_tensor *tern_scaled_dot_product_attention(tern_scope *scope, tern_tensor *q, tern_tensor *k,
                                                        tern_tensor *v, tern_tensor *mask,
                                                        const tern_attention_opts *opts);

#ifdef __cplusplus
}
#endif
#endif
