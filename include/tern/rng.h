/* rng.h - PyTorch's CPU random number generator, bit for bit (mt19937; at::CPUGeneratorImpl).
 *
 * All functions accept a NULL rng (one that could not be made) and then give zeros.
 *
 * Threads: an rng belongs to one thread at a time. */
#ifndef TERN_RNG_H
#define TERN_RNG_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_rng tern_rng;

/* Makes a generator, as torch.Generator().manual_seed(seed): only the low 32 bits of the seed matter. NULL on
 * error: E_MEMORY. Yours: tern_rng_free. */
TERN_API tern_rng *tern_rng_new(uint64_t seed, tern_error *err);
TERN_API void tern_rng_free(tern_rng *rng);

/* Restarts the stream from a seed, and forgets a normal number that was kept (manual_seed). */
TERN_API void tern_rng_seed(tern_rng *rng, uint64_t seed);

/* Return the next 32 bits, or the next 64, which are two draws, the first one high. */
TERN_API uint32_t tern_rng_u32(tern_rng *rng);
TERN_API uint64_t tern_rng_u64(tern_rng *rng);

/* Fills out[0..n) as torch.empty(n).uniform_(from, to) does, float32: uniform in [from, to). */
TERN_API void tern_rng_uniform(tern_rng *rng, float *out, size_t n, double from, double to);

/* Fills out[0..n) as torch.empty(n).normal_(mean, std) does for a contiguous float32 tensor. For n >= 16 that
 * is PyTorch's blocked algorithm. */
TERN_API void tern_rng_normal(tern_rng *rng, float *out, size_t n, double mean, double std);

/* Fills out[0..n) with torch.randperm(n, generator=rng): a random order of 0, 1, .. n - 1. */
TERN_API void tern_rng_permutation(tern_rng *rng, int64_t *out, int64_t n);

/* The size of a generator's state. */
#define TERN_RNG_STATE_BYTES 5056

/* Copy the state to `out`, and from `state`; the stream then continues as it would have. The bytes are those
 * of torch.Generator.get_state and set_state, except fields that PyTorch does not read. E_FORMAT: not a
 * state, and nothing has changed; E_INVALID: no rng. */
TERN_API void tern_rng_state_get(const tern_rng *rng, void *out);
TERN_API int tern_rng_state_set(tern_rng *rng, const void *state, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
