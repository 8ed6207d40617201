/* test_stores.c - every operation on every kind of store: in memory, in a file, over TCP with and without a
 * secret, as a second handle and as a part of another one. tests/torch/test_store*.py compares PyTorch's. */
#include "check.h"
#include "comm/custom_store.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/store.h>
#include <unistd.h>

/* ---- kinds of stores ---- */

typedef struct kind {
    const char *name;
    bool queues, lists; /* has queues; can list its keys */
    int helpers;        /* keys that the store adds for itself */
    tern_store *(*open)(tern_error *err);
} kind;

/* The store behind the tested one: a client's server, a part's base. */
static tern_store *base;
static char folder[] = "/tmp/tern-store-XXXXXX", path[64];
static const uint8_t secret[32] = "what all ranks of this job share";

static tern_store *open_tcp(const uint8_t *shared, tern_error *err)
{
    tern_store_tcp_opts opts = tern_store_tcp_defaults();
    opts.is_server = true;
    opts.secret = shared;
    return tern_store_tcp_open("127.0.0.1", 0, &opts, err);
}

static tern_store *open_public(tern_error *err)
{
    return open_tcp(NULL, err);
}

static tern_store *open_client(tern_error *err)
{
    tern_store_tcp_opts opts = tern_store_tcp_defaults();
    opts.secret = secret;
    base = open_tcp(secret, err);
    return tern_store_tcp_open("localhost", tern_store_port(base), &opts, err);
}

static tern_store *open_file(tern_error *err)
{
    return tern_store_file_open(path, 1, err);
}

static tern_store *open_file_part(tern_error *err)
{
    base = open_file(err);
    return tern_store_prefix_new("part", base, err);
}

static tern_store *open_tcp_part(tern_error *err)
{
    base = open_public(err);
    return tern_store_prefix_new("part", base, err);
}

static tern_store *open_part_of_part(tern_error *err)
{
    tern_store *whole = tern_store_hash_new(err);
    base = tern_store_prefix_new("one", whole, err);
    tern_store *clone = tern_store_clone(base, err);
    tern_store_close(base);
    tern_store_close(whole); /* a clone needs neither */
    base = clone;
    return tern_store_prefix_new("two", base, err);
}

static relay relayed = {.lock = PTHREAD_MUTEX_INITIALIZER};

static tern_store *open_custom(tern_error *err)
{
    relayed.to = base = tern_store_hash_new(err);
    return tern_store_custom_new("the tested store", &relay_methods, &relayed, err);
}

static tern_store *open_part_of_custom(tern_error *err)
{
    tern_store *whole = open_custom(err), *part = tern_store_prefix_new("part", whole, err),
               *clone = tern_store_clone(part, err);
    tern_store_close(part);
    tern_store_close(whole);
    return clone;
}

static const kind kinds[] = {
    {"hash", true, true, 0, tern_store_hash_new},
    {"file", false, true, 1, open_file},
    {"tcp", true, true, 0, open_public},
    {"tcp client with a secret", true, true, 0, open_client},
    {"part of tcp", true, true, 0, open_tcp_part},
    {"part of a file", false, true, 1, open_file_part},
    {"part of a part", true, true, 0, open_part_of_part},
    {"custom", false, false, 0, open_custom},
    {"part of a custom one", false, false, 0, open_part_of_custom},
};

/* Calls `test` with a fresh store of each kind. */
static void with_each(void (*test)(const kind *is, tern_store *store))
{
    for (size_t i = 0; i < TERN__COUNT(kinds); i++) {
        tern_error err = {0};
        base = NULL;
        tern_store *store = kinds[i].open(&err);
        assert_ok(err);
        test(&kinds[i], store);
        tern_store_close(store);
        tern_store_close(base);
        if (access(path, F_OK) == 0) fail_msg("%s: the last user left the file", kinds[i].name);
    }
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof(path), "%s/store", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void assert_value(tern_store *store, const char *key, const char *expected)
{
    tern_error err = {0};
    size_t bytes;
    const char *value = tern_store_get(store, key, &bytes, &err);
    assert_ok(err);
    assert_int_equal(bytes, strlen(expected));
    assert_string_equal(value, expected); /* followed by a zero */
}

static int set_text(tern_store *store, const char *key, const char *text, tern_error *err)
{
    return tern_store_set(store, key, text, strlen(text), err);
}

/* ---- values ---- */

static void set_and_get(const kind *is, tern_store *store)
{
    (void)is;
    tern_error err = {0};
    size_t bytes = 99;
    tern_store_set(store, "a", "one\0two", 7, &err);
    assert_memory_equal(tern_store_get(store, "a", &bytes, &err), "one\0two", 8);
    assert_int_equal(bytes, 7);
    set_text(store, "a", "another, longer value", &err);
    assert_value(store, "a", "another, longer value");
    tern_store_set(store, "", NULL, 0, &err);
    assert_value(store, "", "");
    assert_ok(err);

    size_t limit = TERN_STORE_VALUE_MAX;
    uint8_t *large = malloc(limit + 1);
    for (size_t i = 0; i <= limit; i++) large[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_int_equal(tern_store_set(store, "large", large, limit, &err), TERN_OK);
    assert_memory_equal(tern_store_get(store, "large", &bytes, &err), large, limit);
    assert_int_equal(bytes, limit);
    assert_int_equal(tern_store_set(store, "large", large, limit + 1, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.text, "8388609"));
    free(large);
}

static void values_are_set_and_got(void **state)
{
    (void)state;
    with_each(set_and_get);
}

static void count_and_compare(const kind *is, tern_store *store)
{
    (void)is;
    tern_error err = {0};
    int64_t sum = 0;
    tern_store_value now;
#define VALUE(text) ((tern_store_value){text, sizeof(text) - 1})
    tern_store_add(store, "n", 5, &sum, &err);
    assert_int_equal(sum, 5);
    tern_store_add(store, "n", -7, &sum, &err);
    assert_int_equal(sum, -2);
    assert_value(store, "n", "-2");
    tern_store_append(store, "n", "0", 1, &err);
    tern_store_add(store, "n", 1, &sum, &err);
    assert_int_equal(sum, -19);
    tern_store_append(store, "new", "ab", 2, &err);
    tern_store_append(store, "new", "cde", 3, &err);
    assert_value(store, "new", "abcde");

    tern_store_compare_set(store, "c", VALUE("x"), VALUE("y"), &now, &err); /* no such key */
    assert_string_equal(now.data, "x");
    assert_int_equal(tern_store_check(store, (const char *[]){"c"}, 1, &err), 0);
    tern_store_compare_set(store, "c", VALUE(""), VALUE("first"), &now, &err);
    assert_string_equal(now.data, "first");
    tern_store_compare_set(store, "c", VALUE("wrong"), VALUE("second"), &now, &err);
    assert_string_equal(now.data, "first");
    tern_store_compare_set(store, "c", VALUE("first"), VALUE("2nd"), &now, &err);
    assert_string_equal(now.data, "2nd");
    assert_int_equal(now.bytes, 3);
    assert_value(store, "c", "2nd");
    assert_ok(err);
}

static void counters_appends_and_compare_set(void **state)
{
    (void)state;
    with_each(count_and_compare);
}

static void delete_and_list(const kind *is, tern_store *store)
{
    tern_error err = {0};
    size_t count;
    int64_t before = tern_store_num_keys(store, &err);
    assert_int_equal(before, is->helpers);
    set_text(store, "a", "1", &err);
    set_text(store, "b", "2", &err);
    assert_int_equal(tern_store_num_keys(store, &err), before + 2);
    const tern_store_value *keys = tern_store_list_keys(store, &count, &err);
    if (!is->lists) {
        assert_int_equal(err.code, TERN_E_UNSUPPORTED);
        return;
    }
    assert_ok(err);
    assert_int_equal(count, 2);
    const char *first = keys[0].data, *second = keys[1].data;
    assert_int_equal(keys[0].bytes, 1);
    assert_true((!strcmp(first, "a") && !strcmp(second, "b")) ||
                (!strcmp(first, "b") && !strcmp(second, "a")));
    assert_int_equal(tern_store_delete(store, "a", &err), 1);
    assert_int_equal(tern_store_delete(store, "a", &err), 0);
    assert_int_equal(tern_store_num_keys(store, &err), before + 1);
    assert_non_null(tern_store_list_keys(store, &count, &err));
    assert_int_equal(count, 1);
    assert_ok(err);
}

static void keys_are_deleted_and_listed(void **state)
{
    (void)state;
    with_each(delete_and_list);
}

static void several(const kind *is, tern_store *store)
{
    (void)is;
    tern_error err = {0};
    static const char *const keys[] = {"x", "", "a longer key"}, *const more[] = {"x", "missing"};
    const tern_store_value values[] = {VALUE("1"), VALUE("twenty-two"), VALUE("")};
    tern_store_value got[3];
    tern_store_multi_set(store, keys, values, 3, &err);
    assert_int_equal(tern_store_check(store, keys, 3, &err), 1);
    assert_int_equal(tern_store_check(store, more, 2, &err), 0);
    assert_int_equal(tern_store_check(store, NULL, 0, &err), 1);
    tern_store_wait(store, keys, 3, -1, &err);
    tern_store_multi_get(store, keys, 3, got, &err);
    assert_ok(err);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(got[i].bytes, values[i].bytes);
        assert_string_equal(got[i].data, values[i].data);
    }
    tern_store_multi_set(store, NULL, NULL, 0, &err);
    tern_store_multi_get(store, NULL, 0, NULL, &err);
    assert_ok(err);
}

static void several_keys_at_once(void **state)
{
    (void)state;
    with_each(several);
}

static void queue(const kind *is, tern_store *store)
{
    tern_error err = {0};
    size_t bytes;
    static const char *const q[] = {"q"};
    if (!is->queues) {
        assert_int_equal(tern_store_queue_push(store, "q", "1", 1, &err), TERN_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "no queues"));
        err = (tern_error){0};
        assert_null(tern_store_queue_pop(store, "q", false, &bytes, &err));
        assert_int_equal(err.code, TERN_E_UNSUPPORTED);
        return;
    }
    assert_null(tern_store_queue_pop(store, "q", false, &bytes, &err));
    tern_store_queue_push(store, "q", "first", 5, &err);
    tern_store_queue_push(store, "q", "", 0, &err);
    assert_int_equal(tern_store_queue_len(store, "q", &err), 2);
    assert_int_equal(tern_store_check(store, q, 1, &err), 1);
    assert_string_equal(tern_store_queue_pop(store, "q", true, &bytes, &err), "first");
    assert_int_equal(bytes, 5);
    assert_string_equal(tern_store_queue_pop(store, "q", false, &bytes, &err), "");
    assert_int_equal(bytes, 0);
    assert_int_equal(tern_store_queue_len(store, "q", &err), 0);
    assert_int_equal(tern_store_check(store, q, 1, &err), 0);
    assert_ok(err);
    tern_store_timeout_set(store, 0.05, &err);
    assert_null(tern_store_queue_pop(store, "q", true, &bytes, &err));
    assert_int_equal(err.code, TERN_E_TIMEOUT);
}

static void queues(void **state)
{
    (void)state;
    with_each(queue);
}

/* ---- waiting ---- */

static void give_up(const kind *is, tern_store *store)
{
    (void)is;
    tern_error err = {0}, other = {0};
    static const char *const keys[] = {"here", "never"};
    tern_store_timeout_set(store, 0.1, &err);
    set_text(store, "here", "", &err);
    int64_t start = tern__now_ns();
    assert_null(tern_store_get(store, "never", NULL, &err));
    double seconds = (double)(tern__now_ns() - start) * 1e-9;
    assert_true(seconds >= 0.1 && seconds < 8);
    assert_int_equal(err.code, TERN_E_TIMEOUT);
    assert_string_equal(err.func, "tern_store_get");
    assert_non_null(strstr(err.text, "\"never\""));
    assert_int_equal(tern_store_wait(store, keys, 2, 0.05, &other), TERN_E_TIMEOUT);
    other = (tern_error){0};
    assert_int_equal(tern_store_barrier(store, "b", 2, &other), TERN_E_TIMEOUT);
    assert_value(store, "here", ""); /* the client goes on */
}

static void who_waits_in_vain_is_told_and_goes_on(void **state)
{
    (void)state;
    with_each(give_up);
}

typedef struct helper {
    tern_store *store;
    pthread_t thread;
    int status;
} helper;

/* Waits for the question, sets the answer, and meets at the barrier. */
static void *answer(void *arg)
{
    helper *h = arg;
    tern_error err = {0};
    tern_store_get(h->store, "question", NULL, &err);
    tern_store_set(h->store, "answer", "42", 2, &err);
    tern_store_barrier(h->store, "end", 2, &err);
    h->status = err.code;
    return NULL;
}

static void talk(const kind *is, tern_store *store)
{
    (void)is;
    tern_error err = {0};
    helper h = {.store = tern_store_clone(store, &err)};
    assert_ok(err);
    assert_int_equal(pthread_create(&h.thread, NULL, answer, &h), 0);
    set_text(store, "question", "?", &err);
    assert_value(store, "answer", "42");
    tern_store_barrier(store, "end", 2, &err);
    pthread_join(h.thread, NULL);
    assert_ok(err);
    assert_int_equal(h.status, TERN_OK);
    tern_store_close(h.store);
}

static void clones_wait_for_each_other(void **state)
{
    (void)state;
    with_each(talk);
}

enum { consumers = 4, items = 40 };

static void *consume(void *arg)
{
    helper *h = arg;
    tern_error err = {0};
    for (int i = 0; i < items / consumers; i++) tern_store_queue_pop(h->store, "q", true, NULL, &err);
    h->status = err.code;
    return NULL;
}

/* Each thread waits for its own items: if a push wakes the wrong one, or none, it would wait forever. */
static void share_queue(const kind *is, tern_store *store)
{
    tern_error err = {0};
    helper h[consumers] = {0};
    if (!is->queues) return;
    for (int i = 0; i < consumers; i++) {
        h[i].store = tern_store_clone(store, &err);
        tern_store_timeout_set(h[i].store, 20, &err);
        assert_int_equal(pthread_create(&h[i].thread, NULL, consume, &h[i]), 0);
    }
    for (int i = 0; i < items; i++) tern_store_queue_push(store, "q", "x", 1, &err);
    for (int i = 0; i < consumers; i++) {
        pthread_join(h[i].thread, NULL);
        assert_int_equal(h[i].status, TERN_OK);
        tern_store_close(h[i].store);
    }
    assert_int_equal(tern_store_queue_len(store, "q", &err), 0);
    assert_ok(err);
}

static void *look(void *arg)
{
    helper *h = arg;
    tern_error err = {0};
    h->status = tern_store_wait(h->store, (const char *[]){"looked"}, 1, 20, &err);
    return NULL;
}

static void *pop_one(void *arg)
{
    helper *h = arg;
    tern_error err = {0};
    tern_store_queue_pop(h->store, "looked", true, NULL, &err);
    h->status = err.code;
    return NULL;
}

/* A client that only reads takes nothing, and does not make the popping one wait longer. */
static void look_and_pop(const kind *is, tern_store *store)
{
    tern_error err = {0};
    helper h[2] = {0};
    if (!is->queues) return;
    for (int i = 0; i < 2; i++) {
        h[i].store = tern_store_clone(store, &err);
        tern_store_timeout_set(h[i].store, 20, &err);
        assert_int_equal(pthread_create(&h[i].thread, NULL, i ? pop_one : look, &h[i]), 0);
        usleep(50000); /* in this order most of the time */
    }
    for (int i = 1; i >= 0; i--) { /* one for the popping client, and one that stays */
        tern_store_queue_push(store, "looked", "x", 1, &err);
        assert_ok(err);
        pthread_join(h[i].thread, NULL);
        assert_int_equal(h[i].status, TERN_OK);
        tern_store_close(h[i].store);
    }
    tern_store_queue_pop(store, "looked", false, NULL, &err);
    assert_ok(err);
}

/* The key of a queue may also have a plain value: a pop still waits for a value of the queue. */
static void pop_beside_a_value(const kind *is, tern_store *store)
{
    tern_error err = {0};
    helper h = {0};
    if (!is->queues) return;
    tern_store_set(store, "looked", "plain", 5, &err);
    h.store = tern_store_clone(store, &err);
    tern_store_timeout_set(h.store, 20, &err);
    assert_int_equal(pthread_create(&h.thread, NULL, pop_one, &h), 0);
    tern_store_queue_push(store, "looked", "x", 1, &err);
    pthread_join(h.thread, NULL);
    assert_int_equal(h.status, TERN_OK);
    tern_store_close(h.store);
    assert_ok(err);
    int64_t start = tern__now_ns();
    tern_store_timeout_set(store, 0.1, &err);
    assert_null(tern_store_queue_pop(store, "looked", true, NULL, &err));
    assert_int_equal(err.code, TERN_E_TIMEOUT);
    assert_non_null(strstr(err.text, "nobody pushed a value to queue \"looked\" in "));
    assert_non_null(strstr(err.text, " within 0.1 s"));
    assert_true(tern__now_ns() - start >= 100000000);
}

static void a_pop_waits_for_a_queue_not_for_its_key(void **state)
{
    (void)state;
    with_each(pop_beside_a_value);
}

static void a_push_wakes_all(void **state)
{
    (void)state;
    with_each(look_and_pop);
}

static void many_pop_one_queue(void **state)
{
    (void)state;
    with_each(share_queue);
}

/* ---- refused calls ---- */

static void refuse(const kind *is, tern_store *store)
{
    (void)is;
    static char key[TERN_STORE_KEY_MAX + 2];
    const char *const null = NULL;
    int64_t sum;
    tern_store_value now;
    tern_error set = {.code = TERN_E_IO};
    memset(key, 'k', TERN_STORE_KEY_MAX + 1);
#define REFUSED(call)                                                                                        \
    do {                                                                                                     \
        tern_error err = {0};                                                                                \
        call;                                                                                                \
        assert_int_equal(err.code, TERN_E_INVALID);                                                          \
    } while (0)
    REFUSED(tern_store_set(store, key, "", 0, &err));
    REFUSED(tern_store_set(store, NULL, "", 0, &err));
    REFUSED(tern_store_set(store, "k", NULL, 1, &err));
    REFUSED(tern_store_set(NULL, "k", "", 0, &err));
    REFUSED(tern_store_get(NULL, "k", NULL, &err));
    REFUSED(tern_store_check(store, &null, 1, &err));
    REFUSED(tern_store_check(store, NULL, 1, &err));
    REFUSED(tern_store_wait(store, NULL, (128 << 10) + 1, 1, &err));
    REFUSED(tern_store_multi_set(store, NULL, NULL, 1, &err));
    REFUSED(tern_store_timeout_set(store, 0, &err));
    REFUSED(tern_store_timeout_set(store, NAN, &err));
    REFUSED(tern_store_barrier(store, "b", 0, &err));
    REFUSED(tern_store_prefix_new(NULL, store, &err));
    REFUSED(tern_store_prefix_new("p", NULL, &err));
    REFUSED(tern_store_clone(NULL, &err));
    assert_int_equal(tern_store_add(store, "k", 1, &sum, &set),
                     TERN_E_IO); /* an error that is set already stays */
    assert_int_equal(tern_store_compare_set(store, "k", VALUE(""), VALUE(""), &now, &set), TERN_E_IO);
    assert_int_equal(tern_store_num_keys(store, &set), TERN_E_IO);
    set.code = 0;
    assert_int_equal(tern_store_check(store, (const char *[]){"k"}, 1, &set), 0); /* nothing was done */
}

static void what_fits_no_store_is_refused(void **state)
{
    (void)state;
    with_each(refuse);
    tern_store_close(NULL);
}

static void spoil_counter(const kind *is, tern_store *store)
{
    tern_error err = {0};
    int64_t sum;
    set_text(store, "n", "9223372036854775807", &err);
    assert_ok(err);
    int code = tern_store_add(store, "n", 1, &sum, &err);
    assert_int_equal(code, strstr(is->name, "tcp") ? TERN_E_PEER : TERN_E_INVALID);
}

static void a_counter_that_overflows_is_an_error(void **state)
{
    (void)state;
    with_each(spoil_counter);
}

/* ---- parts ---- */

static void parts_do_not_see_each_other(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_store *whole = tern_store_hash_new(&err), *a = tern_store_prefix_new("a", whole, &err),
               *b = tern_store_prefix_new("b", whole, &err), *ab = tern_store_prefix_new("b", a, &err);
    set_text(a, "k", "of a", &err);
    set_text(b, "k", "of b", &err);
    set_text(ab, "k", "of a/b", &err);
    assert_value(whole, "a/k", "of a");
    assert_value(whole, "b/k", "of b");
    assert_value(whole, "a/b/k", "of a/b");
    assert_int_equal(tern_store_num_keys(a, &err), 3);
    size_t count;
    assert_non_null(tern_store_list_keys(ab, &count, &err));
    assert_int_equal(count, 1);
    assert_int_equal(tern_store_port(a), 0);
    tern_store_timeout_set(whole, 7, &err);
    assert_ok(err);
    tern_store_close(ab);
    tern_store_close(b);
    tern_store_close(a);
    tern_store_close(whole);
}

/* ---- functions of the caller's ---- */

static void custom_stores_share_their_functions_until_the_last_is_closed(void **state)
{
    (void)state;
    tern_error err = {0};
    int closed = relayed.closed;
    tern_store *store = open_custom(&err), *clone = tern_store_clone(store, &err);
    set_text(store, "k", "v", &err);
    tern_store_close(store);
    assert_int_equal(relayed.closed, closed);
    assert_value(clone, "k", "v");
    tern_store_close(clone);
    assert_int_equal(relayed.closed, closed + 1);
    tern_store_close(base);
    assert_ok(err);
}

static int fail_without_a_word(void *ctx, const char *key, tern_error *err)
{
    (void)ctx, (void)key, (void)err;
    return TERN_E_IO;
}

static int give_nothing(void *ctx, const char *key, double timeout_s, tern_store_answer *value,
                        tern_error *err)
{
    (void)ctx, (void)key, (void)timeout_s, (void)value, (void)err;
    return TERN_OK;
}

/* Functions that are missing, say nothing or give nothing are errors that name the store. */
static void custom_functions_are_checked(void **state)
{
    (void)state;
    tern_error err = {0};
    int64_t sum;
    tern_store *hash = tern_store_hash_new(&err);
    relayed.to = hash;
    tern_store_methods some = relay_methods;
    some.add = NULL;
    assert_null(tern_store_custom_new("a store", &some, &relayed, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    err = (tern_error){0};
    some = relay_methods;
    some.compare_set = NULL;
    some.append = NULL;
    some.num_keys = NULL;
    some.remove = fail_without_a_word;
    some.get = give_nothing;
    tern_store *store = tern_store_custom_new("a store", &some, &relayed, &err);
    assert_ok(err);
    tern_store_value now;
    assert_int_equal(tern_store_compare_set(store, "k", VALUE(""), VALUE("1"), &now, NULL),
                     TERN_E_UNSUPPORTED);
    assert_int_equal(tern_store_append(store, "k", "1", 1, NULL), TERN_E_UNSUPPORTED);
    assert_int_equal(tern_store_num_keys(store, NULL), TERN_E_UNSUPPORTED);
    assert_int_equal(tern_store_delete(store, "k", &err), TERN_E_IO);
    assert_non_null(strstr(err.text, "a store"));
    err = (tern_error){0};
    assert_null(tern_store_get(store, "k", NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_int_equal(tern_store_add(store, "n", 5, &sum, NULL), TERN_OK);
    assert_int_equal(tern_store_add(store, "n", -7, &sum, NULL), TERN_OK);
    assert_int_equal(sum, -2);
    tern_store_close(store);
    tern_store_close(hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_set_and_got),
        cmocka_unit_test(counters_appends_and_compare_set),
        cmocka_unit_test(keys_are_deleted_and_listed),
        cmocka_unit_test(several_keys_at_once),
        cmocka_unit_test(queues),
        cmocka_unit_test(who_waits_in_vain_is_told_and_goes_on),
        cmocka_unit_test(clones_wait_for_each_other),
        cmocka_unit_test(a_push_wakes_all),
        cmocka_unit_test(many_pop_one_queue),
        cmocka_unit_test(a_pop_waits_for_a_queue_not_for_its_key),
        cmocka_unit_test(what_fits_no_store_is_refused),
        cmocka_unit_test(a_counter_that_overflows_is_an_error),
        cmocka_unit_test(parts_do_not_see_each_other),
        cmocka_unit_test(custom_stores_share_their_functions_until_the_last_is_closed),
        cmocka_unit_test(custom_functions_are_checked),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
