/* record.h - logs of the items given to a device, and graphs that launch a whole log. */
#ifndef TERN_SRC_CUDA_RECORD_H
#define TERN_SRC_CUDA_RECORD_H

#include "cuda/runtime.h"

#include <vector>

/* Items in order. Clearing keeps the memory; a copy allocates only what is used. */
typedef struct tern__cuda_log {
    struct entry {
        const tern__cuda_kind *kind;
        size_t offset; /* of its data */
    };
    std::vector<entry> items;
    std::vector<char> bytes;
    size_t used;
} tern__cuda_log;

void tern__cuda_log_add(tern__cuda_log *log, const tern__cuda_kind *kind, const void *data);
void tern__cuda_log_clear(tern__cuda_log *log);
void tern__cuda_log_copy(tern__cuda_log *to, const tern__cuda_log *from);

/* How item `i` of two logs compares, which match up to there. */
typedef enum tern__cuda_likeness { TERN__OTHER, TERN__ALIKE, TERN__EQUAL } tern__cuda_likeness;
tern__cuda_likeness tern__cuda_log_compare(const tern__cuda_log *a, const tern__cuda_log *b, size_t i);

/* Puts the items from `first` on into the stream; stops at the first that fails. */
int tern__cuda_log_run(tern__cuda *cuda, const tern__cuda_log *log, size_t first, tern_error *err);

/* A log that was seen, and, once it was seen again, its graph. */
typedef struct tern__cuda_recording {
    tern__cuda_log log;
    cudaGraph_t graph;
    cudaGraphExec_t exec;               /* NULL: no graph yet */
    std::vector<cudaGraphNode_t> nodes; /* by item; NULL: it cannot be changed */
    bool is_refused;                    /* it cannot have a graph */
    bool overlaps;                      /* kernels of the graph overlap */
    uint64_t used;                      /* time of last use */
} tern__cuda_recording;

/* Makes the graph of the recording's log, or marks it refused: TERN_OK, E_MEMORY, E_SYSTEM. */
int tern__cuda_recording_make(tern__cuda *cuda, tern__cuda_recording *r);
/* Launches the graph with the data in `log` for the items in `changed`, which become the recording's. On
 * failure nothing was launched and the graph is dropped. Overlapping kernels that could not be updated,
 * for another reason than memory, get another graph. */
int tern__cuda_recording_launch(tern__cuda *cuda, tern__cuda_recording *r, const tern__cuda_log *log,
                                const std::vector<size_t> *changed);
/* Drops the graph. */
void tern__cuda_recording_drop(tern__cuda_recording *r);

#endif
