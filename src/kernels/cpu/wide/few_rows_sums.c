/* few_rows_sums.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/few_rows_sums.c"
#endif
