/* pool.h - a device's memory: a range of addresses in which pages are mapped as they are needed, and blocks
 * that are kept when they are given back. */
#ifndef TERN_SRC_CUDA_POOL_H
#define TERN_SRC_CUDA_POOL_H

#include "cuda/device.h"
#include "cuda/runtime.h"

/* ---- pool.cc ---- */

int tern__cuda_pool_open(tern__cuda *cuda, size_t total, tern__memory *memory, tern_error *err);
void tern__cuda_pool_close(tern__cuda_pool *pool);
/* How many blocks with pages of their own have been given memory until now. */
uint64_t tern__cuda_pool_mapped(tern__cuda_pool *pool);
/* Takes away what is behind free ones of those that came after so many; who has recorded a step may know the
 * others. Waits for the step's stream, which nobody captures. */
void tern__cuda_pool_trim(tern__cuda_pool *pool, uint64_t mapped);
/* Takes away what is behind all of them that are free, and has what was recorded forgotten. */
void tern__cuda_pool_give_up(tern__cuda_pool *pool);
/* Lets the GPU `peer` use the pool's memory, what is mapped later too. False: the two are not joined. */
bool tern__cuda_pool_share(tern__cuda_pool *pool, int peer);

/* ---- pages.cc: the driver's virtual memory ---- */

#define TERN__CUDA_PAGE ((size_t)2 << 20)

/* A range of `bytes` addresses, a multiple of the page, with nothing behind them. */
int tern__cuda_reserve(size_t bytes, void **base, tern_error *err);
void tern__cuda_unreserve(void *base, size_t bytes);
/* Puts memory of device `index` behind whole pages; *handle is for unmap. False: there is none left. *stays:
 * the machine lets nothing of it out, as was found here; it is asked for no such memory then. */
bool tern__cuda_map(int index, void *at, size_t bytes, bool *stays, unsigned long long *handle);
/* Another GPU may use them, too. */
bool tern__cuda_let_use(int index, void *at, size_t bytes);
void tern__cuda_unmap(void *at, size_t bytes, unsigned long long handle);

#endif
