/* test_store.c - the library's own store: values, waits, limits, opening, and a server without descriptors.
 */
#include "comm/store_fixture.h"

#include "comm/store/listen.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/resource.h>

/* ---- basic operations ---- */

static void values_are_set_and_got(void **state)
{
    const fixture *f = *state;
    tern_error err = {0};
    char value[8] = "........";
    size_t bytes = 99;
    tern_store_set(f->store, "a", "one\0two", 7, &err);
    tern__store_read(f->store, "a", value, sizeof(value), &bytes, 1, &err);
    assert_ok(err);
    assert_int_equal(bytes, 7);
    assert_memory_equal(value, "one\0two.", 8);

    tern_store_set(f->store, "a", "longer than the buffer", 22, &err);
    tern__store_read(f->store, "a", value, 6, &bytes, 1, &err);
    assert_ok(err);
    assert_int_equal(bytes, 22);
    assert_memory_equal(value, "longero.", 8);

    tern_store_set(f->store, "", NULL, 0, &err);
    tern__store_read(f->store, "", value, sizeof(value), &bytes, 1, &err);
    assert_ok(err);
    assert_int_equal(bytes, 0);
}

static void counters_add_and_keys_are_checked(void **state)
{
    const fixture *f = *state;
    tern_error err = {0};
    char text[32];
    int64_t sum;
    size_t bytes;
    assert_int_equal(tern__store_has(f->store, "n", &err), 0);
    assert_int_equal(tern_store_add(f->store, "n", 5, &sum, &err), TERN_OK);
    assert_int_equal(sum, 5);
    assert_int_equal(tern_store_add(f->store, "n", -7, &sum, &err), TERN_OK);
    assert_int_equal(sum, -2);
    assert_int_equal(tern__store_has(f->store, "n", &err), 1);
    tern__store_read(f->store, "n", text, sizeof(text), &bytes, 1, &err);
    assert_ok(err);
    assert_int_equal(bytes, 2);
    assert_memory_equal(text, "-2", 2);
}

static void a_counter_that_overflows_costs_only_its_client(void **state)
{
    const fixture *f = *state;
    tern_error err = {0};
    int64_t sum;
    tern_store *client = open_client(f, 1);
    assert_int_equal(tern_store_add(client, "big", INT64_MAX, &sum, &err), TERN_OK);
    assert_int_equal(tern_store_add(client, "big", 1, &sum, &err), TERN_E_PEER);
    tern_store_close(client);
    assert_served(f);
}

typedef struct setter {
    const fixture *f;
    double delay_s;
    int64_t set_at;
} setter;

static void *set_later(void *arg)
{
    setter *s = arg;
    tern_store *store = open_client(s->f, 1);
    tern__poll(NULL, 0, tern__deadline(s->delay_s));
    s->set_at = tern__now_ns();
    tern_store_set(store, "late", "x", 1, NULL);
    tern_store_close(store);
    return NULL;
}

static void get_waits_for_the_key(void **state)
{
    const fixture *f = *state;
    tern_error err = {0};
    char value;
    size_t bytes;
    setter s = {.f = f, .delay_s = 0.2};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, set_later, &s), 0);
    tern__store_read(f->store, "late", &value, 1, &bytes, 5, &err);
    int64_t got_at = tern__now_ns();
    pthread_join(thread, NULL);
    assert_ok(err);
    assert_int_equal(value, 'x');
    assert_true(got_at > s.set_at && got_at - s.set_at < 4000000000);
}

static void a_wait_that_times_out_names_the_key_and_the_client_goes_on(void **state)
{
    const fixture *f = *state;
    tern_error err = {0};
    char value;
    size_t bytes;
    for (int i = 0; i < 2; i++) {
        double limit = i ? 5.2 : 0.2; /* an answer may take 5 s; a wait may take longer */
        int64_t start = tern__now_ns();
        err = (tern_error){0};
        assert_int_equal(tern__store_read(f->store, "never", &value, 1, &bytes, limit, &err), TERN_E_TIMEOUT);
        assert_true(seconds_since(start) >= limit && seconds_since(start) < limit + 4);
        assert_non_null(strstr(err.text, "\"never\""));
        assert_served(f);
    }
}

/* A cancel crosses the answer. In either case the next answer belongs to the next question. */
static void waits_canceled_at_the_last_moment_leave_the_stream_in_step(void **state)
{
    const fixture *f = *state;
    tern_store *other = open_client(f, 1);
    int timeouts = 0;
    for (int i = 0; i < 300; i++) {
        tern_error err = {0};
        char key[32], value;
        size_t bytes;
        int64_t sum;
        snprintf(key, sizeof(key), "race/%d", i);
        assert_int_equal(tern_store_set(other, key, "y", 1, &err), TERN_OK);
        int status = tern__store_read(f->store, key, &value, 1, &bytes, 0, NULL);
        assert_true(status == TERN_OK || status == TERN_E_TIMEOUT);
        timeouts += status == TERN_E_TIMEOUT;
        assert_int_equal(tern_store_add(f->store, "race", 1, &sum, &err), TERN_OK);
        assert_int_equal(sum, i + 1);
    }
    assert_true(timeouts > 0);
    tern_store_close(other);
}

static void *add_100(void *arg)
{
    tern_store *store = open_client(arg, 1);
    int64_t sum;
    for (int i = 0; i < 100; i++) tern_store_add(store, "shared", 1, &sum, NULL);
    tern_store_close(store);
    return NULL;
}

static void many_clients_are_served(void **state)
{
    const fixture *f = *state;
    enum { clients = 48 };
    pthread_t threads[clients];
    tern_error err = {0};
    int64_t sum;
    for (int i = 0; i < clients; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_100, (void *)f), 0);
    for (int i = 0; i < clients; i++) pthread_join(threads[i], NULL);
    assert_int_equal(tern_store_add(f->store, "shared", 0, &sum, &err), TERN_OK);
    assert_int_equal(sum, clients * 100);
}

/* ---- limits ---- */

static void values_up_to_the_limit_pass(void **state)
{
    const fixture *f = *state;
    tern_error err = {0};
    size_t bytes, limit = TERN_STORE_VALUE_MAX;
    uint8_t *value = malloc(limit + 1), *back = malloc(limit);
    for (size_t i = 0; i <= limit; i++) value[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_int_equal(tern_store_set(f->store, "big", value, limit, &err), TERN_OK);
    assert_int_equal(tern__store_read(f->store, "big", back, limit, &bytes, 5, &err), TERN_OK);
    assert_int_equal(bytes, limit);
    assert_memory_equal(value, back, limit);
    assert_int_equal(tern_store_set(f->store, "big", value, limit + 1, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.text, "8388609"));
    assert_served(f);
    free(value);
    free(back);
}

static void keys_up_to_the_limit_pass(void **state)
{
    const fixture *f = *state;
    tern_error err = {0};
    static char key[TERN_STORE_KEY_MAX + 2];
    memset(key, 'k', TERN_STORE_KEY_MAX - 1); /* and the "/" that the store adds */
    assert_int_equal(tern_store_set(f->store, key, "v", 1, &err), TERN_OK);
    assert_int_equal(tern__store_has(f->store, key, &err), 1);
    key[TERN_STORE_KEY_MAX - 1] = 'k';
    assert_int_equal(tern_store_set(f->store, key, "v", 1, &err), TERN_E_INVALID);
    assert_served(f);
}

/* ---- opening ---- */

static void a_job_without_a_secret_uses_zeros(void **state)
{
    (void)state;
    fixture f = {.boot = ranks_boot(2)};
    tern_error err = {0};
    f.boot.has_secret = false;
    memset(f.boot.secret, 0, sizeof(f.boot.secret));
    f.store = tern__store_open(&f.boot, 5, &err);
    assert_ok(err);
    tern_store *other = open_client(&f, 1);
    assert_served(&f);
    int fd = stranger(&f);
    say(fd, "\0\xce\xf7\x85\x3c", 5);
    assert_hung_up(fd, 2);
    tern_store_close(other);
    tern_store_close(f.store);
}

static void a_taken_port_is_named(void **state)
{
    tern__bootstrap boot = ((fixture *)*state)->boot;
    tern_error err = {0};
    char expected[64];
    boot.listen_fd = -1;
    int64_t start = tern__now_ns();
    assert_null(tern__store_open(&boot, 5, &err));
    assert_true(seconds_since(start) < 4);
    assert_int_equal(err.code, TERN_E_SYSTEM);
    assert_int_equal(err.native, EADDRINUSE);
    snprintf(expected, sizeof(expected), "port %d of 127.0.0.1 is taken: Address already in use", boot.port);
    assert_non_null(strstr(err.text, expected));
}

static void rank_0_binds_only_its_address(void **state)
{
    (void)state;
    fixture f = {.boot = ranks_boot(2)};
    tern_error err = {0};
    close(f.boot.listen_fd);
    f.boot.listen_fd = -1;
    f.store = tern__store_open(&f.boot, 5, &err);
    assert_ok(err);
    assert_served(&f);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1),
                             .sin_port = htons((uint16_t)f.boot.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    tern_store_close(f.store);

    snprintf(f.boot.addr, sizeof(f.boot.addr), "192.0.2.1"); /* an address that no host has */
    assert_null(tern__store_open(&f.boot, 5, &err));
    assert_int_equal(err.code, TERN_E_SYSTEM);
    assert_non_null(strstr(err.text, "192.0.2.1"));
}

/* Even if the ranks may be on several hosts. */
static void localhost_is_this_host_alone(void **state)
{
    (void)state;
    tern_error err = {0};
    const tern__bootstrap boot = {.world = 2, .addr = "localhost", .listen_fd = -1};
    struct sockaddr_storage at;
    socklen_t size = sizeof(at);
    int fd = tern__listen(&boot, &err);
    assert_ok(err);
    assert_return_code(getsockname(fd, (struct sockaddr *)&at, &size), errno);
    assert_true(tern__is_loopback((struct sockaddr *)&at));
    close(fd);
}

static void nobody_there_is_a_timeout_with_address_attempts_and_reason(void **state)
{
    (void)state;
    tern__bootstrap boot = ranks_boot(2);
    tern_error err = {0};
    char expected[64];
    close(boot.listen_fd);
    boot = ranks_boot_of(&boot, 1);
    int64_t start = tern__now_ns();
    assert_null(tern__store_open(&boot, 0.5, &err));
    assert_true(seconds_since(start) >= 0.5 && seconds_since(start) < RANKS_SOON_S);
    assert_int_equal(err.code, TERN_E_TIMEOUT);
    assert_int_equal(err.native, ECONNREFUSED);
    snprintf(expected, sizeof(expected), "127.0.0.1 port %d", boot.port);
    assert_non_null(strstr(err.text, expected));
    assert_non_null(strstr(err.text, "attempts"));
    assert_non_null(strstr(err.text, "Connection refused; it accepts nobody once all ranks have met"));
}

static void a_name_that_nobody_knows_is_no_reason_to_ask_for_a_second_rank(void **state)
{
    (void)state;
    tern__bootstrap boot = ranks_boot(2);
    tern_error err = {0};
    close(boot.listen_fd);
    boot = ranks_boot_of(&boot, 1);
    snprintf(boot.addr, sizeof(boot.addr), "no-such-host.invalid");
    assert_null(tern__store_open(&boot, 0.2, &err));
    assert_int_equal(err.code, TERN_E_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 0's store at no-such-host.invalid port "));
    assert_null(strstr(err.text, "does this rank run already?"));
}

/* ---- a name that stands for several addresses ---- */

static const char *const *several; /* the addresses of several.test, up to a NULL */

static int resolve(const char *name, const char *service, const struct addrinfo *hints,
                   struct addrinfo **list)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &symbol, sizeof(real));
    return real(name, service, hints, list);
}

/* Takes the place of libc's. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
    int status = 0;
    if (!name || strcmp(name, "several.test")) return resolve(name, service, hints, list);
    for (const char *const *at = several; *at && !status; at++, list = &(*list)->ai_next)
        status = resolve(*at, service, hints, list);
    return status;
}

/* Returns the errno with which this kernel connects to, or binds, an address. */
static int kernel_errno(const char *address, int port, bool binds)
{
    char service[16];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *at;
    snprintf(service, sizeof(service), "%d", port);
    assert_int_equal(resolve(address, service, &hints, &at), 0);
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), status = fd;
    if (fd >= 0) status = (binds ? bind : connect)(fd, at->ai_addr, at->ai_addrlen);
    int native = status < 0 ? errno : 0;
    if (fd >= 0) close(fd);
    freeaddrinfo(at);
    return native;
}

static void assert_each_is_named(const tern_error *err, int port, bool binds)
{
    char expected[256] = "";
    for (const char *const *at = several; *at; at++)
        snprintf(expected + strlen(expected), sizeof(expected) - strlen(expected), "%s%s: %s",
                 at > several ? ", " : "", *at, strerror(kernel_errno(*at, port, binds)));
    if (!strstr(err->text, expected) || !strstr(err->text, "several.test"))
        fail_msg("\"%s\" does not have \"%s\"", err->text, expected);
}

static void every_address_of_a_name_is_named_with_its_errno(void **state)
{
    (void)state;
    static const char *const lists[][4] = {{"127.0.0.1", "127.0.0.2", NULL},
                                           {"::1", "127.0.0.1", NULL},
                                           {"127.0.0.3", "::1", "127.0.0.1", NULL},
                                           {"127.0.0.2", NULL}};
    tern__bootstrap boot = ranks_boot(2);
    close(boot.listen_fd);
    boot = ranks_boot_of(&boot, 1);
    snprintf(boot.addr, sizeof(boot.addr), "several.test");
    for (size_t i = 0; i < TERN__COUNT(lists); i++) {
        tern_error of_job = {0}, of_program = {0}, of_node = {0};
        tern_store_tcp_opts opts = tern_store_tcp_defaults();
        several = lists[i];
        opts.timeout_s = 0.1;
        assert_null(tern__store_open(&boot, 0.1, &of_job));
        assert_null(tern_store_tcp_open("several.test", boot.port, &opts, &of_program));
        assert_true(tern__dial_node(&boot, tern__deadline(0.1), &of_node) < 0);
        assert_each_is_named(&of_job, boot.port, false);
        assert_each_is_named(&of_program, boot.port, false);
        assert_each_is_named(&of_node, boot.port, false);
        assert_non_null(strstr(of_job.text, "does this rank run already?"));
    }
}

static void so_is_every_address_that_cannot_be_bound(void **state)
{
    (void)state;
    static const char *const foreign[] = {"192.0.2.1", "198.51.100.1", NULL}, *const taken[] = {"192.0.2.1",
                                                                                                "127.0.0.1",
                                                                                                NULL};
    tern__bootstrap zero = ranks_boot(2), boot = zero;
    tern_error err = {0};
    boot.listen_fd = -1;
    snprintf(boot.addr, sizeof(boot.addr), "several.test");
    boot.is_placed = true; /* the name is of one host */
    boot.local_world = boot.world;
    several = foreign;
    assert_int_equal(tern__listen(&boot, &err), TERN_E_SYSTEM);
    assert_int_equal(err.native, EADDRNOTAVAIL);
    assert_each_is_named(&err, boot.port, true);
    several = taken;
    err = (tern_error){0};
    assert_int_equal(tern__listen(&boot, &err), TERN_E_SYSTEM);
    assert_int_equal(err.native, EADDRINUSE);
    assert_each_is_named(&err, boot.port, true);
    close(zero.listen_fd);
}

/* A host name, too, although /etc/hosts cannot be opened then. */
static void assert_named(const char *addr, const char *who, tern_error err)
{
    char expected[128];
    assert_int_equal(err.code, TERN_E_SYSTEM);
    assert_int_equal(err.native, EMFILE);
    snprintf(expected, sizeof(expected), "%s at %s port ", who, addr);
    assert_non_null(strstr(err.text, expected));
    assert_non_null(strstr(err.text, "ulimit -n"));
}

static void no_descriptor_to_call_with_is_said_at_once(void **state)
{
    (void)state;
    static const char *const names[] = {"127.0.0.1", "localhost"};
    tern__bootstrap zero = ranks_boot(2);
    struct rlimit before;
    int top = dup(0);
    assert_return_code(close(top), errno);
    assert_return_code(getrlimit(RLIMIT_NOFILE, &before), errno);
    const struct rlimit none = {(rlim_t)top, before.rlim_max};
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        tern_error of_job = {0}, of_program = {0};
        tern__bootstrap boot = ranks_boot_of(&zero, 1);
        snprintf(boot.addr, sizeof(boot.addr), "%s", names[i]);
        int64_t start = tern__now_ns();
        assert_return_code(setrlimit(RLIMIT_NOFILE, &none), errno);
        tern_store *store = tern__store_open(&boot, RANKS_TIMEOUT_S, &of_job);
        tern_store *public_store = tern_store_tcp_open(names[i], boot.port, NULL, &of_program);
        assert_return_code(setrlimit(RLIMIT_NOFILE, &before), errno);
        assert_true(!store && !public_store && seconds_since(start) < RANKS_SOON_S);
        assert_named(names[i], "rank 1 has no file descriptor left to connect to rank 0's store", of_job);
        assert_named(names[i], "this process has no file descriptor left to connect to the store",
                     of_program);
    }
    close(zero.listen_fd);
}

static void *open_later(void *arg)
{
    fixture *f = arg;
    tern__poll(NULL, 0, tern__deadline(0.3));
    f->store = tern__store_open(&f->boot, 5, NULL);
    return NULL;
}

static void a_client_may_come_before_the_server(void **state)
{
    (void)state;
    for (int inherited = 0; inherited < 2; inherited++) {
        fixture f = {.boot = ranks_boot(2)};
        if (!inherited) tern__close(&f.boot.listen_fd);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, open_later, &f), 0);
        tern__bootstrap boot = ranks_boot_of(&f.boot, 1);
        tern_error err = {0};
        tern_store *store = tern__store_open(&boot, 5, &err);
        pthread_join(thread, NULL);
        assert_ok(err);
        assert_non_null(f.store);
        tern_store_close(store);
        tern_store_close(f.store);
    }
}

static void a_service_that_hangs_up_is_no_store(void **state)
{
    (void)state;
    tern__bootstrap zero = ranks_boot(2);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) close(accept(zero.listen_fd, NULL, NULL));
    }
    tern__bootstrap boot = ranks_boot_of(&zero, 1);
    tern_error err = {0};
    assert_null(tern__store_open(&boot, 10, &err));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(zero.listen_fd);
    assert_int_equal(err.code, TERN_E_PEER);
    assert_non_null(strstr(err.text, "it closes the connection"));
}

static void a_server_that_ends_is_an_error_of_its_clients(void **state)
{
    (void)state;
    fixture f = {.boot = ranks_boot(2)};
    tern_error err = {0}, again = {0};
    int64_t sum;
    f.store = tern__store_open(&f.boot, 5, &err);
    assert_ok(err);
    tern_store *client = open_client(&f, 1);
    tern_store_close(f.store);
    assert_int_equal(tern_store_add(client, "k", 1, &sum, &err), TERN_E_PEER);
    assert_non_null(strstr(err.text, "127.0.0.1"));
    assert_int_equal(tern_store_add(client, "k", 1, &sum, &again), TERN_E_PEER);
    tern_store_close(client);
}

static void missing_ranks_are_listed_but_no_empty_list(void **state)
{
    (void)state;
    fixture f = {.boot = ranks_boot(2)};
    tern_error err = {0};
    f.store = tern__store_open(&f.boot, 5, &err);
    tern_store *client = open_client(&f, 1);
    tern_store_set(f.store, "rank/0", "x", 1, &err);
    tern_store_set(f.store, "rank/1", "x", 1, &err);
    assert_int_equal(tern__store_has(f.store, "rank/1", &err), 1); /* a set returns without waiting */
    assert_int_equal(tern__store_fail_missing(client, "rank/", 0, 2, &err), TERN_OK);
    assert_ok(err);
    assert_int_equal(tern__store_fail_missing(client, "rank/", 0, 4, &err), TERN_E_TIMEOUT);
    assert_string_equal(err.text, "2 of 4 ranks joined; missing: ranks 2, 3");
    tern_store_close(f.store);
    err = (tern_error){0};
    assert_int_equal(tern__store_fail_missing(client, "rank/", 0, 4, &err), TERN_E_PEER);
    assert_non_null(strstr(err.text, "rank 0's store at 127.0.0.1"));
    tern_store_close(client);
}

/* Runs a server that may open three more descriptors. Its exit status says whether it slept meanwhile. */
static int serve_with_few_descriptors(const tern__bootstrap *boot, int done)
{
    tern_error err = {0};
    char byte;
    struct rusage usage;
    tern_store *store = tern__store_open(boot, 5, &err);
    int top = dup(0);
    close(top);
    const struct rlimit limit = {(rlim_t)top + 3, (rlim_t)top + 3};
    if (err.code || setrlimit(RLIMIT_NOFILE, &limit) || read(done, &byte, 1) != 1) return 1;
    tern_store_close(store);
    if (getrusage(RUSAGE_SELF, &usage)) return 1;
    double seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                     (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    return seconds < 0.1 ? 0 : 2; /* it was out of descriptors for half a second */
}

static void a_server_without_descriptors_backs_off_and_recovers(void **state)
{
    (void)state;
    fixture f = {.boot = ranks_boot(2)};
    int done[2], held[10];
    assert_return_code(pipe2(done, O_CLOEXEC), errno);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(serve_with_few_descriptors(&f.boot, done[0]));
    }
    close(f.boot.listen_fd);
    f.store = open_client(&f, 1);
    for (size_t i = 0; i < TERN__COUNT(held); i++) held[i] = stranger(&f);
    for (int i = 0; i < 5; i++) {
        assert_served(&f);
        tern__poll(NULL, 0, tern__deadline(0.1));
    }
    for (size_t i = 0; i < TERN__COUNT(held); i++) close(held[i]);
    tern_store *late = open_client(&f, 1);
    tern_store_close(late);
    tern_store_close(f.store);
    int status;
    assert_int_equal(write(done[1], "x", 1), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(done[0]);
    close(done[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_STORE(values_are_set_and_got),
        WITH_STORE(counters_add_and_keys_are_checked),
        WITH_STORE(a_counter_that_overflows_costs_only_its_client),
        WITH_STORE(get_waits_for_the_key),
        WITH_STORE(a_wait_that_times_out_names_the_key_and_the_client_goes_on),
        WITH_STORE(waits_canceled_at_the_last_moment_leave_the_stream_in_step),
        WITH_STORE(many_clients_are_served),
        WITH_STORE(values_up_to_the_limit_pass),
        WITH_STORE(keys_up_to_the_limit_pass),
        cmocka_unit_test(a_job_without_a_secret_uses_zeros),
        WITH_STORE(a_taken_port_is_named),
        cmocka_unit_test(rank_0_binds_only_its_address),
        cmocka_unit_test(localhost_is_this_host_alone),
        cmocka_unit_test(nobody_there_is_a_timeout_with_address_attempts_and_reason),
        cmocka_unit_test(every_address_of_a_name_is_named_with_its_errno),
        cmocka_unit_test(so_is_every_address_that_cannot_be_bound),
        cmocka_unit_test(a_name_that_nobody_knows_is_no_reason_to_ask_for_a_second_rank),
        cmocka_unit_test(no_descriptor_to_call_with_is_said_at_once),
        cmocka_unit_test(a_client_may_come_before_the_server),
        cmocka_unit_test(a_service_that_hangs_up_is_no_store),
        cmocka_unit_test(a_server_that_ends_is_an_error_of_its_clients),
        cmocka_unit_test(missing_ranks_are_listed_but_no_empty_list),
        cmocka_unit_test(a_server_without_descriptors_backs_off_and_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
