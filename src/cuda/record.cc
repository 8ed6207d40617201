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

/* The node that was captured last: a stream's order is a line, so what comes next hangs on it alone. */
static bool last_node(cudaStream_t stream, cudaGraphNode_t *node)
{
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t *nodes;
    const cudaGraphEdgeData *edges; /* kernels that overlap have some, which may not be passed over */
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

static bool capture_items(tern__cuda *cuda, tern__cuda_recording *r)
{
    tern_error unheard = {};
    bool is_well = true;
    r->nodes.assign(r->log.items.size(), nullptr);
    for (size_t i = 0; i < r->log.items.size() && is_well; i++) {
        const auto &item = r->log.items[i];
        is_well = item.kind->run(cuda, &r->log.bytes[item.offset], &unheard) == TERN_OK &&
                  (!item.kind->change || last_node(cuda->stream, &r->nodes[i]));
    }
    return is_well;
}

/* Nothing runs while it is captured. Only this thread's calls are restricted meanwhile: others may work on
 * other devices. */
static bool capture(tern__cuda *cuda, tern__cuda_recording *r)
{
    cudaSetDevice(cuda->index);
    if (cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return false;
    bool is_well = capture_items(cuda, r);
    is_well = cudaStreamEndCapture(cuda->stream, &r->graph) == cudaSuccess && is_well;
    return is_well && cudaGraphInstantiate(&r->exec, r->graph, 0) == cudaSuccess;
}

/* The nodes are the graph's, by which the executable one knows them: it stays. */
void tern__cuda_recording_drop(tern__cuda_recording *r)
{
    if (r->exec) cudaGraphExecDestroy(r->exec);
    if (r->graph) cudaGraphDestroy(r->graph);
    r->exec = nullptr;
    r->graph = nullptr;
}

static bool try_capture(tern__cuda *cuda, tern__cuda_recording *r)
{
    if (capture(cuda, r)) return true;
    tern__cuda_recording_drop(r);
    cudaGetLastError(); /* which is nobody else's */
    return false;
}

/* Reports have it that some GPUs do not capture kernels that overlap: theirs do not from then on. */
void tern__cuda_recording_make(tern__cuda *cuda, tern__cuda_recording *r)
{
    bool overlapped = cuda->overlaps;
    r->is_refused = !try_capture(cuda, r);
    r->overlaps = overlapped && !r->is_refused;
    if (!r->is_refused || !overlapped) return;
    cuda->overlaps = false;
    r->is_refused = !try_capture(cuda, r);
    cuda->overlaps = r->is_refused;
}

static bool change(tern__cuda_recording *r, const tern__cuda_log *log, const std::vector<size_t> *changed)
{
    bool is_well = true;
    for (size_t i = 0; i < changed->size() && is_well; i++) {
        const auto &item = log->items[(*changed)[i]];
        is_well =
            item.kind->change(&log->bytes[item.offset], r->exec, r->nodes[(*changed)[i]]) == cudaSuccess;
    }
    return is_well;
}

/* Alike, they lie at the same places. */
static void take(tern__cuda_recording *r, const tern__cuda_log *log, const std::vector<size_t> *changed)
{
    for (size_t i : *changed) {
        const auto &item = log->items[i];
        std::memcpy(&r->log.bytes[item.offset], &log->bytes[item.offset], item.kind->size);
    }
}

bool tern__cuda_recording_launch(tern__cuda *cuda, tern__cuda_recording *r, const tern__cuda_log *log,
                                 const std::vector<size_t> *changed)
{
    cudaSetDevice(cuda->index);
    bool is_changed = change(r, log, changed);
    if (is_changed && cudaGraphLaunch(r->exec, cuda->stream) == cudaSuccess) {
        take(r, log, changed);
        return true;
    }
    tern__cuda_recording_drop(r);
    r->is_refused = is_changed || !r->overlaps;
    if (!r->is_refused) cuda->overlaps = false;
    cudaGetLastError();
    return false;
}
