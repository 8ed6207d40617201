/* pool.cc - blocks by size class. Small blocks have four classes to each power of two, as on the CPU's
 * devices; large ones have sixteen, or as many as there are whole pages, so that hardly any memory is
 * wasted.
 *
 * A freed block waits for the next request of its class. All of a device's work is in one stream, so its
 * next user comes after its previous one and nobody has to wait. Of several free blocks the one with the
 * lowest address is taken first. So the same requests from the same free blocks get the same addresses: a
 * static step has the addresses of the step before, which its graphs depend on (graph.cc). Small blocks
 * are cut from pages that stay mapped. Large blocks have pages of their own. The pages of free large
 * blocks are unmapped, while their addresses wait for the next block of the class, in two cases: when
 * memory is nearly exhausted, and after measuring candidates (stopwatch.h). Only then does the pool wait
 * for the device. Some memory is left to others: CUDA loads kernels at their first launch, graphs and
 * libraries allocate memory of their own, NCCL at its first collective. */
#include "cuda/pool.h"
#include "cuda/graph.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#define SMALLEST 256
#define BINS     512

/* Memory that is left to others; of a small GPU's memory a sixteenth. It is worth more than cached blocks. */
#define RESERVE ((size_t)1 << 30)

struct block {
    char *data;
    size_t bytes;
    int bin;
    bool is_mapped;
    uint64_t mapped; /* the pool's count when the block was mapped */
    unsigned long long handle;
};

/* A page for small blocks. */
struct page {
    char *data;
    unsigned long long handle;
};

struct tern__cuda_pool {
    tern__cuda *cuda;
    std::mutex lock;
    std::unordered_map<void *, block *> blocks; /* all blocks by address */
    std::vector<block *> bins[BINS];            /* free blocks: heaps, the next one to use first */
    std::vector<page> pages;
    std::map<int, bool> peers; /* GPUs that asked for access to this one's memory: was it granted? */
    char *base, *top, *end;    /* the address range, used up to `top` */
    char *next;                /* rest of the last page for small blocks */
    size_t next_left, bytes;
    uint64_t mapped; /* counts the large blocks that were mapped */
    bool stays;      /* memory is not exported to other processes and network cards */
};

/* The step between classes from a power of two to the next. */
static size_t step_behind(size_t base)
{
    if (base < TERN__CUDA_PAGE) return TERN__MAX(base / 4, (size_t)SMALLEST);
    return TERN__MAX(base / 16, TERN__CUDA_PAGE);
}

static int bin_of(size_t bytes, size_t *rounded)
{
    size_t base = SMALLEST, bin = 0;
    for (; base * 2 <= bytes; base *= 2) bin += base / step_behind(base);
    size_t step = step_behind(base), steps = (bytes - base + step - 1) / step;
    *rounded = base + step * steps;
    return (int)(bin + steps);
}

/* Whether the block has its own pages. */
static bool has_pages(const block *b)
{
    return b->bytes >= TERN__CUDA_PAGE && b->is_mapped;
}

/* Blocks with memory come before those that need to be mapped. */
static bool comes_later(const block *a, const block *b)
{
    return a->is_mapped != b->is_mapped ? b->is_mapped : a->data > b->data;
}

static void put(std::vector<block *> *bin, block *b)
{
    bin->push_back(b);
    std::push_heap(bin->begin(), bin->end(), comes_later);
}

static block *take(std::vector<block *> *bin)
{
    if (bin->empty()) return nullptr;
    std::pop_heap(bin->begin(), bin->end(), comes_later);
    block *b = bin->back();
    bin->pop_back();
    return b;
}

/* Reserves addresses. They are never reused by another class, so there must be many more addresses than
 * memory: as many as possible. */
static int reserve(size_t total, size_t *bytes, void **base, tern_error *err)
{
    int status = TERN_E_SYSTEM;
    for (size_t times = 16; status && times >= 2; times /= 2) {
        *bytes = tern__align_up(times * total, TERN__CUDA_PAGE);
        status = tern__cuda_reserve(*bytes, base, times > 2 ? nullptr : err);
    }
    return status;
}

int tern__cuda_pool_open(tern__cuda *cuda, size_t total, tern__memory *memory, tern_error *err)
{
    void *base;
    size_t bytes;
    int status = reserve(total, &bytes, &base, err);
    if (status) return status;
    tern__cuda_pool *pool = new tern__cuda_pool();
    pool->cuda = cuda;
    pool->stays = !cuda->exports;
    pool->base = pool->top = (char *)base;
    pool->end = pool->base + bytes;
    *memory = (tern__memory){pool->base, bytes};
    cuda->pool = pool;
    return TERN_OK;
}

void tern__cuda_pool_close(tern__cuda_pool *pool)
{
    if (!pool) return;
    for (auto &entry : pool->blocks) {
        block *b = entry.second;
        if (has_pages(b)) tern__cuda_unmap(b->data, b->bytes, b->handle);
        delete b;
    }
    for (const page &p : pool->pages) tern__cuda_unmap(p.data, TERN__CUDA_PAGE, p.handle);
    tern__cuda_unreserve(pool->base, (size_t)(pool->end - pool->base));
    delete pool;
}

/* Unmaps free large blocks that were mapped after the first `mapped` ones. */
static void unmap_free(tern__cuda_pool *pool, uint64_t mapped)
{
    for (auto &bin : pool->bins) {
        for (block *b : bin) {
            if (!has_pages(b) || b->mapped <= mapped) continue;
            tern__cuda_unmap(b->data, b->bytes, b->handle);
            b->is_mapped = false;
            pool->bytes -= b->bytes;
        }
        std::make_heap(bin.begin(), bin.end(), comes_later);
    }
}

static bool has_cached(const tern__cuda_pool *pool)
{
    for (const auto &bin : pool->bins)
        for (const block *b : bin)
            if (has_pages(b)) return true;
    return false;
}

static void give_up(tern__cuda_pool *pool)
{
    if (!has_cached(pool)) return;
    tern__cuda_settle(pool->cuda);
    unmap_free(pool, 0);
}

void tern__cuda_pool_give_up(tern__cuda_pool *pool)
{
    std::lock_guard<std::mutex> hold(pool->lock);
    give_up(pool);
}

/* Whether allocating `bytes` would leave too little to others. */
static bool is_scarce(const tern__cuda_pool *pool, size_t bytes)
{
    size_t left, total;
    cudaSetDevice(pool->cuda->index);
    return cudaMemGetInfo(&left, &total) == cudaSuccess && left < bytes + TERN__MIN(RESERVE, total / 16);
}

/* Maps memory. If it is scarce, free blocks are unmapped first; blocks in use may take all memory. */
static bool map(tern__cuda_pool *pool, char *at, size_t bytes, unsigned long long *handle)
{
    if (is_scarce(pool, bytes)) give_up(pool);
    bool done = tern__cuda_map(pool->cuda->index, at, bytes, &pool->stays, handle);
    if (!done) {
        give_up(pool);
        done = tern__cuda_map(pool->cuda->index, at, bytes, &pool->stays, handle);
    }
    if (!done) return false;
    pool->bytes += bytes;
    for (auto &peer : pool->peers) peer.second = peer.second && tern__cuda_let_use(peer.first, at, bytes);
    return true;
}

static char *take_addresses(tern__cuda_pool *pool, size_t bytes)
{
    if ((size_t)(pool->end - pool->top) < bytes) return nullptr;
    char *at = pool->top;
    pool->top += bytes;
    return at;
}

/* Cuts a small block from a page. If the rest of the last page is too small it is left unused. */
static char *cut(tern__cuda_pool *pool, size_t bytes)
{
    if (pool->next_left < bytes) {
        page p = {take_addresses(pool, TERN__CUDA_PAGE), 0};
        if (!p.data) return nullptr;
        if (!map(pool, p.data, TERN__CUDA_PAGE, &p.handle)) {
            pool->top = p.data; /* the addresses remain available */
            return nullptr;
        }
        pool->pages.push_back(p);
        pool->next = p.data;
        pool->next_left = TERN__CUDA_PAGE;
    }
    char *data = pool->next;
    pool->next += bytes;
    pool->next_left -= bytes;
    return data;
}

static block *new_block(tern__cuda_pool *pool, int bin, size_t bytes)
{
    block *b = new block();
    bool is_large = bytes >= TERN__CUDA_PAGE;
    *b = (block){nullptr, bytes, bin, !is_large, 0, 0};
    b->data = is_large ? take_addresses(pool, b->bytes) : cut(pool, bytes);
    if (b->data) {
        pool->blocks[b->data] = b;
        return b;
    }
    delete b;
    return nullptr;
}

/* Finds a free block. When the addresses are exhausted, one of a larger class will do. */
static block *find(tern__cuda_pool *pool, size_t bytes)
{
    size_t rounded;
    int bin = bin_of(bytes, &rounded);
    block *b = take(&pool->bins[bin]);
    if (!b) b = new_block(pool, bin, rounded);
    while (!b && ++bin < BINS) b = take(&pool->bins[bin]);
    return b;
}

static bool map_block(tern__cuda_pool *pool, block *b)
{
    if (b->is_mapped) return true;
    b->is_mapped = map(pool, b->data, b->bytes, &b->handle);
    b->mapped = ++pool->mapped;
    return b->is_mapped;
}

void *tern__cuda_alloc(tern_device *device, size_t bytes)
{
    tern__cuda_pool *pool = tern__cuda_of(device)->pool;
    std::lock_guard<std::mutex> hold(pool->lock);
    block *b = find(pool, TERN__MAX(bytes, (size_t)SMALLEST));
    if (!b) return nullptr;
    if (map_block(pool, b)) return b->data;
    put(&pool->bins[b->bin], b);
    return nullptr;
}

void tern__cuda_free(tern_device *device, void *data)
{
    tern__cuda_pool *pool = tern__cuda_of(device)->pool;
    std::lock_guard<std::mutex> hold(pool->lock);
    auto found = data ? pool->blocks.find(data) : pool->blocks.end();
    if (found != pool->blocks.end()) put(&pool->bins[found->second->bin], found->second);
}

size_t tern__cuda_bytes(tern_device *device)
{
    tern__cuda_pool *pool = tern__cuda_of(device)->pool;
    std::lock_guard<std::mutex> hold(pool->lock);
    return pool->bytes;
}

uint64_t tern__cuda_pool_mapped(tern__cuda_pool *pool)
{
    std::lock_guard<std::mutex> hold(pool->lock);
    return pool->mapped;
}

void tern__cuda_pool_trim(tern__cuda_pool *pool, uint64_t mapped)
{
    std::lock_guard<std::mutex> hold(pool->lock);
    if (pool->mapped == mapped) return;
    cudaSetDevice(pool->cuda->index);
    cudaStreamSynchronize(pool->cuda->stream);
    unmap_free(pool, mapped);
}

static bool let_use(tern__cuda_pool *pool, int peer)
{
    int index = pool->cuda->index, can = 0;
    bool may = cudaDeviceCanAccessPeer(&can, peer, index) == cudaSuccess && can;
    for (size_t i = 0; i < pool->pages.size() && may; i++)
        may = tern__cuda_let_use(peer, pool->pages[i].data, TERN__CUDA_PAGE);
    for (auto &entry : pool->blocks)
        if (may && has_pages(entry.second))
            may = tern__cuda_let_use(peer, entry.second->data, entry.second->bytes);
    return may;
}

bool tern__cuda_pool_share(tern__cuda_pool *pool, int peer)
{
    std::lock_guard<std::mutex> hold(pool->lock);
    auto found = pool->peers.find(peer);
    if (found == pool->peers.end()) found = pool->peers.emplace(peer, let_use(pool, peer)).first;
    return found->second;
}
