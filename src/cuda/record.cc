/* record.cc - logs of items, and graphs captured from them. */
#include "cuda/record.h"

/* ---- logs ---- */

void tern__cuda_log_add(tern__cuda_log *log, const tern__cuda_kind *kind, const void *data)
{
    size_t offset = log->used;
    log->used += tern__align_up(kind->size, 16);
    if (log->used > log->bytes.size()) log->bytes.resize(2 * log->used);
    std::memcpy(&log->bytes[offset], data, kind->size);
    log->items.push_back({kind, offset});
}

void tern__cuda_log_clear(tern__cuda_log *log)
{
    log->items.clear();
    log->used = 0;
}

void tern__cuda_log_copy(tern__cuda_log *to, const tern__cuda_log *from)
{
    to->items = from->items;
    to->bytes.assign(from->bytes.begin(), from->bytes.begin() + (ptrdiff_t)from->used);
    to->used = from->used;
}

tern__cuda_likeness tern__cuda_log_compare(const tern__cuda_log *a, const tern__cuda_log *b, size_t i)
{
    const tern__cuda_kind *kind = a->items[i].kind;
    const char *one = &a->bytes[a->items[i].offset], *other = &b->bytes[b->items[i].offset];
    if (kind != b->items[i].kind || std::memcmp(one, other, kind->fixed) != 0) return TERN__OTHER;
    size_t rest = kind->size - kind->fixed;
    return std::memcmp(one + kind->fixed, other + kind->fixed, rest) ? TERN__ALIKE : TERN__EQUAL;
}

int tern__cuda_log_run(tern__cuda *cuda, const tern__cuda_log *log, size_t first, tern_error *err)
{
    int status = TERN_OK;
    cudaSetDevice(cuda->index);
    for (size_t i = first; i < log->items.size() && !status; i++)
        status = log->items[i].kind->run(cuda, &log->bytes[log->items[i].offset], err);
    return status;
}

/* ---- graphs ---- */

/* Returns the node that was captured last. A stream is sequential, so the next node depends on it alone. */
static bool last_node(cudaStream_t stream, cudaGraphNode_t *node)
{
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t *nodes;
    const cudaGraphEdgeData *edges; /* overlapping kernels have edge data, which must not be dropped */
    size_t count = 0;
#if CUDART_VERSION >= 13000
    cudaError_t code = cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, &edges, &count);
#else
    cudaError_t code = cudaStreamGetCaptureInfo_v3(stream, &status, nullptr, nullptr, &nodes, &edges, &count);
#endif
    bool is_known = code == cudaSuccess && status == cudaStreamCaptureStatusActive && count == 1;
    if (is_known) *node = nodes[0];
    return is_known;
}

static int capture_items(tern__cuda *cuda, tern__cuda_recording *r)
{
    tern_error unheard = {};
    int status = TERN_OK;
    r->nodes.assign(r->log.items.size(), nullptr);
    for (size_t i = 0; i < r->log.items.size() && !status; i++) {
        const auto &item = r->log.items[i];
        status = item.kind->run(cuda, &r->log.bytes[item.offset], &unheard);
        if (!status && item.kind->change && !last_node(cuda->stream, &r->nodes[i])) status = TERN_E_SYSTEM;
    }
    return status;
}

/* Captures the log; nothing runs meanwhile. Only this thread's calls are restricted: others may use other
 * devices. */
static int capture(tern__cuda *cuda, tern__cuda_recording *r)
{
    cudaSetDevice(cuda->index);
    cudaError_t code = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal);
    if (code != cudaSuccess) return tern__cuda_status(code);
    int status = capture_items(cuda, r);
    code = cudaStreamEndCapture(cuda->stream, &r->graph);
    if (!status && code == cudaSuccess) code = cudaGraphInstantiate(&r->exec, r->graph, 0);
    return status ? status : tern__cuda_status(code);
}

/* The executable graph is updated through the nodes of the original, so that is kept as well. */
void tern__cuda_recording_drop(tern__cuda_recording *r)
{
    if (r->exec) cudaGraphExecDestroy(r->exec);
    if (r->graph) cudaGraphDestroy(r->graph);
    r->exec = nullptr;
    r->graph = nullptr;
}

static int try_capture(tern__cuda *cuda, tern__cuda_recording *r)
{
    int status = capture(cuda, r);
    if (!status) return TERN_OK;
    tern__cuda_recording_drop(r);
    cudaGetLastError(); /* clears the error, which later calls must not see */
    return status;
}

/* Some GPUs are reported not to capture overlapping kernels. After such a failure kernels no longer
 * overlap there. A lack of memory says nothing about that. */
int tern__cuda_recording_make(tern__cuda *cuda, tern__cuda_recording *r)
{
    bool overlapped = cuda->overlaps;
    int status = try_capture(cuda, r);
    if (status && status != TERN_E_MEMORY && overlapped) {
        cuda->overlaps = false;
        status = try_capture(cuda, r);
        cuda->overlaps = status != TERN_OK;
    }
    r->overlaps = cuda->overlaps;
    r->is_refused = status != TERN_OK;
    return status;
}

static cudaError_t change(tern__cuda_recording *r, const tern__cuda_log *log,
                          const std::vector<size_t> *changed)
{
    cudaError_t code = cudaSuccess;
    for (size_t i = 0; i < changed->size() && code == cudaSuccess; i++) {
        const auto &item = log->items[(*changed)[i]];
        code = item.kind->change(&log->bytes[item.offset], r->exec, r->nodes[(*changed)[i]]);
    }
    return code;
}

/* Matching items are at the same offsets. */
static void take(tern__cuda_recording *r, const tern__cuda_log *log, const std::vector<size_t> *changed)
{
    for (size_t i : *changed) {
        const auto &item = log->items[i];
        std::memcpy(&r->log.bytes[item.offset], &log->bytes[item.offset], item.kind->size);
    }
}

int tern__cuda_recording_launch(tern__cuda *cuda, tern__cuda_recording *r, const tern__cuda_log *log,
                                const std::vector<size_t> *changed)
{
    cudaSetDevice(cuda->index);
    cudaError_t code = change(r, log, changed);
    bool is_changed = code == cudaSuccess;
    if (is_changed) code = cudaGraphLaunch(r->exec, cuda->stream);
    int status = tern__cuda_status(code);
    if (!status) {
        take(r, log, changed);
        return TERN_OK;
    }
    tern__cuda_recording_drop(r);
    r->is_refused = is_changed || !r->overlaps || status == TERN_E_MEMORY;
    if (!r->is_refused) cuda->overlaps = false;
    cudaGetLastError();
    return status;
}
