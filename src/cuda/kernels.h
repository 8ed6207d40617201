/* kernels.h - the kernels of this plug-in, named as in kernels.def. */
#ifndef TERN_SRC_CUDA_KERNELS_H
#define TERN_SRC_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernel.h"

int tern__cuda_pointwise(const tern__call *call);
int tern__cuda_matmul(const tern__call *call);
int tern__cuda_linear_grad(const tern__call *call);
int tern__cuda_softmax(const tern__call *call);
int tern__cuda_softmax_grad(const tern__call *call);
int tern__cuda_log_softmax(const tern__call *call);
int tern__cuda_log_softmax_grad(const tern__call *call);
int tern__cuda_nll_loss(const tern__call *call);
int tern__cuda_nll_loss_grad(const tern__call *call);
int tern__cuda_cross_entropy(const tern__call *call);
int tern__cuda_cross_entropy_grad(const tern__call *call);
int tern__cuda_dice_loss(const tern__call *call);
int tern__cuda_dice_loss_grad(const tern__call *call);
int tern__cuda_argmax(const tern__call *call);
int tern__cuda_confusion(const tern__call *call);
int tern__cuda_label_rank(const tern__call *call);
int tern__cuda_argmin(const tern__call *call);
int tern__cuda_choice_grad(const tern__call *call);
int tern__cuda_dropout(const tern__call *call);
int tern__cuda_dropout_channels(const tern__call *call);
int tern__cuda_embedding(const tern__call *call);
int tern__cuda_embedding_grad(const tern__call *call);
int tern__cuda_sum(const tern__call *call);
int tern__cuda_amax(const tern__call *call);
int tern__cuda_amin(const tern__call *call);
int tern__cuda_conv(const tern__call *call);
int tern__cuda_conv_data_grad(const tern__call *call);
int tern__cuda_conv_weight_grad(const tern__call *call);
int tern__cuda_reorder(const tern__call *call);
int tern__cuda_batch_norm_stats(const tern__call *call);
int tern__cuda_batch_norm_merge(const tern__call *call);
int tern__cuda_batch_norm_apply(const tern__call *call);
int tern__cuda_batch_norm_sums(const tern__call *call);
int tern__cuda_batch_norm_data_grad(const tern__call *call);
int tern__cuda_batch_norm(const tern__call *call);
int tern__cuda_batch_norm_grad(const tern__call *call);
int tern__cuda_group_norm(const tern__call *call);
int tern__cuda_group_norm_grad(const tern__call *call);
int tern__cuda_global_avg_pool(const tern__call *call);
int tern__cuda_global_avg_pool_grad(const tern__call *call);
int tern__cuda_max_pool(const tern__call *call);
int tern__cuda_max_pool_grad(const tern__call *call);
int tern__cuda_avg_pool(const tern__call *call);
int tern__cuda_avg_pool_grad(const tern__call *call);
int tern__cuda_interpolate(const tern__call *call);
int tern__cuda_interpolate_grad(const tern__call *call);
int tern__cuda_adagrad(const tern__call *call);
int tern__cuda_adam(const tern__call *call);
int tern__cuda_unscale(const tern__call *call);
int tern__cuda_scale_update(const tern__call *call);
int tern__cuda_norm_factors(const tern__call *call);
int tern__cuda_lamb(const tern__call *call);
int tern__cuda_lamb_moments(const tern__call *call);
int tern__cuda_power_sum(const tern__call *call);
int tern__cuda_rmsprop(const tern__call *call);
int tern__cuda_sgd(const tern__call *call);

#ifdef __cplusplus
}
#endif
#endif
