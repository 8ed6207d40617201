/* width.h - included first of all by a file whose vectors are as wide as registers: of wider ones gcc makes
 * memory. It is compiled twice, by itself for registers of eight floats (AVX2) or four, and once more
 * out of wide/ for those of sixteen (AVX-512). What it exports is one table of functions, the same under a
 * name of each width. */
#ifndef TERN_SRC_KERNELS_CPU_WIDTH_H
#define TERN_SRC_KERNELS_CPU_WIDTH_H

#ifdef TERN__WIDE
#define TERN__OF_WIDTH(table) table##_wide
#else
#define TERN__SLIM
#define TERN__OF_WIDTH(table) table##_slim
#endif

#endif
