/* host_device.h - TERN__ANYWHERE marks a small function that is compiled for the host and, by nvcc, for a GPU
 * too. */
#ifndef TERN_SRC_BASE_HOST_DEVICE_H
#define TERN_SRC_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define TERN__ANYWHERE static inline __host__ __device__
#else
#define TERN__ANYWHERE static inline
#endif

#endif
