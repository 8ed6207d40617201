#include "base/base.h"

#include <tern/report.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REDRAW_NS 100000000
#define CELLS     24

struct tern_progress {
    char title[64];
    int64_t steps, step, samples;
    int ranks;
    bool visible;
    int64_t started, drawn; /* ns */
    char name[16];
    double value;
};

tern_progress *tern_progress_new(const char *title, int64_t steps, const tern_group *group, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    tern_progress *bar = tern__alloc(sizeof(*bar), __func__, err);
    if (!bar) return NULL;
    *bar = (tern_progress){.steps = steps,
                           .ranks = group ? tern_group_size(group) : 1,
                           .visible = (!group || tern_group_rank(group) == 0) && isatty(STDERR_FILENO),
                           .started = tern__now_ns()};
    snprintf(bar->title, sizeof(bar->title), "%s", title);
    return bar;
}

double tern_progress_seconds(const tern_progress *bar)
{
    return (double)(tern__now_ns() - bar->started) * 1e-9;
}

double tern_progress_rate(const tern_progress *bar)
{
    double seconds = tern_progress_seconds(bar);
    return seconds > 0 ? (double)bar->samples * bar->ranks / seconds : 0;
}

/* "0:42" or "1:02:03". */
static void clock_text(double seconds, char *text, size_t size)
{
    long s = lround(seconds);
    if (s >= 3600)
        snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
}

static void draw(const tern_progress *bar)
{
    char cells[CELLS + 1], left[32];
    double done = bar->step < bar->steps ? (double)bar->step / (double)bar->steps : 1;
    int full = (int)(done * CELLS);
    memset(cells, '.', CELLS);
    memset(cells, '#', (size_t)full);
    cells[CELLS] = 0;
    clock_text(done > 0 ? tern_progress_seconds(bar) * (1 - done) / done : 0, left, sizeof(left));
    fprintf(stderr, "\r%s [%s] %3d %%  %lld/%lld  %.0f/s  %s left  %s %.4f\033[K", bar->title, cells,
            (int)(100 * done), (long long)bar->step, (long long)bar->steps, tern_progress_rate(bar), left,
            bar->name, bar->value);
    fflush(stderr);
}

void tern_progress_update(tern_progress *bar, int64_t samples, const char *name, double value)
{
    if (!bar) return;
    bar->step++;
    bar->samples += samples;
    bar->value = value;
    if (!bar->visible) return;
    int64_t now = tern__now_ns();
    if (now - bar->drawn < REDRAW_NS) return;
    bar->drawn = now;
    snprintf(bar->name, sizeof(bar->name), "%s", name);
    draw(bar);
}

void tern_progress_free(tern_progress *bar)
{
    if (!bar) return;
    if (bar->visible) {
        fprintf(stderr, "\r\033[K");
        fflush(stderr);
    }
    tern__free(bar);
}
