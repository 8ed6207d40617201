/* runtime.cc - runs a kernel's blocks as fibers; memory and properties of the emulated GPUs. */
#include "cuda_runtime.h"
#include "memory.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

dim3 gridDim, blockDim;

/* ---- ThreadSanitizer: it sees fibers as threads that only barriers order ---- */

/* So it finds what threads of a block write without a barrier before others read it, although they run one
 * after the other here. A barrier has two places, used in turn: a thread that has left it may reach the next
 * one before others have left it. */

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#else
#define __tsan_get_current_fiber()           nullptr
#define __tsan_create_fiber(flags)           nullptr
#define __tsan_switch_to_fiber(fiber, flags) ((void)(fiber))
#define __tsan_acquire(place)                ((void)(place))
#define __tsan_release(place)                ((void)(place))
#endif

/* ---- fibers: the threads of a block ---- */

#define WARP    32
#define STACK   (128 << 10)
#define THREADS 1024 /* most threads of a block */
#define FREE    256  /* threads that have enough registers without launch bounds */
#define BLOCKS  8    /* most blocks of a cluster */

enum wait { RUNNING, AT_BLOCK, AT_WARP, AT_CLUSTER, DONE };

/* A value that is read without a barrier and does not order anything. */
template <class T> struct loose {
    std::atomic<T> value;
    operator T() const
    {
        return value.load(std::memory_order_relaxed);
    }
    void operator=(T now)
    {
        value.store(now, std::memory_order_relaxed);
    }
};

/* A pending copy into shared memory. */
struct pending {
    void *to;
    const void *from;
    size_t bytes, zeros;
};

/* The place where a fiber or the scheduler continues. */
typedef void *whereabouts[5];

struct fiber {
    ucontext_t beginning;
    whereabouts place;
    bool has_begun;
    loose<int> shuffles;
    loose<bool> has_waited; /* for the previous kernel */
    bool has_arrived;       /* it has arrived at the cluster's barrier and will wait for it */
    std::vector<std::vector<pending>> groups; /* the last one is still open */
    int met[DONE];                            /* barriers so far, by kind */
    dim3 index;
    int rank; /* rank of its block in the cluster */
    char *stack;
    void *seen; /* ThreadSanitizer's handle */
};

static struct {
    whereabouts scheduler;
    void *scheduler_seen;
    fiber *fibers[BLOCKS * THREADS]; /* never freed: all that were ever needed */
    int made;
    loose<wait> state[BLOCKS * THREADS]; /* of each fiber, for the scheduler, which looks at all */
    loose<int> current;
    int count, each;     /* threads of all blocks of the cluster; threads per block */
    dim3 of[BLOCKS];     /* blockIdx of each block */
    loose<bool> is_open; /* whether device memory is accessible */
    void (*thread)(void *ctx);
    void *ctx;
    uint64_t slots[2][BLOCKS * THREADS];
    loose<int> shuffles[BLOCKS * THREADS / WARP]; /* of all threads of a warp */
    /* addresses for ThreadSanitizer's annotations */
    char barriers[BLOCKS][2], warps[BLOCKS * THREADS / WARP][2], clusters[2], beginning, end;
    std::vector<char> shared[BLOCKS];
} block;

[[noreturn]] void emulated_stop(const char *what)
{
    std::fprintf(stderr, "emulated: %s\n", what);
    std::abort();
}

static fiber *running()
{
    return block.fibers[block.current];
}

/* Switching fibers takes no system call, as swapcontext would for the signal mask. GCC needs the jump in a
 * function of its own, and ThreadSanitizer must not track returns: another fiber returns. */
#define CHANGES_FIBER gnu::noipa, gnu::no_sanitize("thread")

[[noreturn, CHANGES_FIBER]] static void jump(whereabouts to)
{
    __builtin_longjmp(to, 1);
}

[[CHANGES_FIBER]] static void enter(fiber *f)
{
    if (__builtin_setjmp(block.scheduler)) return;
    if (f->has_begun) jump(f->place);
    f->has_begun = true;
    setcontext(&f->beginning);
}

[[CHANGES_FIBER]] static void leave(fiber *self)
{
    if (!__builtin_setjmp(self->place)) jump(block.scheduler);
}

/* Switches to the scheduler; continues after `place` has been released. */
static void yield(wait state, char *place)
{
    fiber *self = running();
    void *next = block.scheduler_seen;
    block.state[block.current] = state;
    __tsan_release(place);
    __tsan_switch_to_fiber(next, __tsan_switch_to_fiber_no_sync);
    leave(self);
}

static void meet(wait state)
{
    int turn = running()->met[state]++ % 2;
    char *place = state == AT_WARP    ? &block.warps[block.current / WARP][turn]
                  : state == AT_BLOCK ? &block.barriers[running()->rank][turn]
                                      : &block.clusters[turn];
    yield(state, place);
    __tsan_acquire(place);
}

static void body()
{
    for (;;) {
        __tsan_acquire(&block.beginning);
        block.thread(block.ctx);
        yield(DONE, &block.end);
    }
}

static fiber *new_fiber()
{
    fiber *f = new fiber();
    f->stack = (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&f->beginning);
    f->beginning.uc_stack.ss_sp = f->stack;
    f->beginning.uc_stack.ss_size = STACK;
    makecontext(&f->beginning, body, 0);
    f->seen = __tsan_create_fiber(0);
    return f;
}

void cudaGridDependencySynchronize()
{
    if (!block.is_open) emulated_memory_open();
    block.is_open = true;
    running()->has_waited = true;
}

void cudaTriggerProgrammaticLaunchCompletion()
{
    if (!running()->has_waited)
        emulated_stop("a kernel that lets the next one go before it has waited itself");
}

void __syncthreads()
{
    meet(AT_BLOCK);
}

void __syncwarp(unsigned)
{
    meet(AT_WARP);
}

/* Both halves are one barrier: a block that reads between arriving and waiting is not found. */
void __cluster_barrier_arrive()
{
    running()->has_arrived = true;
}

void __cluster_barrier_wait()
{
    if (!running()->has_arrived) emulated_stop("a thread that waits for its cluster and has not arrived");
    running()->has_arrived = false;
    meet(AT_CLUSTER);
}

void *__cluster_map_shared_rank(const void *data, unsigned rank)
{
    return emulated_shared_at(rank, (size_t)((const char *)data - emulated_shared()), 1);
}

const dim3 &emulated_thread()
{
    return running()->index;
}

const dim3 &emulated_block()
{
    return block.of[running()->rank];
}

int emulated_lane()
{
    return block.current % WARP;
}

char *emulated_shared()
{
    return block.shared[running()->rank].data();
}

unsigned emulated_rank()
{
    return (unsigned)running()->rank;
}

char *emulated_shared_at(unsigned rank, size_t offset, size_t bytes)
{
    if (rank >= (unsigned)(block.count / block.each)) emulated_stop("a block that is not in the cluster");
    if (offset + bytes > block.shared[rank].size()) emulated_stop("a place beside shared memory");
    return block.shared[rank].data() + offset;
}

/* Masks must be whole warps. Two sets of slots are used in turn: one is written while the other may still
 * be read. The first thread that goes on sees whether another has ended, or is at another barrier: none is
 * ahead by then, so the warp's shuffles are fewer than this one's number from each thread. */
uint64_t emulated_shuffle(uint64_t value, int from)
{
    int count = running()->shuffles + 1, set = count % 2, first = block.current / WARP * WARP;
    loose<int> &all = block.shuffles[first / WARP];
    running()->shuffles = count;
    all = all + 1;
    block.slots[set][block.current] = value;
    meet(AT_WARP);
    if (all < count * WARP) emulated_stop("a shuffle that not all threads of the warp take part in");
    return block.slots[set][first + from % WARP];
}

void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros)
{
    bool is_aligned = (bytes == 4 || bytes == 8 || bytes == 16) && (uintptr_t)to % bytes == 0 &&
                      (uintptr_t)from % bytes == 0;
    char *shared = emulated_shared();
    if (!is_aligned) emulated_stop("a copy into shared memory that is not aligned");
    if ((char *)to < shared || (char *)to + bytes > shared + block.shared[0].size())
        emulated_stop("a copy beside shared memory");
    block.fibers[block.current]->groups.back().push_back({to, from, bytes, zeros});
}

void __pipeline_commit()
{
    block.fibers[block.current]->groups.emplace_back();
}

void __pipeline_wait_prior(size_t groups)
{
    auto &all = block.fibers[block.current]->groups;
    for (; all.size() > groups + 1; all.erase(all.begin()))
        for (const pending &p : all.front()) {
            std::memcpy(p.to, p.from, p.bytes - p.zeros);
            std::memset((char *)p.to + p.bytes - p.zeros, 0, p.zeros);
        }
}

/* If all unfinished fibers of [first, last) wait for each other, lets them go on. */
static bool release(int first, int last, wait state)
{
    int arrived = 0;
    for (int i = first; i < last; i++) {
        if (block.state[i] == DONE) continue;
        if (block.state[i] != state) return false;
        arrived++;
    }
    for (int i = first; i < last && arrived; i++)
        if (block.state[i] == state) block.state[i] = RUNNING;
    return arrived > 0;
}

static bool is_over(int first, int last)
{
    for (int i = first; i < last; i++)
        if (block.state[i] != DONE) return false;
    return true;
}

/* Overwrites the shared memory of a block that has ended. */
static void lose_shared(int rank)
{
    if (!is_over(rank * block.each, (rank + 1) * block.each)) return;
    __tsan_acquire(&block.end);
    std::memset(block.shared[rank].data(), 0x5a, block.shared[rank].size());
}

/* TERN_EMULATED_ORDER=backward: the last block and the last thread run first. No result may depend on it. */
static bool goes_backward()
{
    static const char *order = std::getenv("TERN_EMULATED_ORDER");
    static const bool is_backward = order && !std::strcmp(order, "backward");
    return is_backward;
}

static void begin_block(int rank, uint64_t number)
{
    block.of[rank] = dim3((unsigned)(number % gridDim.x), (unsigned)(number / gridDim.x % gridDim.y),
                          (unsigned)(number / gridDim.x / gridDim.y));
    for (int i = rank * block.each; i < (rank + 1) * block.each; i++) {
        fiber *f = block.fibers[i];
        block.state[i] = RUNNING;
        block.shuffles[i / WARP] = 0;
        f->rank = rank;
        f->shuffles = 0;
        f->has_waited = f->has_arrived = false;
        std::fill_n(f->met, (int)DONE, 0);
        f->groups.assign(1, {});
    }
}

static bool run_fibers()
{
    const bool is_backward = goes_backward();
    bool moved = false;
    for (int n = 0; n < block.count; n++) {
        int i = is_backward ? block.count - 1 - n : n;
        if (block.state[i] != RUNNING) continue;
        fiber *f = block.fibers[i];
        block.current = i;
        __tsan_switch_to_fiber(f->seen, __tsan_switch_to_fiber_no_sync);
        enter(f);
        if (block.state[i] == DONE) lose_shared(f->rank);
        moved = true;
    }
    return moved;
}

static void run_cluster(uint64_t first)
{
    for (int rank = 0; rank * block.each < block.count; rank++) begin_block(rank, first + (unsigned)rank);
    __tsan_release(&block.beginning);
    while (!is_over(0, block.count)) {
        bool moved = run_fibers();
        for (int of = 0; of < block.count; of += block.each) {
            int end = of + block.each;
            for (int warp = of; warp < end; warp += WARP)
                moved |= release(warp, warp + WARP < end ? warp + WARP : end, AT_WARP);
            moved |= release(of, end, AT_BLOCK);
        }
        moved |= release(0, block.count, AT_CLUSTER);
        if (!moved) emulated_stop("threads wait at different places");
    }
    for (int i = 0; i < block.count; i++) {
        if (!block.fibers[i]->has_waited) emulated_stop("a kernel that did not wait for the one before it");
        if (block.fibers[i]->has_arrived) emulated_stop("a thread that ends before its cluster has arrived");
    }
    __tsan_acquire(&block.end);
}

/* Ends the program for launches that a GPU would refuse. */
static void expect_launchable(const emulated_kernel &k)
{
    const dim3 &grid = k.grid, &size = k.block;
    if (!k.cluster || k.cluster > BLOCKS || grid.x % k.cluster)
        emulated_stop("a grid that is not one of such clusters");
    if (!grid.x || !grid.y || !grid.z || !size.x || !size.y || !size.z)
        emulated_stop("a kernel of no threads");
    if (grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535) emulated_stop("a kernel of too many blocks");
    if (size.x * size.y * size.z > THREADS || size.z > 64)
        emulated_stop("a kernel of too many threads a block");
    if (k.shared > 48 << 10) emulated_stop("a kernel of too much shared memory");
}

/* A multiprocessor has 65536 registers, and a thread at most 255. */
static void expect_registers(const emulated_kernel &k)
{
    unsigned threads = k.block.x * k.block.y * k.block.z;
    if (threads > FREE && (uintptr_t)k.kernel % threads)
        emulated_stop("a kernel of more threads than its bounds allow");
}

static void make_fibers(dim3 size)
{
    for (; block.made < block.count; block.made++) block.fibers[block.made] = new_fiber();
    for (unsigned i = 0; i < (unsigned)block.count; i++) {
        unsigned own = i % (unsigned)block.each;
        block.fibers[i]->index = dim3(own % size.x, own / size.x % size.y, own / size.x / size.y);
    }
}

void emulated_run(const emulated_kernel &k, void (*thread)(void *ctx), void *ctx)
{
    expect_launchable(k);
    expect_registers(k);
    gridDim = k.grid;
    blockDim = k.block;
    block.each = (int)(k.block.x * k.block.y * k.block.z);
    block.count = block.each * (int)k.cluster;
    block.scheduler_seen = __tsan_get_current_fiber();
    block.thread = thread;
    block.ctx = ctx;
    for (unsigned rank = 0; rank < k.cluster; rank++) block.shared[rank].assign(k.shared + 16, (char)0x5a);
    make_fibers(k.block);
    block.is_open = false;
    uint64_t blocks = (uint64_t)k.grid.x * k.grid.y * k.grid.z, clusters = blocks / k.cluster;
    emulated_counted.largest = std::max(emulated_counted.largest, (int64_t)blocks);
    for (uint64_t n = 0; n < clusters; n++) {
        run_cluster((goes_backward() ? clusters - 1 - n : n) * k.cluster);
        emulated_ms += 1e-3 * k.cluster;
    }
    emulated_memory_close();
}

/* ---- the runtime ---- */

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess                 ? "cudaSuccess"
           : error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                                : "cudaError";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "emulated error";
}

cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

bool emulated_refuses(const char *what)
{
    const char *refused = std::getenv("TERN_EMULATED_REFUSES");
    return refused && !std::strcmp(refused, what);
}

void emulated_expect_runtime()
{
    if (emulated_refuses("runtime")) emulated_stop("what is called has ended before");
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const char *visible = std::getenv("TERN_EMULATED_DEVICES");
    *count = visible ? std::atoi(visible) : 2;
    return cudaSuccess;
}

/* TERN_EMULATED_APART: GPUs without access to each other. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int)
{
    *can = !std::getenv("TERN_EMULATED_APART");
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
    properties->totalGlobalMem = EMULATED_MEMORY;
    properties->major = 9;
    properties->multiProcessorCount = 2;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 0;
    return cudaSuccess;
}
