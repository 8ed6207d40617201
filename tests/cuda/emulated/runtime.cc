#include "cuda_runtime.h"
#include "memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

dim3 gridDim, blockDim, blockIdx, threadIdx;

/* ---- fibers: the threads of a block ---- */

#define WARP  32
#define STACK (128 << 10)

enum wait { RUNNING, AT_BLOCK, AT_WARP, DONE };

struct fiber {
    ucontext_t context;
    wait state;
    int shuffles;
    dim3 index;
    char *stack;
};

static struct {
    ucontext_t scheduler;
    std::vector<fiber *> fibers;
    int current, count;
    void (*thread)(void *ctx);
    void *ctx;
    uint64_t slots[2][1024];
    std::vector<char> shared;
} block;

[[noreturn]] static void stop(const char *what)
{
    std::fprintf(stderr, "emulated: %s\n", what);
    std::abort();
}

static void yield(wait state)
{
    fiber *self = block.fibers[block.current];
    self->state = state;
    swapcontext(&self->context, &block.scheduler);
}

static void body()
{
    for (;;) {
        block.thread(block.ctx);
        yield(DONE);
    }
}

static fiber *new_fiber()
{
    fiber *f = new fiber();
    f->stack = (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, body, 0);
    return f;
}

void __syncthreads()
{
    yield(AT_BLOCK);
}

void __syncwarp(unsigned)
{
    yield(AT_WARP);
}

int emulated_lane()
{
    return block.current % WARP;
}

char *emulated_shared()
{
    return block.shared.data();
}

/* Two sets of slots in turn: one is written while the other may still be read. */
uint64_t emulated_shuffle(uint64_t value, int from)
{
    int count = ++block.fibers[block.current]->shuffles, set = count % 2;
    int other = block.current / WARP * WARP + from % WARP;
    block.slots[set][block.current] = value;
    yield(AT_WARP);
    if (other >= block.count || block.fibers[other]->shuffles < count)
        stop("a shuffle from a thread that takes no part in it");
    return block.slots[set][other];
}

/* All of [first, last) that are not done wait for each other: they may go on. */
static bool release(int first, int last, wait state)
{
    int arrived = 0;
    for (int i = first; i < last; i++) {
        if (block.fibers[i]->state == DONE) continue;
        if (block.fibers[i]->state != state) return false;
        arrived++;
    }
    for (int i = first; i < last && arrived; i++)
        if (block.fibers[i]->state == state) block.fibers[i]->state = RUNNING;
    return arrived > 0;
}

static bool is_over()
{
    for (int i = 0; i < block.count; i++)
        if (block.fibers[i]->state != DONE) return false;
    return true;
}

/* TERN_EMULATED_ORDER=backward: the last block and the last thread go first. Nothing may depend on it. */
static bool goes_backward()
{
    static const char *order = std::getenv("TERN_EMULATED_ORDER");
    return order && !std::strcmp(order, "backward");
}

static void run_block()
{
    for (int i = 0; i < block.count; i++) {
        block.fibers[i]->state = RUNNING;
        block.fibers[i]->shuffles = 0;
    }
    while (!is_over()) {
        bool moved = false;
        for (int n = 0; n < block.count; n++) {
            int i = goes_backward() ? block.count - 1 - n : n;
            fiber *f = block.fibers[i];
            if (f->state != RUNNING) continue;
            block.current = i;
            threadIdx = f->index;
            swapcontext(&block.scheduler, &f->context);
            moved = true;
        }
        for (int warp = 0; warp < block.count; warp += WARP)
            moved |= release(warp, warp + WARP < block.count ? warp + WARP : block.count, AT_WARP);
        moved |= release(0, block.count, AT_BLOCK);
        if (!moved) stop("threads of a block wait at different places");
    }
}

/* What a GPU would refuse. */
static void expect_launchable(dim3 grid, dim3 size, size_t shared)
{
    if (!grid.x || !grid.y || !grid.z || !size.x || !size.y || !size.z) stop("a kernel of no threads");
    if (grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535) stop("a kernel of too many blocks");
    if (size.x * size.y * size.z > 1024 || size.z > 64) stop("a kernel of too many threads a block");
    if (shared > 48 << 10) stop("a kernel of too much shared memory");
}

void emulated_run(dim3 grid, dim3 size, size_t shared, void (*thread)(void *ctx), void *ctx)
{
    gridDim = grid;
    blockDim = size;
    block.count = (int)(size.x * size.y * size.z);
    expect_launchable(grid, size, shared);
    block.thread = thread;
    block.ctx = ctx;
    block.shared.assign(shared + 16, (char)0x5a);
    while ((int)block.fibers.size() < block.count) block.fibers.push_back(new_fiber());
    for (unsigned i = 0; i < (unsigned)block.count; i++)
        block.fibers[i]->index = dim3(i % size.x, i / size.x % size.y, i / size.x / size.y);
    emulated_memory_open();
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t n = 0; n < blocks; n++) {
        uint64_t i = goes_backward() ? blocks - 1 - n : n;
        blockIdx =
            dim3((unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y), (unsigned)(i / grid.x / grid.y));
        run_block();
        emulated_ms += 1e-3;
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

cudaError_t cudaGetDeviceCount(int *count)
{
    const char *visible = std::getenv("TERN_EMULATED_DEVICES");
    *count = visible ? std::atoi(visible) : 2;
    return cudaSuccess;
}

/* TERN_EMULATED_APART: GPUs that are not joined. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int)
{
    *can = !std::getenv("TERN_EMULATED_APART");
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
    properties->totalGlobalMem = (size_t)2 << 30;
    properties->multiProcessorCount = 2;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 0;
    return cudaSuccess;
}
