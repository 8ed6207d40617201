#include "bench/clock.h"

#include "device/backend.h"

struct tern__bench_clock {
    tern_device *device;
    int places;
    int64_t *ns;                 /* [places] of the host        */
    tern__device_event **events; /* [places] of a device; else NULL */
};

tern__bench_clock *tern__bench_clock_new(tern_device *device, int places, tern_error *err)
{
    tern__bench_clock *clock = tern__alloc(sizeof(*clock), "tern bench", err);
    if (!clock) return NULL;
    *clock = (tern__bench_clock){.device = device, .places = places};
    if (!device->backend)
        clock->ns = tern__alloc((size_t)places * sizeof(*clock->ns), "tern bench", err);
    else
        clock->events = tern__alloc((size_t)places * sizeof(*clock->events), "tern bench", err);
    for (int i = 0; clock->events && i < places && !tern__is_set(err); i++)
        clock->events[i] = device->backend->timer_new(device, err);
    if (!tern__is_set(err)) return clock;
    tern__bench_clock_free(clock);
    return NULL;
}

void tern__bench_clock_free(tern__bench_clock *clock)
{
    if (!clock) return;
    for (int i = 0; clock->events && i < clock->places; i++)
        clock->device->backend->event_free(clock->device, clock->events[i]);
    tern__free(clock->events);
    tern__free(clock->ns);
    tern__free(clock);
}

void tern__bench_clock_set(tern__bench_clock *clock, int place, tern_error *err)
{
    if (clock->ns)
        clock->ns[place] = tern__now_ns();
    else
        clock->device->backend->event_record(clock->device, TERN__STREAM_STEP, clock->events[place], err);
}

double tern__bench_clock_ms(tern__bench_clock *clock, int from, int to)
{
    if (clock->ns) return (double)(clock->ns[to] - clock->ns[from]) * 1e-6;
    return clock->device->backend->timer_ms(clock->device, clock->events[from], clock->events[to]);
}
