/* pool.h - a device's memory: an address range in which pages are mapped on demand, and a cache of freed
 * blocks. */
#ifndef TERN_SRC_CUDA_POOL_H
#define TERN_SRC_CUDA_POOL_H

#include "cuda/device.h"
#include "cuda/runtime.h"

/* ---- pool.cc ---- */

int tern__cuda_pool_open(tern__cuda *cuda, size_t total, tern__memory *memory, tern_error *err);
void tern__cuda_pool_close(tern__cuda_pool *pool);
/* Counts the blocks with their own pages that have been mapped so far. */
uint64_t tern__cuda_pool_mapped(tern__cuda_pool *pool);
/* Unmaps the free blocks that were mapped after the first `mapped` ones; recorded steps may use the
 * others. Waits for the step's stream, which must not be captured. */
void tern__cuda_pool_trim(tern__cuda_pool *pool, uint64_t mapped);
/* Unmaps all free blocks and drops all recordings. */
void tern__cuda_pool_give_up(tern__cuda_pool *pool);
/* Gives the GPU `peer` access to the pool's memory, present and future. False: the two cannot access each
 * other. */
bool tern__cuda_pool_share(tern__cuda_pool *pool, int peer);

/* ---- pages.cc: the driver's virtual memory ---- */

#define TERN__CUDA_PAGE ((size_t)2 << 20)

/* Reserves `bytes` addresses, a multiple of the page size, without memory. */
int tern__cuda_reserve(size_t bytes, void **base, tern_error *err);
void tern__cuda_unreserve(void *base, size_t bytes);
/* Maps memory of device `index` to whole pages; *handle is for unmap. False: out of memory. *stays: this
 * machine cannot export memory, as was found out here; then memory that cannot be exported is used. */
bool tern__cuda_map(int index, void *at, size_t bytes, bool *stays, unsigned long long *handle);
/* Gives another GPU access to the pages. */
bool tern__cuda_let_use(int index, void *at, size_t bytes);
void tern__cuda_unmap(void *at, size_t bytes, unsigned long long handle);

#endif
