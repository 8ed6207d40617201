/* attention_f32.c for registers of AVX-512. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/attention_f32.c"
#endif
