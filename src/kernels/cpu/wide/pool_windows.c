/* pool_windows.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/pool_windows.c"
#endif
