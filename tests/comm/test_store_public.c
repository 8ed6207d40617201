/* test_store_public.c - a public store: PyTorch's clients of both versions, byte by byte, and other
 * connections, with garbage, huge lengths, partial queries, silence and crowds. All of them are bounded, and
 * none stalls a client. Also opening a TCP store. */
#include "check.h"
#include "comm/store/listen.h"
#include "comm/store/wire.h"
#include "comm/sys.h"
#include "ledger.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static ledger books;

typedef struct fixture {
    tern_store *store;
    int port;
} fixture;

static int setup(void **state)
{
    static fixture f;
    tern_error err = {0};
    tern_store_tcp_opts opts = tern_store_tcp_defaults();
    opts.is_server = true;
    f.store = tern_store_tcp_open("127.0.0.1", 0, &opts, &err);
    assert_ok(err);
    f.port = tern_store_port(f.store);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    tern_store_close(((fixture *)*state)->store);
    return 0;
}

static void assert_served(const fixture *f)
{
    tern_error err = {0};
    int64_t sum, start = tern__now_ns();
    tern_store_add(f->store, "served", 1, &sum, &err);
    assert_ok(err);
    assert_true(tern__now_ns() - start < 4000000000); /* a stranger would get 5 s */
}

static int connect_to(const fixture *f)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)f->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_return_code(connect(fd, (struct sockaddr *)&at, sizeof(at)), errno);
    return fd;
}

static void say(int fd, const void *data, size_t bytes)
{
    int status = tern__send_all(fd, data, bytes, tern__deadline(5));
    assert_true(status == 0 || status == -EPIPE || status == -ECONNRESET);
}

static void assert_hears(int fd, const void *expected, size_t bytes)
{
    uint8_t heard[64];
    assert_int_equal(tern__recv_all(fd, heard, bytes, tern__deadline(5)), 0);
    assert_memory_equal(heard, expected, bytes);
}

static void assert_hung_up(int fd, double seconds)
{
    char byte;
    assert_int_equal(tern__recv_all(fd, &byte, 1, tern__deadline(seconds)), -ECONNRESET);
    close(fd);
}

static const uint8_t validate[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4};

static int torch2(const fixture *f)
{
    int fd = connect_to(f);
    say(fd, validate, sizeof(validate));
    assert_hears(fd, validate + 6, 4);
    return fd;
}

/* ---- clients ---- */

#define SAY(fd, text)   say(fd, text, sizeof(text) - 1)
#define HEARS(fd, text) assert_hears(fd, text, sizeof(text) - 1)

static void pytorch_2_is_served_however_its_bytes_come(void **state)
{
    const fixture *f = *state;
    for (int slow = 0; slow < 2; slow++) {
        static const char all[] =
            "\1\2\0\0\0\0\0\0\0/k\3\0\0\0\0\0\0\0one"                           /* SET */
            "\6\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/k\3\2\0\0\0\0\0\0\0/k"          /* WAIT, GET */
            "\x05\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/k\2\0\0\0\0\0\0\0/n\x0c\x07"; /* CHECK .. */
        int fd = connect_to(f);
        for (size_t i = 0; i < sizeof(validate) && slow; i++) say(fd, validate + i, 1);
        if (!slow) say(fd, validate, sizeof(validate));
        for (size_t i = 0; i < sizeof(all) - 1 && slow; i++) say(fd, all + i, 1);
        if (!slow) SAY(fd, all);
        assert_hears(fd, validate + 6, 4);
        HEARS(fd, "\0\3\0\0\0\0\0\0\0one\1\1");
        int64_t keys;
        assert_int_equal(tern__recv_all(fd, &keys, sizeof(keys), tern__deadline(5)), 0);
        assert_int_equal(keys, 1 + slow); /* "/k", and "/served" the second time */
        close(fd);
        assert_served(f);
    }
}

/* The opcode of its SET is that of PyTorch 2's greeting. A wait that it has cancelled is not answered. */
static void pytorch_1_is_served(void **state)
{
    const fixture *f = *state;
    int fd = connect_to(f), callbacks = connect_to(f);
    SAY(fd, "\0\2\0\0\0\0\0\0\0/k\3\0\0\0\0\0\0\0one\2\2\0\0\0\0\0\0\0/k");
    HEARS(fd, "\3\0\0\0\0\0\0\0one");
    SAY(fd, "\5\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/w"); /* WAIT, which times out */
    assert_served(f);
    SAY(fd, "\6"); /* GETNUMKEYS */
    HEARS(fd, "\2\0\0\0\0\0\0\0");
    tern_error err = {0};
    tern_store_set(f->store, "w", "", 0, &err);
    assert_served(f); /* an answer on the same connection: the key is there */
    SAY(fd, "\6");
    HEARS(fd, "\3\0\0\0\0\0\0\0");
    SAY(fd, "\7"); /* WATCH_KEY no longer exists */
    assert_hung_up(fd, 2);
    close(callbacks);
    assert_served(f);
}

/* ---- strangers ---- */

#define TEXT(text)                                                                                           \
    {                                                                                                        \
        text, sizeof(text) - 1                                                                               \
    }

static void what_is_no_client_is_refused(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *text;
        size_t bytes;
    } words[] = {
        TEXT("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        TEXT("SSH-2.0-OpenSSH_9.2\r\n"),
        TEXT("\x16\3\1\2\0\1\0\1\xfc\3\3"),
        TEXT("TernHi\r\n and more that is no hello of anybody's at all ................"),
        TEXT("\0\xce\xf7\x85\x3c\x13"),
        TEXT("\0\xce\xf7\x85\x3d\0\0\0\0"),
        TEXT("\0\xff\xff\xff\xff\xff\xff\xff\xff"),
        TEXT("\4\xff\xff\xff\xff\0\0\0\0"),
        TEXT("\1\1\x20\0\0\0\0\0\0"),
    };
    for (size_t i = 0; i < TERN__COUNT(words); i++) {
        int fd = connect_to(f);
        say(fd, words[i].text, words[i].bytes);
        assert_hung_up(fd, 2);
    }
    assert_served(f);
}

static void huge_lengths_and_counts_take_no_memory(void **state)
{
    const fixture *f = *state;
    static const uint64_t lengths[] = {TERN_STORE_VALUE_MAX + 1, UINT32_MAX, 1ull << 32, 1ull << 63,
                                       UINT64_MAX};
    static const uint8_t codes[] = {1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 14, 15, 16, 18, 64};
    assert_served(f);
    int big = atomic_load(&books.big);
    for (size_t i = 0; i < TERN__COUNT(lengths); i++)
        for (size_t j = 0; j < TERN__COUNT(codes); j++) {
            uint8_t query[9] = {codes[j]};
            memcpy(query + 1, &lengths[i], sizeof(lengths[i]));
            int fd = torch2(f);
            say(fd, query, sizeof(query));
            assert_hung_up(fd, 2);
        }
    assert_int_equal(atomic_load(&books.big), big);
    assert_served(f);
}

/* Many clients promise a value of 8 MiB that never comes; two hundred clients send queries and read no
 * answer. */
static void half_queries_and_deaf_clients_stall_nobody(void **state)
{
    const fixture *f = *state;
    int fds[200];
    tern_error err = {0};
    static uint8_t value[100000];
    tern_store_set(f->store, "v", value, sizeof(value), &err);
    assert_ok(err);
    int big = atomic_load(&books.big);
    for (size_t i = 0; i < TERN__COUNT(fds); i++) {
        fds[i] = torch2(f);
        if (i % 2)
            SAY(fds[i], "\1\2\0\0\0\0\0\0\0/h\0\0\x80\0\0\0\0\0 a few bytes of it");
        else
            for (int n = 0; n < 100; n++) SAY(fds[i], "\3\2\0\0\0\0\0\0\0/v");
    }
    for (int i = 0; i < 50; i++) assert_served(f);
    assert_true(atomic_load(&books.big) - big <=
                200); /* at most one answer for each client that does not read */
    for (size_t i = 0; i < TERN__COUNT(fds); i++) close(fds[i]);
    assert_served(f);
}

enum { greedy = 6, keys = 6144, key_bytes = 8 + TERN_STORE_KEY_MAX };

/* Sends all clients' queries at the same time: CHECK of keys that come to 48 MiB, but for the last byte.
 * at: [greedy], bytes sent. */
static void send_at_once(const int *fds, size_t *at)
{
    static uint8_t query[1 + 8 + keys * key_bytes] = {5, keys & 255, keys >> 8};
    for (int i = 0; i < keys; i++) query[9 + i * key_bytes + 1] = TERN_STORE_KEY_MAX >> 8;
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < greedy; i++) {
            size_t left = sizeof(query) - 1 - at[i];
            ssize_t sent = send(fds[i], query + at[i], left, MSG_DONTWAIT | MSG_NOSIGNAL);
            at[i] += sent > 0 ? (size_t)sent : 0;
            more |= left && (sent > 0 || errno == EAGAIN);
        }
    }
}

/* Half a query of 48 MiB takes a buffer of 64 MiB, and the buffers of all clients may have 256 MiB. So there
 * is room for three of six, and no more than the other three are closed. */
static void of_many_large_queries_no_more_are_closed_than_need_be(void **state)
{
    const fixture *f = *state;
    int fds[greedy], answered = 0;
    size_t at[greedy] = {0};
    for (int i = 0; i < greedy; i++) fds[i] = torch2(f);
    send_at_once(fds, at);
    for (int i = 0; i < greedy; i++) {
        uint8_t reply = 0;
        say(fds[i], "", 1);
        int status = tern__recv_all(fds[i], &reply, 1, tern__deadline(5));
        assert_true(status == 0 || status == -ECONNRESET);
        answered += status == 0 && reply == TERN__CHECK_NOT_READY;
        close(fds[i]);
    }
    assert_int_equal(answered, 3);
    assert_served(f);
}

/* A client that has started a query has 5 s. A silent one may stay, like PyTorch 1's second connection,
 * until there are too many. The first silent one was there before the crowd and is dropped for it. */
static void slow_ones_are_dropped_and_silent_ones_bounded(void **state)
{
    const fixture *f = *state;
    enum { crowd = 270, more = 5 };
    int silent[crowd + more];
    int64_t start = tern__now_ns();
    for (int i = 0; i < 200; i++) silent[i] = connect_to(f);
    int half = connect_to(f), slow = connect_to(f);
    SAY(half, "\0\xce\xf7");
    for (int i = 0; i < 8; i++) { /* a SET's length, a byte at a time */
        SAY(slow, "\0");
        assert_served(f);
        tern__poll(NULL, 0, start + (i + 1) * INT64_C(500000000));
    }
    assert_hung_up(half, 7);
    assert_hung_up(slow, 2);
    double seconds = (double)(tern__now_ns() - start) * 1e-9;
    assert_true(seconds >= 4.9);
    struct pollfd first = {silent[0], POLLIN, 0};
    for (int i = 200; i < crowd + more; i++) silent[i] = connect_to(f);
    assert_served(f);
    assert_int_equal(poll(&first, 1, 0), 0); /* silent for 5 s, and still connected */
    say(silent[1], validate, sizeof(validate));
    assert_hears(silent[1], validate + 6, 4);    /* it sends its first query */
    assert_int_equal(poll(&first, 1, 20000), 1); /* the others' 5 s are over, and there are too many */
    assert_served(f);
    for (int i = 0; i < crowd + more; i++) close(silent[i]);
    assert_served(f);
}

static void a_storm_of_connections_passes(void **state)
{
    const fixture *f = *state;
    static int fds[700];
    for (size_t i = 0; i < TERN__COUNT(fds); i++) {
        fds[i] = connect_to(f);
        say(fds[i], validate, sizeof(validate));
    }
    for (size_t i = 0; i < TERN__COUNT(fds); i++) assert_hears(fds[i], validate + 6, 4);
    assert_served(f);
    for (size_t i = 0; i < TERN__COUNT(fds); i++) close(fds[i]);
    assert_served(f);
}

static void who_vanishes_leaves_nothing_behind(void **state)
{
    const fixture *f = *state;
    assert_served(f);
    int live = atomic_load(&books.live);
    for (int i = 0; i < 50; i++) {
        int waits = torch2(f), meets = torch2(f), half = torch2(f);
        SAY(waits, "\6\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/w");
        SAY(meets, "\6\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/w\2\0\0\0\0\0\0\0/x");
        SAY(half, "\1\2\0\0\0\0\0\0\0/h");
        close(waits);
        close(meets);
        close(half);
    }
    int64_t deadline = tern__deadline(30);
    while (atomic_load(&books.live) > live && tern__now_ns() < deadline) assert_served(f);
    assert_int_equal(atomic_load(&books.live), live);
}

/* ---- opening ---- */

static int refusal(const char *host, int port, const tern_store_tcp_opts *opts, const char *text)
{
    tern_error err = {0};
    assert_null(tern_store_tcp_open(host, port, opts, &err));
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not contain \"%s\"", err.text, text);
    assert_string_equal(err.func, "tern_store_tcp_open");
    return err.code;
}

static void what_cannot_be_opened_is_said(void **state)
{
    const fixture *f = *state;
    tern_store_tcp_opts server = tern_store_tcp_defaults(), client = server, bad = server;
    char taken[64];
    server.is_server = true;
    client.timeout_s = 0.3;
    snprintf(taken, sizeof(taken), "port %d of 127.0.0.1 is taken", f->port);
    assert_int_equal(refusal("127.0.0.1", f->port, &server, taken), TERN_E_SYSTEM);
    assert_int_equal(refusal("192.0.2.1", 0, &server, "192.0.2.1"),
                     TERN_E_SYSTEM); /* an address that no host has */
    assert_int_equal(refusal("no-such-host.invalid", 1, &client, "no-such-host.invalid"), TERN_E_TIMEOUT);
    assert_int_equal(refusal("127.0.0.1", 1, &client, "attempts"), TERN_E_TIMEOUT);
    assert_int_equal(refusal("127.0.0.1", 0, &client, "expected a port"), TERN_E_INVALID);
    assert_int_equal(refusal("127.0.0.1", 65536, &client, "65536"), TERN_E_INVALID);
    assert_int_equal(refusal("", 1, &client, "host"), TERN_E_INVALID);
    assert_int_equal(refusal(NULL, 1, &client, "host"), TERN_E_INVALID);
    bad.world = -1;
    assert_int_equal(refusal("127.0.0.1", 1, &bad, "world -1"), TERN_E_INVALID);
    bad = client;
    bad.timeout_s = 0;
    assert_int_equal(refusal("127.0.0.1", 1, &bad, "timeout_s 0"), TERN_E_INVALID);
}

static void a_public_store_binds_only_its_address(void **state)
{
    const fixture *f = *state;
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1),
                             .sin_port = htons((uint16_t)f->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), -1);
    close(fd);
}

/* Whichever allocation fails, the result is an error or no error, and all memory is freed. */
static void memory_may_run_out(void **state)
{
    (void)state;
    int live = atomic_load(&books.live), done = 0;
    for (int n = 1; !done; n++) {
        tern_error err = {0};
        atomic_store(&books.requests, 0);
        books.refuse_at = n;
        tern_store *store = tern_store_hash_new(&err), *part = tern_store_prefix_new("p", store, &err),
                   *clone = tern_store_clone(part, &err);
        size_t count;
        tern_store_set(part, "k", "value", 5, &err);
        tern_store_append(clone, "k", "more", 4, &err);
        tern_store_get(clone, "k", NULL, &err);
        tern_store_queue_push(part, "q", "1", 1, &err);
        tern_store_queue_pop(clone, "q", true, NULL, &err);
        tern_store_list_keys(part, &count, &err);
        tern_store_close(clone);
        tern_store_close(part);
        tern_store_close(store);
        done = atomic_load(&books.requests) < n;
        books.refuse_at = 0;
        assert_true(!err.code || err.code == TERN_E_MEMORY || err.code == TERN_E_INVALID);
        assert_int_equal(atomic_load(&books.live), live);
    }
}

/* ---- sockets that the caller has bound ---- */

static int bound_socket(int family, int type, int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_un local = {.sun_family = AF_UNIX}; /* the kernel chooses a name */
    int fd = socket(family, type | SOCK_CLOEXEC, 0);
    if (family == AF_INET) assert_return_code(bind(fd, (struct sockaddr *)&at, sizeof(at)), errno);
    if (family == AF_INET6) assert_return_code(bind(fd, (struct sockaddr *)&six, sizeof(six)), errno);
    if (family == AF_UNIX)
        assert_return_code(bind(fd, (struct sockaddr *)&local, sizeof(sa_family_t)), errno);
    *port = tern__port_of(fd);
    return fd;
}

static tern_store *open_at(const char *host, int port, int listen_fd, tern_error *err)
{
    tern_store_tcp_opts opts = tern_store_tcp_defaults();
    opts.is_server = true;
    opts.listen_fd = listen_fd;
    opts.timeout_s = 20;
    return tern_store_tcp_open(host, port, &opts, err);
}

/* As PyTorch's master_listen_fd, the socket may listen already or not. */
static void a_bound_socket_is_served(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        tern_error err = {0};
        int port, fd = bound_socket(i & 4 ? AF_INET6 : AF_INET, SOCK_STREAM, &port);
        if (i & 1) assert_return_code(listen(fd, 1), errno);
        const fixture f = {open_at(i & 4 ? "::1" : "127.0.0.1", i & 2 ? port : 0, fd, &err), port};
        assert_ok(err);
        assert_int_equal(tern_store_port(f.store), port);
        assert_served(&f);
        tern_store_close(f.store);
        assert_int_equal(fcntl(fd, F_GETFD), -1);
    }
}

static void check_refused(int port, int fd, const char *text)
{
    tern_error err = {0};
    int64_t start = tern__now_ns();
    assert_null(open_at("127.0.0.1", port, fd, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    if (!strstr(err.text, text)) fail_msg("wanted \"%s\", got \"%s\"", text, err.text);
    assert_true(tern__now_ns() - start < 5000000000);
    assert_return_code(close(fd), errno); /* it remains the caller's */
}

static void a_descriptor_that_cannot_be_served_is_refused(void **state)
{
    (void)state;
    static const char unbound[] = "is no TCP socket that is bound to a port";
    int port, pipes[2], pair[2], other = bound_socket(AF_INET, SOCK_STREAM, &port);
    char text[64];
    check_refused(0, socket(AF_INET, SOCK_STREAM, 0), unbound);
    check_refused(0, bound_socket(AF_UNIX, SOCK_STREAM, &port), unbound);
    check_refused(0, open("/dev/null", O_RDWR | O_CLOEXEC), unbound);
    assert_return_code(pipe(pipes), errno);
    assert_return_code(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), errno);
    check_refused(0, pipes[0], unbound);
    check_refused(0, pair[0], unbound);
    close(pipes[1]);
    close(pair[1]);
    check_refused(0, bound_socket(AF_INET, SOCK_DGRAM, &port), "cannot listen: Operation not supported");
    port = tern__port_of(other);
    assert_return_code(listen(other, 1), errno);
    const fixture f = {.port = port};
    check_refused(0, connect_to(&f), "cannot listen: Invalid argument");
    snprintf(text, sizeof(text), "is bound to port %d, expected %d", port, port ^ 1);
    check_refused(port ^ 1, other, text);
}

/* The owner of another descriptor of the socket shuts it down: the server goes on with the clients that it
 * has, and its thread sleeps. */
static void a_socket_that_is_shut_down_costs_no_time(void **state)
{
    (void)state;
    tern_error err = {0};
    int port, fd = bound_socket(AF_INET, SOCK_STREAM, &port), copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct timespec before, after;
    const fixture f = {open_at("127.0.0.1", port, fd, &err), port};
    assert_ok(err);
    assert_return_code(shutdown(copy, SHUT_RDWR), errno);
    close(copy);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(400000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    assert_true((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec < 100000000);
    assert_served(&f);
    tern_store_close(f.store);
}

#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const tern_allocator counting = {ledger_alloc, ledger_free, &books};
    tern__allocator_replace(&counting);
    const struct CMUnitTest tests[] = {
        WITH_STORE(pytorch_2_is_served_however_its_bytes_come),
        WITH_STORE(pytorch_1_is_served),
        WITH_STORE(what_is_no_client_is_refused),
        WITH_STORE(huge_lengths_and_counts_take_no_memory),
        WITH_STORE(half_queries_and_deaf_clients_stall_nobody),
        WITH_STORE(of_many_large_queries_no_more_are_closed_than_need_be),
        WITH_STORE(slow_ones_are_dropped_and_silent_ones_bounded),
        WITH_STORE(a_storm_of_connections_passes),
        WITH_STORE(who_vanishes_leaves_nothing_behind),
        WITH_STORE(what_cannot_be_opened_is_said),
        WITH_STORE(a_public_store_binds_only_its_address),
        cmocka_unit_test(a_bound_socket_is_served),
        cmocka_unit_test(a_descriptor_that_cannot_be_served_is_refused),
        cmocka_unit_test(a_socket_that_is_shut_down_costs_no_time),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
