/* measure.c - what every bench does: it reads a clock, takes medians and prints lines of JSON. The clock is
 * CLOCK_MONOTONIC on the CPU, timed events on a GPU. */
#include "bench/bench.h"

#include "device/backend.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the clock ---- */

struct tern__bench_clock {
    tern_device *device;
    int points;
    int64_t *ns;                 /* [points] on the CPU              */
    tern__device_event **events; /* [points] events on a GPU; else NULL */
};

tern__bench_clock *tern__bench_clock_new(tern_device *device, int points, tern_error *err)
{
    tern__bench_clock *clock = tern__alloc(sizeof(*clock), "tern bench", err);
    if (!clock) return NULL;
    *clock = (tern__bench_clock){.device = device, .points = points};
    if (!device->backend)
        clock->ns = tern__alloc((size_t)points * sizeof(*clock->ns), "tern bench", err);
    else
        clock->events = tern__alloc((size_t)points * sizeof(*clock->events), "tern bench", err);
    for (int i = 0; clock->events && i < points && !tern__is_set(err); i++)
        clock->events[i] = device->backend->timer_new(device, err);
    if (!tern__is_set(err)) return clock;
    tern__bench_clock_free(clock);
    return NULL;
}

void tern__bench_clock_free(tern__bench_clock *clock)
{
    if (!clock) return;
    for (int i = 0; clock->events && i < clock->points; i++)
        clock->device->backend->event_free(clock->device, clock->events[i]);
    tern__free(clock->events);
    tern__free(clock->ns);
    tern__free(clock);
}

void tern__bench_clock_set(tern__bench_clock *clock, int point, tern_error *err)
{
    if (clock->ns)
        clock->ns[point] = tern__now_ns();
    else
        clock->device->backend->event_record(clock->device, TERN__STREAM_STEP, clock->events[point], err);
}

double tern__bench_clock_ms(tern__bench_clock *clock, int from, int to)
{
    if (clock->ns) return (double)(clock->ns[to] - clock->ns[from]) * 1e-6;
    return clock->device->backend->timer_ms(clock->device, clock->events[from], clock->events[to]);
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tern__bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

void tern__bench_print(cJSON *line)
{
    char *text = cJSON_PrintUnformatted(line);
    if (text) puts(text);
    cJSON_free(text);
    cJSON_Delete(line);
}

void tern__bench_print_oversubscribed(int threads)
{
    int sharers, cores = tern_device_cores(&sharers);
    if (sharers * threads <= cores) return;
    printf("oversubscribed: %d rank%s x %d thread%s take turns on %d core%s\n", sharers,
           sharers == 1 ? "" : "s", threads, threads == 1 ? "" : "s", cores, cores == 1 ? "" : "s");
}
