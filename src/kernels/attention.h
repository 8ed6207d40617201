/* attention.h - attributes and shapes of scaled dot product attention.
 *
 * The operands are seen as q (B, H, T_q, D), k (B, H_k, T_k, D), v (B, H_k, T_k, D_v), mask (B, H, T_q, T_k)
 * with stride 0 where it is broadcast, y and dy (B, H, T_q, D_v), lse (B, H, T_q). Head h of q goes with head
 * h / (H / H_k) of k and v. For each query i of a head
 *
 *     s_j = scale q_i . k_j + mask_ij             over the keys j that take part
 *     lse_i = log sum_j exp(s_j)                  infinity if there is no such key
 *     p_j = exp(s_j - lse_i)                      0 if there is no such key
 *     y_i = sum_j z_ij p_j v_j                    z: dropout's factors, or 1
 *
 * and backwards, with p computed again from lse,
 *
 *     delta_i = sum_d dy_id y_id                  which is sum_j p_j dp_j
 *     dp_j = z_ij dy_i . v_j
 *     ds_j = p_j (dp_j - delta_i)                 also the gradient of mask_ij
 *     dq_i = scale sum_j ds_j k_j,  dk_j = scale sum_i ds_j q_i,  dv_j = sum_i z_ij p_j dy_i.
 *
 * Where q, k and v are one tensor its gradient is stored by dq and added to by dk and dv, so each element of
 * dq is written before the same one of dk, and that before dv's. */
#ifndef TERN_SRC_KERNELS_ATTENTION_H
#define TERN_SRC_KERNELS_ATTENTION_H

#include "kernels/dropout.h"
#include "kernels/kernel.h"

typedef struct tern__attention_attr {
    double scale;
    int64_t is_causal;          /* not 0: query i sees keys 0 .. i only */
    tern__dropout_attr dropout; /* of p, at its position in (B, H, T_q, T_k); threshold 0: none */
} tern__attention_attr;

typedef struct tern__attention_shape {
    int64_t batch, heads, key_heads; /* B, H, H_k */
    int64_t queries, keys;           /* T_q, T_k  */
    int64_t depth, width;            /* D, D_v    */
} tern__attention_shape;

static inline tern__attention_shape tern__attention_shape_of(const tern__view *q, const tern__view *k,
                                                             const tern__view *v)
{
    return (tern__attention_shape){q->shape[0], q->shape[1], k->shape[1], q->shape[2],
                                   k->shape[2], q->shape[3], v->shape[3]};
}

/* How many of the first keys query i may see. */
static inline int64_t tern__attention_seen(const tern__attention_attr *attr, int64_t i, int64_t keys)
{
    return attr->is_causal ? TERN__MIN(keys, i + 1) : keys;
}

#endif
