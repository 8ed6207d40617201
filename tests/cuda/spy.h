/* spy.h - a device's back end that does what the one behind it does, keeps books, and knows what a device
 * that is late would do: no block may be written before those who use it are known to be done, nor the host's
 * memory before it is known to have been read. */
#ifndef TERN_TESTS_CUDA_SPY_H
#define TERN_TESTS_CUDA_SPY_H

#include "check.h"

#include "device/backend.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SPY_PLACES = 256, SPY_HELD = INT32_MAX };

typedef struct spy {
    tern__device_backend backend;
    const tern__device_backend *behind;
    tern_device *device;
    pthread_t caller;
    atomic_int blocks, events, pins;             /* alive */
    atomic_int allocs, copies, waits, own_waits; /* calls; own: of the caller, for an event */
    int refused_alloc, refused_pin;              /* the number of the one that fails; 0: none */
    int pinned, sent;                            /* calls */

    /* Steps count up; an event of the step's stream has the number of the step in which it was set. */
    int step, known; /* known: to the copying stream as done */
    struct {
        const void *what; /* event or block */
        int step;         /* in which a block was used last */
    } places[SPY_PLACES];

    pthread_mutex_t lock;
    struct {
        const char *from; /* of the host's memory that a stream reads; NULL: nothing */
        size_t bytes;
        const tern__device_event *event; /* behind that; NULL: not set yet */
    } reads[SPY_PLACES];
} spy;

static spy *spying; /* one at a time */

static inline int *spy_step_of(const void *what)
{
    int i = 0;
    while (spying->places[i].what && spying->places[i].what != what) i++;
    assert_true(i < SPY_PLACES);
    spying->places[i].what = what;
    return &spying->places[i].step;
}

static inline void spy_read_add(const void *from, size_t bytes)
{
    int i = 0;
    pthread_mutex_lock(&spying->lock);
    while (spying->reads[i].from && spying->reads[i].from != from) i++;
    spying->reads[i].from = from;
    spying->reads[i].bytes = bytes;
    spying->reads[i].event = NULL;
    pthread_mutex_unlock(&spying->lock);
    assert_true(i < SPY_PLACES - 1);
}

/* Those before the event: it is set, or passed. */
static inline void spy_reads_event(const tern__device_event *event, bool passed)
{
    pthread_mutex_lock(&spying->lock);
    for (int i = 0; i < SPY_PLACES; i++) {
        if (!passed && spying->reads[i].from && !spying->reads[i].event) spying->reads[i].event = event;
        if (passed && spying->reads[i].event == event) spying->reads[i].bytes = 0;
    }
    pthread_mutex_unlock(&spying->lock);
}

/* May the host's memory still be read there, as far as anybody knows? Any thread. */
static inline bool spy_is_read(const void *data)
{
    bool found = false;
    pthread_mutex_lock(&spying->lock);
    for (int i = 0; i < SPY_PLACES; i++)
        found |= (size_t)((const char *)data - spying->reads[i].from) < spying->reads[i].bytes;
    pthread_mutex_unlock(&spying->lock);
    return found;
}

static inline void *spy_alloc(tern_device *device, size_t bytes)
{
    if (atomic_fetch_add(&spying->allocs, 1) + 1 == spying->refused_alloc) return NULL;
    atomic_fetch_add(&spying->blocks, 1);
    return spying->behind->alloc(device, bytes);
}

static inline void spy_free(tern_device *device, void *data)
{
    atomic_fetch_sub(&spying->blocks, 1);
    spying->behind->free(device, data);
}

static inline int spy_copy(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err)
{
    atomic_fetch_add(&spying->copies, 1);
    return spying->behind->copy(device, to, from, bytes, err);
}

static inline int spy_wait(tern_device *device, tern_error *err)
{
    atomic_fetch_add(&spying->waits, 1);
    return spying->behind->wait(device, err);
}

static inline int spy_pin(tern_device *device, void *base, size_t bytes, tern_error *err)
{
    if (++spying->pinned == spying->refused_pin)
        return tern__error_set(err, "spy", TERN_E_SYSTEM, "it cannot be pinned");
    atomic_fetch_add(&spying->pins, 1);
    return spying->behind->pin(device, base, bytes, err);
}

static inline void spy_unpin(tern_device *device, void *base)
{
    atomic_fetch_sub(&spying->pins, 1);
    spying->behind->unpin(device, base);
}

static inline int spy_stream_copy(tern_device *device, tern__device_stream stream, void *to, const void *from,
                                  size_t bytes, tern_error *err)
{
    assert_int_equal(stream, TERN__STREAM_COPY);
    assert_true(pthread_equal(pthread_self(), spying->caller));
    if (*spy_step_of(to) > spying->known)
        fail_msg("a block is written that step %d uses; only %d is known to be done", *spy_step_of(to),
                 spying->known);
    spy_read_add(from, bytes);
    spying->sent++;
    return spying->behind->stream_copy(device, stream, to, from, bytes, err);
}

static inline tern__device_event *spy_event_new(tern_device *device, tern_error *err)
{
    atomic_fetch_add(&spying->events, 1);
    return spying->behind->event_new(device, err);
}

static inline void spy_event_free(tern_device *device, tern__device_event *event)
{
    atomic_fetch_sub(&spying->events, 1);
    spying->behind->event_free(device, event);
}

static inline int spy_event_record(tern_device *device, tern__device_stream stream, tern__device_event *event,
                                   tern_error *err)
{
    assert_true(pthread_equal(pthread_self(), spying->caller));
    *spy_step_of(event) = stream == TERN__STREAM_STEP ? spying->step : 0;
    if (stream == TERN__STREAM_COPY) spy_reads_event(event, false);
    return spying->behind->event_record(device, stream, event, err);
}

static inline int spy_stream_wait(tern_device *device, tern__device_stream stream, tern__device_event *event,
                                  tern_error *err)
{
    assert_true(pthread_equal(pthread_self(), spying->caller));
    if (stream == TERN__STREAM_COPY) spying->known = TERN__MAX(spying->known, *spy_step_of(event));
    return spying->behind->stream_wait(device, stream, event, err);
}

static inline int spy_event_query(tern_device *device, tern__device_event *event, tern_error *err)
{
    int status = spying->behind->event_query(device, event, err);
    if (status == TERN_OK) spy_reads_event(event, true);
    if (status && pthread_equal(pthread_self(), spying->caller)) atomic_fetch_add(&spying->own_waits, 1);
    return status;
}

static inline int spy_event_wait(tern_device *device, tern__device_event *event, tern_error *err)
{
    if (pthread_equal(pthread_self(), spying->caller)) atomic_fetch_add(&spying->own_waits, 1);
    int status = spying->behind->event_wait(device, event, err);
    spy_reads_event(event, true);
    return status;
}

static inline void spy_open(spy *s, tern_device *device)
{
    *s = (spy){.backend = *device->backend, .behind = device->backend, .device = device};
    s->caller = pthread_self();
    pthread_mutex_init(&s->lock, NULL);
    s->backend.alloc = spy_alloc;
    s->backend.free = spy_free;
    s->backend.copy = spy_copy;
    s->backend.wait = spy_wait;
    s->backend.pin = spy_pin;
    s->backend.unpin = spy_unpin;
    s->backend.stream_copy = spy_stream_copy;
    s->backend.event_new = spy_event_new;
    s->backend.event_free = spy_event_free;
    s->backend.event_record = spy_event_record;
    s->backend.stream_wait = spy_stream_wait;
    s->backend.event_query = spy_event_query;
    s->backend.event_wait = spy_event_wait;
    spying = s;
    device->backend = &s->backend;
}

/* All that was taken has been given back. */
static inline void spy_close(spy *s)
{
    s->device->backend = s->behind;
    spying = NULL;
    assert_int_equal(atomic_load(&s->blocks), 0);
    assert_int_equal(atomic_load(&s->events), 0);
    assert_int_equal(atomic_load(&s->pins), 0);
}

#endif
