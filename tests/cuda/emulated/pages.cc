/* pages.cc - the device's memory, in place of src/cuda/pages.cc: pages that only the device can access. */
#include "memory.h"

#include "cuda/pool.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <vector>

struct piece {
    void *at;
    size_t bytes;
};

/* What the driver stores for each mapping: the devices with access, the owner first. */
struct grant {
    void *at;
    size_t bytes;
    int index;
};

static std::mutex lock;
static std::vector<piece> pieces;
static std::vector<grant> grants;
static std::map<int, size_t> taken; /* bytes per device */
static int working;

static void protect(const piece &p, int protection)
{
    if (!mprotect(p.at, p.bytes, protection)) return;
    std::perror("emulated: mprotect");
    std::abort();
}

void emulated_memory_open()
{
    std::lock_guard<std::mutex> hold(lock);
    if (working++ == 0)
        for (const piece &p : pieces) protect(p, PROT_READ | PROT_WRITE);
}

void emulated_memory_close()
{
    std::lock_guard<std::mutex> hold(lock);
    if (--working == 0)
        for (const piece &p : pieces) protect(p, PROT_NONE);
}

static bool has(const void *data)
{
    for (const piece &p : pieces)
        if ((const char *)data >= (char *)p.at && (const char *)data < (char *)p.at + p.bytes) return true;
    return false;
}

bool emulated_memory_has(const void *data)
{
    std::lock_guard<std::mutex> hold(lock);
    return has(data);
}

static const grant *first_grant(const void *data)
{
    for (const grant &g : grants)
        if ((const char *)data >= (char *)g.at && (const char *)data < (char *)g.at + g.bytes) return &g;
    return nullptr;
}

bool emulated_memory_is_one(const void *data, size_t bytes)
{
    std::lock_guard<std::mutex> hold(lock);
    const grant *g = first_grant(data);
    return g && (const char *)data + bytes <= (const char *)g->at + g->bytes;
}

size_t emulated_memory_left(int index)
{
    std::lock_guard<std::mutex> hold(lock);
    return EMULATED_MEMORY - taken[index];
}

bool emulated_memory_joined(const void *to, const void *from)
{
    std::lock_guard<std::mutex> hold(lock);
    const grant *target = first_grant(to), *source = first_grant(from);
    if (!target || !source) return true;
    for (const grant &g : grants)
        if (g.at == source->at && g.index == target->index) return true;
    return false;
}

/* Every kernel changes the protection twice, and the system does it page by page: a huge page is changed at
 * once. They are whole when touched, so what a device maps after its first HUGE bytes has small ones. */
#define HUGE ((size_t)256 << 20)

/* mmap at a multiple of the size of huge pages. */
static void *reserve_aligned(size_t bytes)
{
    char *all = (char *)mmap(nullptr, bytes + TERN__CUDA_PAGE, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return all;
    const size_t before = -(uintptr_t)all % TERN__CUDA_PAGE;
    if (before) munmap(all, before);
    munmap(all + before + bytes, TERN__CUDA_PAGE - before);
    return all + before;
}

/* TERN_EMULATED_REFUSES=addresses: only a few addresses can be reserved. */
int tern__cuda_reserve(size_t bytes, void **base, tern_error *err)
{
    if (bytes > 2 * EMULATED_MEMORY && emulated_refuses("addresses"))
        return tern__error_set(err, "tern_device_open", TERN_E_SYSTEM, "%zu bytes of addresses", bytes);
    *base = reserve_aligned(bytes);
    if (*base != MAP_FAILED) return TERN_OK;
    return tern__error_errno(err, "tern_device_open", TERN_E_SYSTEM, "mmap");
}

void tern__cuda_unreserve(void *base, size_t bytes)
{
    std::lock_guard<std::mutex> hold(lock);
    for (const grant &g : grants)
        if ((char *)g.at >= (char *)base && (char *)g.at < (char *)base + bytes)
            emulated_stop("addresses are given back that have memory behind them");
    for (size_t i = 0; i < pieces.size();)
        if ((char *)pieces[i].at >= (char *)base && (char *)pieces[i].at < (char *)base + bytes)
            pieces.erase(pieces.begin() + (long)i);
        else
            i++;
    munmap(base, bytes);
}

/* Merges with an adjacent last piece: each change of protection costs a call. */
static void add(const piece &p)
{
    if (!pieces.empty() && (char *)pieces.back().at + pieces.back().bytes == p.at)
        pieces.back().bytes += p.bytes;
    else
        pieces.push_back(p);
}

bool tern__cuda_map(int index, void *at, size_t bytes, bool *stays, unsigned long long *handle)
{
    std::lock_guard<std::mutex> hold(lock);
    if (taken[index] + bytes > EMULATED_MEMORY) return false;
    taken[index] += bytes;
    if (taken[index] <= HUGE) madvise(at, bytes, MADV_HUGEPAGE);
    emulated_counted.exportable += !*stays;
    *handle = 1;
    grants.push_back({at, bytes, index});
    add({at, bytes});
    /* Fills with NaN, since memory may hold anything; only part of a page, because the cost depends on how
     * much is touched. */
    protect({at, bytes}, PROT_READ | PROT_WRITE);
    std::memset(at, 0xff, TERN__CUDA_PAGE / 8);
    if (!working) protect({at, bytes}, PROT_NONE);
    return true;
}

bool tern__cuda_let_use(int index, void *at, size_t bytes)
{
    std::lock_guard<std::mutex> hold(lock);
    const grant *first = first_grant(at);
    if (!first || first->at != at || first->bytes != bytes)
        emulated_stop("what is granted was not mapped so");
    grants.push_back({at, bytes, index});
    return true;
}

/* Takes memory out of its piece, so that whoever still uses it is found. */
static void take_out(char *at, size_t bytes)
{
    for (size_t i = 0; i < pieces.size(); i++) {
        char *begin = (char *)pieces[i].at, *end = begin + pieces[i].bytes;
        if (at < begin || at >= end) continue;
        pieces.erase(pieces.begin() + (long)i);
        if (begin < at) pieces.push_back({begin, (size_t)(at - begin)});
        if (at + bytes < end) pieces.push_back({at + bytes, (size_t)(end - at) - bytes});
        protect({at, bytes}, PROT_NONE);
        return;
    }
}

void tern__cuda_unmap(void *at, size_t bytes, unsigned long long)
{
    emulated_expect_runtime();
    std::lock_guard<std::mutex> hold(lock);
    const grant *first = first_grant(at);
    if (!first || first->at != at || first->bytes != bytes)
        emulated_stop("what is unmapped was not mapped so");
    taken[first->index] -= bytes;
    grants.erase(std::remove_if(grants.begin(), grants.end(), [=](const grant &g) { return g.at == at; }),
                 grants.end());
    take_out((char *)at, bytes);
    madvise(at, bytes, MADV_DONTNEED);
}
