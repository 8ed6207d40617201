/* anywhere.h - small functions that kernels of every device have in common. */
#ifndef TERN_SRC_BASE_ANYWHERE_H
#define TERN_SRC_BASE_ANYWHERE_H

#ifdef __CUDACC__
#define TERN__ANYWHERE static inline __host__ __device__
#else
#define TERN__ANYWHERE static inline
#endif

#endif
