/* graph.cc - what is asked of a device, held back and launched as graphs.
 *
 * The program runs in every step as ever: ops, tape, optimizers, what the user wrote. Only its last act, to
 * put items into the stream, is saved. The items between two ends are a *piece*: an end is a flush (the end
 * of a scope's step, and whatever looks at the stream: a wait, a copy to the host, another stream), or so
 * many items, since a device that waits for the last item of a step before it begins with the first would be
 * idle while the host computes nothing. A piece that was seen twice alike is recorded. From then on its items
 * are not run but compared, one by one as they are asked, with those of the recordings; and when the piece
 * ends as one of them does that one's graph is launched. Alike are items of one kind that differ at most in
 * what a node of a graph can be told anew, as the arguments of a kernel: learning rates, seeds, addresses.
 *
 * A step whose recordings have no room beside each other would lose each of them before it comes again, and
 * have no graph. There is room for 1024 short ones, or 64 of full length: a SyncBatchNorm cuts a step into
 * pieces of a few items where its sums go over by way of the host, and ResNet-50 has 53 of them.
 *
 * An item that no recording has at its place is a divergence: what was held back is run, in order, and the
 * rest of the piece at once. So a step may do what it likes, and be as right and as fast as without graphs.
 *
 * Order: held back is always the end of what was asked, so all that goes into the stream outside of this file
 * is preceded by a flush, and nothing is overtaken. Memory that is freed while items that use it are held
 * back may be given out at once, for its next user is held back behind them. There is one that overtakes,
 * bytes from the host's memory: they are the host's again when the call returns. So they go at once, not to
 * where they are wanted but to a place in `stage`, from where the item that is held back will take them. That
 * place is of this piece alone: the stream has come past all earlier pieces' items when the bytes arrive, and
 * no later piece's bytes can come before this piece's items, which were flushed. The first item of a piece
 * overtakes nothing and needs no stage, so batches, which come at the beginning of a step, are copied once.
 *
 * The lock is for those who come from other threads: an allocation that finds no memory (tern__cuda_settle),
 * a replica's device that copies from this one, a group's stream that follows the step's (tern__cuda_enter).
 * None may find the stream while it is captured. The pool's lock is taken before this one and never after it.
 */
#include "cuda/graph.h"
#include "cuda/pool.h"
#include "cuda/record.h"

#include <string_view>
#include <unordered_map>

#define PIECE 256               /* items at most                                      */
#define LEAST 4                 /* fewer are no quicker as a graph                    */
#define ROOM  ((size_t)1 << 14) /* items of all recordings: those used longest ago go */
#define COST  ((size_t)16)      /* as many a recording counts for, if it has fewer    */
#define STAGE ((size_t)4 << 20)

/* Of the device's memory, for a graph. */
typedef enum shortage { NONE_YET, FELT, ANSWERED } shortage;

struct tern__cuda_graphs {
    std::mutex lock;
    tern__cuda_log log;            /* of this piece                                              */
    tern__cuda_recording *follows; /* the recording that begins as it does; NULL: it runs at once */
    std::vector<size_t> changed;   /* items whose bytes are not the recording's                  */
    std::unordered_multimap<size_t, tern__cuda_recording> recordings; /* by how they begin   */
    size_t recorded;                                                  /* what they count for */
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

/* Of what is the same in all that are alike. */
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

/* Compares item `i`, and notes it where it has changed. */
static bool goes_on(tern__cuda_graphs *g, const tern__cuda_recording *r, size_t i)
{
    if (i >= r->log.items.size()) return false;
    tern__cuda_likeness likeness = tern__cuda_log_compare(&g->log, &r->log, i);
    if (likeness == TERN__ALIKE) g->changed.push_back(i);
    return likeness != TERN__OTHER;
}

/* Does it begin with the whole log? */
static bool begins(tern__cuda_graphs *g, const tern__cuda_recording *r)
{
    g->changed.clear();
    bool does = true;
    for (size_t i = 0; i < g->log.items.size() && does; i++) does = goes_on(g, r, i);
    return does;
}

typedef enum sought { GRAPH_THAT_BEGINS, GRAPH, RECORDING } sought;

/* The one that was used last of those that begin as the log does, or are all that it is. */
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

/* For the log. */
static tern__cuda_recording *new_recording(tern__cuda_graphs *g)
{
    g->recorded += cost_of(&g->log);
    while (g->recorded > ROOM) forget_oldest(g);
    return &g->recordings.emplace(key_of(&g->log), tern__cuda_recording())->second;
}

/* What the pool has cached may be in the way: tern__cuda_flush has it given up, once, and all graphs are
 * tried again. */
static void note(tern__cuda_graphs *g, int status)
{
    if (status == TERN_E_MEMORY && g->met == NONE_YET) g->met = FELT;
}

/* Of a piece that has run: the second of its like becomes a graph. */
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

/* Holds it back, or runs it and all before it that was held back. */
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

/* What failed when nobody could be told. */
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
    if (status || !err) return status; /* nobody would hear */
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

/* The next place in the stage, made with its first use; NULL where there is none, or nothing to overtake. */
static char *stage(tern_device *device, size_t bytes)
{
    tern__cuda_graphs *g = tern__cuda_of(device)->graphs;
    if (g->log.items.empty() || g->staged + bytes > STAGE) return nullptr;
    char *place = g->stage ? g->stage + g->staged : nullptr;
    g->staged += tern__align_up(bytes, 256);
    return place;
}

/* Said to be from the host's memory: where a GPU reaches all memory, the runtime, if it is to look that up,
 * might leave pageable memory to the GPU, which reads it later. */
static int take(tern__cuda *cuda, const tern__cuda_transfer *t, tern_error *err)
{
    cudaError_t code = cudaMemcpyAsync(t->to, t->from, t->bytes, cudaMemcpyHostToDevice, cuda->stream);
    return tern__cuda_check(code, "cudaMemcpyAsync", err);
}

/* The runtime has read pageable memory when its call returns; pinned memory the device reads by itself. */
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
