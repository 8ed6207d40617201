/* without.h - TERN_CUDA_WITHOUT. */
#ifndef TERN_SRC_CUDA_WITHOUT_H
#define TERN_SRC_CUDA_WITHOUT_H

#include "cuda/runtime.h"

/* Takes from the device what the environment names. E_ENV: there is no such thing. */
int tern__cuda_go_without(tern__cuda *cuda, tern_error *err);

#endif
