/* f64_attention.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/f64_attention.c"
#endif
