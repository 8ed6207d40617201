/* test_trace.c - the timeline's file, parsed with cJSON: escapes, times in nanoseconds, more events than the
 * buffer holds, several ranks in one file, and failures of the file. */
#include "ledger.h"

#include "base/trace.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LABELS 10 /* a rank's first lines */

/* ---- the test's file, and the warnings ---- */

static char path[64];
static char warnings[2048];

static void remember(tern_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    size_t used = strlen(warnings);
    if (level <= TERN_LOG_WARN) snprintf(warnings + used, sizeof(warnings) - used, "%s\n", text);
}

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/tern_trace_XXXXXX");
    int fd = mkstemp(path);
    close(fd);
    warnings[0] = 0;
    tern_log_set(remember, NULL);
    return fd < 0;
}

static int teardown(void **state)
{
    (void)state;
    tern_log_set(NULL, NULL);
    return unlink(path);
}

static char *read_all(void)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = calloc((size_t)size + 1, 1);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    fclose(file);
    return text;
}

static cJSON *parse(void)
{
    char *text = read_all();
    cJSON *json = cJSON_ParseWithOpts(text, NULL, true);
    free(text);
    return json;
}

static int64_t ns_of(const cJSON *event, const char *key)
{
    return llround(cJSON_GetNumberValue(cJSON_GetObjectItem(event, key)) * 1000);
}

static double number_of(const cJSON *event, const char *key)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(event, key));
}

static void add(tern__trace *trace, const char *name, int64_t began)
{
    tern__trace_add(trace, &(tern__trace_event){.name = name, .began = began, .ended = began + 1});
}

/* ---- what is written ---- */

static void events_are_read_as_they_were_added(void **state)
{
    (void)state;
    static const char strange[] = "a \"name\" with \\, \n and \x01, \xc3\xa9";
    tern__trace *trace = tern__trace_open(path, 0);
    int64_t began = INT64_C(86400123456789012), ended = began + 1001;
    tern__trace_add(
        trace,
        &(tern__trace_event){strange, TERN__TRACK_REDUCE, began, ended, {{"bucket", 3}, {"bytes", 1 << 30}}});
    tern__trace_add(
        trace, &(tern__trace_event){"instant", TERN__TRACK_BUCKETS, 7, 0, {{"a", -1}, {"b", 2}, {"c", 3}}});
    tern__trace_close(trace);
    cJSON *json = parse();
    assert_int_equal(cJSON_GetArraySize(json), LABELS + 2);
    const cJSON *span = cJSON_GetArrayItem(json, LABELS), *instant = cJSON_GetArrayItem(json, LABELS + 1);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(span, "name")), strange);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(span, "ph")), "X");
    assert_int_equal(number_of(span, "pid"), 1);
    assert_int_equal(number_of(span, "tid"), 1001 + TERN__TRACK_REDUCE);
    assert_true(fabs(number_of(span, "ts") - 86400123456789.012) <
                0.01); /* the largest that a double holds */
    assert_int_equal(ns_of(span, "dur"), 1001);
    assert_int_equal(number_of(cJSON_GetObjectItem(span, "args"), "bytes"), 1 << 30);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(instant, "ph")), "i");
    assert_int_equal(ns_of(instant, "ts"), 7);
    assert_null(cJSON_GetObjectItem(instant, "dur"));
    assert_true(number_of(cJSON_GetObjectItem(instant, "args"), "a") ==
                -1); /* cmocka's integers are unsigned */
    assert_int_equal(number_of(cJSON_GetObjectItem(instant, "args"), "c"), 3);
    cJSON_Delete(json);
    assert_string_equal(warnings, "");
}

static void a_rank_begins_with_its_labels(void **state)
{
    (void)state;
    char host[64] = "", expected[128];
    gethostname(host, sizeof(host) - 1);
    snprintf(expected, sizeof(expected), "rank 0 (%s, pid %d)", host, (int)getpid());
    tern__trace_close(tern__trace_open(path, 0));
    cJSON *json = parse();
    assert_int_equal(cJSON_GetArraySize(json), LABELS);
    const cJSON *first = cJSON_GetArrayItem(json, 0), *last = cJSON_GetArrayItem(json, LABELS - 2);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(first, "name")), "process_name");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetObjectItem(first, "args"), "name")),
                        expected);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetObjectItem(last, "args"), "name")),
                        "wait");
    cJSON_Delete(json);
}

static void none_is_lost_when_more_come_than_are_kept(void **state)
{
    (void)state;
    enum { count = 3 * 8192 + 5 };
    ledger books = {0};
    ledger_open(&books);
    tern__trace *trace = tern__trace_open(path, 0);
    add(trace, "name", 0);
    int before = atomic_load(&books.requests);
    for (int i = 1; i < count; i++) add(trace, "name", i);
    assert_int_equal(atomic_load(&books.requests), before);
    tern__trace_close(trace);
    ledger_close(&books);
    cJSON *json = parse(), *event;
    int place = 0;
    cJSON_ArrayForEach(event, json) if (place++ >= LABELS)
        assert_int_equal(ns_of(event, "ts"), place - 1 - LABELS);
    assert_int_equal(place, LABELS + count);
    cJSON_Delete(json);
}

/* More names than the cache of escaped names holds. */
static void many_names(void **state)
{
    (void)state;
    static char names[600][16];
    tern__trace *trace = tern__trace_open(path, 0);
    for (int i = 0; i < 600; i++) {
        snprintf(names[i], sizeof(names[i]), "n%d", i);
        add(trace, names[i], i);
    }
    tern__trace_close(trace);
    cJSON *json = parse();
    int right = 0, unknown = 0;
    for (int i = 0; i < 600; i++) {
        const char *name =
            cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetArrayItem(json, LABELS + i), "name"));
        right += !strcmp(name, names[i]);
        unknown += !strcmp(name, "?");
    }
    assert_int_equal(right, 512);
    assert_int_equal(right + unknown, 600);
    cJSON_Delete(json);
}

/* ---- several ranks ---- */

static void ranks_are_merged_and_the_last_one_ends_the_file(void **state)
{
    (void)state;
    tern__trace *ranks[3];
    for (int rank = 0; rank < 3; rank++) assert_non_null(ranks[rank] = tern__trace_open(path, rank));
    for (int i = 0; i < 100; i++) {
        add(ranks[i % 3], "name", i);
        if (i % 7 == 0) tern__trace_flush(ranks[i % 3]);
    }
    static const int order[] = {0, 2, 1};
    for (int i = 0; i < 3; i++) {
        assert_null(parse()); /* no "]" yet */
        tern__trace_close(ranks[order[i]]);
    }
    cJSON *json = parse(), *event;
    int64_t last[3] = {-1, -1, -1};
    int events = 0;
    cJSON_ArrayForEach(event, json)
    {
        if (*cJSON_GetStringValue(cJSON_GetObjectItem(event, "ph")) == 'M') continue;
        int rank = (int)number_of(event, "pid") - 1;
        assert_true(ns_of(event, "ts") > last[rank] && ns_of(event, "ts") % 3 == rank);
        last[rank] = ns_of(event, "ts");
        events++;
    }
    assert_int_equal(events, 100);
    assert_int_equal(cJSON_GetArraySize(json), 3 * LABELS + 100);
    cJSON_Delete(json);
    assert_string_equal(warnings, "");
}

static void *add_many(void *trace)
{
    for (int i = 0; i < 1000; i++) {
        add(trace, "name", i);
        if (i % 200 == 0) tern__trace_flush(trace);
    }
    return NULL;
}

static void any_thread_may_add(void **state)
{
    (void)state;
    pthread_t threads[4];
    tern__trace *ranks[2] = {tern__trace_open(path, 0), tern__trace_open(path, 1)};
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, add_many, ranks[i % 2]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) tern__trace_close(ranks[i]);
    cJSON *json = parse();
    assert_int_equal(cJSON_GetArraySize(json), 2 * LABELS + 4 * 1000);
    cJSON_Delete(json);
}

/* A forked child has its parent's file open, but must neither write to it nor end it. */
static void a_forked_child_leaves_the_file_alone(void **state)
{
    (void)state;
    tern__trace *trace = tern__trace_open(path, 0);
    add(trace, "name", 1);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 10000; i++) add(trace, "child", 2);
        tern__trace_flush(trace);
        tern__trace_close(trace);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    tern__trace_close(trace);
    cJSON *json = parse();
    assert_int_equal(cJSON_GetArraySize(json), LABELS + 1);
    cJSON_Delete(json);
}

/* The kernel drops a killed rank's lock; its lines stay, and the last other rank ends the file. */
static void a_killed_rank_does_not_keep_the_file_open(void **state)
{
    (void)state;
    tern__trace *trace = tern__trace_open(path, 0);
    pid_t child = fork();
    if (child == 0) {
        tern__trace *own = tern__trace_open(path, 1);
        add(own, "written", 1);
        tern__trace_flush(own);
        add(own, "never", 2);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    tern__trace_close(trace);
    cJSON *json = parse();
    assert_int_equal(cJSON_GetArraySize(json), 2 * LABELS + 1);
    cJSON_Delete(json);
}

/* ---- failures ---- */

static void a_file_that_rank_0_has_not_begun_is_left_alone(void **state)
{
    (void)state;
    tern__trace_close(tern__trace_open(path, 0));
    char *before = read_all();
    assert_null(tern__trace_open(path, 1));
    char *after = read_all();
    assert_string_equal(before, after);
    assert_non_null(strstr(warnings, "no timeline of rank 1: rank 0 has not created"));
    assert_non_null(strstr(warnings, path));
    free(before);
    free(after);
}

static void a_file_that_cannot_be_made_is_named_once(void **state)
{
    (void)state;
    assert_null(tern__trace_open("/tmp/no/such/folder/trace.json", 0));
    assert_null(tern__trace_open("/tmp/no/such/folder/trace.json", 1));
    assert_string_equal(warnings, "no timeline: cannot open /tmp/no/such/folder/trace.json: No such file or "
                                  "directory\n");
}

/* A pipe without a reader would make the rank wait once the pipe is full. */
static void only_a_regular_file_is_written(void **state)
{
    (void)state;
    assert_null(tern__trace_open("/dev/full", 0));
    assert_non_null(strstr(warnings, "no timeline: /dev/full is a device, expected a regular file"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_null(tern__trace_open(path, 0));
    assert_non_null(strstr(warnings, " is a pipe, expected a regular file"));
}

/* The file cannot grow beyond 100000 bytes. */
static void a_full_disk_ends_the_timeline_with_one_warning(void **state)
{
    (void)state;
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tern__trace *trace = tern__trace_open(path, 0);
    limit = (struct rlimit){100000, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 0; i < 20000; i++) add(trace, "name", i);
    tern__trace_close(trace);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    const char *said = strstr(warnings, "ends here: File too large");
    assert_non_null(said);
    assert_null(strstr(said + 1, "ends here"));
    assert_non_null(strstr(warnings, "events of rank 0 are missing"));
}

static void out_of_memory_is_a_warning(void **state)
{
    (void)state;
    tern__trace *trace = NULL;
    int refused = 0;
    for (; !trace; refused++) {
        warnings[0] = 0;
        ledger books = {.refuse_at = refused + 1};
        ledger_open(&books);
        trace = tern__trace_open(path, 0);
        assert_int_equal(trace == NULL, warnings[0] != 0);
        if (!trace) assert_non_null(strstr(warnings, "bytes"));
        tern__trace_close(trace);
        ledger_close(&books);
    }
    assert_true(refused > 4);
}

static int signals; /* that interrupt flock */

int flock(int fd, int how)
{
    if (signals-- <= 0) return (int)syscall(SYS_flock, fd, how);
    errno = EINTR;
    return -1;
}

static void a_signal_while_it_waits_for_the_lock(void **state)
{
    (void)state;
    signals = 2;
    tern__trace *trace = tern__trace_open(path, 0);
    assert_non_null(trace);
    assert_string_equal(warnings, "");
    tern__trace_close(trace);
}

static void no_trace_is_fine(void **state)
{
    (void)state;
    add(NULL, "name", 1);
    tern__trace_span(NULL, TERN__TRACK_WAIT, "name", tern__trace_now(NULL));
    tern__trace_flush(NULL);
    tern__trace_close(NULL);
    assert_int_equal(tern__trace_now(NULL), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(events_are_read_as_they_were_added),
        TEST(a_rank_begins_with_its_labels),
        TEST(none_is_lost_when_more_come_than_are_kept),
        TEST(many_names),
        TEST(ranks_are_merged_and_the_last_one_ends_the_file),
        TEST(any_thread_may_add),
        TEST(a_forked_child_leaves_the_file_alone),
        TEST(a_killed_rank_does_not_keep_the_file_open),
        TEST(a_file_that_rank_0_has_not_begun_is_left_alone),
        TEST(a_file_that_cannot_be_made_is_named_once),
        TEST(only_a_regular_file_is_written),
        TEST(a_full_disk_ends_the_timeline_with_one_warning),
        TEST(out_of_memory_is_a_warning),
        TEST(a_signal_while_it_waits_for_the_lock),
        TEST(no_trace_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
