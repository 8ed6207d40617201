/* rotary_embedding.h - the frequencies of rotary positions. */
#ifndef TERN_SRC_OPS_ROTARY_EMBEDDING_H
#define TERN_SRC_OPS_ROTARY_EMBEDDING_H

#include <tern/attention.h>

/* Returns the angle per position of pair k of `pairs` in a sequence of `length` tokens. */
double tern__rotary_frequency(const tern_rotary_table_opts *opts, int64_t k, int64_t pairs, int64_t length);

#endif
