/* rules.cc - the emulation ends programs that a GPU would not accept or would run differently: each kernel
 * here breaks one rule, in a process of its own. */
#include "cuda_runtime.h"

#include "cuda/pool.h"

#include <cstdio>
#include <cstdlib>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void (*kernel_fn)(float *data, int number);

typedef struct rule {
    const char *what;
    kernel_fn kernel;
    int number;
    dim3 grid, block;
    size_t shared;
    bool is_kept;
    unsigned cluster = 0;
} rule;

/* ---- kernels ---- */

static void nothing(float *, int)
{
    cudaGridDependencySynchronize();
}

static void __launch_bounds__(1024) nothing_of_1024(float *, int)
{
    cudaGridDependencySynchronize();
}

static void waits_never(float *, int)
{
}

static void waits_late(float *data, int)
{
    data[threadIdx.x] = 1;
    cudaGridDependencySynchronize();
}

static void lets_go_first(float *, int)
{
    cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();
}

static void counts_on_zeros(float *data, int at)
{
    cudaGridDependencySynchronize();
    if (data[at] != 0) std::abort();
}

/* A shuffle with so many lanes. */
static void pairs(float *data, int lanes)
{
    cudaGridDependencySynchronize();
    if ((int)threadIdx.x >= lanes) return;
    data[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}

/* The other lanes meet these at another barrier. */
static void pairs_beside_waiting(float *data, int lanes)
{
    cudaGridDependencySynchronize();
    if ((int)threadIdx.x < lanes)
        data[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    else
        __syncwarp();
}

static void four_at(float *data, int at)
{
    cudaGridDependencySynchronize();
    *(float4 *)(data + at) = {1, 2, 3, 4};
}

static void beside_an_array(float *data, int at)
{
    cudaGridDependencySynchronize();
    __shared__ float row[4];
    row[at] = 1;
    data[0] = row[at];
}

static void to_bytes(float *data, int number)
{
    cudaGridDependencySynchronize();
    data[0] = (float)(unsigned char)((float)number * 0.5f);
}

/* A block reads from block `rank`, which may have ended. */
static void reads_of(float *data, int rank)
{
    cudaGridDependencySynchronize();
    float *own = (float *)emulated_shared();
    *own = (float)blockIdx.x;
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    data[blockIdx.x] = *(const float *)__cluster_map_shared_rank(own, (unsigned)rank);
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    if (data[blockIdx.x] != (float)rank) std::abort();
}

static void reads_too_late(float *data, int rank)
{
    cudaGridDependencySynchronize();
    float *own = (float *)emulated_shared();
    *own = (float)blockIdx.x;
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    data[blockIdx.x] = *(const float *)__cluster_map_shared_rank(own, (unsigned)rank);
    if (data[blockIdx.x] != (float)rank) std::abort();
}

static void arrives_without_waiting(float *, int)
{
    cudaGridDependencySynchronize();
    __cluster_barrier_arrive();
}

static void waits_without_arriving(float *, int)
{
    cudaGridDependencySynchronize();
    __cluster_barrier_wait();
}

/* A kernel without launch bounds, which is not by chance where one with bounds would be. */
static const kernel_fn unbound = (uintptr_t)nothing % 1024 ? nothing : pairs;

static const rule rules[] = {
    {"nothing", nothing, 0, 1, 32, 0, true},
    {"a kernel that does not wait", waits_never, 0, 1, 32, 0, false},
    {"one that writes before it waits", waits_late, 0, 1, 32, 0, false},
    {"one that lets the next one go before it waits", lets_go_first, 0, 1, 32, 0, false},
    {"memory that nobody has written as zeros", counts_on_zeros, 5000, 1, 1, 0, false},
    {"a shuffle of a warp", pairs, 32, 1, 32, 0, true},
    {"one of half a warp", pairs, 16, 1, 32, 0, false},
    {"one of a block of half a warp", pairs, 32, 1, 16, 0, false},
    {"one of all lanes but one, which waits for them", pairs_beside_waiting, 31, 1, 32, 0, false},
    {"one of the first alone, for which the others wait", pairs_beside_waiting, 1, 1, 32, 0, false},
    {"four floats at a multiple of four", four_at, 4, 1, 1, 0, true},
    {"four at another place", four_at, 2, 1, 1, 0, false},
    {"the last place of an array", beside_an_array, 3, 1, 1, 0, true},
    {"the one behind it", beside_an_array, 4, 1, 1, 0, false},
    {"255 as a byte", to_bytes, 510, 1, 1, 0, true},
    {"256", to_bytes, 512, 1, 1, 0, false},
    {"65535 blocks in y", nothing, 0, dim3(1, 65535), 1, 0, true},
    {"65536", nothing, 0, dim3(1, 65536), 1, 0, false},
    {"no blocks", nothing, 0, 0u, 32, 0, false},
    {"1024 threads", nothing_of_1024, 0, 1, 1024, 0, true},
    {"without launch bounds", unbound, 0, 1, 1024, 0, false},
    {"256 without them", unbound, 0, 1, 256, 0, true},
    {"1025", nothing_of_1024, 0, 1, 1025, 0, false},
    {"48 KB of shared memory", nothing, 0, 1, 32, 48 << 10, true},
    {"a byte more", nothing, 0, 1, 32, (48 << 10) + 1, false},
    {"a cluster of three", reads_of, 2, 3, 1, 16, true, 3},
    {"a fourth block of it", reads_of, 3, 3, 1, 16, false, 3},
    {"a block of it that is over", reads_too_late, 0, 3, 1, 16, false, 3},
    {"a barrier that it ends at", arrives_without_waiting, 0, 2, 1, 0, false, 2},
    {"a barrier that it waits at without arriving", waits_without_arriving, 0, 2, 1, 0, false, 2},
    {"half a cluster", nothing, 0, 3, 32, 0, false, 2},
    {"a cluster of nine", nothing, 0, 9, 32, 0, false, 9},
};

/* ---- running them ---- */

static int start(const rule *r, float *data)
{
    cudaStream_t stream;
    cudaLaunchConfig_t config = {};
    cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
    config.gridDim = r->grid;
    config.blockDim = r->block;
    config.dynamicSmemBytes = r->shared;
    config.stream = stream;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {r->cluster, 1, 1};
    config.attrs = &cluster;
    config.numAttrs = r->cluster > 0;
    return cudaLaunchKernelEx(&config, r->kernel, data, r->number);
}

/* Whether the rule is kept; the emulation's message on stderr is discarded. */
static bool is_kept(const rule *r, float *data)
{
    int status = 0;
    std::fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        const rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        if (!r->is_kept && !std::freopen("/dev/null", "w", stderr)) _exit(0); // counts as kept
        _exit(start(r, data));
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main()
{
    int failures = 0;
    void *data = nullptr;
    bool stays = false;
    unsigned long long handle;
    tern_error err = {};
    if (tern__cuda_reserve(TERN__CUDA_PAGE, &data, &err) ||
        !tern__cuda_map(0, data, TERN__CUDA_PAGE, &stays, &handle))
        return 1;
    for (const rule &r : rules) {
        bool is_well = is_kept(&r, (float *)data) == r.is_kept;
        std::printf("%s: %s\n", r.what, is_well ? "ok" : r.is_kept ? "FAILED: is ended" : "FAILED: is taken");
        failures += !is_well;
    }
    return failures > 0;
}
