/* dropout_draws.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/dropout_draws.c"
#endif
