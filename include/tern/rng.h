/* rng.h - PyTorch's CPU generator, bit for bit (mt19937; at::CPUGeneratorImpl). Of NULL, an rng that could
 * not be made, everything is 0.
 *
 * Threads: an rng belongs to one thread at a time. */
#ifndef TERN_RNG_H
#define TERN_RNG_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_rng tern_rng;

/* torch.Generator().manual_seed(seed): only the low 32 bits of the seed matter. Yours: tern_rng_free. */
TERN_API tern_rng *tern_rng_new(uint64_t seed, tern_error *err);
TERN_API void tern_rng_free(tern_rng *rng);

/* manual_seed: restarts the stream and forgets a cached normal. */
TERN_API void tern_rng_seed(tern_rng *rng, uint64_t seed);

/* The next 32 bits; 64 bits are two draws, the first one high. */
TERN_API uint32_t tern_rng_u32(tern_rng *rng);
TERN_API uint64_t tern_rng_u64(tern_rng *rng);

/* out[0..n) = torch.empty(n).uniform_(from, to), float32. */
TERN_API void tern_rng_uniform(tern_rng *rng, float *out, size_t n, double from, double to);

/* out[0..n) = torch.empty(n).normal_(mean, std), float32, contiguous: n >= 16 takes PyTorch's blocked path.
 */
TERN_API void tern_rng_normal(tern_rng *rng, float *out, size_t n, double mean, double std);

/* out[0..n) = torch.randperm(n, generator=rng). */
TERN_API void tern_rng_permutation(tern_rng *rng, int64_t *out, int64_t n);

#define TERN_RNG_STATE_BYTES 5056

/* What torch.Generator.get_state gives, byte for byte but for fields that it does not read, and set_state:
 * the stream goes on as it would have. E_FORMAT: no such state, and nothing has changed; E_INVALID: no rng.
 */
TERN_API void tern_rng_state_get(const tern_rng *rng, void *out);
TERN_API int tern_rng_state_set(tern_rng *rng, const void *state, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
