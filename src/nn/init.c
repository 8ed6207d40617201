#include "nn/init.h"

#include <math.h>

/* The operations in PyTorch's order, in double: torch.nn.init.kaiming_uniform_ and reset_parameters. */
void tern__init_default(tern_tensor *weight, tern_tensor *bias, tern_rng *rng)
{
    int64_t count = tern_tensor_count(weight);
    int64_t fan_in = count / tern_tensor_shape(weight)[0];
    double a = sqrt(5.0);
    double gain = sqrt(2.0 / (1 + a * a));
    double bound = sqrt(3.0) * (gain / sqrt((double)fan_in));
    tern_rng_uniform(rng, weight->view.data, (size_t)count, -bound, bound);
    if (!bias) return;
    bound = 1 / sqrt((double)fan_in);
    tern_rng_uniform(rng, bias->view.data, (size_t)tern_tensor_count(bias), -bound, bound);
}

void tern__init_kaiming_normal_fan_out(tern_tensor *weight, tern_rng *rng)
{
    int64_t count = tern_tensor_count(weight);
    int64_t fan_out = count / tern_tensor_shape(weight)[1];
    double std = sqrt(2.0) / sqrt((double)fan_out);
    tern_rng_normal(rng, weight->view.data, (size_t)count, 0, std);
}
