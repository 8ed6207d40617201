/* graphs.cc - graphs as lists of nodes that are run in order. */
#include "graphs.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <vector>

typedef std::vector<std::vector<char>> arguments;

struct emulated_node {
    std::function<void()> work; /* a library's; empty: a kernel */
    emulated_kernel kernel;
    arguments args;
};
struct emulated_graph {
    std::vector<std::unique_ptr<emulated_node>> nodes;
    cudaGraphNode_t last;
};
/* An executable graph: copies of the graph's nodes, which can be updated. */
struct emulated_exec {
    cudaGraph_t graph;
    std::vector<emulated_node> nodes;
};

emulated_counts emulated_counted;
static std::set<cudaGraph_t> graphs;

static void forbid(bool is_wrong, const char *what)
{
    if (!is_wrong) return;
    std::fprintf(stderr, "emulated: %s\n", what);
    std::abort();
}

/* ---- graphs ---- */

cudaGraph_t emulated_graph_new()
{
    return *graphs.insert(new emulated_graph()).first;
}

static arguments copy_of(const emulated_kernel &kernel, void **args)
{
    arguments copy;
    for (int i = 0; i < kernel.count; i++)
        copy.emplace_back((char *)args[i], (char *)args[i] + kernel.sizes[i]);
    return copy;
}

static void add(cudaGraph_t graph, emulated_node *node)
{
    graph->nodes.emplace_back(node);
    graph->last = node;
}

void emulated_graph_add(cudaGraph_t graph, std::function<void()> work)
{
    add(graph, new emulated_node{std::move(work), {}, {}});
}

void emulated_graph_add_kernel(cudaGraph_t graph, const emulated_kernel &kernel, void **args)
{
    add(graph, new emulated_node{{}, kernel, copy_of(kernel, args)});
}

size_t emulated_graph_last(cudaGraph_t graph, const cudaGraphNode_t **nodes)
{
    *nodes = &graph->last;
    return graph->last ? 1 : 0;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    forbid(!graphs.erase(graph), "a graph that is destroyed twice");
    delete graph;
    return cudaSuccess;
}

/* ---- executable graphs ---- */

/* A graph needs device memory, more if kernels overlap. */
static bool has_room(cudaGraph_t graph)
{
    size_t left, total, wanted = (size_t)2 << 20;
    for (const auto &node : graph->nodes)
        if (node->kernel.overlaps) wanted = (size_t)4 << 20;
    return cudaMemGetInfo(&left, &total) == cudaSuccess && left >= wanted;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    if (!has_room(graph)) return cudaErrorMemoryAllocation;
    *exec = new emulated_exec{graph, {}};
    for (const auto &node : graph->nodes) (*exec)->nodes.push_back(*node);
    emulated_counted.captures++;
    return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams *params)
{
    forbid(!graphs.count(exec->graph), "a node of a graph that is destroyed");
    size_t at = 0;
    while (at < exec->nodes.size() && exec->graph->nodes[at].get() != node) at++;
    forbid(at == exec->nodes.size(), "a node of another graph");
    emulated_node *own = &exec->nodes[at];
    forbid(own->work || own->kernel.kernel != params->func, "arguments for another node");
    if (own->kernel.overlaps && emulated_refuses("change")) return cudaErrorInvalidValue;
    own->kernel.grid = params->gridDim;
    own->kernel.block = params->blockDim;
    own->kernel.shared = params->sharedMemBytes;
    own->args = copy_of(own->kernel, params->kernelParams);
    emulated_counted.changes++;
    return cudaSuccess;
}

static void run(emulated_node &node)
{
    const emulated_kernel &k = node.kernel;
    std::vector<void *> args;
    if (node.work) return node.work();
    for (std::vector<char> &arg : node.args) args.push_back(arg.data());
    k.start(k, args.data());
}

std::function<void()> emulated_kernel_work(const emulated_kernel &kernel, void **args)
{
    return [node = emulated_node{{}, kernel, copy_of(kernel, args)}]() mutable { run(node); };
}

std::function<void()> emulated_exec_work(cudaGraphExec_t exec)
{
    return [nodes = exec->nodes]() mutable {
        for (emulated_node &node : nodes) run(node);
    };
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
