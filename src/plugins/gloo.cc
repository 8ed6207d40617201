/* gloo.cc - the gloo plug-in: the transport of <tern/backend/transport.h> over gloo's TCP pairs.
 *
 * Ranks publish, for each peer, the address on which they listen for it and a random token. Once all are
 * known each pair connects, and the tokens go over it: a pair whose other end does not know the token,
 * which is only in the store, has a stranger there. Debian 13's gloo waits for the peer, but Debian 12's
 * lets in the first that connects, and listens no more. So a port scanner that was faster than the peer
 * spoils the pair, and both ranks try again with a new one. A rank gives a pair up if it finds a stranger,
 * a closed port or a closed connection there, or nobody connects. It then closes its own end, so the peer
 * finds that closed in turn, and gives the pair up as well. In Debian 13's gloo a pair to which nobody
 * connects is not given up: all pairs of a rank have one port, which stays open, so a peer that comes later
 * would find no closed end, and gloo would call the pair, which is gone.
 *
 * gloo moves bytes on a thread of its own. A message there is an "unbound buffer": ours reaches over all of
 * the memory, so that one object serves any message, and none is made once there are enough. Three things
 * that gloo does are kept away from who uses it:
 *
 *     - A wait that times out closes all pairs of its context, and there is no other way to ask whether a
 *       message is done. So the pairs are taken out of the context; to have waited in vain is an exception
 *       then, and nothing else.
 *     - A message longer than what was asked for throws on gloo's thread, which ends the process, and one
 *       that is shorter passes for whole. Sizes are part of the slot here, so messages of other sizes do not
 *       meet.
 *     - A pair that breaks tells only the messages that wait in a queue, not the one whose bytes are on the
 *       way. Each peer therefore has a watch: a receive of something that is never sent, which stays in the
 *       queue.
 *
 * Two ways to end the process on gloo's thread are left: a peer that writes what is no message of gloo's,
 * and a write that fails for another reason than a closed connection (a host that was unreachable for
 * minutes). */
#include <tern/backend/transport.h>

#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <linux/tcp.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace
{
namespace transport = gloo::transport;

const size_t TOKEN = 16, SHORT_BYTES = 4096;
const std::chrono::milliseconds NO_TIME(0), A_MOMENT(1);
const unsigned char FAREWELL[1] = {0};
enum { PARTING_MS = 500, TRIES = 3, LOOK_MS = 200 };
/* How many of the tries may wait in vain for the peer to connect. */
#if __has_include(<gloo/transport/tcp/listener.h>) /* Debian 13's */
enum { WAITS = 1 };
#else
enum { WAITS = TRIES };
#endif
/* Behind the tags of users: what is sent first, and last. */
enum { TAG_TOKEN = TERN_TRANSPORT_TAGS, TAG_WATCH, TAGS };

/* What a rank publishes for a peer. */
struct card {
    uint32_t bytes;
    char address[transport::Address::kMaxByteSize];
    unsigned char token[TOKEN];
};

struct failure : std::runtime_error {
    int status;
    failure(int code, const std::string &text) : std::runtime_error(text), status(code)
    {
    }
};

/* One send or receive. */
struct message {
    std::unique_ptr<gloo::transport::UnboundBuffer> memory;
    int peer;
    bool sends, is_lost; /* lost: its peer had left before it began */
    bool is_done;        /* a wait has seen it                      */
};

/* No signal is taken on the thread that is started meanwhile, except for those of its own faults. */
class signals_blocked
{
    sigset_t before;

  public:
    signals_blocked()
    {
        sigset_t all;
        sigfillset(&all);
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
        pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~signals_blocked()
    {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
};

/* gloo writes to sockets whose peer may have closed: that is to be an error, and not the process's end. */
class sigpipe_blocked
{
    sigset_t pipe, before;

  public:
    sigpipe_blocked()
    {
        sigemptyset(&pipe);
        sigaddset(&pipe, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe, &before);
    }
    ~sigpipe_blocked()
    {
        const timespec now = {0, 0};
        if (sigismember(&before, SIGPIPE)) return;
        sigtimedwait(&pipe, nullptr, &now);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
};

/* A connection of gloo's. */
struct line {
    int fd;
    uint64_t acked;      /* bytes, at the latest look */
    int64_t stuck_since; /* ms: since when none of the bytes on the way was acknowledged; 0: none is */
};

struct neighbour {
    std::unique_ptr<transport::Pair> pair;
    card own, theirs; /* what this rank has published for it, and it for this one */
    unsigned char token[TOKEN], last[1];
    message *watch, *greetings[2], *farewell;
    bool has_left;
    std::string trouble; /* why the latest try has failed; "": it has not */
};

/* It is taken apart from the last member to the first: what gloo's thread calls has to go before what it
 * calls it with. */
struct mesh {
    tern_transport_place place; /* during `open` */
    std::shared_ptr<transport::Device> device;
    /* One for each try, since a context counts the messages of its pairs; all messages are the first one's.
     */
    std::vector<std::shared_ptr<transport::Context>> contexts;
    std::vector<std::unique_ptr<message>> messages; /* all, idle or not                              */
    std::vector<message *> idle;                    /* room for all, so giving one back cannot fail */
    std::vector<neighbour> peers;                   /* [world], oneself's is empty                   */
    std::vector<line> lines;
    int64_t silence_ms, next_look; /* for `lines` */
};

/* ---- errors ---- */

/* The reason without its place in gloo's source, "[pair.cc:598] ". */
const char *reason(const std::exception &e)
{
    const char *text = e.what(), *end = *text == '[' ? strstr(text, "] ") : nullptr;
    return end ? end + 2 : text;
}

/* Runs `body`. What gloo throws becomes `status` and a text: "sending to rank 2: Connection closed ..". */
template <class Body>
int guarded(int status, const char *doing, int peer, char *why, size_t why_size, Body body) noexcept
{
    char whom[24] = "";
    if (peer >= 0) snprintf(whom, sizeof(whom), " rank %d", peer);
    try {
        body();
        return TERN_OK;
    } catch (const failure &f) {
        snprintf(why, why_size, "%s", f.what());
        return f.status;
    } catch (const std::bad_alloc &) {
        snprintf(why, why_size, "%s%s: out of memory", doing, whom);
        return TERN_E_MEMORY;
    } catch (const std::exception &e) {
        snprintf(why, why_size, "%s%s: %s", doing, whom, reason(e));
        return status;
    } catch (...) {
        snprintf(why, why_size, "%s%s: it failed", doing, whom);
        return status;
    }
}

int64_t now_ms()
{
    using namespace std::chrono;
    return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

/* ---- messages ---- */

message *take(mesh *m)
{
    if (m->idle.empty()) {
        m->idle.reserve(m->messages.size() + 1);
        m->messages.emplace_back(
            new message{m->contexts[0]->createUnboundBuffer(nullptr, SIZE_MAX), -1, false, false, false});
        m->idle.push_back(m->messages.back().get());
    }
    message *taken = m->idle.back();
    m->idle.pop_back();
    return taken;
}

void begin(transport::Pair &pair, const message *of, int tag, const void *data, size_t bytes)
{
    sigpipe_blocked quiet;
    size_t slot = bytes * TAGS + (size_t)tag, offset = (size_t)data;
    if (of->sends)
        pair.send(of->memory.get(), slot, offset, bytes);
    else
        pair.recv(of->memory.get(), slot, offset, bytes);
}

/* Has the peer said that it closes? */
bool has_left(neighbour &peer)
{
    try {
        peer.has_left = peer.has_left || (peer.watch && peer.watch->memory->waitRecv(nullptr, NO_TIME));
    } catch (const gloo::IoException &) {
    }
    return peer.has_left;
}

message *start(mesh *m, bool sends, int peer, int tag, const void *data, size_t bytes)
{
    message *taken = take(m);
    neighbour &to = m->peers[(size_t)peer];
    taken->peer = peer;
    taken->sends = sends;
    taken->is_done = false;
    try {
        begin(*to.pair, taken, tag, data, bytes);
    } catch (const std::exception &) {
        if (!has_left(to)) throw;
        taken->is_lost = true;
    }
    return taken;
}

/* Throws if the pair is broken and its peer has not left. gloo has no function that asks for the state of a
 * pair. But a wait that is aborted before it begins returns at once, or throws if the pair is broken. */
void look_at(message *watch)
{
    watch->memory->abortWaitRecv();
    watch->memory->waitRecv(nullptr, NO_TIME);
}

/* Waits for a message. Throws when the pair is broken, although a peer that has left may have sent
 * everything before: `finish` tells the two cases apart. */
void await(message *of, std::chrono::milliseconds time)
{
    of->is_done = of->is_done ||
                  (of->sends ? of->memory->waitSend(nullptr, time) : of->memory->waitRecv(nullptr, time));
}

/* Returns true if the message is done, and then frees it for another use. Throws if it has failed. */
bool finish(mesh *m, message *of)
{
    try {
        await(of, NO_TIME);
    } catch (const gloo::IoException &) {
        look_at(m->peers[(size_t)of->peer].watch);
    }
    if (of->is_done) m->idle.push_back(of);
    return of->is_done;
}

/* ---- connections that are stuck ---- */

/* A network may drop large packets and let small ones through. The control plane, which sends small ones,
 * then sees a host that lives, and the kernel sends a large one again for a quarter of an hour. With a
 * shorter TCP_USER_TIMEOUT it would give up, but a write that fails for that reason ends the process on
 * gloo's thread. So this thread asks the kernel what has been acknowledged. Descriptors are recognised by
 * their addresses, since gloo keeps them to itself. */

bool is_at(const sockaddr_storage &one, const sockaddr_storage &other)
{
    if (one.ss_family != other.ss_family) return false;
    if (one.ss_family == AF_INET) {
        auto a = reinterpret_cast<const sockaddr_in *>(&one),
             b = reinterpret_cast<const sockaddr_in *>(&other);
        return a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
    }
    auto a = reinterpret_cast<const sockaddr_in6 *>(&one), b = reinterpret_cast<const sockaddr_in6 *>(&other);
    return one.ss_family == AF_INET6 && a->sin6_port == b->sin6_port &&
           !memcmp(&a->sin6_addr, &b->sin6_addr, sizeof(a->sin6_addr));
}

/* One end of a pair listens at the address that it has published, and the other one connects to that. */
bool is_of_pair(int fd, const neighbour &peer)
{
    sockaddr_storage here = {}, there = {};
    socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
    if (!peer.pair || getsockname(fd, reinterpret_cast<sockaddr *>(&here), &here_bytes) ||
        getpeername(fd, reinterpret_cast<sockaddr *>(&there), &there_bytes))
        return false;
    const char *own = peer.own.address, *theirs = peer.theirs.address;
    return is_at(here, transport::tcp::Address({own, own + peer.own.bytes}).getSockaddr()) ||
           is_at(there, transport::tcp::Address({theirs, theirs + peer.theirs.bytes}).getSockaddr());
}

void find_lines(mesh *m)
{
    std::unique_ptr<DIR, int (*)(DIR *)> all(opendir("/proc/self/fd"), closedir);
    for (dirent *one; all && (one = readdir(all.get()));) {
        int fd = atoi(one->d_name);
        auto is_its = [fd](const neighbour &peer) { return is_of_pair(fd, peer); };
        if (std::any_of(m->peers.begin(), m->peers.end(), is_its)) m->lines.push_back({fd, 0, 0});
    }
}

void look_at_line(const mesh *m, line &of, int64_t now)
{
    tcp_info info = {};
    socklen_t bytes = sizeof(info);
    if (getsockopt(of.fd, IPPROTO_TCP, TCP_INFO, &info, &bytes)) return;
    bool moves = !info.tcpi_unacked || info.tcpi_bytes_acked != of.acked || !of.stuck_since;
    if (moves) of.stuck_since = info.tcpi_unacked ? now : 0;
    of.acked = info.tcpi_bytes_acked;
    if (!of.stuck_since || now - of.stuck_since <= m->silence_ms) return;
    char text[256], host[64] = "a host";
    sockaddr_storage there = {};
    socklen_t there_bytes = sizeof(there);
    if (!getpeername(of.fd, reinterpret_cast<sockaddr *>(&there), &there_bytes))
        getnameinfo(reinterpret_cast<sockaddr *>(&there), there_bytes, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST);
    snprintf(text, sizeof(text),
             "%s has acknowledged no packet for %.3g s, sent %u times, although its other connections live: "
             "does the network drop large packets?",
             host, (double)(now - of.stuck_since) * 1e-3, info.tcpi_retransmits + 1u);
    throw failure(TERN_E_PEER, text);
}

void look_at_lines(mesh *m)
{
    int64_t now = now_ms();
    if (now < m->next_look) return;
    m->next_look = now + LOOK_MS;
    for (line &each : m->lines) look_at_line(m, each, now);
}

/* ---- opening ---- */

/* The address of this host, or that of the interface that GLOO_SOCKET_IFNAME names, the first of several.
 */
std::shared_ptr<transport::Device> make_device(const char *address)
{
    transport::tcp::attr attr(address);
    const char *names = getenv("GLOO_SOCKET_IFNAME");
    if (names) attr.iface.assign(names, strcspn(names, ","));
    signals_blocked quiet;
    return transport::tcp::CreateDevice(attr);
}

void make_mesh(mesh *m)
{
    m->device = make_device(m->place.address);
    m->peers.resize((size_t)m->place.world);
}

/* gloo waits five times as long as it is told for a pair to connect. */
void make_context(mesh *m, int64_t end)
{
    const tern_transport_place &place = m->place;
    int64_t wait_ms = std::min((int64_t)(1000 * place.timeout_s / WAITS), end - now_ms());
    m->contexts.push_back(m->device->createContext(place.rank, place.world));
    m->contexts.back()->setTimeout(std::chrono::milliseconds(std::max(INT64_C(0), wait_ms) / 5 + 1));
}

/* "gloo/0/1", and for another try "gloo/0/1/1". */
std::string key_of(const mesh *m, int from, int to)
{
    std::string key = "gloo/" + std::to_string(from) + "/" + std::to_string(to);
    size_t round = m->contexts.size() - 1;
    return round ? key + "/" + std::to_string(round) : key;
}

void publish(mesh *m, int peer)
{
    neighbour &to = m->peers[(size_t)peer];
    card &own = to.own;
    char why[256] = "";
    to.pair = std::move(m->contexts.back()->createPair(peer));
    std::vector<char> address = to.pair->address().bytes();
    if (address.size() > sizeof(own.address)) throw failure(TERN_E_UNSUPPORTED, "gloo's address is too long");
    own.bytes = (uint32_t)address.size();
    memcpy(own.address, address.data(), address.size());
    if (getrandom(own.token, TOKEN, 0) != (ssize_t)TOKEN)
        throw failure(TERN_E_SYSTEM, "the kernel has no random numbers");
    std::string key = key_of(m, m->place.rank, peer);
    int status = m->place.set(m->place.store, key.c_str(), &own, sizeof(own), why, sizeof(why));
    if (status) throw failure(status, why);
}

/* A peer that does not come for another try may have ended: then the earlier trouble says most. */
void look_up(mesh *m, int peer)
{
    std::string &trouble = m->peers[(size_t)peer].trouble;
    card &theirs = m->peers[(size_t)peer].theirs;
    char why[256] = "";
    size_t bytes = 0;
    std::string key = key_of(m, peer, m->place.rank);
    int status = m->place.get(m->place.store, key.c_str(), &theirs, sizeof(theirs), &bytes, why, sizeof(why));
    if (status) throw failure(status, status == TERN_E_TIMEOUT && !trouble.empty() ? trouble : why);
    trouble.clear();
    if (bytes != sizeof(theirs) || theirs.bytes > sizeof(theirs.address))
        throw failure(TERN_E_FORMAT, "what is under " + key + " in the store is no address of gloo's");
}

/* Runs `body`. If gloo throws in it the peer is in trouble, and its pair is closed; if the time is up that
 * was why. */
template <class Body> void attempt(neighbour &to, const char *doing, int peer, int64_t end, Body body)
{
    char why[256];
    int status = to.trouble.empty() ? guarded(TERN_E_PEER, doing, peer, why, sizeof(why), body) : TERN_OK;
    if (!status) return;
    if (status == TERN_E_PEER && now_ms() >= end) status = TERN_E_TIMEOUT;
    if (status != TERN_E_PEER) throw failure(status, why);
    to.trouble = why;
    to.pair.reset();
}

/* A pair's port takes one caller and is closed then, whoever that was. */
void call(neighbour &to, int peer)
{
    const char *address = to.theirs.address;
    try {
        to.pair->connect({address, address + to.theirs.bytes});
    } catch (const std::exception &e) {
        if (!strstr(e.what(), strerror(ECONNREFUSED))) throw;
        std::string rank = "rank " + std::to_string(peer);
        throw std::runtime_error(reason(e) + (": something else has called at " + rank) +
                                 "'s port before this rank (a port scanner?), or " + rank + " has ended");
    }
}

void greet(mesh *m, int peer)
{
    neighbour &to = m->peers[(size_t)peer];
    to.watch = start(m, false, peer, TAG_WATCH, to.last, sizeof(to.last));
    to.greetings[0] = start(m, false, peer, TAG_TOKEN, to.token, TOKEN);
    to.greetings[1] = start(m, true, peer, TAG_TOKEN, to.own.token, TOKEN);
}

/* What a peer sends first is what it has published for this rank. */
void meet(mesh *m, int peer, int64_t end)
{
    neighbour &to = m->peers[(size_t)peer];
    for (message *greeting : to.greetings)
        while (!finish(m, greeting)) {
            if (now_ms() >= end)
                throw failure(TERN_E_TIMEOUT, "rank " + std::to_string(peer) +
                                                  " does not answer, or something else has called at this "
                                                  "rank's port before it (a port scanner?)");
            sched_yield();
        }
    if (memcmp(to.token, to.theirs.token, TOKEN))
        throw failure(TERN_E_PEER, "a stranger has connected in the place of rank " + std::to_string(peer));
}

/* Returns those of the peers that are in trouble. */
std::vector<int> try_all(mesh *m, const std::vector<int> &due, int64_t end)
{
    std::vector<int> left;
    auto with_all = [&](const char *doing, auto body) {
        for (int p : due) attempt(m->peers[(size_t)p], doing, p, end, [&] { body(p); });
    };
    make_context(m, end);
    for (int p : due) publish(m, p);
    for (int p : due) look_up(m, p);
    with_all("connecting to", [m](int p) { call(m->peers[(size_t)p], p); });
    with_all("greeting", [m](int p) { greet(m, p); });
    with_all("waiting for", [m, end](int p) { meet(m, p, end); });
    for (int p : due)
        if (!m->peers[(size_t)p].trouble.empty()) left.push_back(p);
    return left;
}

void connect_all(mesh *m)
{
    int64_t end = now_ms() + (int64_t)(1000 * m->place.timeout_s);
    std::vector<int> due;
    for (int p = 0; p < m->place.world; p++)
        if (p != m->place.rank) due.push_back(p);
    for (int i = 0; i < TRIES && (i == 0 || !due.empty()); i++) due = try_all(m, due, end);
    if (!due.empty()) throw failure(TERN_E_PEER, m->peers[(size_t)due[0]].trouble);
}

/* Tells the peers, and waits until they close, too, but not for long: a socket that is closed while bytes
 * come in forgets those that have still to go out. */
void part(mesh *m)
{
    int64_t end = now_ms() + PARTING_MS;
    for (int p = 0; p < m->place.world; p++)
        if (m->peers[(size_t)p].pair)
            m->peers[(size_t)p].farewell = start(m, true, p, TAG_WATCH, FAREWELL, sizeof(FAREWELL));
    for (neighbour &to : m->peers) {
        bool is_on_its_way = to.farewell && !to.farewell->is_lost;
        while (is_on_its_way && !finish(m, to.farewell) && now_ms() < end) usleep(100);
        while (to.pair && !has_left(to) && now_ms() < end) usleep(100);
    }
}

void gloo_close(void *state, bool failed)
{
    mesh *m = static_cast<mesh *>(state);
    char why[256];
    if (!failed) guarded(TERN_E_PEER, "closing", -1, why, sizeof(why), [m] { part(m); });
    delete m;
}

void *gloo_open(const tern_transport_place *place, int *status, char *why, size_t why_size)
{
    mesh *m = new (std::nothrow) mesh();
    if (!m) {
        snprintf(why, why_size, "opening gloo: out of memory");
        return *status = TERN_E_MEMORY, nullptr;
    }
    m->place = *place;
    /* A host that is lost is noticed by the control plane before. */
    m->silence_ms = (int64_t)(1250 * std::min(std::max(place->host_timeout_s, 1.0), 86400.0));
    *status = guarded(TERN_E_IO, "opening gloo", -1, why, why_size, [m] {
        make_mesh(m);
        connect_all(m);
        find_lines(m);
    });
    if (!*status) return m;
    gloo_close(m, true);
    return nullptr;
}

/* ---- the transport ---- */

void gloo_version(char *text, size_t size)
{
    snprintf(text, size, "gloo %d.%d.%d", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH);
}

int gloo_send(void *state, int peer, int tag, const void *data, size_t bytes, tern_transport_message *to,
              char *why, size_t why_size)
{
    mesh *m = static_cast<mesh *>(state);
    return guarded(TERN_E_PEER, "sending to", peer, why, why_size,
                   [&] { to->slots[0] = start(m, true, peer, tag, data, bytes); });
}

int gloo_recv(void *state, int peer, int tag, void *data, size_t bytes, tern_transport_message *to, char *why,
              size_t why_size)
{
    mesh *m = static_cast<mesh *>(state);
    return guarded(TERN_E_PEER, "receiving from", peer, why, why_size,
                   [&] { to->slots[0] = start(m, false, peer, tag, data, bytes); });
}

int gloo_test(void *state, tern_transport_message *of, char *why, size_t why_size)
{
    mesh *m = static_cast<mesh *>(state);
    message *started = static_cast<message *>(of->slots[0]);
    bool is_done = false;
    int status = guarded(TERN_E_PEER, started->sends ? "sending to" : "receiving from", started->peer, why,
                         why_size, [&] {
                             is_done = finish(m, started);
                             if (!is_done) look_at_lines(m);
                         });
    return status ? status : is_done ? TERN_OK : TERN_PENDING;
}

void gloo_wait(void *, tern_transport_message *of)
{
    message *started = static_cast<message *>(of->slots[0]);
    char why[256];
    guarded(TERN_E_PEER, "waiting for", started->peer, why, sizeof(why), [&] { await(started, A_MOMENT); });
}
} // namespace

extern "C" __attribute__((visibility("default"))) const tern_transport tern_transport_plugin = {
    TERN_TRANSPORT_ABI,
    sizeof(tern_transport),
    "gloo",
    gloo_version,
    gloo_open,
    gloo_close,
    gloo_send,
    gloo_recv,
    gloo_test,
    gloo_wait,
    SHORT_BYTES,
};
