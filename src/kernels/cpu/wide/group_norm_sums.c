/* group_norm_sums.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/group_norm_sums.c"
#endif
