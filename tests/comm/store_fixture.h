/* store_fixture.h - a store's server for each test, and unauthenticated connections to it. */
#ifndef TERN_TESTS_COMM_STORE_FIXTURE_H
#define TERN_TESTS_COMM_STORE_FIXTURE_H

#include "comm/ranks.h"

#include "comm/store/hello.h"
#include "comm/store/store.h"
#include "comm/store/wire.h"
#include "comm/sys.h"

/* ---- a server and its first client for every test ---- */

typedef struct fixture {
    tern__bootstrap boot;
    tern_store *store;
} fixture;

static inline int setup(void **state)
{
    static fixture f;
    tern_error err = {0};
    f.boot = ranks_boot(4);
    f.store = tern__store_open(&f.boot, 5, &err);
    assert_ok(err);
    *state = &f;
    return 0;
}

static inline int teardown(void **state)
{
    tern_store_close(((fixture *)*state)->store);
    return 0;
}

static inline tern_store *open_client(const fixture *f, int rank)
{
    tern_error err = {0};
    tern__bootstrap boot = ranks_boot_of(&f->boot, rank);
    tern_store *store = tern__store_open(&boot, 5, &err);
    assert_ok(err);
    return store;
}

static inline double seconds_since(int64_t start)
{
    return (double)(tern__now_ns() - start) * 1e-9;
}

/* Checks that the first client is still served, well before the 5 s (TERN__HELLO_DEADLINE_S) after which a
 * stranger is dropped. */
static inline void assert_served(const fixture *f)
{
    tern_error err = {0};
    int64_t before, after, start = tern__now_ns();
    tern_store_add(f->store, "served", 1, &before, &err);
    tern_store_add(f->store, "served", 1, &after, &err);
    assert_ok(err);
    assert_int_equal(after, before + 1);
    assert_true(seconds_since(start) < 4);
}

/* ---- strangers: plain sockets without the secret ---- */

static inline int stranger(const fixture *f)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)f->boot.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_return_code(connect(fd, (struct sockaddr *)&at, sizeof(at)), errno);
    return fd;
}

static inline void say(int fd, const void *data, size_t bytes)
{
    int status = tern__send_all(fd, data, bytes, tern__deadline(5));
    assert_true(status == 0 || status == -EPIPE || status == -ECONNRESET);
}

/* Checks that the server closes the connection within `seconds` without sending a byte. */
static inline void assert_hung_up(int fd, double seconds)
{
    char byte;
    int status = tern__recv_all(fd, &byte, 1, tern__deadline(seconds));
    if (status != -ECONNRESET) fail_msg("expected a hang-up, got %s", status ? strerror(-status) : "a byte");
    close(fd);
}

static inline void begin_handshake(const fixture *f, int fd, tern__hello *hello, tern__challenge *challenge)
{
    tern__hello_make(hello, TERN__PURPOSE_STORE, 1, 0, f->boot.world);
    say(fd, hello, sizeof(*hello));
    assert_int_equal(tern__recv_all(fd, challenge, sizeof(*challenge), tern__deadline(10)), 0);
}

/* Connects with the secret and completes the handshake. */
static inline int insider(const fixture *f)
{
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof;
    tern__welcome welcome;
    int fd = stranger(f);
    begin_handshake(f, fd, &hello, &challenge);
    assert_true(tern__hello_answer(&hello, &challenge, f->boot.secret, &proof));
    say(fd, &proof, sizeof(proof));
    assert_int_equal(tern__recv_all(fd, &welcome, sizeof(welcome), tern__deadline(10)), 0);
    assert_true(tern__hello_is_welcome(&welcome));
    return fd;
}

#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
