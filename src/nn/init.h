/* init.h - helpers of the initialisers, and the default of layers. */
#ifndef TERN_SRC_NN_INIT_H
#define TERN_SRC_NN_INIT_H

#include "tensor/host.h"
#include "tensor/tensor.h"

#include <tern/init.h>

/* Returns TERN_OK if no error is set and `tensor` is f32, row-major, with `low` to `high` dimensions. */
int tern__init_check(const tern_tensor *tensor, int low, int high, const char *func, tern_error *err);
/* Opens the checked tensor's values on the host for writing, and marks the kernels' copies stale.
 * tern__host_close writes them back. */
int tern__init_open(tern__host *host, tern_tensor *tensor, tern_error *err);
/* Check the arguments as torch's uniform_ and normal_ do, and fill the tensor. `func`: for errors. */
int tern__init_uniform(tern_tensor *tensor, double from, double to, tern_rng *rng, const char *func,
                       tern_error *err);
int tern__init_normal(tern_tensor *tensor, double mean, double std, tern_rng *rng, const char *func,
                      tern_error *err);

/* Initialises as Linear and Conv do: the weight by kaiming_uniform(sqrt 5), then the bias, if any, from U(+-1
 * / sqrt fan_in). A NULL rng leaves them 0. */
int tern__init_default(tern_tensor *weight, tern_tensor *bias, tern_rng *rng, tern_error *err);

#endif
