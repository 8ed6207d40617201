/* init.h - torch.nn.init, bit for bit: the same numbers from the same generator. Tensors are parameters or
 * buffers of f32, before or after the seal, or others that are row-major without gaps. All return TERN_OK or
 * a negative status: E_INVALID (NULL, gaps), E_DTYPE, E_SHAPE (number of dimensions), E_RANGE (what torch
 * refuses: from > to, std < 0, ..), and then the tensor is as it was.
 *
 * Threads: as the tensor's module and the rng. */
#ifndef TERN_INIT_H
#define TERN_INIT_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tern_nonlinearity {
    TERN_GAIN_LINEAR,     /* also of convolutions and the sigmoid: gain 1 */
    TERN_GAIN_TANH,       /* 5 / 3 */
    TERN_GAIN_RELU,       /* sqrt 2 */
    TERN_GAIN_LEAKY_RELU, /* sqrt(2 / (1 + slope^2)) */
    TERN_GAIN_SELU        /* 3 / 4 */
} tern_nonlinearity;
typedef enum tern_fan { TERN_FAN_IN, TERN_FAN_OUT } tern_fan;

/* torch.nn.init.calculate_gain; `slope` is read for TERN_GAIN_LEAKY_RELU only (torch's default is 0.01). NaN
 * for what is no nonlinearity. */
TERN_API double tern_init_gain(tern_nonlinearity nonlinearity, double slope);

TERN_API int tern_init_constant(tern_tensor *tensor, double value, tern_error *err);
/* 2 dimensions: ones on the diagonal. */
TERN_API int tern_init_eye(tern_tensor *tensor, tern_error *err);
/* 3 to 5 dimensions (out, in, kernel ..): a convolution that keeps its input, in each of `groups` groups. */
TERN_API int tern_init_dirac(tern_tensor *tensor, int64_t groups, tern_error *err);
TERN_API int tern_init_uniform(tern_tensor *tensor, double from, double to, tern_rng *rng, tern_error *err);
TERN_API int tern_init_normal(tern_tensor *tensor, double mean, double std, tern_rng *rng, tern_error *err);
/* From the normal distribution inside [low, high] only. */
TERN_API int tern_init_trunc_normal(tern_tensor *tensor, double mean, double std, double low, double high,
                                    tern_rng *rng, tern_error *err);
/* Glorot and Bengio 2010. At least 2 dimensions, as for kaiming. */
TERN_API int tern_init_xavier_uniform(tern_tensor *tensor, double gain, tern_rng *rng, tern_error *err);
TERN_API int tern_init_xavier_normal(tern_tensor *tensor, double gain, tern_rng *rng, tern_error *err);
/* He et al. 2015; `slope` as for the gain. A tensor without elements is left alone, as in torch. */
TERN_API int tern_init_kaiming_uniform(tern_tensor *tensor, double slope, tern_fan fan,
                                       tern_nonlinearity nonlinearity, tern_rng *rng, tern_error *err);
TERN_API int tern_init_kaiming_normal(tern_tensor *tensor, double slope, tern_fan fan,
                                      tern_nonlinearity nonlinearity, tern_rng *rng, tern_error *err);
/* Saxe et al. 2013: rows (or columns, if there are more rows) orthonormal, times gain; all dimensions but the
 * first are taken together. The QR decomposition is LAPACK's (liblapack.so.3, loaded when first asked for;
 * E_UNSUPPORTED with the package's name if it is missing), and the last bits are those of the library, its
 * threads and the CPU: torch's only where those are the same. E_RANGE: more than INT_MAX rows or columns. */
TERN_API int tern_init_orthogonal(tern_tensor *tensor, double gain, tern_rng *rng, tern_error *err);
/* Martens 2010. 2 dimensions: in each column a share `sparsity` of zeros, the rest normal. */
TERN_API int tern_init_sparse(tern_tensor *tensor, double sparsity, double std, tern_rng *rng,
                              tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
