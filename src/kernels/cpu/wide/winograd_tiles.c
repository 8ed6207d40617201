/* transform_tiles.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/conv/winograd/transform_tiles.c"
#endif
