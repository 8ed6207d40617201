/* driver.cu - what NVIDIA's documents leave open and src/cuda relies on, asked of a GPU: which memory the
 * driver gives out, and takes back while others work; that kernels which overlap are captured, told other
 * arguments and launched again with copies between them; that they wait for all that lies before them, and
 * all that lies behind them for their end, in graphs, without and from one to the other; that clusters of all
 * sizes are taken; that a capture does not mind what other threads do; and when the host's memory is its own
 * again. */
#include "cuda/capability.cu"
#include "cuda/kernels/cluster.h"
#include "cuda/fault.cc"
#include "cuda/pages.cc"
#include "cuda/pool.cc"
#include "cuda/record.cc"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

enum { COUNT = 1 << 20, THREADS = 256, GRID = COUNT / THREADS, CHAIN = 40, ROUNDS = 20 };

typedef std::vector<unsigned> numbers;

static tern__cuda cuda;
static tern_device device;
static cudaStream_t copies;
static unsigned *a, *b, *c;
static bool can_overlap;
static int failures;

static bool expect(bool is_so, const char *what)
{
    std::printf("%-6s %s\n", is_so ? "ok" : "FAILED", what);
    failures += !is_so;
    return is_so;
}

static void check(cudaError_t code, const char *what)
{
    if (code == cudaSuccess) return;
    std::printf("FAILED %s: %s\n", what, cudaGetErrorName(code));
    failures++;
    cudaGetLastError();
}
#define CHECK(call) check(call, #call)

int tern__cuda_check(cudaError_t code, const char *what, tern_error *)
{
    check(code, what);
    return tern__cuda_status(code);
}

void tern__cuda_settle(tern__cuda *of)
{
    CHECK(cudaStreamSynchronize(of->stream));
}

/* ---- kernels ---- */

/* Late by so many microseconds. */
static __global__ void step(unsigned *of, int count, unsigned add, int late)
{
    tern__kernel_begin();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int n = 0; n < late; n++) __nanosleep(1000);
    if (i < count) of[i] = of[i] * 3 + add;
}

static __global__ void copy(unsigned *to, const unsigned *from, int count)
{
    tern__kernel_begin();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = from[i];
}

/* All threads have something to say of the label of their own number. */
static __global__ void blame(tern__judge judge)
{
    tern__kernel_begin();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tern__is_class(judge, i, judge.site.labels.classes + i);
}

/* Each block leaves what the next one of its cluster has. */
static __global__ void take_next(unsigned *of, unsigned add, int size)
{
    __shared__ unsigned own;
    int rank = blockIdx.x % size;
    tern__kernel_begin();
    if (threadIdx.x == 0) own = rank + add;
    tern__cluster_arrive();
    tern__cluster_wait();
    if (threadIdx.x == 0) of[blockIdx.x] = *tern__cluster_at(&own, (rank + 1) % size);
    tern__cluster_arrive();
    tern__cluster_wait();
}

template <class... P> static cudaError_t start_all(const tern__cuda_start *s, void (*)(P...), P... args)
{
    void *pointers[] = {&args...};
    return tern__cuda_start_now<P...>(&cuda, s, pointers, std::index_sequence_for<P...>());
}

template <class... P, class... A>
static cudaError_t start(size_t cluster, void (*kernel)(P...), unsigned grid, A... args)
{
    const tern__cuda_start s = {(void (*)())kernel, {grid, 1, 1}, {THREADS, 1, 1}, 0, cluster};
    return start_all<P...>(&s, kernel, args...);
}

static void fill(unsigned *to, unsigned x)
{
    CHECK(cudaMemcpyAsync(to, numbers(COUNT, x).data(), COUNT * 4, cudaMemcpyHostToDevice, cuda.stream));
}

static numbers read(const unsigned *from, int count)
{
    numbers got(count);
    CHECK(cudaMemcpyAsync(got.data(), from, count * sizeof(*from), cudaMemcpyDeviceToHost, cuda.stream));
    CHECK(cudaStreamSynchronize(cuda.stream));
    return got;
}

static bool are_clusters(int size, int grid, unsigned add)
{
    numbers got = read(c, grid);
    bool are = true;
    for (int i = 0; i < grid; i++) are &= got[i] == (unsigned)((i + 1) % size) + add;
    return are;
}

/* ---- kernels that overlap ---- */

/* With all that may stand between them. */
static cudaError_t chain(unsigned add)
{
    cudaError_t code = start(0, step, GRID, a, COUNT, add, 3);
    for (int i = 0; i < CHAIN && !code; i++) {
        if (i % 4 == 1) code = cudaMemcpyAsync(b, a, COUNT * 4, cudaMemcpyDeviceToDevice, cuda.stream);
        if (i % 4 == 2) code = start(0, copy, GRID, a, b, COUNT);
        if (i % 4 == 3) code = cudaMemsetAsync(b, 0, COUNT * 4, cuda.stream);
        if (!code) code = start(0, step, GRID, a, COUNT, add, i % 3 ? 0 : 3);
    }
    return code;
}

/* What a chain makes of a number; its last kernel adds something else. */
static unsigned chained(unsigned x, unsigned add, unsigned last)
{
    unsigned beside = 0;
    x = x * 3 + add;
    for (int i = 0; i < CHAIN; i++) {
        if (i % 4 == 1) beside = x;
        if (i % 4 == 2) x = beside;
        x = x * 3 + (i == CHAIN - 1 ? last : add);
    }
    return x;
}

static cudaError_t tell(cudaGraphExec_t exec, cudaGraphNode_t node, void *kernel, int grid, void **args)
{
    cudaKernelNodeParams params = {};
    params.func = kernel;
    params.gridDim = dim3(grid);
    params.blockDim = dim3(THREADS);
    params.kernelParams = args;
    return cudaGraphExecKernelNodeSetParams(exec, node, &params);
}

/* Captures a chain and a kernel of clusters behind it, whose last nodes are told other arguments. */
static void graphs()
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node, cluster;
    unsigned x = 7, add, *data = a, *out = c;
    int count = COUNT, late = 1, size = cuda.has_clusters ? 6 : 1;
    void *for_step[] = {&data, &count, &add, &late}, *for_clusters[] = {&out, &add, &size};
    fill(a, x);
    CHECK(cudaStreamBeginCapture(cuda.stream, cudaStreamCaptureModeThreadLocal));
    CHECK(chain(5));
    bool is_known = last_node(cuda.stream, &node);
    CHECK(start(cuda.has_clusters ? size : 0, take_next, 24, c, 5u, size));
    is_known &= last_node(cuda.stream, &cluster);
    CHECK(cudaStreamEndCapture(cuda.stream, &graph));
    is_known &= cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess;
    if (!expect(is_known, "a graph of what overlaps")) return;
    for (add = 100; add < 100 + ROUNDS; add++) {
        CHECK(tell(exec, node, (void *)step, GRID, for_step));
        CHECK(tell(exec, cluster, (void *)take_next, 24, for_clusters));
        CHECK(cudaGraphLaunch(exec, cuda.stream)); /* while the one before it runs */
        x = chained(x, 5, add);
    }
    expect(read(a, COUNT) == numbers(COUNT, x), "launched again and again with other arguments");
    expect(are_clusters(size, 24, add - 1), "its clusters stay such with other arguments");
}

static void kernels()
{
    unsigned x = 7;
    fill(a, x);
    for (unsigned i = 0; i < ROUNDS; i++) {
        CHECK(chain(i));
        x = chained(x, i, i);
    }
    expect(read(a, COUNT) == numbers(COUNT, x), "kernels that overlap, with copies and zeros between them");
    for (int size = 2; size <= TERN__CLUSTER_MOST && cuda.has_clusters; size++) {
        CHECK(start(size, take_next, size * 33, c, 3u, size));
        expect(are_clusters(size, size * 33, 3), "clusters");
    }
}

/* ---- graphs between kernels ---- */

enum { SHORT = 3, SLOW = 300 }; /* kernels; microseconds */

/* The last one is slow, and lets what comes next begin before it is over. */
static cudaError_t several(unsigned add)
{
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < SHORT && !code; i++)
        code = start(0, step, GRID, a, COUNT, add, i == SHORT - 1 ? SLOW : 0);
    return code;
}

static unsigned severally(unsigned x, unsigned add)
{
    for (int i = 0; i < SHORT; i++) x = x * 3 + add;
    return x;
}

static bool capture_several(bool overlaps, cudaGraph_t *graph, cudaGraphExec_t *exec)
{
    cuda.overlaps = overlaps;
    CHECK(cudaStreamBeginCapture(cuda.stream, cudaStreamCaptureModeThreadLocal));
    CHECK(several(5));
    CHECK(cudaStreamEndCapture(cuda.stream, graph));
    return cudaGraphInstantiate(exec, *graph, 0) == cudaSuccess;
}

/* Slow kernels, a graph, its like, a copy, a graph, kernels. */
static bool alternate(cudaGraphExec_t exec)
{
    unsigned x = 7;
    fill(a, x);
    for (unsigned round = 0; round < ROUNDS; round++) {
        CHECK(several(round));
        for (int i = 0; i < 2; i++) CHECK(cudaGraphLaunch(exec, cuda.stream));
        CHECK(cudaMemcpyAsync(b, a, COUNT * 4, cudaMemcpyDeviceToDevice, cuda.stream));
        CHECK(cudaGraphLaunch(exec, cuda.stream));
        CHECK(start(0, copy, GRID, a, b, COUNT));
        CHECK(cudaGraphLaunch(exec, cuda.stream));
        CHECK(start(0, step, GRID, a, COUNT, round, 0));
        x = severally(severally(severally(severally(x, round), 5), 5), 5) * 3 + round;
    }
    return read(a, COUNT) == numbers(COUNT, x);
}

static void alternately()
{
    for (int which = 0; which < (can_overlap ? 4 : 1); which++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        char what[128];
        std::snprintf(what, sizeof(what), "a graph whose kernels %s, between kernels that %s",
                      which & 1 ? "overlap" : "do not", which & 2 ? "overlap" : "do not");
        bool is_well = capture_several(which & 1, &graph, &exec);
        cuda.overlaps = which & 2;
        expect(is_well && alternate(exec), what);
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    cuda.overlaps = can_overlap;
}

/* As the device's other threads do meanwhile; none of it is this capture's. */
static void work_beside(const std::atomic<bool> *is_over)
{
    cudaEvent_t event;
    CHECK(cudaSetDevice(0));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (size_t n = 0; !*is_over; n++) {
        void *block = tern__cuda_alloc(&device, (1 + n % 32) * TERN__CUDA_PAGE);
        CHECK(cudaMemcpyAsync(block, c, 4096, cudaMemcpyDefault, copies));
        CHECK(cudaEventRecord(event, copies));
        cudaError_t code = cudaEventQuery(event);
        if (code != cudaErrorNotReady) check(code, "cudaEventQuery");
        CHECK(cudaEventSynchronize(event));
        tern__cuda_free(&device, block);
    }
    CHECK(cudaEventDestroy(event));
}

static void captures()
{
    std::atomic<bool> is_over{false};
    std::thread other(work_beside, &is_over);
    bool are = true;
    for (int i = 0; i < ROUNDS && are; i++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        are = capture_several(can_overlap, &graph, &exec);
        if (!are) break;
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    is_over = true;
    other.join();
    expect(are, "captures while another thread maps memory, copies and waits");
}

/* ---- memory ---- */

/* A kernel that overlaps waits for a copy in another stream, too. */
static void streams()
{
    cudaEvent_t event;
    unsigned *pinned;
    bool is_well = true;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaHostAlloc((void **)&pinned, COUNT * 4, cudaHostAllocPortable));
    for (unsigned round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++) pinned[i] = round;
        CHECK(start(0, step, GRID, b, COUNT, 0u, 0));
        CHECK(cudaEventRecord(event, cuda.stream));
        CHECK(cudaStreamWaitEvent(copies, event));
        CHECK(cudaMemcpyAsync(b, pinned, COUNT * 4, cudaMemcpyDefault, copies));
        CHECK(cudaEventRecord(event, copies));
        CHECK(start(0, step, GRID, c, 1024, 0u, 20));
        CHECK(cudaStreamWaitEvent(cuda.stream, event));
        CHECK(start(0, copy, GRID, a, b, COUNT));
        is_well &= read(a, COUNT) == numbers(COUNT, round);
    }
    expect(is_well, "a kernel that overlaps comes after another stream's copy");
}

/* An event, and who waits for it, comes behind the end of a kernel that let the next one begin early. */
static void ends()
{
    cudaEvent_t event;
    unsigned *pinned, x = 7;
    bool is_well = true;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaHostAlloc((void **)&pinned, COUNT * 4, cudaHostAllocPortable));
    fill(a, x);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        CHECK(several(round));
        CHECK(cudaEventRecord(event, cuda.stream));
        CHECK(cudaStreamWaitEvent(copies, event));
        CHECK(cudaMemcpyAsync(pinned, a, COUNT * 4, cudaMemcpyDefault, copies));
        CHECK(cudaStreamSynchronize(copies));
        x = severally(x, round);
        for (int i = 0; i < COUNT; i++) is_well &= pinned[i] == x;
    }
    expect(is_well, "another stream comes after the end of kernels that overlap");
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaEventDestroy(event));
}

/* What a kernel leaves in the host's memory is seen there, whole, without a wait. */
static void faults()
{
    tern_error err = {};
    const int64_t classes = 1000;
    if (tern__fault_new(&cuda.fault, &err)) return;
    tern__judge judge = {cuda.fault, {}};
    judge.site.labels.classes = classes;
    auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    CHECK(start(0, blame, GRID, judge));
    while (!cuda.fault->ready && std::chrono::steady_clock::now() < until) continue;
    expect(cuda.fault->ready && cuda.fault->label == classes + cuda.fault->number &&
               cuda.fault->site.labels.classes == classes,
           "a record that a kernel leaves in the host's memory");
    CHECK(cudaStreamSynchronize(cuda.stream));
    tern__fault_free(cuda.fault);
}

static bool is_pinned(const void *data)
{
    cudaPointerAttributes of;
    CHECK(cudaPointerGetAttributes(&of, data));
    return of.type == cudaMemoryTypeHost;
}

static void kinds()
{
    void *pinned;
    std::vector<char> own(3 * 4096);
    void *page = (void *)tern__align_up((size_t)own.data(), 4096);
    CHECK(cudaHostAlloc(&pinned, 4096, cudaHostAllocPortable));
    expect(is_pinned(pinned) && !is_pinned(page), "pinned memory and pageable are told apart");
    CHECK(cudaHostRegister(page, 4096, cudaHostRegisterPortable));
    expect(is_pinned(page), "memory that was registered is pinned");
    CHECK(cudaHostUnregister(page));
    CHECK(cudaFreeHost(pinned));
}

/* Changed as soon as the call returns, while the GPU is 20 ms behind. */
static void pageable()
{
    for (int count : {16, 1024, 15000, (int)COUNT}) {
        numbers host(count, 1);
        CHECK(start(0, step, 1, c, 0, 0u, 20000));
        CHECK(cudaMemcpyAsync(a, host.data(), count * 4, cudaMemcpyHostToDevice, cuda.stream));
        host.assign(count, 2);
        expect(read(a, count) == numbers(count, 1), "pageable memory is the host's when the call returns");
    }
}

/* ---- the pool ---- */

enum { LARGE = 64 << 20 };

static size_t left()
{
    size_t bytes = 0, total;
    CHECK(cudaMemGetInfo(&bytes, &total));
    return bytes;
}

static bool open_pool(size_t total)
{
    tern_error err = {};
    tern__cuda_pool_open(&cuda, total, &device.memory, &err);
    if (!expect(!err.code, "addresses for a pool")) return false;
    std::printf("note   %.1f of them for each byte\n", (double)device.memory.bytes / (double)total);
    for (unsigned **of : {&a, &b, &c})
        if (!(*of = (unsigned *)tern__cuda_alloc(&device, COUNT * sizeof(**of))))
            return expect(false, "pages");
    std::printf("note   pages %s\n", cuda.pool->stays ? "stay here" : "may be exported");
    return true;
}

/* While another stream works on other blocks. */
static void pages()
{
    size_t before = left();
    auto *large = (unsigned *)tern__cuda_alloc(&device, LARGE);
    expect(large && left() + LARGE <= before, "what is mapped is missing in what is left");
    fill(b, 7);
    CHECK(cudaStreamSynchronize(cuda.stream));
    std::swap(cuda.stream, copies);
    CHECK(start(0, step, GRID, b, COUNT, 5u, 20000));
    std::swap(cuda.stream, copies);
    fill(large, 1);
    tern__cuda_free(&device, large);
    tern__cuda_pool_give_up(cuda.pool);
    expect(left() + LARGE / 2 > before, "what is unmapped is there again");
    auto *again = (unsigned *)tern__cuda_alloc(&device, LARGE);
    fill(again, 2);
    CHECK(start(0, step, GRID, again, COUNT, 5u, 0));
    expect(again == large && read(again, COUNT) == numbers(COUNT, 11),
           "other memory behind the same addresses");
    CHECK(cudaStreamSynchronize(copies));
    expect(read(b, COUNT) == numbers(COUNT, 26), "memory is unmapped while another stream works");
    tern__cuda_free(&device, again);
}

/* Another GPU's memory, before it may be used and then. */
static void peers()
{
    int count = 0;
    tern__cuda giver = {};
    tern_device there = {};
    tern_error err = {};
    CHECK(cudaGetDeviceCount(&count));
    if (count < 2) return (void)std::printf("note   there is no other GPU\n");
    giver.index = 1;
    giver.exports = true;
    there.state = &giver;
    CHECK(cudaSetDevice(giver.index));
    tern__cuda_pool_open(&giver, (size_t)1 << 30, &there.memory, &err);
    auto *away = err.code ? nullptr : (unsigned *)tern__cuda_alloc(&there, COUNT * 4);
    if (!expect(away, "another GPU's pages")) return;
    CHECK(cudaMemcpy(away, numbers(COUNT, 3).data(), COUNT * 4, cudaMemcpyHostToDevice));
    CHECK(cudaSetDevice(0));
    CHECK(cudaMemcpyPeerAsync(a, 0, away, 1, COUNT * 4, cuda.stream));
    expect(read(a, COUNT) == numbers(COUNT, 3), "a copy from a GPU whose memory this one may not use");
    bool may = tern__cuda_pool_share(giver.pool, 0);
    std::printf("note   the two GPUs are %s\n", may ? "joined" : "apart");
    if (!may) return;
    CHECK(cudaMemcpyAsync(b, away, COUNT * 4, cudaMemcpyDefault, cuda.stream));
    expect(read(b, COUNT) == numbers(COUNT, 3), "a copy from a GPU whose memory this one may use");
}

int main(void)
{
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    can_overlap = cuda.overlaps = cuda.has_clusters = tern__cuda_has_9(&p);
    CHECK(cudaStreamCreateWithPriority(&cuda.stream, cudaStreamNonBlocking, 0));
    CHECK(cudaStreamCreateWithPriority(&copies, cudaStreamNonBlocking, -5));
    cuda.exports = true;
    device.state = &cuda;
    if (failures || !open_pool(p.totalGlobalMem)) return 1;
    pages();
    kernels();
    graphs();
    alternately();
    captures();
    streams();
    ends();
    faults();
    kinds();
    pageable();
    peers();
    return failures != 0;
}
