/* graph.cc - holds back the work given to a device and launches it as graphs.
 *
 * The program runs every step as usual: ops, tape, optimizers, the user's code. Only the last act is
 * saved, putting items into the stream. The items between two ends are a *piece*. An end is a flush (the
 * end of a scope's step, or anything that uses the stream directly: a wait, a copy to the host, another
 * stream), or a maximum number of items: a device that got a step's first item only after its last one was
 * known would be idle meanwhile. A piece that was seen twice is recorded. From then on its items are not
 * run but compared, one by one as they arrive, with those of the recordings. If the piece ends as a
 * recording ends, that recording's graph is launched. Two items match if they are of one kind and differ
 * at most in what a graph's node can be updated with, such as the arguments of a kernel: learning rates,
 * seeds, addresses.
 *
 * If the recordings of a step did not all fit, each would be dropped before it is needed again, and the
 * step would have no graphs. There is room for 1024 short recordings, or 64 of full length. A
 * SyncBatchNorm that reduces through the host cuts a step into pieces of a few items, and ResNet-50 has 53
 * of them.
 *
 * An item that no recording has at its place is a divergence: the items held back are run in order, and
 * the rest of the piece runs at once. So a step may do anything, with the same results and speed as
 * without graphs.
 *
 * Order: the items held back are always the latest. Everything that is put into the stream outside of this
 * file is preceded by a flush, so nothing overtakes them. Memory that is freed while held-back items use
 * it may be reused at once, since its next user is held back after them. The exception is bytes from host
 * memory, which the caller may change when the call returns. They are copied at once, but into a place in
 * `stage`, from where the held-back item takes them. That place is used by this piece only: the stream has
 * passed all items of earlier pieces when the bytes arrive, and bytes of later pieces cannot arrive before
 * this piece's items, which are flushed first. The first item of a piece overtakes nothing and needs no
 * stage, so batches, which are copied at the beginning of a step, are copied once.
 *
 * The lock is for calls from other threads: an allocation that finds no memory (tern__cuda_settle), a
 * replica's device that copies from this one, a group's stream that waits for the step's
 * (tern__cuda_enter). None of them may find the stream being captured. The pool's lock is taken before
 * this one, never after it. */
#include "cuda/graph.h"
#include "cuda/pool.h"
#include "cuda/record.h"

#include <string_view>
#include <unordered_map>

#define PIECE 256               /* most items of a piece */
#define LEAST 4                 /* fewer items are no faster as a graph */
#define ROOM  ((size_t)1 << 14) /* items of all recordings; the least recently used are dropped */
#define COST  ((size_t)16)      /* a recording counts as at least this many */
#define STAGE ((size_t)4 << 20)

/* Lack of device memory for graphs. */
typedef enum shortage { NONE_YET, FELT, ANSWERED } shortage;

struct tern__cuda_graphs {
    std::mutex lock;
    tern__cuda_log log;            /* items of the current piece */
    tern__cuda_recording *follows; /* a recording that matches so far; NULL: items run at once */
    std::vector<size_t> changed;   /* items whose bytes differ from the recording's */
    std::unordered_multimap<size_t, tern__cuda_recording> recordings; /* by their first items */
    size_t recorded; /* sum of what the recordings count as */
    uint64_t clock;
    char *stage;
    size_t staged;
    shortage met;
    tern_error late;
};

tern__cuda_graphs *tern__cuda_graphs_new(void)
{
    return new tern__cuda_graphs();
}

static void forget_all(tern__cuda_graphs *g)
{
    for (auto &entry : g->recordings) tern__cuda_recording_drop(&entry.second);
    g->recordings.clear();
    g->recorded = 0;
}

void tern__cuda_graphs_free(tern__cuda_graphs *graphs)
{
    if (graphs) forget_all(graphs);
    delete graphs;
}

/* ---- recordings ---- */

/* Hashes what is the same in all matching logs. */
static size_t key_of(const tern__cuda_log *log)
{
    const tern__cuda_kind *kind = log->items[0].kind;
    const std::string_view fixed(&log->bytes[log->items[0].offset], kind->fixed);
    return std::hash<std::string_view>()(fixed) ^ std::hash<const void *>()(kind);
}

static size_t cost_of(const tern__cuda_log *log)
{
    return TERN__MAX(log->items.size(), COST);
}

/* Compares item `i` with the recording's; adds it to `changed` if its bytes differ. */
static bool goes_on(tern__cuda_graphs *g, const tern__cuda_recording *r, size_t i)
{
    if (i >= r->log.items.size()) return false;
    tern__cuda_likeness likeness = tern__cuda_log_compare(&g->log, &r->log, i);
    if (likeness == TERN__ALIKE) g->changed.push_back(i);
    return likeness != TERN__OTHER;
}

/* Whether the recording begins with the whole log. */
static bool begins(tern__cuda_graphs *g, const tern__cuda_recording *r)
{
    g->changed.clear();
    bool does = true;
    for (size_t i = 0; i < g->log.items.size() && does; i++) does = goes_on(g, r, i);
    return does;
}

typedef enum sought { GRAPH_THAT_BEGINS, GRAPH, RECORDING } sought;

/* Returns the most recently used recording that begins with the log, or that equals it. */
static tern__cuda_recording *find(tern__cuda_graphs *g, sought what)
{
    tern__cuda_recording *found = nullptr;
    auto alike = g->recordings.equal_range(key_of(&g->log));
    for (auto at = alike.first; at != alike.second; ++at) {
        tern__cuda_recording &r = at->second;
        if (what != RECORDING && !r.exec) continue;
        if (what != GRAPH_THAT_BEGINS && r.log.items.size() != g->log.items.size()) continue;
        if ((!found || r.used > found->used) && begins(g, &r)) found = &r;
    }
    if (found) begins(g, found);
    return found;
}

static void forget_oldest(tern__cuda_graphs *g)
{
    auto oldest = g->recordings.begin();
    for (auto at = oldest; at != g->recordings.end(); ++at)
        if (at->second.used < oldest->second.used) oldest = at;
    g->recorded -= cost_of(&oldest->second.log);
    tern__cuda_recording_drop(&oldest->second);
    g->recordings.erase(oldest);
}

/* Makes a recording of the log. */
static tern__cuda_recording *new_recording(tern__cuda_graphs *g)
{
    g->recorded += cost_of(&g->log);
    while (g->recorded > ROOM) forget_oldest(g);
    return &g->recordings.emplace(key_of(&g->log), tern__cuda_recording())->second;
}

/* Memory that the pool has cached may be in the way: tern__cuda_flush makes the pool release it, once, and
 * all graphs are tried again. */
static void note(tern__cuda_graphs *g, int status)
{
    if (status == TERN_E_MEMORY && g->met == NONE_YET) g->met = FELT;
}

/* Called after a piece has run. The second time it is seen it becomes a graph. */
static void learn(tern__cuda *cuda)
{
    tern__cuda_graphs *g = cuda->graphs;
    if (g->log.items.size() < LEAST) return;
    tern__cuda_recording *r = find(g, RECORDING);
    bool is_again = r != nullptr;
    if (!r) r = new_recording(g);
    r->used = ++g->clock;
    if (r->exec) return;
    tern__cuda_log_copy(&r->log, &g->log);
    if (is_again && !r->is_refused) note(g, tern__cuda_recording_make(cuda, r));
}

/* ---- pieces ---- */

static bool launch(tern__cuda *cuda, tern__cuda_recording *r)
{
    tern__cuda_graphs *g = cuda->graphs;
    int status = tern__cuda_recording_launch(cuda, r, &g->log, &g->changed);
    note(g, status);
    if (!status) r->used = ++g->clock;
    return !status;
}

static int end_held(tern__cuda *cuda, tern_error *err)
{
    tern__cuda_graphs *g = cuda->graphs;
    bool is_whole = g->follows->log.items.size() == g->log.items.size();
    tern__cuda_recording *r = is_whole ? g->follows : find(g, GRAPH);
    if (r && launch(cuda, r)) return TERN_OK;
    int status = tern__cuda_log_run(cuda, &g->log, 0, err);
    if (!status) learn(cuda);
    return status;
}

static int end_piece(tern__cuda *cuda, tern_error *err)
{
    tern__cuda_graphs *g = cuda->graphs;
    int status = TERN_OK;
    if (g->follows)
        status = end_held(cuda, err);
    else
        learn(cuda);
    tern__cuda_log_clear(&g->log);
    g->follows = nullptr;
    g->staged = 0;
    return status;
}

/* Holds the item back, or runs it and all items held back before it. */
static int add(tern__cuda *cuda, const tern__cuda_kind *kind, const void *data, tern_error *err)
{
    tern__cuda_graphs *g = cuda->graphs;
    size_t last = g->log.items.size();
    bool was_held = g->follows || last == 0;
    tern__cuda_log_add(&g->log, kind, data);
    if (g->follows && !goes_on(g, g->follows, last)) g->follows = nullptr;
    if (was_held && !g->follows) g->follows = find(g, GRAPH_THAT_BEGINS);
    int status = g->follows ? TERN_OK : tern__cuda_log_run(cuda, &g->log, was_held ? 0 : last, err);
    return !status && last + 1 == PIECE ? end_piece(cuda, err) : status;
}

/* Reports an error that occurred when there was no caller to tell. */
static int be_late(tern__cuda_graphs *g, tern_error *err)
{
    int status = err ? g->late.code : TERN_OK;
    if (!status) return TERN_OK;
    if (!err->code) *err = g->late;
    g->late = {};
    return status;
}

static bool has_graphs(const tern_device *device)
{
    return device->graphs && tern__cuda_of(device)->has_graphs;
}

int tern__cuda_ask(tern_device *device, const tern__cuda_kind *kind, const void *data, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    if (!has_graphs(device)) {
        cudaSetDevice(cuda->index);
        return kind->run(cuda, data, err);
    }
    std::lock_guard<std::mutex> hold(cuda->graphs->lock);
    int status = be_late(cuda->graphs, err);
    return status ? status : add(cuda, kind, data, err);
}

static int flush(tern__cuda *cuda, tern_error *err)
{
    tern__cuda_graphs *g = cuda->graphs;
    int status = be_late(g, err);
    if (g->log.items.empty()) return status;
    int ended = end_piece(cuda, err ? err : &g->late);
    return status ? status : ended;
}

static bool is_to_make_room(tern__cuda_graphs *g)
{
    bool is = g->met == FELT;
    if (is) g->met = ANSWERED;
    return is;
}

int tern__cuda_flush(tern_device *device, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    bool is_short = false;
    int status = TERN_OK;
    if (has_graphs(device)) {
        std::lock_guard<std::mutex> hold(cuda->graphs->lock);
        status = flush(cuda, err);
        is_short = is_to_make_room(cuda->graphs);
    }
    if (is_short) tern__cuda_pool_give_up(cuda->pool);
    if (status || !err) return status; /* there is no caller to tell */
    return tern__fault_check(cuda->fault, cuda->stream, err);
}

int tern__cuda_enter(tern_device *device, tern__cuda_hold *hold, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    *hold = tern__cuda_hold(cuda->graphs->lock);
    return flush(cuda, err);
}

int tern__cuda_enter_both(tern_device *const devices[2], tern__cuda_hold holds[2], tern_error *err)
{
    int status = TERN_OK;
    for (int i = 0; i < 2; i++)
        holds[i] = tern__cuda_hold(tern__cuda_of(devices[i])->graphs->lock, std::defer_lock);
    std::lock(holds[0], holds[1]);
    for (int i = 0; i < 2 && !status; i++) status = flush(tern__cuda_of(devices[i]), err);
    return status;
}

void tern__cuda_settle(tern__cuda *cuda)
{
    std::lock_guard<std::mutex> hold(cuda->graphs->lock);
    flush(cuda, nullptr);
    cudaSetDevice(cuda->index);
    cudaStreamSynchronize(cuda->stream);
    forget_all(cuda->graphs);
}

/* ---- copies ---- */

static int run_transfer(tern__cuda *cuda, const void *data, tern_error *err)
{
    const tern__cuda_transfer *t = (const tern__cuda_transfer *)data;
    cudaError_t code = cudaMemcpyAsync(t->to, t->from, t->bytes, cudaMemcpyDeviceToDevice, cuda->stream);
    return tern__cuda_check(code, "cudaMemcpyAsync", err);
}

const tern__cuda_kind tern__cuda_transfer_kind = {sizeof(tern__cuda_transfer), sizeof(tern__cuda_transfer),
                                                  run_transfer, nullptr};

/* Returns the next place in the stage, which is allocated at first use; NULL: out of memory, or nothing to
 * overtake. */
static char *stage(tern_device *device, size_t bytes)
{
    tern__cuda_graphs *g = tern__cuda_of(device)->graphs;
    if (g->log.items.empty() || g->staged + bytes > STAGE) return nullptr;
    char *place = g->stage ? g->stage + g->staged : nullptr;
    g->staged += tern__align_up(bytes, 256);
    return place;
}

/* Declared as a copy from host memory. If the runtime had to look that up on a GPU that can access all
 * memory, it might let the GPU read pageable memory later. */
static int take(tern__cuda *cuda, const tern__cuda_transfer *t, tern_error *err)
{
    cudaError_t code = cudaMemcpyAsync(t->to, t->from, t->bytes, cudaMemcpyHostToDevice, cuda->stream);
    return tern__cuda_check(code, "cudaMemcpyAsync", err);
}

/* Waits until the bytes are read. For pageable memory they are when the runtime's call returns; pinned
 * memory is read by the device. */
static int be_read(tern__cuda *cuda, const void *from, tern_error *err)
{
    cudaPointerAttributes a;
    bool is_pinned = cudaPointerGetAttributes(&a, from) == cudaSuccess && a.type == cudaMemoryTypeHost;
    return is_pinned ? tern__cuda_check(cudaStreamSynchronize(cuda->stream), "cudaStreamSynchronize", err)
                     : TERN_OK;
}

int tern__cuda_bring(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    tern__cuda_graphs *g = cuda->graphs;
    if (has_graphs(device) && !g->stage) g->stage = (char *)device->backend->alloc(device, STAGE);
    std::lock_guard<std::mutex> hold(g->lock);
    char *place = has_graphs(device) ? stage(device, bytes) : nullptr;
    int status = place ? be_late(g, err) : has_graphs(device) ? flush(cuda, err) : TERN_OK;
    const tern__cuda_transfer there = {place ? place : to, from, bytes};
    alignas(16) const tern__cuda_transfer on = {to, place, bytes};
    cudaSetDevice(cuda->index);
    if (!status) status = take(cuda, &there, err);
    if (!status) status = be_read(cuda, from, err);
    return status || !place ? status : add(cuda, &tern__cuda_transfer_kind, &on, err);
}
