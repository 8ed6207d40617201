/* cpu.h - the fast CPU kernels: oneDNN where it has the operation, vector loops elsewhere. For what they
 * do not take (some dtypes, odd strides) they return E_UNSUPPORTED, and the reference kernel runs. */
#ifndef TERN_SRC_KERNELS_CPU_CPU_H
#define TERN_SRC_KERNELS_CPU_CPU_H

#include "kernels/kernel.h"

int tern__cpu_matmul(const tern__call *call);
int tern__cpu_pointwise(const tern__call *call);
int tern__cpu_sum(const tern__call *call);
int tern__cpu_amax(const tern__call *call);
int tern__cpu_amin(const tern__call *call);
int tern__cpu_softmax(const tern__call *call);
int tern__cpu_softmax_grad(const tern__call *call);
int tern__cpu_log_softmax(const tern__call *call);
int tern__cpu_log_softmax_grad(const tern__call *call);
int tern__cpu_nll_loss(const tern__call *call);
int tern__cpu_nll_loss_grad(const tern__call *call);
int tern__cpu_cross_entropy(const tern__call *call);
int tern__cpu_cross_entropy_grad(const tern__call *call);
int tern__cpu_dice_loss(const tern__call *call);
int tern__cpu_dice_loss_grad(const tern__call *call);
int tern__cpu_argmax(const tern__call *call);
int tern__cpu_confusion(const tern__call *call);
int tern__cpu_label_rank(const tern__call *call);
int tern__cpu_argmin(const tern__call *call);
int tern__cpu_choice_grad(const tern__call *call);
int tern__cpu_dropout(const tern__call *call);
int tern__cpu_dropout_channels(const tern__call *call);
int tern__cpu_embedding(const tern__call *call);
int tern__cpu_embedding_grad(const tern__call *call);
int tern__cpu_conv(const tern__call *call); /* and its gradients */
int tern__cpu_reorder(const tern__call *call);
int tern__cpu_batch_norm_stats(const tern__call *call);
int tern__cpu_batch_norm_apply(const tern__call *call);
int tern__cpu_batch_norm_sums(const tern__call *call);
int tern__cpu_batch_norm_data_grad(const tern__call *call);
int tern__cpu_batch_norm(const tern__call *call);
int tern__cpu_batch_norm_grad(const tern__call *call);
int tern__cpu_group_norm(const tern__call *call);
int tern__cpu_group_norm_grad(const tern__call *call);
int tern__cpu_global_avg_pool(const tern__call *call);
int tern__cpu_global_avg_pool_grad(const tern__call *call);
int tern__cpu_max_pool(const tern__call *call);
int tern__cpu_max_pool_grad(const tern__call *call);
int tern__cpu_avg_pool(const tern__call *call);
int tern__cpu_avg_pool_grad(const tern__call *call);
int tern__cpu_interpolate(const tern__call *call);
int tern__cpu_interpolate_grad(const tern__call *call);
int tern__cpu_sgd(const tern__call *call);
int tern__cpu_rmsprop(const tern__call *call);
int tern__cpu_lamb(const tern__call *call);
int tern__cpu_lamb_moments(const tern__call *call);
int tern__cpu_adagrad(const tern__call *call);
int tern__cpu_adam(const tern__call *call);
int tern__cpu_power_sum(const tern__call *call);
int tern__cpu_unscale(const tern__call *call);

#endif
