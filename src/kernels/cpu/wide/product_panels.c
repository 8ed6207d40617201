/* product_panels.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/conv/product_panels.c"
#endif
