/* test_progress.c - the progress bar on a terminal, and its lines in a log. */
#include "base/base.h"
#include "comm/move/backend.h"
#include "comm/ranks.h"
#include "ledger.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tern/report.h>

/* Replaces stderr by a terminal or a pipe, from which the test reads. */
typedef struct watched {
    int saved, reader;
} watched;

static watched watch(bool terminal)
{
    int reader, writer, both[2];
    if (terminal) {
        assert_int_equal(openpty(&reader, &writer, NULL, NULL, NULL), 0);
    } else {
        assert_int_equal(pipe2(both, O_CLOEXEC), 0);
        reader = both[0];
        writer = both[1];
    }
    fflush(stderr);
    watched w = {.saved = dup(STDERR_FILENO), .reader = reader};
    dup2(writer, STDERR_FILENO);
    close(writer);
    return w;
}

/* Returns everything written to stderr so far, and restores stderr. */
static const char *unwatch(watched *w, char *text, size_t size)
{
    fflush(stderr);
    size_t used = 0;
    struct pollfd ready = {.fd = w->reader, .events = POLLIN};
    while (used < size - 1 && poll(&ready, 1, 0) > 0 && ready.revents & POLLIN) {
        ssize_t got = read(w->reader, text + used, size - 1 - used);
        if (got <= 0) break;
        used += (size_t)got;
    }
    text[used] = '\0';
    dup2(w->saved, STDERR_FILENO);
    close(w->saved);
    close(w->reader);
    return text;
}

static void pass_time(int64_t ns)
{
    int64_t until = tern__now_ns() + ns;
    while (tern__now_ns() < until) usleep(1000);
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) count++;
    return count;
}

static tern_progress *new_bar(const char *title, int64_t total, const tern_progress_opts *opts)
{
    tern_error err = {0};
    tern_progress *bar = tern_progress_new(title, total, NULL, opts, &err);
    assert_ok(err);
    return bar;
}

static void a_terminal_shows_one_line(void **state)
{
    (void)state;
    char text[4096];
    watched w = watch(true);
    tern_progress *bar = new_bar("epoch 3", 256, NULL);
    for (int step = 0; step < 2; step++) {
        pass_time(110000000); /* drawn at most ten times a second */
        tern_progress_postfix(bar, "loss", 1.5 - 0.25 * step);
        tern_progress_update(bar, 64);
    }
    double rate = tern_progress_rate(bar), seconds = tern_progress_seconds(bar);
    tern_progress_free(bar);
    unwatch(&w, text, sizeof(text));
    assert_true(seconds >= 0.22 && seconds < 20);
    assert_true(rate > 0 && rate <= 128 / 0.22);
    assert_non_null(strstr(text, "\repoch 3:   0%|          | 0/256 [00:00<?, ?it/s]\033[K"));
    assert_non_null(strstr(text, "\repoch 3:  25%|##5       | 64/256 [00:00<00:0"));
    assert_non_null(strstr(text, "it/s, loss=1.5]\033[K"));
    const char *last = strstr(text, "50%|#####     | 128/256");
    assert_non_null(last);
    assert_non_null(strstr(last, "it/s, loss=1.25]\033[K"));
    assert_int_equal(count_of(text, "\n"), 1); /* the last line stays */
    assert_int_equal(text[strlen(text) - 1], '\n');
}

static void a_bar_that_does_not_stay_is_erased(void **state)
{
    (void)state;
    char text[1024];
    tern_progress_opts opts = tern_progress_defaults();
    opts.leave = false;
    watched w = watch(true);
    tern_progress_free(new_bar("gone", 4, &opts));
    unwatch(&w, text, sizeof(text));
    assert_string_equal(text, "\rgone:   0%|          | 0/4 [00:00<?, ?it/s]\033[K\r\033[K");
}

/* Computes the rows of a terminal from what was written: newline, return, up, erase to the end. */
#define ROWS 6
#define WIDE 128
static void play(const char *text, char screen[ROWS][WIDE])
{
    int row = 0, column = 0;
    memset(screen, 0, ROWS * WIDE);
    for (; *text; text++) {
        int up = 0, used = 0;
        if (sscanf(text, "\033[%dA%n", &up, &used) == 1 && used) {
            row -= up;
            text += used - 1;
        } else if (!strncmp(text, "\033[K", 3)) {
            memset(screen[row] + column, 0, (size_t)(WIDE - column));
            text += 2;
        } else if (*text == '\n') {
            row++;
            column = 0; /* the terminal's line discipline adds the return */
        } else if (*text == '\r') {
            column = 0;
        } else {
            screen[row][column++] = *text;
        }
        assert_in_range(row, 0, ROWS - 1);
        assert_in_range(column, 0, WIDE - 1);
    }
}

static void bars_in_bars_have_lines_of_their_own(void **state)
{
    (void)state;
    char text[4096], screen[ROWS][WIDE];
    tern_progress_opts inner = tern_progress_defaults();
    watched w = watch(true);
    tern_progress *epochs = new_bar("epochs", 2, NULL);
    inner.parent = epochs;
    tern_progress *steps = new_bar("steps", 8, &inner);
    pass_time(110000000);
    tern_progress_update(steps, 4);
    unwatch(&w, text, sizeof(text));
    play(text, screen);
    assert_non_null(strstr(screen[0], "epochs:   0%"));
    assert_non_null(strstr(screen[1], "steps:  50%"));

    w = watch(true); /* the inner bar stays, above the outer one; the outer one stays at its end, too */
    tern_progress_free(steps);
    tern_progress_update(epochs, 2);
    tern_progress_free(epochs);
    unwatch(&w, text, sizeof(text));
    play(text, screen);
    assert_non_null(strstr(screen[0], "steps:  50%"));
    assert_non_null(strstr(screen[1], "epochs: 100%"));
    assert_string_equal(screen[2], "");
}

static void an_inner_bar_can_go(void **state)
{
    (void)state;
    char text[4096], screen[ROWS][WIDE];
    tern_progress_opts inner = tern_progress_defaults();
    inner.leave = false;
    watched w = watch(true);
    tern_progress *epochs = new_bar("epochs", 2, NULL);
    inner.parent = epochs;
    tern_progress_free(new_bar("steps", 8, &inner));
    pass_time(110000000);
    tern_progress_update(epochs, 1);
    unwatch(&w, text, sizeof(text));
    play(text, screen);
    assert_non_null(strstr(screen[0], "epochs:  50%"));
    assert_string_equal(screen[1], "");
    watched again = watch(true);
    tern_progress_free(epochs);
    unwatch(&again, text, sizeof(text));
}

static void printed_lines_stand_above(void **state)
{
    (void)state;
    char text[4096];
    watched w = watch(true);
    int out = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(STDERR_FILENO, STDOUT_FILENO); /* one terminal, as usual */
    tern_progress *bar = new_bar("bar", 2, NULL);
    tern_progress_print(bar, "a message");
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    tern_progress_free(bar);
    unwatch(&w, text, sizeof(text));
    char screen[ROWS][WIDE];
    play(text, screen);
    assert_string_equal(screen[0], "a message");
    assert_non_null(strstr(screen[1], "bar:   0%"));
}

static void it_is_drawn_ten_times_a_second(void **state)
{
    (void)state;
    static char text[1 << 16];
    watched w = watch(true);
    tern_progress *bar = new_bar("many", 1000000, NULL);
    int64_t from = tern__now_ns();
    for (int i = 0; i < 10000; i++) tern_progress_update(bar, 1);
    double seconds = (double)(tern__now_ns() - from) * 1e-9;
    tern_progress_free(bar);
    unwatch(&w, text, sizeof(text));
    assert_in_range(count_of(text, "\rmany: "), 2, 3 + (int)(10 * seconds));
}

/* More units than the total, or no total: a count, without a percentage or remaining time. */
static void a_total_that_is_not_known(void **state)
{
    (void)state;
    char text[4096];
    watched w = watch(true);
    for (int64_t total = 0; total < 2; total++) {
        tern_progress *bar = new_bar("over", total, NULL);
        for (int i = 0; i < 3; i++) tern_progress_update(bar, 1);
        tern_progress_free(bar);
    }
    unwatch(&w, text, sizeof(text));
    assert_int_equal(count_of(text, "over: 3it [00:00, "), 2);
}

/* A resumed run: the bar starts where it was; the rate does not count earlier units. */
static void it_goes_on_where_a_run_was(void **state)
{
    (void)state;
    char text[4096];
    tern_progress_opts opts = tern_progress_defaults();
    opts.initial = 900;
    watched w = watch(true);
    tern_progress *bar = new_bar("again", 1000, &opts);
    assert_true(tern_progress_rate(bar) == 0);
    tern_progress_free(bar);
    assert_non_null(strstr(unwatch(&w, text, sizeof(text)), "again:  90%|#########"));
}

static void elsewhere_there_are_lines(void **state)
{
    (void)state;
    char text[1024];
    tern_progress_opts opts = tern_progress_defaults();
    opts.line_seconds = 0.05;
    watched w = watch(false);
    tern_progress *bar = new_bar("quiet", 10, &opts);
    for (int i = 0; i < 5; i++) tern_progress_update(bar, 1);
    pass_time(60000000);
    tern_progress_update(bar, 1);
    for (int i = 0; i < 4; i++) tern_progress_update(bar, 1);
    tern_progress_free(bar);
    unwatch(&w, text, sizeof(text));
    assert_int_equal(strncmp(text, "quiet:  60% 6/10 [00:00<00:0", 28), 0);
    assert_non_null(strstr(text, "\nquiet: 100% 10/10 [00:00<00:00, "));
    assert_int_equal(count_of(text, "\n"), 2);
    assert_int_equal(count_of(text, "\033"), 0);
    assert_int_equal(count_of(text, "\r"), 0);
}

static void elsewhere_it_can_be_silent(void **state)
{
    (void)state;
    char text[256];
    tern_progress_opts opts = tern_progress_defaults();
    opts.line_seconds = 0;
    watched w = watch(false);
    tern_progress *bar = new_bar("quiet", 10, &opts);
    for (int i = 0; i < 10; i++) tern_progress_update(bar, 5);
    pass_time(1000000);
    assert_true(tern_progress_rate(bar) > 0);
    tern_progress_free(bar);
    tern_progress_update(NULL, 1);
    tern_progress_postfix(NULL, "loss", 0);
    tern_progress_print(NULL, "text");
    tern_progress_free(NULL);
    assert_string_equal(unwatch(&w, text, sizeof(text)), "");
}

/* Only rank 0 draws, with the numbers of all ranks. */
static int three_ranks_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    char text[1024];
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    watched w = watch(false);
    tern_progress *bar = tern_progress_new("all", 10, world, NULL, &err);
    tern_progress_update(bar, 10);
    tern_progress_free(bar);
    unwatch(&w, text, sizeof(text));
    tern_group_close(world);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, rank ? !*text : !strncmp(text, "all: 100% 30/30 [", 17));
    return 0;
}

static void only_rank_0_shows_all_ranks(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, three_ranks_body, NULL));
}

static void a_bar_that_cannot_be(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_progress_opts opts = tern_progress_defaults();
    assert_null(tern_progress_new(NULL, 1, NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    err = (tern_error){0};
    assert_null(tern_progress_new("bar", -1, NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    assert_string_equal(err.text, "total is -1 and initial 0, expected at least 0");
    err = (tern_error){0};
    opts.smoothing = 1.5;
    assert_null(tern_progress_new("bar", 1, NULL, &opts, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    ledger books = {.refuse_at = 1};
    ledger_open(&books);
    err = (tern_error){0};
    assert_null(tern_progress_new("bar", 1, NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_string_equal(err.func, "tern_progress_new");
    assert_null(tern_progress_new("bar", 1, NULL, NULL, &err));
    ledger_close(&books);
}

int main(void)
{
    /* The bar in a locale without UTF-8. */
    setenv("LC_ALL", "C", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_terminal_shows_one_line),
        cmocka_unit_test(a_bar_that_does_not_stay_is_erased),
        cmocka_unit_test(bars_in_bars_have_lines_of_their_own),
        cmocka_unit_test(an_inner_bar_can_go),
        cmocka_unit_test(printed_lines_stand_above),
        cmocka_unit_test(it_is_drawn_ten_times_a_second),
        cmocka_unit_test(a_total_that_is_not_known),
        cmocka_unit_test(it_goes_on_where_a_run_was),
        cmocka_unit_test(elsewhere_there_are_lines),
        cmocka_unit_test(elsewhere_it_can_be_silent),
        cmocka_unit_test(only_rank_0_shows_all_ranks),
        cmocka_unit_test(a_bar_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
