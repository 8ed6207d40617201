/* test_bootstrap.c - the environment variables of a launcher, right and wrong, and the listening socket that
 * rank 0 inherits. */
#include "check.h"

#include "comm/bootstrap/bootstrap.h"
#include "comm/store/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECRET "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1EfF"
#define NEARLY "00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f" /* 63 digits */

static const char *const names[] = {"RANK",        "WORLD_SIZE",     "MASTER_ADDR",
                                    "MASTER_PORT", "LOCAL_RANK",     "LOCAL_WORLD_SIZE",
                                    "TERN_SECRET", "TERN_LISTEN_FD", "TERN_PORT"};

/* Values in the order of `names`; NULL: unset. */
typedef struct environment {
    const char *values[TERN__COUNT(names)];
    const char *expect; /* part of the error; NULL: none */
} environment;

static void apply(const environment *env)
{
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        unsetenv(names[i]);
        if (env->values[i]) setenv(names[i], env->values[i], 1);
    }
}

static tern__bootstrap read_good(const environment *env)
{
    tern_error err = {0};
    tern__bootstrap boot;
    apply(env);
    int status = tern__bootstrap_from_env(&boot, &err);
    assert_ok(err);
    assert_int_equal(status, TERN_OK);
    return boot;
}

static void malformed_environments_name_variable_and_value(void **state)
{
    (void)state;
    static const char addr[] = "127.0.0.1", port[] = "29500";
    char long_addr[300];
    memset(long_addr, 'a', sizeof(long_addr) - 1);
    long_addr[sizeof(long_addr) - 1] = '\0';
    const environment bad[] = {
        {{"0"}, "RANK=\"0\" is set but WORLD_SIZE is not"},
        {{NULL, "2"}, "WORLD_SIZE=\"2\" is set but RANK is not"},
        {{"", "2", addr, port}, "RANK=\"\""},
        {{"0", "", addr, port}, "WORLD_SIZE=\"\""},
        {{"x", "2", addr, port}, "RANK=\"x\""},
        {{"1.5", "2", addr, port}, "RANK=\"1.5\""},
        {{"0", "two", addr, port}, "WORLD_SIZE=\"two\""},
        {{"-1", "2", addr, port}, "RANK=-1"},
        {{"0", "0", addr, port}, "WORLD_SIZE=0"},
        {{"0", "-4", addr, port}, "WORLD_SIZE=-4"},
        {{"2", "2", addr, port}, "RANK=2 is not below WORLD_SIZE=2"},
        {{"0", "99999999999999999999", addr, port}, "WORLD_SIZE=\"99999999999999999999\""},
        {{"0", "4294967298", addr, port}, "WORLD_SIZE=4294967298"},
        {{"0", "1048577", addr, port}, "WORLD_SIZE=1048577"},
        {{"0", "2", NULL, port}, "MASTER_ADDR is not set"},
        {{"0", "2", addr}, "MASTER_PORT is not set"},
        {{"0", "2", "", port}, "MASTER_ADDR=\"\""},
        {{"0", "2", addr, ""}, "MASTER_PORT=\"\""},
        {{"0", "2", addr, "http"}, "MASTER_PORT=\"http\""},
        {{"0", "2", addr, "0"}, "MASTER_PORT=0"},
        {{"0", "2", addr, "65536"}, "MASTER_PORT=65536"},
        {{"0", "2", long_addr, port}, "MASTER_ADDR=\"aaaa"},
        {{"0", "1", NULL, "-3"}, "MASTER_PORT=-3"},
        {{"0", "2", addr, port, NULL, NULL, NULL, NULL, "0"}, "TERN_PORT=0"},
        {{"0", "2", addr, port, NULL, NULL, NULL, NULL, ""}, "TERN_PORT=\"\""},
        {{"0", "2", addr, port, "a"}, "LOCAL_RANK=\"a\""},
        {{"0", "2", addr, port, ""}, "LOCAL_RANK=\"\""},
        {{"0", "2", addr, port, "-1"}, "LOCAL_RANK=-1"},
        {{"0", "2", addr, port, "2"}, "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"},
        {{"0", "2", addr, port, "0", "3"}, "LOCAL_WORLD_SIZE=3"},
        {{"0", "2", addr, port, "0", "0"}, "LOCAL_WORLD_SIZE=0"},
        {{"0", "2", addr, port, "0", "b"}, "LOCAL_WORLD_SIZE=\"b\""},
        {{"3", "4", addr, port, NULL, "2"}, "LOCAL_RANK is not"},
        {{"0", "2", addr, port, NULL, NULL, ""}, "TERN_SECRET is not 64 hex digits"},
        {{"0", "2", addr, port, NULL, NULL, "abcd"}, "TERN_SECRET is not 64 hex digits"},
        {{"0", "2", addr, port, NULL, NULL, SECRET "0"}, "TERN_SECRET is not 64 hex digits"},
        {{"0", "2", addr, port, NULL, NULL, SECRET " 0"}, "TERN_SECRET is not 64 hex digits"},
        {{"0", "2", addr, port, NULL, NULL, "g" NEARLY}, "TERN_SECRET is not 64 hex digits"},
        {{NULL, NULL, NULL, NULL, NULL, NULL, "secret"}, "TERN_SECRET is not 64 hex digits"},
        {{"0", "2", addr, port, NULL, NULL, NULL, ""}, "TERN_LISTEN_FD=\"\""},
        {{"0", "2", addr, port, NULL, NULL, NULL, "0x3"}, "TERN_LISTEN_FD=\"0x3\""},
        {{"0", "2", addr, port, NULL, NULL, NULL, "-1"}, "TERN_LISTEN_FD=\"-1\""},
    };
    for (size_t i = 0; i < TERN__COUNT(bad); i++) {
        tern_error err = {0};
        tern__bootstrap boot;
        apply(&bad[i]);
        int status = tern__bootstrap_from_env(&boot, &err);
        if (status != TERN_E_ENV || !strstr(err.text, bad[i].expect))
            fail_msg("row %zu: wanted E_ENV \"%s\", got %s \"%s\"", i, bad[i].expect,
                     tern_status_name(status), err.text);
        assert_null(strstr(err.text, "secret"));
        assert_int_equal(err.code, TERN_E_ENV);
        assert_null(getenv("TERN_SECRET"));
        assert_null(getenv("TERN_LISTEN_FD"));
    }
}

static void nothing_set_is_alone(void **state)
{
    (void)state;
    tern__bootstrap boot = read_good(&(environment){0});
    assert_int_equal(boot.rank, 0);
    assert_int_equal(boot.world, 1);
    assert_int_equal(boot.local_rank, 0);
    assert_int_equal(boot.local_world, 1);
    assert_int_equal(boot.listen_fd, -1);
    assert_false(boot.has_secret);
    assert_string_equal(boot.source, "alone");
}

static void torchrun_variables_are_read(void **state)
{
    (void)state;
    tern__bootstrap boot = read_good(&(environment){{"5", "8", "node-3.example", "1234", "1", "4"}, NULL});
    assert_int_equal(boot.rank, 5);
    assert_int_equal(boot.world, 8);
    assert_int_equal(boot.local_rank, 1);
    assert_int_equal(boot.local_world, 4);
    assert_string_equal(boot.addr, "node-3.example");
    assert_int_equal(boot.port, 1234);
    assert_string_equal(boot.source, "RANK/WORLD_SIZE");
}

/* It is used if torchrun's variable says so and rank 0 would listen at the agent's address. */
static void the_store_of_torchruns_agent_is_used(void **state)
{
    (void)state;
    static const char addr[] = "127.0.0.1", variable[] = "TORCHELASTIC_USE_AGENT_STORE";
    const environment given = {{"0", "2", addr, "1234"}, NULL};
    const environment own = {{"0", "2", addr, "1234", NULL, NULL, NULL, NULL, "77"}, NULL};
    static const char *const no[] = {"False", "true", "1", ""};
    assert_false(read_good(&given).by_agent);
    for (size_t i = 0; i < TERN__COUNT(no); i++) {
        setenv(variable, no[i], 1);
        assert_false(read_good(&given).by_agent);
    }
    setenv(variable, "True", 1);
    assert_true(read_good(&given).by_agent);
    assert_int_equal(read_good(&given).port, 1234);
    assert_false(read_good(&own).by_agent);
    assert_int_equal(read_good(&own).port, 77);
    unsetenv(variable);
}

static void local_variables_default_to_one_host(void **state)
{
    (void)state;
    tern__bootstrap boot = read_good(&(environment){{"2", "3", "127.0.0.1", "29500"}, NULL});
    assert_int_equal(boot.local_rank, 2);
    assert_int_equal(boot.local_world, 3);
}

static void a_world_of_one_needs_no_master(void **state)
{
    (void)state;
    tern__bootstrap boot = read_good(&(environment){{"0", "1"}, NULL});
    assert_int_equal(boot.world, 1);
    assert_string_equal(boot.addr, "");
    assert_string_equal(boot.source, "RANK/WORLD_SIZE");
}

static void tern_port_goes_before_master_port(void **state)
{
    (void)state;
    environment env = {{"0", "2", "127.0.0.1", "29500"}, NULL};
    assert_int_equal(read_good(&env).port, 29500);
    env.values[8] = "4711";
    assert_int_equal(read_good(&env).port, 4711);
    env.values[3] = NULL;
    assert_int_equal(read_good(&env).port, 4711);
}

static void secret_is_decoded_and_taken(void **state)
{
    (void)state;
    tern__bootstrap boot = read_good(&(environment){{"1", "2", "::1", "1", NULL, NULL, SECRET "\r\n"}, NULL});
    assert_true(boot.has_secret);
    for (int i = 0; i < 30; i++) assert_int_equal(boot.secret[i], i);
    assert_int_equal(boot.secret[30], 0x1e);
    assert_int_equal(boot.secret[31], 0xff);
    assert_null(getenv("TERN_SECRET"));
}

/* The listening socket that rank 0 inherits from tern run. */
typedef struct inheritance {
    int fd;
    char text[16], port[16];
} inheritance;

static inheritance inherit(void)
{
    inheritance i = {.fd = socket(AF_INET, SOCK_STREAM, 0)};
    assert_true(i.fd >= 0);
    assert_return_code(listen(i.fd, 1), errno);
    snprintf(i.text, sizeof(i.text), "%d", i.fd);
    snprintf(i.port, sizeof(i.port), "%d", tern__port_of(i.fd));
    return i;
}

/* True if fd is a copy of the inherited socket that is closed on exec; 0 counts as no descriptor. */
static bool is_copy(int fd, const inheritance *i)
{
    return fd > 0 && fd != i->fd && tern__listens_at(fd, atoi(i->port)) && fcntl(fd, F_GETFD) & FD_CLOEXEC;
}

static void listening_descriptor_is_rank_0s_and_closes_on_exec(void **state)
{
    (void)state;
    inheritance i = inherit();
    environment env = {{"0", "2", "127.0.0.1", "1", NULL, NULL, NULL, i.text, i.port}, NULL};
    int copy = read_good(&env).listen_fd;
    assert_true(is_copy(copy, &i));
    assert_true(fcntl(i.fd, F_GETFD) & FD_CLOEXEC);
    assert_null(getenv("TERN_LISTEN_FD"));
    env.values[0] = "1";
    assert_int_equal(read_good(&env).listen_fd, -1);
    assert_null(getenv("TERN_LISTEN_FD"));
    close(copy);
    close(i.fd);
}

/* Even after the variable is gone and the first group has given away its copy; but not for another port. */
static void listening_descriptor_is_there_for_every_group(void **state)
{
    (void)state;
    inheritance i = inherit();
    environment env = {{"0", "2", "127.0.0.1", "1", NULL, NULL, NULL, i.text, i.port}, NULL};
    close(read_good(&env).listen_fd);
    env.values[7] = NULL;
    int copy = read_good(&env).listen_fd;
    assert_true(is_copy(copy, &i));
    env.values[8] = NULL;
    assert_int_equal(read_good(&env).listen_fd, -1);
    close(copy);
    close(i.fd);
}

/* The process that started the program has closed it, and may have opened another descriptor with its
 * number. */
static void listening_descriptor_that_was_lost_on_the_way(void **state)
{
    (void)state;
    inheritance other = inherit();
    const char *const found[] = {"9999", "2", other.text};
    for (size_t i = 0; i < TERN__COUNT(found); i++) {
        tern__bootstrap boot =
            read_good(&(environment){{"0", "2", "127.0.0.1", "1", NULL, NULL, NULL, found[i], "77"}, NULL});
        assert_int_equal(boot.listen_fd, -1);
        assert_true(boot.lost_listener);
    }
    assert_true(tern__listens_at(other.fd, atoi(other.port)));
    close(other.fd);
}

/* Run in a process that was started with the secret: returns whether ps and /proc show no trace of it. */
static int is_environ_clean(void)
{
    tern_error err = {0};
    tern__bootstrap boot;
    static char bytes[1 << 16];
    int fd = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
    ssize_t before = read(fd, bytes, sizeof(bytes));
    bool had = before > 0 && memmem(bytes, (size_t)before, SECRET, strlen(SECRET));
    if (tern__bootstrap_from_env(&boot, &err) || !boot.has_secret || lseek(fd, 0, SEEK_SET)) return 0;
    ssize_t after = read(fd, bytes, sizeof(bytes));
    return had && after > 0 && !memmem(bytes, (size_t)after, SECRET, strlen(SECRET));
}

static void secret_leaves_no_trace_in_proc(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        char name[] = "test_bootstrap", what[] = "environ", secret[] = "TERN_SECRET=" SECRET;
        char *argv[] = {name, what, NULL}, *env[] = {secret, NULL};
        execve("/proc/self/exe", argv, env);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "environ")) return !is_environ_clean();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_environments_name_variable_and_value),
        cmocka_unit_test(nothing_set_is_alone),
        cmocka_unit_test(torchrun_variables_are_read),
        cmocka_unit_test(the_store_of_torchruns_agent_is_used),
        cmocka_unit_test(local_variables_default_to_one_host),
        cmocka_unit_test(a_world_of_one_needs_no_master),
        cmocka_unit_test(tern_port_goes_before_master_port),
        cmocka_unit_test(secret_is_decoded_and_taken),
        cmocka_unit_test(listening_descriptor_is_rank_0s_and_closes_on_exec),
        cmocka_unit_test(listening_descriptor_is_there_for_every_group),
        cmocka_unit_test(listening_descriptor_that_was_lost_on_the_way),
        cmocka_unit_test(secret_leaves_no_trace_in_proc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
