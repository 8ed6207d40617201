/* global_avg_pool_planes.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/global_avg_pool_planes.c"
#endif
