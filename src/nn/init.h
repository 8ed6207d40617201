/* init.h - what the initialisers share, and the layers' default. */
#ifndef TERN_SRC_NN_INIT_H
#define TERN_SRC_NN_INIT_H

#include "tensor/host.h"
#include "tensor/tensor.h"

#include <tern/init.h>

/* TERN_OK if no error is set and `tensor` is f32, row-major, and of `low` to `high` dimensions. */
int tern__init_check(const tern_tensor *tensor, int low, int high, const char *func, tern_error *err);
/* The checked tensor's values on the host, for who writes them: kernels' copies are stale. tern__host_close
 * makes them the tensor's. */
int tern__init_open(tern__host *host, tern_tensor *tensor, tern_error *err);
/* Checks as torch's uniform_ and normal_ do, in the name of `func`, and draws. */
int tern__init_uniform(tern_tensor *tensor, double from, double to, tern_rng *rng, const char *func,
                       tern_error *err);
int tern__init_normal(tern_tensor *tensor, double mean, double std, tern_rng *rng, const char *func,
                      tern_error *err);

/* The default of Linear and Conv: weight by kaiming_uniform(sqrt 5), then bias, if any, from U(+-1 / sqrt
 * fan_in). */
int tern__init_default(tern_tensor *weight, tern_tensor *bias, tern_rng *rng, tern_error *err);

#endif
