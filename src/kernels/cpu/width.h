/* width.h - must be the first include of a file whose vectors are as wide as registers; wider ones would
 * end up in memory. The file is compiled twice: by itself for registers of eight floats (AVX2) or four,
 * and once more from wide/ for sixteen (AVX-512). It exports one table of functions, under a name for each
 * width. */
#ifndef TERN_SRC_KERNELS_CPU_WIDTH_H
#define TERN_SRC_KERNELS_CPU_WIDTH_H

#ifdef TERN__WIDE
#define TERN__OF_WIDTH(table) table##_wide
#else
#define TERN__SLIM
#define TERN__OF_WIDTH(table) table##_slim
#endif

#endif
