/* init.h - torch.nn.init, bit for bit. */
#ifndef TERN_SRC_NN_INIT_H
#define TERN_SRC_NN_INIT_H

#include "tensor/tensor.h"

#include <tern/rng.h>

/* The default of Linear and Conv: weight by kaiming_uniform_(a = sqrt 5), then bias, if any, from U(+-1 /
 * sqrt fan_in). f32. */
void tern__init_default(tern_tensor *weight, tern_tensor *bias, tern_rng *rng);

/* kaiming_normal_(mode = fan_out, nonlinearity = relu). f32. */
void tern__init_kaiming_normal_fan_out(tern_tensor *weight, tern_rng *rng);

#endif
