/* sampler.h - what the loader asks a sampler beyond its public face. */
#ifndef TERN_SRC_SAMPLER_H
#define TERN_SRC_SAMPLER_H

#include <tern/data.h>

/* All its indices are in [0, span). */
int64_t tern__sampler_span(const tern_sampler *sampler);

#endif
