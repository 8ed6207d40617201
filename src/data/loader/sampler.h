/* sampler.h - what the loader needs of a sampler beyond its public functions. */
#ifndef TERN_SRC_DATA_SAMPLER_H
#define TERN_SRC_DATA_SAMPLER_H

#include <tern/data.h>

/* All its indices are in [0, span). */
int64_t tern__sampler_span(const tern_sampler *sampler);
/* Return how many samples all ranks have got once this rank has got `place`, and where this rank begins so
 * that no sample behind the first `position` is left out: at the beginning of a block. */
int64_t tern__sampler_position(const tern_sampler *sampler, int64_t place);
int64_t tern__sampler_place(const tern_sampler *sampler, int64_t position);
bool tern__sampler_shuffles(const tern_sampler *sampler);
uint64_t tern__sampler_seed_get(const tern_sampler *sampler);
void tern__sampler_seed_set(tern_sampler *sampler, uint64_t seed);

#endif
