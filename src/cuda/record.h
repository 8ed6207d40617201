/* record.h - what was asked of a device, item by item, and graphs that do it all at once. */
#ifndef TERN_SRC_CUDA_RECORD_H
#define TERN_SRC_CUDA_RECORD_H

#include "cuda/runtime.h"

#include <vector>

/* Items in order. Clearing keeps the memory; what is copied takes no more than is used. */
typedef struct tern__cuda_log {
    struct entry {
        const tern__cuda_kind *kind;
        size_t offset; /* of its bytes */
    };
    std::vector<entry> items;
    std::vector<char> bytes;
    size_t used;
} tern__cuda_log;

void tern__cuda_log_add(tern__cuda_log *log, const tern__cuda_kind *kind, const void *data);
void tern__cuda_log_clear(tern__cuda_log *log);
void tern__cuda_log_copy(tern__cuda_log *to, const tern__cuda_log *from);

/* Of item `i` in two logs that are alike up to there. */
typedef enum tern__cuda_likeness { TERN__OTHER, TERN__ALIKE, TERN__EQUAL } tern__cuda_likeness;
tern__cuda_likeness tern__cuda_log_compare(const tern__cuda_log *a, const tern__cuda_log *b, size_t i);

/* Puts the items from `first` on into the stream; stops at one that cannot be. */
int tern__cuda_log_run(tern__cuda *cuda, const tern__cuda_log *log, size_t first, tern_error *err);

/* A log that was seen, and once it was seen again the graph of it. */
typedef struct tern__cuda_recording {
    tern__cuda_log log;
    cudaGraph_t graph;
    cudaGraphExec_t exec;               /* NULL: none yet */
    std::vector<cudaGraphNode_t> nodes; /* by item; NULL where it cannot be changed */
    bool is_refused;                    /* it has no graph and gets none            */
    bool overlaps;                      /* kernels of its graph do                  */
    uint64_t used;                      /* when last                                */
} tern__cuda_recording;

/* Makes the graph of the recording's log, or refuses: TERN_OK, E_MEMORY, E_SYSTEM. */
int tern__cuda_recording_make(tern__cuda *cuda, tern__cuda_recording *r);
/* Launches it with the bytes that `log` has for the items `changed`, which are the recording's from then on.
 * Where it fails nothing was launched, and the graph is lost; kernels that overlap and were not changed, but
 * for want of memory, get another one. */
int tern__cuda_recording_launch(tern__cuda *cuda, tern__cuda_recording *r, const tern__cuda_log *log,
                                const std::vector<size_t> *changed);
/* Loses the graph. */
void tern__cuda_recording_drop(tern__cuda_recording *r);

#endif
