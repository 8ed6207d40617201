/* cudnn.h - the plug-in's interface to cuDNN: the engines that compute a case of a convolution. */
#ifndef TERN_SRC_CUDA_CUDNN_CUDNN_H
#define TERN_SRC_CUDA_CUDNN_CUDNN_H

#include "cuda/runtime.h"

extern "C" {
#include "kernels/conv.h"
}

enum { TERN__CONV_X, TERN__CONV_W, TERN__CONV_Y, TERN__CONV_B, TERN__CONV_OPERANDS };

/* A convolution: y, x or w, depending on the kernel, is computed from the other two. All are contiguous
 * and of one layout, the inputs of one dtype. A bias (1, C, 1, ..) in y's dtype is added to y. Sums are in
 * f32, or in f64 for f64. */
typedef struct tern__cudnn_conv {
    tern__kernel kernel; /* CONV, CONV_DATA_GRAD or CONV_WEIGHT_GRAD */
    tern__view operand[TERN__CONV_OPERANDS];
    int result; /* which operand is the result */
    const tern__conv_attr *attr;
    bool add, has_bias; /* not both */
} tern__cudnn_conv;

/* The alignment of an operand that cuDNN is told: the largest power of two, at most 16, that divides its
 * address. */
static inline int64_t tern__cudnn_alignment(const void *data)
{
    int64_t bits = 16 | (int64_t)(uintptr_t)data;
    return bits & -bits;
}

/* cuDNN's graph of a case; its engines must not outlive it. */
typedef struct tern__cudnn_graph tern__cudnn_graph;

#define TERN__CUDNN_NAME 192

typedef struct tern__cudnn_engine {
    void *plan, *config;         /* NULL: none */
    char name[TERN__CUDNN_NAME]; /* "12:2=1,5=3": number and knobs, the same in all processes */
    size_t workspace;
} tern__cudnn_engine;

/* E_UNSUPPORTED: cuDNN has no such graph. */
int tern__cudnn_graph_new(const tern__call *call, const tern__cudnn_conv *conv, tern__cudnn_graph **graph);
void tern__cudnn_graph_free(tern__cudnn_graph *graph);

/* Receives an engine, to keep or to free; returns false if it wants no more. */
typedef bool tern__cudnn_visit(void *ctx, const tern__cudnn_engine *engine);

/* Visits up to `most` engines that the device's rules allow, best first by cuDNN's heuristics. */
void tern__cudnn_engines(const tern__call *call, tern__cudnn_graph *graph, int most, tern__cudnn_visit *visit,
                         void *ctx);
/* Finds the engine of that name, if it exists and the rules allow it. */
bool tern__cudnn_engine_named(const tern__call *call, tern__cudnn_graph *graph, const char *name,
                              tern__cudnn_engine *engine);
void tern__cudnn_engine_free(tern__cudnn_engine *engine);

/* Puts the engine's plan into the stream. `data` by operand, including the bias if it is in the graph;
 * `workspace` of the engine's size, or NULL for none. */
int tern__cudnn_run(tern__cuda *cuda, void *plan, bool has_bias, void *const data[TERN__CONV_OPERANDS],
                    void *workspace, tern_error *err);

/* "cuDNN 9.14.0". */
void tern__cudnn_version(char *text, size_t size);

/* ---- conv_plan.cc ---- */

/* Runs the engine that is chosen for the case. E_UNSUPPORTED, with nothing computed: the device's rules
 * allow none. */
int tern__conv_run(const tern__call *call, const tern__cudnn_conv *conv);

#endif
