/* reference.h - the reference kernels: plain loops over the indices of the formula, sums in double, any
 * dtype, strides and layout. They are the oracle for the fast kernels and the fallback for calls that
 * those do not take. */
#ifndef TERN_SRC_KERNELS_REFERENCE_H
#define TERN_SRC_KERNELS_REFERENCE_H

#include "kernels/kernel.h"

/* out[i] = value, or += where the caller adds. */
static inline void tern__reference_put(const tern__call *call, int out, int64_t i, double value)
{
    const tern__view *view = call->out[out];
    tern__view_set(view, i, call->add[out] ? tern__view_get(view, i) + value : value);
}

/* Allocates sums in double: one for each distinct element of the output, at its offset, initialised to
 * `start`; NULL: E_MEMORY. `put` then stores or adds factor times the sums to the output. */
double *tern__reference_sums_new(const tern__call *call, double start);
void tern__reference_sums_put(const tern__call *call, const double *sums, double factor);

int tern__reference_matmul(const tern__call *call);
int tern__reference_linear_grad(const tern__call *call);
int tern__reference_pointwise(const tern__call *call);
int tern__reference_sum(const tern__call *call);
int tern__reference_amax(const tern__call *call);
int tern__reference_amin(const tern__call *call);
int tern__reference_softmax(const tern__call *call);
int tern__reference_softmax_grad(const tern__call *call);
int tern__reference_log_softmax(const tern__call *call);
int tern__reference_log_softmax_grad(const tern__call *call);
int tern__reference_nll_loss(const tern__call *call);
int tern__reference_nll_loss_grad(const tern__call *call);
int tern__reference_cross_entropy(const tern__call *call);
int tern__reference_cross_entropy_grad(const tern__call *call);
int tern__reference_dice_loss(const tern__call *call);
int tern__reference_dice_loss_grad(const tern__call *call);
int tern__reference_argmax(const tern__call *call);
int tern__reference_confusion(const tern__call *call);
int tern__reference_label_rank(const tern__call *call);
int tern__reference_argmin(const tern__call *call);
int tern__reference_choice_grad(const tern__call *call);
int tern__reference_dropout(const tern__call *call);
int tern__reference_dropout_channels(const tern__call *call);
int tern__reference_embedding(const tern__call *call);
int tern__reference_embedding_grad(const tern__call *call);
int tern__reference_conv(const tern__call *call);
int tern__reference_conv_data_grad(const tern__call *call);
int tern__reference_conv_weight_grad(const tern__call *call);
int tern__reference_reorder(const tern__call *call);
int tern__reference_batch_norm_stats(const tern__call *call);
int tern__reference_batch_norm_merge(const tern__call *call);
int tern__reference_batch_norm_apply(const tern__call *call);
int tern__reference_batch_norm_sums(const tern__call *call);
int tern__reference_batch_norm_data_grad(const tern__call *call);
int tern__reference_batch_norm(const tern__call *call);
int tern__reference_batch_norm_grad(const tern__call *call);
int tern__reference_group_norm(const tern__call *call);
int tern__reference_group_norm_grad(const tern__call *call);
int tern__reference_global_avg_pool(const tern__call *call);
int tern__reference_global_avg_pool_grad(const tern__call *call);
int tern__reference_max_pool(const tern__call *call);
int tern__reference_max_pool_grad(const tern__call *call);
int tern__reference_avg_pool(const tern__call *call);
int tern__reference_avg_pool_grad(const tern__call *call);
int tern__reference_interpolate(const tern__call *call);
int tern__reference_interpolate_grad(const tern__call *call);
int tern__reference_sgd(const tern__call *call);
int tern__reference_rmsprop(const tern__call *call);
int tern__reference_lamb(const tern__call *call);
int tern__reference_lamb_moments(const tern__call *call);
int tern__reference_adagrad(const tern__call *call);
int tern__reference_adam(const tern__call *call);
int tern__reference_power_sum(const tern__call *call);
int tern__reference_unscale(const tern__call *call);
int tern__reference_scale_update(const tern__call *call);
int tern__reference_norm_factors(const tern__call *call);

#endif
