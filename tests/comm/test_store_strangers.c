/* test_store_strangers.c - connections that a store must refuse, and requests that clients may not make. The
 * server refuses them, allocates no memory for them, and keeps serving the others. */
#include "comm/store_fixture.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- the library's allocations: now, and at most ---- */

static atomic_size_t live_bytes, peak_bytes;

static void *count_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    size_t whole = tern__align_up(bytes, align) + align;
    char *block = aligned_alloc(align, whole);
    if (!block) return NULL;
    memcpy(block, &whole, sizeof(whole));
    memcpy(block + sizeof(whole), &align, sizeof(align));
    size_t live = atomic_fetch_add(&live_bytes, whole) + whole;
    for (size_t peak = atomic_load(&peak_bytes); live > peak;)
        if (atomic_compare_exchange_weak(&peak_bytes, &peak, live)) break;
    return block + align;
}

/* Every block of the store is aligned to a cache line. */
static void count_free(void *ptr, void *ctx)
{
    (void)ctx;
    char *block = (char *)ptr - TERN__LINE;
    size_t whole;
    memcpy(&whole, block, sizeof(whole));
    atomic_fetch_sub(&live_bytes, whole);
    free(block);
}

static size_t resident_bytes(void)
{
    char text[128] = {0};
    long pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (read(fd, text, sizeof(text) - 1) > 0) sscanf(text, "%*d %ld", &pages);
    close(fd);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- authenticated clients ---- */

typedef struct claim {
    uint8_t code;
    uint64_t first, second; /* lengths; the key between them is empty */
    bool two;
} claim;

static void say_claim(int fd, const claim *c)
{
    uint8_t bytes[17] = {c->code};
    memcpy(bytes + 1, &c->first, 8);
    memcpy(bytes + 9, &c->second, 8);
    say(fd, bytes, c->two ? 17 : 9);
}

static void huge_lengths_from_insiders_are_refused_before_memory_is_taken(void **state)
{
    const fixture *f = *state;
    static const uint64_t lengths[] = {
        TERN_STORE_VALUE_MAX + 1, 1u << 31, UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX};
    size_t live = atomic_load(&live_bytes), resident = resident_bytes();
    atomic_store(&peak_bytes, live);
    for (size_t i = 0; i < TERN__COUNT(lengths); i++) {
        const claim claims[] = {
            {TERN__QUERY_SET, lengths[i], 0, false},   {TERN__QUERY_SET, 0, lengths[i], true},
            {TERN__QUERY_GET, lengths[i], 0, false},   {TERN__QUERY_ADD, lengths[i], 0, false},
            {TERN__QUERY_CHECK, lengths[i], 0, false}, {TERN__QUERY_CHECK, 1, lengths[i], true},
            {TERN__QUERY_WAIT, lengths[i], 0, false},  {TERN__QUERY_WAIT, 1, lengths[i], true},
        };
        for (size_t j = 0; j < TERN__COUNT(claims); j++) {
            int fd = insider(f);
            say_claim(fd, &claims[j]);
            assert_hung_up(fd, 4);
        }
    }
    assert_served(f);
    assert_true(atomic_load(&peak_bytes) - live < 1 << 20);
    (void)resident;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(resident_bytes() < resident + (4u << 20));
#endif
}

static void promised_bytes_that_never_come_take_no_memory(void **state)
{
    const fixture *f = *state;
    int fds[32];
    size_t live = atomic_load(&live_bytes), resident = resident_bytes();
    atomic_store(&peak_bytes, live);
    for (size_t i = 0; i < TERN__COUNT(fds); i++) {
        fds[i] = insider(f);
        say_claim(fds[i], &(claim){TERN__QUERY_SET, 0, TERN_STORE_VALUE_MAX, true});
    }
    assert_served(f);
    assert_true(atomic_load(&peak_bytes) - live < 8 << 20);
    (void)resident;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(resident_bytes() < resident + (8u << 20));
#endif
    for (size_t i = 0; i < TERN__COUNT(fds); i++) close(fds[i]);
}

static void unknown_queries_are_refused(void **state)
{
    const fixture *f = *state;
    static const uint8_t codes[] = {0, 19, 63, 65, 'G', 255};
    for (size_t i = 0; i < TERN__COUNT(codes); i++) {
        int fd = insider(f);
        say(fd, &codes[i], 1);
        assert_hung_up(fd, 4);
    }
    assert_served(f);
}

static void a_query_may_come_byte_by_byte(void **state)
{
    const fixture *f = *state;
    static const uint8_t query[] = {
        TERN__QUERY_ADD, 2, 0, 0, 0, 0, 0, 0, 0, 'i', 'd', 42, 0, 0, 0, 0, 0, 0, 0};
    int fd = insider(f);
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof(query); i++) {
        say(fd, &query[i], 1);
        if (i % 8 == 0) assert_served(f);
    }
    assert_int_equal(tern__recv_all(fd, &sum, sizeof(sum), tern__deadline(10)), 0);
    assert_int_equal(sum, 42);
    close(fd);
}

/* It requests 20 times 8 MiB and reads nothing. The server keeps one answer for it and serves the others. */
static void a_client_that_does_not_read_stalls_nobody(void **state)
{
    const fixture *f = *state;
    tern_error err = {0};
    static uint8_t value[TERN_STORE_VALUE_MAX];
    static const uint8_t query[] = {TERN__QUERY_GET, 1, 0, 0, 0, 0, 0, 0, 0, 'v'};
    assert_int_equal(tern_store_set(f->store, "v", value, sizeof(value), &err), TERN_OK);
    assert_served(f);
    size_t live = atomic_load(&live_bytes);
    atomic_store(&peak_bytes, live);
    int fd = insider(f);
    for (int i = 0; i < 20; i++) say(fd, query, sizeof(query));
    for (int i = 0; i < 50; i++) assert_served(f);
    assert_true(atomic_load(&peak_bytes) - live < 3u * TERN_STORE_VALUE_MAX);
    close(fd);
    assert_served(f);
}

/* ---- the handshake ---- */

static void what_is_no_hello_is_refused(void **state)
{
    const fixture *f = *state;
    static const uint8_t validate[] = {0,  0xce, 0xf7, 0x85, 0x3c,
                                       13, 1,    2,    3,    4}; /* TCPStore: VALIDATE, PING */
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", ssh[] = "SSH-2.0-OpenSSH_9.2\r\n";
    static const uint8_t tls[] = {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3};
    static const char almost[] = "TernHi\r\n, and then anything at all until the sixty-four bytes are full";
    uint8_t noise[4096];
    for (int i = 0; i < 16; i++) {
        randombytes_buf(noise, sizeof(noise));
        noise[0] = (uint8_t)(noise[0] == 'T' ? 't' : noise[0]);
        int fd = stranger(f);
        say(fd, noise, sizeof(noise));
        assert_hung_up(fd, 4);
    }
    const struct {
        const void *data;
        size_t bytes;
    } words[] = {{validate, sizeof(validate)},
                 {http, sizeof(http)},
                 {ssh, sizeof(ssh)},
                 {tls, sizeof(tls)},
                 {almost, sizeof(almost)}};
    for (size_t i = 0; i < TERN__COUNT(words); i++) {
        int fd = stranger(f);
        say(fd, words[i].data, words[i].bytes);
        assert_hung_up(fd, 4);
    }
    assert_served(f);
}

static void a_hello_for_somebody_else_is_refused(void **state)
{
    const fixture *f = *state;
    tern__hello good, hellos[4];
    tern__hello_make(&good, TERN__PURPOSE_STORE, 1, 0, 4);
    for (int i = 0; i < 4; i++) hellos[i] = good;
    hellos[0].version++;
    hellos[1].purpose = TERN__PURPOSE_CONTROL;
    hellos[2].to = 1;
    hellos[3].from = 4;
    for (int i = 0; i < 4; i++) {
        int fd = stranger(f);
        say(fd, &hellos[i], sizeof(hellos[i]));
        assert_hung_up(fd, 4);
    }
}

static void a_wrong_secret_is_refused_on_both_sides(void **state)
{
    const fixture *f = *state;
    tern__bootstrap boot = ranks_boot_of(&f->boot, 1);
    for (int bit = 0; bit < 2; bit++) {
        tern_error err = {0};
        if (bit)
            boot.secret[31] ^= 1;
        else
            memset(boot.secret, 0, sizeof(boot.secret)); /* a rank without a secret */
        int64_t start = tern__now_ns();
        assert_null(tern__store_open(&boot, 5, &err));
        assert_int_equal(err.code, TERN_E_PEER);
        assert_non_null(strstr(err.text, "secret"));
        assert_true(seconds_since(start) < 4);
        memcpy(boot.secret, f->boot.secret, sizeof(boot.secret));
    }
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof = {0};
    int fd = stranger(f);
    begin_handshake(f, fd, &hello, &challenge);
    say(fd, &proof, sizeof(proof));
    assert_hung_up(fd, 4);
    assert_served(f);
}

static void a_proof_with_one_flipped_bit_is_refused(void **state)
{
    const fixture *f = *state;
    for (int bit = 0; bit < 256; bit += 17) {
        tern__hello hello;
        tern__challenge challenge;
        tern__proof proof;
        int fd = stranger(f);
        begin_handshake(f, fd, &hello, &challenge);
        assert_true(tern__hello_answer(&hello, &challenge, f->boot.secret, &proof));
        proof.mac[bit / 8] ^= (uint8_t)(1 << bit % 8);
        say(fd, &proof, sizeof(proof));
        assert_hung_up(fd, 4);
    }
}

static void replayed_and_reflected_proofs_are_refused(void **state)
{
    const fixture *f = *state;
    tern__hello hello;
    tern__challenge challenge, second;
    tern__proof proof, reflected;
    int fd = stranger(f);
    begin_handshake(f, fd, &hello, &challenge);
    assert_true(tern__hello_answer(&hello, &challenge, f->boot.secret, &proof));
    close(fd);

    fd = stranger(f); /* the same hello, and the proof that was valid for it */
    say(fd, &hello, sizeof(hello));
    assert_int_equal(tern__recv_all(fd, &second, sizeof(second), tern__deadline(10)), 0);
    assert_memory_not_equal(second.nonce, challenge.nonce, sizeof(second.nonce));
    say(fd, &proof, sizeof(proof));
    assert_hung_up(fd, 4);

    fd = stranger(f); /* the server's own messages */
    begin_handshake(f, fd, &hello, &challenge);
    memcpy(reflected.mac, challenge.mac, sizeof(reflected.mac));
    say(fd, &reflected, sizeof(reflected));
    assert_hung_up(fd, 4);
    assert_served(f);
}

/* Silence, half a hello, a byte every 100 ms: all are dropped at 5 s, and no client waits for them. */
static void slow_strangers_are_dropped_at_their_deadline(void **state)
{
    const fixture *f = *state;
    tern__hello hello;
    int64_t start = tern__now_ns();
    int silent = stranger(f), half = stranger(f), slow = stranger(f), unproved = stranger(f);
    tern__challenge challenge;
    begin_handshake(f, unproved, &hello, &challenge);
    tern__hello_make(&hello, TERN__PURPOSE_STORE, 1, 0, 4);
    say(half, &hello, 32);
    for (int i = 0; i < 45; i++) {
        say(slow, (uint8_t *)&hello + i, 1);
        assert_served(f);
        tern__poll(NULL, 0, start + (i + 1) * INT64_C(100000000));
    }
    assert_true(seconds_since(start) < 4.9); /* otherwise the machine is too busy for the following checks */
    struct pollfd still[] = {
        {silent, POLLIN, 0}, {half, POLLIN, 0}, {slow, POLLIN, 0}, {unproved, POLLIN, 0}};
    assert_int_equal(poll(still, 4, 0), 0);
    assert_hung_up(silent, 2);
    assert_hung_up(half, 2);
    assert_hung_up(slow, 2);
    assert_hung_up(unproved, 2);
    assert_true(seconds_since(start) >= TERN__HELLO_DEADLINE_S - 0.01);
    assert_served(f);
}

/* ---- crowds ---- */

enum { CROWD = 600 };

/* Sets how many descriptors this process may have open, and returns how many it could have. */
static rlim_t limit_descriptors(rlim_t most)
{
    struct rlimit limit;
    assert_return_code(getrlimit(RLIMIT_NOFILE, &limit), errno);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = TERN__MIN(most, limit.rlim_max);
    assert_return_code(setrlimit(RLIMIT_NOFILE, &limit), errno);
    return before;
}

/* In a process of its own: a crowd that says nothing, and a client behind it. Returns false if the client
 * waits until strangers reach their deadline. */
static bool comes_through(const fixture *f, int crowd)
{
    tern_error err = {0};
    tern__bootstrap boot = ranks_boot_of(&f->boot, 2);
    limit_descriptors(CROWD + 100);
    for (int i = 0; i < crowd; i++) stranger(f);
    int64_t start = tern__now_ns();
    tern_store *store = tern__store_open(&boot, 60, &err);
    return store && seconds_since(start) < TERN__HELLO_DEADLINE_S - 1;
}

static bool is_in_time(const fixture *f, int crowd, int descriptors)
{
    int top = dup(0), status = 1;
    close(top);
    rlim_t before = limit_descriptors(descriptors ? (rlim_t)(top + descriptors) : CROWD + 100);
    pid_t child = fork();
    if (child == 0) _exit(!comes_through(f, crowd));
    assert_int_equal(waitpid(child, &status, 0), child);
    limit_descriptors(before);
    return status == 0;
}

/* A busy machine may delay one attempt; a client that has to wait for deadlines is late in each. */
static void assert_ever_in_time(const fixture *f, int crowd, int descriptors)
{
    bool is_quick = false;
    for (int times = 0; times < 4 && !is_quick; times++) is_quick = is_in_time(f, crowd, descriptors);
    assert_true(is_quick);
    assert_served(f);
}

static void a_silent_crowd_keeps_no_client_out(void **state)
{
    assert_ever_in_time(*state, CROWD, 0);
}

static void nor_does_one_that_takes_all_descriptors(void **state)
{
    assert_ever_in_time(*state, 120, 30);
}

static void clients_that_vanish_leave_nothing_behind(void **state)
{
    const fixture *f = *state;
    static const uint8_t wait[] = {TERN__QUERY_WAIT, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 'w'};
    assert_served(f); /* whose buffers stay */
    size_t live = atomic_load(&live_bytes);
    for (int round = 0; round < 20; round++) {
        int waiting = insider(f), greeting = stranger(f), silent = stranger(f);
        say(waiting, wait, sizeof(wait));
        say(greeting, "TernHi", 6);
        close(waiting);
        close(greeting);
        close(silent);
    }
    int64_t deadline = tern__deadline(30);
    while (atomic_load(&live_bytes) > live + 4096 && tern__now_ns() < deadline) assert_served(f);
    assert_true(atomic_load(&live_bytes) <=
                live + 4096); /* the counter "served", and a longer list of clients */
}

int main(void)
{
    const tern_allocator counting = {count_alloc, count_free, NULL};
    tern__allocator_replace(&counting);
    const struct CMUnitTest tests[] = {
        WITH_STORE(huge_lengths_from_insiders_are_refused_before_memory_is_taken),
        WITH_STORE(promised_bytes_that_never_come_take_no_memory),
        WITH_STORE(unknown_queries_are_refused),
        WITH_STORE(a_query_may_come_byte_by_byte),
        WITH_STORE(a_client_that_does_not_read_stalls_nobody),
        WITH_STORE(what_is_no_hello_is_refused),
        WITH_STORE(a_hello_for_somebody_else_is_refused),
        WITH_STORE(a_wrong_secret_is_refused_on_both_sides),
        WITH_STORE(a_proof_with_one_flipped_bit_is_refused),
        WITH_STORE(replayed_and_reflected_proofs_are_refused),
        WITH_STORE(slow_strangers_are_dropped_at_their_deadline),
        WITH_STORE(a_silent_crowd_keeps_no_client_out),
        WITH_STORE(nor_does_one_that_takes_all_descriptors),
        WITH_STORE(clients_that_vanish_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
