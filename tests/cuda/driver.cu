/* driver.cu - what NVIDIA's documents leave open and src/cuda relies on, asked of a GPU: which memory the
 * driver gives out, that kernels which overlap are captured, told other arguments and launched again with
 * copies between them, that clusters of all sizes are taken, and when pageable memory is the host's again. */
#include "cuda/capability.cu"
#include "cuda/cluster.h"
#include "cuda/pages.cc"
#include "cuda/record.cc"

#include <cstdio>
#include <vector>

enum { COUNT = 1 << 16, THREADS = 256, GRID = COUNT / THREADS, CHAIN = 40, ROUNDS = 20 };

typedef std::vector<unsigned> numbers;

static tern__cuda cuda;
static cudaStream_t lane;
static unsigned *a, *b, *c;
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
    CHECK(cudaMemcpyAsync(a, numbers(COUNT, x).data(), COUNT * 4, cudaMemcpyHostToDevice, cuda.stream));
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
    CHECK(cudaMemcpyAsync(a, numbers(COUNT, x).data(), COUNT * 4, cudaMemcpyHostToDevice, cuda.stream));
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

/* ---- memory ---- */

/* A kernel that overlaps waits for a copy in another stream, too. */
static void lanes()
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
        CHECK(cudaStreamWaitEvent(lane, event));
        CHECK(cudaMemcpyAsync(b, pinned, COUNT * 4, cudaMemcpyDefault, lane));
        CHECK(cudaEventRecord(event, lane));
        CHECK(start(0, step, GRID, c, 1024, 0u, 20));
        CHECK(cudaStreamWaitEvent(cuda.stream, event));
        CHECK(start(0, copy, GRID, a, b, COUNT));
        is_well &= read(a, COUNT) == numbers(COUNT, round);
    }
    expect(is_well, "a kernel that overlaps comes after another stream's copy");
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

static void pages()
{
    void *at = nullptr;
    unsigned long long handle;
    const size_t range = (size_t)320 << 30;
    bool stays = false;
    if (!expect(tern__cuda_reserve(range, &at, nullptr) == TERN_OK, "320 GiB of addresses")) return;
    if (expect(tern__cuda_map(0, at, TERN__CUDA_PAGE, &stays, &handle), "pages"))
        tern__cuda_unmap(at, TERN__CUDA_PAGE, handle);
    std::printf("note   they %s\n", stays ? "stay here" : "may be exported");
    tern__cuda_unreserve(at, range);
}

int main(void)
{
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    cuda.overlaps = cuda.has_clusters = tern__cuda_has_9(&p);
    CHECK(cudaStreamCreateWithPriority(&cuda.stream, cudaStreamNonBlocking, 0));
    CHECK(cudaStreamCreateWithPriority(&lane, cudaStreamNonBlocking, -5));
    for (unsigned **of : {&a, &b, &c}) CHECK(cudaMalloc((void **)of, COUNT * sizeof(**of)));
    if (failures) return 1;
    pages();
    kernels();
    graphs();
    lanes();
    pageable();
    return failures != 0;
}
