/* graphs.h - graphs as lists of what was captured. */
#ifndef TERN_TESTS_CUDA_GRAPHS_H
#define TERN_TESTS_CUDA_GRAPHS_H

#include "cuda_runtime.h"

cudaGraph_t emulated_graph_new();
void emulated_graph_add(cudaGraph_t graph, std::function<void()> work);
void emulated_graph_add_kernel(cudaGraph_t graph, const emulated_kernel &kernel, void **args);
/* The nodes on which the next one will depend: the last one, if there is any. */
size_t emulated_graph_last(cudaGraph_t graph, const cudaGraphNode_t **nodes);
/* The work of a kernel with its current arguments. */
std::function<void()> emulated_kernel_work(const emulated_kernel &kernel, void **args);
std::function<void()> emulated_exec_work(cudaGraphExec_t exec);

#endif
