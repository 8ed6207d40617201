/* without.h - TERN_CUDA_WITHOUT. */
#ifndef TERN_SRC_CUDA_WITHOUT_H
#define TERN_SRC_CUDA_WITHOUT_H

#include "cuda/runtime.h"

/* Disables the features of the device that the environment names. E_ENV: unknown feature. */
int tern__cuda_go_without(tern__cuda *cuda, tern_error *err);

#endif
