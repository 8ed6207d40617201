/* sampler.h - what the loader needs of a sampler beyond its public functions. */
#ifndef TERN_SRC_DATA_SAMPLER_H
#define TERN_SRC_DATA_SAMPLER_H

#include <tern/data.h>

/* All its indices are in [0, span). */
int64_t tern__sampler_span(const tern_sampler *sampler);
/* Returns how many ranks share its order; 1 for the sequential and the random sampler. */
int tern__sampler_ranks(const tern_sampler *sampler);
bool tern__sampler_shuffles(const tern_sampler *sampler);
uint64_t tern__sampler_seed_get(const tern_sampler *sampler);
void tern__sampler_seed_set(tern_sampler *sampler, uint64_t seed);

#endif
