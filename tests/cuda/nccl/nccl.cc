/* nccl.cc - NCCL between processes through a file that all of them map. Collectives are numbered. Each
 * rank writes its call and its data into one of its two slots, in turn, and marks its arrival. When all
 * have arrived, each computes the result for itself. A rank that arrives at collective n is done with n -
 * 1, for which all others had arrived, so all are done with n - 2 and its slot is free. Between two ranks
 * there is a slot for each direction. */
#include <nccl.h>

#include "base/half.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <sys/random.h>
#include <thread>
#include <unistd.h>
#include <vector>

#define RANKS 8
#define ROOM  ((size_t)4 << 20)

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV };

/* What all ranks must pass identically; only the factor differs. */
struct asked {
    int kind, type, op, root;
    size_t count, is_registered;
};
struct place {
    asked what;
    double factor;
};
struct file {
    std::atomic<int> joined, begun, finalized;
    std::atomic<uint64_t> arrived[RANKS];
    place places[RANKS][2];
    std::atomic<uint64_t> sent[RANKS][RANKS], taken[RANKS][RANKS];
};
static const size_t head = (sizeof(file) + 4095) / 4096 * 4096;
static const size_t all_bytes = head + (2 * RANKS + RANKS * RANKS) * ROOM;

struct range {
    const char *at;
    size_t bytes;
};
struct state {
    int rank, world;
    char name[64];
    file *shared;
    uint64_t collectives;
    std::atomic<bool> aborted;
    std::atomic<int> under_way, asking;
    bool has_begun, is_finalized;
    int64_t busy_until; /* by the latest call, in microseconds */
    std::vector<range *> registered;
    std::vector<double> factors; /* of premul ops; NAN: destroyed */
    ~state()
    {
        for (range *r : registered) delete r;
        shm_unlink(name);
        munmap(shared, all_bytes);
    }
};
struct ncclComm {
    std::shared_ptr<state> s;
};

/* A call, until it is done. */
struct call {
    asked what;
    double factor;
    const char *from;
    char *to;
    uint64_t number;
    bool is_done;
};

[[noreturn]] static void stop(const char *what)
{
    std::fprintf(stderr, "emulated: %s\n", what);
    std::abort();
}

static char *data_of(const state &s, int rank, uint64_t number)
{
    return (char *)s.shared + head + ((size_t)rank * 2 + number % 2) * ROOM;
}

static char *data_between(const state &s, int from, int to)
{
    return (char *)s.shared + head + (2 * RANKS + (size_t)from * RANKS + (size_t)to) * ROOM;
}

/* ---- elements ---- */

static size_t size_of(int type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclFloat32: return 4;
    default: return 8;
    }
}

struct f16 {
    uint16_t bits;
    operator float() const
    {
        return tern__f16_to_f32(bits);
    }
    f16(float x) : bits(tern__f16_from_f32(x))
    {
    }
    f16() = default;
};
struct bf16 {
    uint16_t bits;
    operator float() const
    {
        return tern__bf16_to_f32(bits);
    }
    bf16(float x) : bits(tern__bf16_from_f32(x))
    {
    }
    bf16() = default;
};

/* Rounds after every rank, as in a ring. W: type of the computation. */
template <class T, class W>
static void reduce_all(const state &s, const call &c, size_t first, size_t count, char *out)
{
    std::vector<T> result(count);
    for (int rank = 0; rank < s.world; rank++) {
        const T *x = (const T *)data_of(s, rank, c.number) + first;
        double factor = s.shared->places[rank][c.number % 2].factor;
        for (size_t i = 0; i < count; i++) {
            W more = (W)x[i], so_far = (W)result[i];
            if (c.what.op >= ncclNumOps) more = (W)(T)(more * (W)(T)(W)factor);
            if (rank == 0)
                result[i] = (T)more;
            else if (c.what.op == ncclProd)
                result[i] = (T)(so_far * more);
            else if (c.what.op == ncclMax)
                result[i] = (T)(so_far < more ? more : so_far);
            else if (c.what.op == ncclMin)
                result[i] = (T)(more < so_far ? more : so_far);
            else
                result[i] = (T)(so_far + more);
        }
    }
    std::memcpy(out, result.data(), count * sizeof(T));
}

static void reduce_typed(const state &s, const call &c, size_t first, size_t count, char *out)
{
    switch (c.what.type) {
    case ncclUint8: reduce_all<uint8_t, uint8_t>(s, c, first, count, out); break;
    case ncclInt8: reduce_all<int8_t, int>(s, c, first, count, out); break;
    case ncclInt32:
        if (c.what.op == ncclSum || c.what.op == ncclProd)
            reduce_all<uint32_t, uint32_t>(s, c, first, count, out);
        else
            reduce_all<int32_t, int32_t>(s, c, first, count, out);
        break;
    case ncclInt64:
        if (c.what.op == ncclSum || c.what.op == ncclProd)
            reduce_all<uint64_t, uint64_t>(s, c, first, count, out);
        else
            reduce_all<int64_t, int64_t>(s, c, first, count, out);
        break;
    case ncclFloat16: reduce_all<f16, float>(s, c, first, count, out); break;
    case ncclBfloat16: reduce_all<bf16, float>(s, c, first, count, out); break;
    case ncclFloat32: reduce_all<float, float>(s, c, first, count, out); break;
    default: reduce_all<double, double>(s, c, first, count, out);
    }
}

/* ---- collectives ---- */

static size_t given(const state &s, const call &c)
{
    size_t count = c.what.count * (c.what.kind == REDUCE_SCATTER ? (size_t)s.world : 1);
    return c.what.kind == BROADCAST && c.what.root != s.rank ? 0 : count * size_of(c.what.type);
}

static void arrive(state &s, call &c)
{
    c.number = ++s.collectives;
    s.shared->places[s.rank][c.number % 2] = {c.what, c.factor};
    std::memcpy(data_of(s, s.rank, c.number), c.from, given(s, c));
    s.shared->arrived[s.rank] = c.number;
}

/* Whether all ranks have arrived with the same call; with different calls this never happens. */
static bool all_are_there(const state &s, const call &c)
{
    for (int rank = 0; rank < s.world; rank++) {
        if (s.shared->arrived[rank] < c.number) return false;
        if (std::memcmp(&s.shared->places[rank][c.number % 2].what, &c.what, sizeof(c.what))) return false;
    }
    return true;
}

static void take(const state &s, const call &c)
{
    size_t bytes = c.what.count * size_of(c.what.type);
    switch (c.what.kind) {
    case ALL_REDUCE: reduce_typed(s, c, 0, c.what.count, c.to); break;
    case REDUCE:
        if (c.what.root == s.rank) reduce_typed(s, c, 0, c.what.count, c.to);
        break;
    case REDUCE_SCATTER: reduce_typed(s, c, (size_t)s.rank * c.what.count, c.what.count, c.to); break;
    case BROADCAST: std::memcpy(c.to, data_of(s, c.what.root, c.number), bytes); break;
    default:
        for (int rank = 0; rank < s.world; rank++)
            std::memcpy(c.to + (size_t)rank * bytes, data_of(s, rank, c.number), bytes);
    }
}

static bool poll_collective(state &s, call &c)
{
    if (!c.number) arrive(s, c);
    if (!all_are_there(s, c)) return false;
    take(s, c);
    return true;
}

/* ---- between two ranks ---- */

/* A send is done when it was received: NCCL stores no more than its buffers hold. */
static bool poll_send(const state &s, call &c)
{
    std::atomic<uint64_t> &sent = s.shared->sent[s.rank][c.what.root];
    const std::atomic<uint64_t> &taken = s.shared->taken[s.rank][c.what.root];
    char *between = data_between(s, s.rank, c.what.root);
    if (!c.number && sent == taken) {
        std::memcpy(between, &c.what.count, sizeof(c.what.count));
        std::memcpy(between + 64, c.from, c.what.count * size_of(c.what.type));
        c.number = ++sent;
    }
    return c.number && taken >= c.number;
}

static bool poll_recv(const state &s, const call &c)
{
    const std::atomic<uint64_t> &sent = s.shared->sent[c.what.root][s.rank];
    std::atomic<uint64_t> &taken = s.shared->taken[c.what.root][s.rank];
    const char *between = data_between(s, c.what.root, s.rank);
    if (sent == taken || std::memcmp(between, &c.what.count, sizeof(c.what.count))) return false;
    std::memcpy(c.to, between + 64, c.what.count * size_of(c.what.type));
    taken++;
    return true;
}

static bool poll_pair(const state &s, call &c)
{
    return c.what.kind == SEND ? poll_send(s, c) : poll_recv(s, c);
}

/* ---- what is in progress ---- */

static int64_t now_us()
{
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

static void be_busy(state &s)
{
    s.busy_until = now_us() + 300;
}

static bool is_in_progress(const state &s)
{
    return s.asking || s.shared->joined < s.world || (s.has_begun && s.shared->begun < s.world) ||
           now_us() < s.busy_until;
}

/* ---- works in a stream ---- */

/* The calls of a group. Collectives run one after the other, the rest concurrently. */
struct work {
    std::shared_ptr<state> s;
    const emulated_library *library;
    std::vector<call> calls;
};

static bool is_over(work &w)
{
    bool all = true, waits = false;
    if (w.s->aborted) return true;
    w.library->memory_open();
    for (call &c : w.calls) {
        bool is_pair = c.what.kind >= SEND;
        if (!c.is_done && (is_pair || !waits))
            c.is_done = is_pair ? poll_pair(*w.s, c) : poll_collective(*w.s, c);
        waits |= !is_pair && !c.is_done;
        all &= c.is_done;
    }
    w.library->memory_close();
    return all;
}

static bool poll_work(work &w)
{
    bool over = is_over(w);
    if (over) w.s->under_way--;
    return over;
}

static thread_local int depth;
static thread_local std::shared_ptr<work> asked_so_far;
static thread_local cudaStream_t asked_in;

/* NCCL has its own thread for calls on a non-blocking communicator: until it is done the work may not be
 * in the stream, and works of other communicators may come first. */
static void launch(std::shared_ptr<work> w, cudaStream_t stream)
{
    unsigned short drawn = 0;
    if (getrandom(&drawn, sizeof(drawn), 0) < 0) stop("getrandom");
    usleep(drawn % 300);
    w->library->enqueue(stream, [w] { return poll_work(*w); });
    w->s->asking--;
}

static ncclResult_t flush()
{
    std::shared_ptr<work> w = std::move(asked_so_far);
    asked_so_far = nullptr;
    if (!w) return ncclSuccess;
    w->s->under_way++;
    w->s->asking++;
    std::thread(launch, w, asked_in).detach();
    if (!w->s->has_begun) w->s->shared->begun++;
    w->s->has_begun = true;
    return ncclInProgress;
}

static bool is_registered(const state &s, const char *data)
{
    for (const range *r : s.registered)
        if (!data || (data >= r->at && data < r->at + r->bytes)) return true;
    return false;
}

static ncclResult_t ask(ncclComm_t comm, cudaStream_t stream, call c)
{
    const emulated_library *library = emulated_library_of(stream);
    size_t bytes = c.what.count * size_of(c.what.type);
    if (!comm || is_in_progress(*comm->s) || c.what.root < 0 || c.what.root >= comm->s->world)
        return ncclInvalidUsage;
    if (bytes * (size_t)comm->s->world + 64 > ROOM) return ncclInvalidArgument;
    if (c.from && !library->memory_has(c.from)) return ncclInvalidArgument;
    if (c.to && !library->memory_has(c.to)) return ncclInvalidArgument;
    for (const range *r : comm->s->registered)
        if (!library->memory_is_one(r->at, r->bytes)) return ncclInvalidArgument;
    c.what.is_registered = is_registered(*comm->s, c.from) && is_registered(*comm->s, c.to);
    if (asked_so_far && (asked_so_far->s != comm->s || asked_in != stream)) return ncclInvalidUsage;
    if (!asked_so_far) asked_so_far = std::make_shared<work>(work{comm->s, library, {}});
    asked_in = stream;
    asked_so_far->calls.push_back(c);
    return depth ? ncclSuccess : flush();
}

/* ---- aborting ---- */

static std::mutex own_lock;
static std::vector<std::shared_ptr<state>> own; /* of this process, not aborted */
static thread_local std::vector<std::shared_ptr<state>> given_up;

static bool is_any_under_way()
{
    std::lock_guard<std::mutex> hold(own_lock);
    bool any = false;
    for (const auto &s : own) any |= s->under_way > 0;
    return any;
}

static void leave(const std::shared_ptr<state> &s)
{
    std::lock_guard<std::mutex> hold(own_lock);
    own.erase(std::find(own.begin(), own.end(), s));
}

static void wait_for_peers(const state &s, const char *why)
{
    for (int ms = 0; s.shared->finalized < s.world; ms++) {
        if (ms == 20000) stop(why);
        usleep(1000);
    }
}

/* Aborting a communicator frees its memory, which waits for all the device's work; and for the peers, if
 * the driver has no host memory that NCCL could use without them. */
static void reclaim()
{
    for (int ms = 0; !given_up.empty() && is_any_under_way(); ms++) {
        if (ms == 5000) stop("a communicator is given up and waits for another one that hangs");
        usleep(1000);
    }
    for (const auto &s : given_up)
        if (std::getenv("EMULATED_NCCL_ABORT_WAITS"))
            wait_for_peers(*s, "a communicator is given up that peers have not");
    given_up.clear();
}

ncclResult_t ncclGroupStart()
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    if (--depth) return ncclSuccess;
    reclaim();
    return flush();
}

/* ---- calls ---- */

static call make(kind k, const void *from, void *to, size_t count, ncclDataType_t type, int root)
{
    call c = {};
    c.what.kind = k;
    c.what.type = type;
    c.what.root = root;
    c.what.count = count;
    c.from = (const char *)from;
    c.to = (char *)to;
    return c;
}

static ncclResult_t ask_reduce(ncclComm_t comm, cudaStream_t stream, call c, ncclRedOp_t op)
{
    bool is_made = op >= ncclNumOps;
    size_t index = (size_t)op - ncclNumOps;
    if (op == ncclAvg) return ncclInvalidArgument;
    if (is_made && (index >= comm->s->factors.size() || std::isnan(comm->s->factors[index])))
        return ncclInvalidArgument;
    if (is_made) c.factor = comm->s->factors[index];
    c.what.op = is_made ? (int)ncclNumOps : (int)op;
    return ask(comm, stream, c);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    return ask_reduce(comm, stream, make(REDUCE, from, to, count, type, root), op);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return ask_reduce(comm, stream, make(ALL_REDUCE, from, to, count, type, 0), op);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return ask_reduce(comm, stream, make(REDUCE_SCATTER, from, to, count, type, 0), op);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return ask(comm, stream, make(BROADCAST, from, to, count, type, root));
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return ask(comm, stream, make(ALL_GATHER, from, to, count, type, 0));
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return ask(comm, stream, make(SEND, from, nullptr, count, type, peer));
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return ask(comm, stream, make(RECV, nullptr, to, count, type, peer));
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *factor, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm)
{
    std::vector<double> &factors = comm->s->factors;
    size_t place = 0;
    while (place < factors.size() && !std::isnan(factors[place])) place++;
    if (place == factors.size()) factors.push_back(0);
    factors[place] = type == ncclFloat64    ? *(const double *)factor
                     : type == ncclFloat32  ? *(const float *)factor
                     : type == ncclBfloat16 ? tern__bf16_to_f32(*(const uint16_t *)factor)
                                            : tern__f16_to_f32(*(const uint16_t *)factor);
    *op = (ncclRedOp_t)((size_t)ncclNumOps + place);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    comm->s->factors[(size_t)op - ncclNumOps] = NAN;
    return ncclSuccess;
}

/* ---- registered memory ---- */

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *data, size_t bytes, void **handle)
{
    const char *may = std::getenv("NCCL_LOCAL_REGISTER");
    *handle = nullptr;
    if (is_in_progress(*comm->s)) stop("memory is registered while something is in progress");
    if (may && !std::strcmp(may, "0")) return ncclSuccess;
    comm->s->registered.push_back(new range{(const char *)data, bytes});
    *handle = comm->s->registered.back();
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    std::vector<range *> &all = comm->s->registered;
    size_t i = 0;
    while (i < all.size() && all[i] != handle) i++;
    if (i == all.size()) stop("what was not registered is given up");
    if (is_in_progress(*comm->s)) stop("memory is given up while something is in progress");
    if (comm->s->under_way) stop("registered memory is given up while it may be moved");
    delete all[i];
    all.erase(all.begin() + (long)i);
    return ncclSuccess;
}

/* ---- communicators ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = 0;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    uint64_t number;
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) return ncclSystemError;
    std::memset(id, 0, sizeof(*id));
    std::snprintf(id->internal, sizeof(id->internal), "/tern-nccl-%016llx", (unsigned long long)number);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (world > RANKS || config->blocking) return ncclInvalidArgument;
    int fd = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)all_bytes)) return ncclSystemError;
    auto s = std::make_shared<state>();
    s->rank = rank;
    s->world = world;
    std::snprintf(s->name, sizeof(s->name), "%.60s", id.internal);
    s->shared = (file *)mmap(nullptr, all_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if ((void *)s->shared == MAP_FAILED) return ncclSystemError;
    /* All have opened it: once unlinked it ends with them, even if they are killed. */
    if (++s->shared->joined == world) shm_unlink(s->name);
    *comm = new ncclComm{s};
    std::lock_guard<std::mutex> hold(own_lock);
    own.push_back(s);
    return ncclInProgress;
}

static void finalize(state &s)
{
    if (!s.is_finalized) s.shared->finalized++;
    s.is_finalized = true;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (is_in_progress(*comm->s)) return ncclInvalidUsage;
    finalize(*comm->s);
    be_busy(*comm->s);
    return ncclInProgress;
}

/* Ranks of one host have connections that last until both have finalized. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    const state &s = *comm->s;
    if (!s.registered.empty()) stop("memory is registered with a communicator that is destroyed");
    if (!s.is_finalized || is_in_progress(s)) stop("a communicator is destroyed that is not finalized");
    wait_for_peers(s, "a communicator is destroyed that peers have not finalized");
    leave(comm->s);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    while (comm->s->asking) usleep(20);
    comm->s->aborted = true;
    given_up.push_back(comm->s);
    finalize(*comm->s);
    leave(comm->s);
    delete comm;
    if (!depth) reclaim();
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    *result = is_in_progress(*comm->s) ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidUsage      ? "invalid usage"
           : result == ncclInvalidArgument ? "invalid argument"
                                           : "emulated error";
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

/* ---- calls of CUDA's runtime that the plug-in makes itself ---- */

cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}

/* The ranks of a test are processes; devices with the same index are the same GPU. */
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int index)
{
    *properties = {};
    std::memcpy(properties->uuid.bytes, &index, sizeof(index));
    return cudaSuccess;
}
