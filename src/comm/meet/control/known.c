/* known.c - what a rank knows: the first failure, and who the peers are. */
#include "comm/meet/control/inner.h"

#include <stdio.h>

/* ---- the first failure ---- */

bool tern__control_fail(tern__control *control, const tern_error *why)
{
    pthread_mutex_lock(&control->lock);
    bool first = !control->event.code;
    if (first) {
        control->event = *why;
        atomic_store_explicit(&control->failed, 1, memory_order_release);
    }
    pthread_cond_broadcast(&control->changed);
    pthread_mutex_unlock(&control->lock);
    return first;
}

bool tern__control_is_healthy(const tern__control *control)
{
    return !atomic_load_explicit(&control->failed, memory_order_relaxed);
}

int tern__control_check(const tern__control *control, const char *func, tern_error *err)
{
    if (!atomic_load_explicit(&control->failed, memory_order_acquire)) return TERN_OK;
    const tern_error *event = &control->event;
    bool fresh = err && !err->code;
    tern__error_set(err, func, event->code, "%s", event->text);
    if (fresh) err->native = event->native;
    return event->code;
}

/* ---- peers ---- */

bool tern__control_has_left(const tern__control *control, int peer)
{
    return atomic_load(&control->peers[peer].left);
}

bool tern__control_is_same_process(const tern__control *control, int peer)
{
    return tern__rank_info_is_same_process(&control->peers[peer].info, &control->peers[control->rank].info);
}

int tern__control_host(const tern__control *control, int rank)
{
    return control->peers[rank].host;
}

int tern__control_hosts(const tern__control *control)
{
    return control->hosts;
}

bool tern__control_is_same_host(const tern__control *control, int peer)
{
    return control->peers[peer].host == control->peers[control->rank].host;
}

bool tern__control_shares_cores(const tern__control *control, int peer)
{
    cpu_set_t shared;
    CPU_AND(&shared, &control->peers[control->rank].info.cores, &control->peers[peer].info.cores);
    return tern__control_is_same_host(control, peer) && CPU_COUNT(&shared) > 0;
}

void tern__control_address(const tern__control *control, char *text, size_t size)
{
    if (control->hosts > 1)
        tern__tcp_host(&control->at, text, size);
    else
        snprintf(text, size, "127.0.0.1");
}

void tern__control_describe(const tern__control *control, int peer, char *text, size_t size)
{
    tern__rank_info_describe(&control->peers[peer].info, peer, text, size);
}
