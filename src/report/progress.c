/* progress.c - decides when and where progress is shown.
 *
 * Nested bars draw on consecutive lines. The cursor stays on the line of the outermost bar; an inner bar
 * moves down by newlines, draws, and moves back up. Rate and remaining time come from exponential moving
 * averages of the units done per interval and of the intervals' lengths, as in tqdm. The rate is their
 * quotient, in which the bias from starting at zero cancels. */
#include "report/progress.h"
#include "base/opts.h"

#include <tern/report.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef enum place { NOWHERE, TERMINAL, LOG } place;

struct tern_progress {
    char title[128], unit[16];
    tern_progress_opts opts;
    tern__progress_state state; /* as last drawn */
    int64_t own_done;           /* of this rank */
    int ranks, depth;
    bool speaks; /* this is rank 0 */
    place place;
    tern__progress_bar style;
    int64_t started, drawn; /* ns */
    int64_t drawn_done;     /* own_done at that time */
    double mean_count, mean_seconds;
};

tern_progress_opts tern_progress_defaults(void)
{
    return (tern_progress_opts){.size = sizeof(tern_progress_opts),
                                .unit = "it",
                                .leave = true,
                                .smoothing = 0.3,
                                .interval_seconds = 0.1,
                                .line_seconds = 10};
}

double tern_progress_seconds(const tern_progress *bar)
{
    return bar ? (double)(tern__now_ns() - bar->started) * 1e-9 : 0;
}

double tern_progress_rate(const tern_progress *bar)
{
    double seconds = tern_progress_seconds(bar);
    return seconds > 0 ? (double)(bar->own_done - bar->opts.initial) * bar->ranks / seconds : 0;
}

/* ---- drawing ---- */

/* Reads the locale's character set from the environment, so the program need not have called setlocale. */
static tern__progress_bar style_of_locale(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        const char *value = tern__env(names[i]);
        if (!value) continue;
        const char *set = strchr(value, '.');
        bool utf8 = set && (!strncasecmp(set + 1, "utf-8", 5) || !strncasecmp(set + 1, "utf8", 4));
        return utf8 ? TERN__PROGRESS_BLOCKS : TERN__PROGRESS_ASCII;
    }
    return TERN__PROGRESS_ASCII;
}

/* One less than the terminal's columns: writing the last column would wrap. */
static int columns_of_terminal(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 0;
}

static void write_line(const tern_progress *bar)
{
    char line[TERN__PROGRESS_LINE];
    if (bar->place == LOG) {
        tern__progress_line(line, &bar->state, TERN__PROGRESS_NONE, 0);
        fprintf(stderr, "%s\n", line);
        return;
    }
    tern__progress_line(line, &bar->state, bar->style, columns_of_terminal());
    for (int i = 0; i < bar->depth; i++) fputc('\n', stderr);
    fprintf(stderr, "\r%s\033[K", line);
    if (bar->depth) fprintf(stderr, "\r\033[%dA", bar->depth);
}

static void erase_bar(const tern_progress *bar)
{
    for (int i = 0; i < bar->depth; i++) fputc('\n', stderr);
    fputs("\r\033[K", stderr);
    if (bar->depth) fprintf(stderr, "\033[%dA", bar->depth);
}

static void draw_with_parents(const tern_progress *bar)
{
    for (; bar; bar = bar->opts.parent) write_line(bar);
}

static void take_state(tern_progress *bar, double rate)
{
    bar->state.done = bar->own_done * bar->ranks;
    bar->state.seconds = tern_progress_seconds(bar);
    bar->state.rate = rate;
}

/* ---- the rate ---- */

/* Adds the interval since the last drawing to the averages. Returns units per second, of all ranks. */
static double smoothed_rate(tern_progress *bar, int64_t now)
{
    double a = bar->opts.smoothing, count = (double)(bar->own_done - bar->drawn_done);
    bar->mean_count = a * count + (1 - a) * bar->mean_count;
    bar->mean_seconds = a * (double)(now - bar->drawn) * 1e-9 + (1 - a) * bar->mean_seconds;
    return a > 0 && bar->mean_count > 0 ? bar->mean_count / bar->mean_seconds * bar->ranks
                                        : tern_progress_rate(bar);
}

static void draw_bar(tern_progress *bar, int64_t now)
{
    take_state(bar, smoothed_rate(bar, now));
    bar->drawn = now;
    bar->drawn_done = bar->own_done;
    write_line(bar);
    fflush(stderr);
}

/* ---- new and free ---- */

static int check_opts(const char *title, int64_t total, const tern_progress_opts *opts, tern_error *err)
{
    const char *func = "tern_progress_new";
    if (!title || !opts->unit)
        return tern__error_set(err, func, TERN_E_INVALID, "the title or the unit is NULL");
    if (total < 0 || opts->initial < 0)
        return tern__error_set(err, func, TERN_E_RANGE, "total is %lld and initial %lld, expected at least 0",
                               (long long)total, (long long)opts->initial);
    if (!(opts->smoothing >= 0 && opts->smoothing <= 1) || !(opts->interval_seconds >= 0) ||
        !(opts->line_seconds >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "smoothing is %g, expected [0, 1]; interval_seconds is %g and line_seconds "
                               "%g, expected at least 0",
                               opts->smoothing, opts->interval_seconds, opts->line_seconds);
    return TERN_OK;
}

static place place_of(const tern_progress *bar)
{
    if (!bar->speaks) return NOWHERE;
    if (isatty(STDERR_FILENO)) return TERMINAL;
    return bar->opts.line_seconds > 0 ? LOG : NOWHERE;
}

static void open_bar(tern_progress *bar, const char *title, int64_t total, const tern_group *group)
{
    bar->ranks = group ? tern_group_size(group) : 1;
    bar->own_done = bar->drawn_done = bar->opts.initial;
    bar->depth = bar->opts.parent ? bar->opts.parent->depth + 1 : 0;
    bar->speaks = !group || tern_group_rank(group) == 0;
    bar->place = place_of(bar);
    bar->style = style_of_locale();
    bar->started = bar->drawn = tern__now_ns();
    snprintf(bar->title, sizeof(bar->title), "%s", title);
    snprintf(bar->unit, sizeof(bar->unit), "%s", bar->opts.unit);
    bar->state = (tern__progress_state){.title = bar->title,
                                        .unit = bar->unit,
                                        .unit_scale = bar->opts.unit_scale,
                                        .done = bar->own_done * bar->ranks,
                                        .total = total * bar->ranks,
                                        .rate = NAN};
}

tern_progress *tern_progress_new(const char *title, int64_t total, const tern_group *group,
                                 const tern_progress_opts *opts, tern_error *err)
{
    tern_progress_opts own = tern_progress_defaults();
    if (tern__is_set(err) || tern__opts_read(&own, sizeof(own), opts, __func__, err)) return NULL;
    if (check_opts(title, total, &own, err)) return NULL;
    tern_progress *bar = tern__alloc(sizeof(*bar), __func__, err);
    if (!bar) return NULL;
    bar->opts = own;
    open_bar(bar, title, total, group);
    if (bar->place == TERMINAL) write_line(bar);
    fflush(stderr);
    return bar;
}

/* Leaves the last line above the outer bars, which move down. */
static void leave_line(tern_progress *bar)
{
    take_state(bar, tern_progress_rate(bar));
    if (bar->place == TERMINAL) {
        erase_bar(bar);
        bar->depth = 0;
    }
    write_line(bar);
    if (bar->place == TERMINAL) fputc('\n', stderr);
    if (bar->place == TERMINAL) draw_with_parents(bar->opts.parent);
}

void tern_progress_free(tern_progress *bar)
{
    if (!bar) return;
    if (bar->place != NOWHERE && bar->opts.leave)
        leave_line(bar);
    else if (bar->place == TERMINAL)
        erase_bar(bar);
    fflush(stderr);
    tern__free(bar);
}

/* ---- updates ---- */

void tern_progress_update(tern_progress *bar, int64_t count)
{
    if (!bar) return;
    bar->own_done += count;
    if (bar->place == NOWHERE) return;
    int64_t now = tern__now_ns();
    double interval = bar->place == LOG ? bar->opts.line_seconds : bar->opts.interval_seconds;
    if ((double)(now - bar->drawn) * 1e-9 >= interval) draw_bar(bar, now);
}

void tern_progress_postfix(tern_progress *bar, const char *name, double value)
{
    if (!bar || !name) return;
    tern__progress_state *state = &bar->state;
    int i = 0;
    while (i < state->postfix_count &&
           strncmp(state->postfix[i].name, name, sizeof(state->postfix[i].name) - 1))
        i++;
    if (i == TERN__PROGRESS_POSTFIXES) return;
    if (i == state->postfix_count) {
        snprintf(state->postfix[i].name, sizeof(state->postfix[i].name), "%s", name);
        state->postfix_count++;
    }
    state->postfix[i].value = value;
}

void tern_progress_print(tern_progress *bar, const char *text)
{
    if (!bar || !text || !bar->speaks) return;
    if (bar->place == TERMINAL) {
        for (const tern_progress *each = bar; each; each = each->opts.parent) erase_bar(each);
        fflush(stderr);
    }
    printf("%s\n", text);
    fflush(stdout);
    if (bar->place == TERMINAL) draw_with_parents(bar);
    fflush(stderr);
}
