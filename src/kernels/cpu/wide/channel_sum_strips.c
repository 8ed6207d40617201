/* channel_sum_strips.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/channel_sum_strips.c"
#endif
