/* init.h - initialisers of parameters: torch.nn.init, bit for bit. The same generator gives the same numbers.
 *
 * `tensor` is an f32 parameter or buffer, before or after the seal, or another f32 tensor that is row-major
 * without gaps. All initialisers return TERN_OK or a negative status, and then leave the tensor as it was:
 * E_INVALID (NULL, or gaps), E_DTYPE, E_SHAPE (number of dimensions), E_RANGE (a value that torch refuses:
 * from > to, std < 0, ..).
 *
 * Threads: as the tensor's module and the rng. */
#ifndef TERN_INIT_H
#define TERN_INIT_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The nonlinearity after a layer, by its gain. */
typedef enum tern_nonlinearity {
    TERN_GAIN_LINEAR,     /* 1; also for convolutions and the sigmoid */
    TERN_GAIN_TANH,       /* 5 / 3 */
    TERN_GAIN_RELU,       /* sqrt(2) */
    TERN_GAIN_LEAKY_RELU, /* sqrt(2 / (1 + slope^2)) */
    TERN_GAIN_SELU        /* 3 / 4 */
} tern_nonlinearity;
/* Which number of connections divides the variance: those into an output, or those out of an input. */
typedef enum tern_fan { TERN_FAN_IN, TERN_FAN_OUT } tern_fan;

/* Returns the gain of a nonlinearity; NaN for an unknown one. `slope` is used with TERN_GAIN_LEAKY_RELU only
 * (torch's default is 0.01). torch.nn.init.calculate_gain. */
TERN_API double tern_init_gain(tern_nonlinearity nonlinearity, double slope);

/* Sets all elements to `value`. */
TERN_API int tern_init_constant(tern_tensor *tensor, double value, tern_error *err);
/* Sets a matrix (2 dimensions) to ones on the diagonal, zeros elsewhere. */
TERN_API int tern_init_eye(tern_tensor *tensor, tern_error *err);
/* Makes a convolution's weight (3 to 5 dimensions: out, in, kernel ..) return its input unchanged, in each of
 * `groups` groups. */
TERN_API int tern_init_dirac(tern_tensor *tensor, int64_t groups, tern_error *err);
/* Draws all elements uniformly from [from, to). */
TERN_API int tern_init_uniform(tern_tensor *tensor, double from, double to, tern_rng *rng, tern_error *err);
/* Draws all elements from a normal distribution. */
TERN_API int tern_init_normal(tern_tensor *tensor, double mean, double std, tern_rng *rng, tern_error *err);
/* Draws all elements from a normal distribution restricted to [low, high]. */
TERN_API int tern_init_trunc_normal(tern_tensor *tensor, double mean, double std, double low, double high,
                                    tern_rng *rng, tern_error *err);
/* Glorot and Bengio 2010: variance gain^2 * 2 / (fan_in + fan_out). At least 2 dimensions, also for
 * kaiming. */
TERN_API int tern_init_xavier_uniform(tern_tensor *tensor, double gain, tern_rng *rng, tern_error *err);
TERN_API int tern_init_xavier_normal(tern_tensor *tensor, double gain, tern_rng *rng, tern_error *err);
/* He et al. 2015: variance gain^2 / fan, where `nonlinearity` and `slope` give the gain (tern_init_gain). A
 * tensor without elements is left alone, as in torch. */
TERN_API int tern_init_kaiming_uniform(tern_tensor *tensor, double slope, tern_fan fan,
                                       tern_nonlinearity nonlinearity, tern_rng *rng, tern_error *err);
TERN_API int tern_init_kaiming_normal(tern_tensor *tensor, double slope, tern_fan fan,
                                      tern_nonlinearity nonlinearity, tern_rng *rng, tern_error *err);
/* Saxe et al. 2013: rows orthonormal (columns, if there are more rows than columns), times gain; all
 * dimensions but the first count as columns. E_RANGE: more than INT_MAX rows or columns.
 *
 * The QR decomposition is LAPACK's (liblapack.so.3, loaded at first use; if it is missing, E_UNSUPPORTED
 * names the package). Its last bits depend on the library, its threads and the CPU, so the result has torch's
 * bits only where those are the same. */
TERN_API int tern_init_orthogonal(tern_tensor *tensor, double gain, tern_rng *rng, tern_error *err);
/* Martens 2010: a matrix (2 dimensions) in which a share `sparsity` of each column is zero, and the rest is
 * drawn from a normal distribution. */
TERN_API int tern_init_sparse(tern_tensor *tensor, double sparsity, double std, tern_rng *rng,
                              tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
