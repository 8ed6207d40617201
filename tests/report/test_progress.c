/* The progress bar on a terminal, and its silence elsewhere. */
#include "base/base.h"
#include "ledger.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tern/report.h>

/* stderr is a terminal or a pipe while a test looks at what comes out of it. */
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

/* Everything that has been written to stderr so far; stderr is its old self again. */
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

static tern_progress *new_bar(const char *title, int64_t steps)
{
    tern_error err = {0};
    tern_progress *bar = tern_progress_new(title, steps, NULL, &err);
    assert_ok(err);
    return bar;
}

static void a_terminal_shows_one_line(void **state)
{
    (void)state;
    char text[4096];
    watched w = watch(true);
    tern_progress *bar = new_bar("epoch 3", 4);
    for (int step = 0; step < 2; step++) {
        pass_time(110000000); /* drawn at most ten times a second */
        tern_progress_update(bar, 64, "loss", 1.5 - 0.25 * step);
    }
    double rate = tern_progress_rate(bar), seconds = tern_progress_seconds(bar);
    tern_progress_free(bar);
    unwatch(&w, text, sizeof(text));
    assert_true(seconds >= 0.22 && seconds < 20);
    assert_true(rate > 0 && rate <= 128 / 0.22);
    const char *second = strstr(text, "2/4");
    assert_non_null(second);
    assert_non_null(strstr(text, "\repoch 3 [######..................]  25 %  1/4  "));
    assert_non_null(strstr(text, "\repoch 3 [############............]  50 %  2/4  "));
    assert_non_null(strstr(text, "loss 1.5000\033[K"));
    assert_non_null(strstr(second, "loss 1.2500\033[K"));
    int shown = 0, minutes = -1, left = -1;
    assert_int_equal(sscanf(second, "2/4  %d/s  %d:%d left", &shown, &minutes, &left), 3);
    assert_true(shown > 0 && shown <= 128 / 0.22 + 1);
    assert_true(60 * minutes + left <= seconds + 1); /* as long again as it took so far */
    assert_int_equal(count_of(text, "\n"), 0);
    assert_string_equal(text + strlen(text) - 4, "\r\033[K"); /* erased at the end */
}

static void it_is_drawn_ten_times_a_second(void **state)
{
    (void)state;
    static char text[1 << 16];
    watched w = watch(true);
    tern_progress *bar = new_bar("many", 1000000);
    int64_t from = tern__now_ns();
    for (int i = 0; i < 10000; i++) tern_progress_update(bar, 1, "loss", 0);
    double seconds = (double)(tern__now_ns() - from) * 1e-9;
    tern_progress_free(bar);
    unwatch(&w, text, sizeof(text));
    assert_in_range(count_of(text, "\rmany ["), 1, 1 + (int)(10 * seconds));
}

/* More steps than were announced, or none: a full bar and no time left. */
static void more_steps_than_announced(void **state)
{
    (void)state;
    char text[4096];
    watched w = watch(true);
    for (int64_t steps = 0; steps < 2; steps++) {
        tern_progress *bar = new_bar("over", steps);
        for (int i = 0; i < 3; i++) {
            pass_time(110000000);
            tern_progress_update(bar, 1, "a name that is far too long for it", 0);
        }
        tern_progress_free(bar);
    }
    unwatch(&w, text, sizeof(text));
    assert_int_equal(count_of(text, "[########################] 100 %"), 6);
    assert_non_null(strstr(text, "3/1 "));
    assert_non_null(strstr(text, "3/0 "));
    assert_int_equal(count_of(text, "0:00 left"), 6);
}

static void elsewhere_it_is_silent(void **state)
{
    (void)state;
    char text[256];
    watched w = watch(false);
    tern_progress *bar = new_bar("quiet", 10);
    for (int i = 0; i < 10; i++) tern_progress_update(bar, 5, "loss", i);
    pass_time(1000000);
    assert_true(tern_progress_rate(bar) > 0);
    tern_progress_free(bar);
    tern_progress_update(NULL, 1, "loss", 0);
    tern_progress_free(NULL);
    assert_string_equal(unwatch(&w, text, sizeof(text)), "");
}

static void a_bar_that_cannot_be(void **state)
{
    (void)state;
    ledger books = {.refuse_at = 1};
    ledger_open(&books);
    tern_error err = {0};
    assert_null(tern_progress_new("bar", 1, NULL, &err));
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_string_equal(err.func, "tern_progress_new");
    assert_null(tern_progress_new("bar", 1, NULL, &err));
    ledger_close(&books);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_terminal_shows_one_line), cmocka_unit_test(it_is_drawn_ten_times_a_second),
        cmocka_unit_test(more_steps_than_announced), cmocka_unit_test(elsewhere_it_is_silent),
        cmocka_unit_test(a_bar_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
