/* generate.h - what the functions of generation share. */
#ifndef TERN_SRC_MODELS_GENERATE_H
#define TERN_SRC_MODELS_GENERATE_H

#include "base/base.h"

#include <tern/generate.h>

/* Reads the caller's options over the defaults, and checks them. */
int tern__generate_opts_read(tern_generate_opts *to, const tern_generate_opts *opts, const char *func,
                             tern_error *err);
/* E_RANGE: an id that the vocabulary does not have. */
int tern__generate_ids_check(const int32_t *ids, int64_t count, int64_t vocabulary, const char *func,
                             tern_error *err);
/* tern_generate_choose of checked arguments. */
int tern__generate_choose(float *logits, int64_t vocabulary, const int32_t *history, int64_t count,
                          const tern_generate_opts *opts, int32_t *id, const char *func, tern_error *err);

#endif
