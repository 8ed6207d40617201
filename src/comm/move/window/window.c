/* window.c - windows: memory of the same size on every rank, shared with all ranks of the group. */
#include "comm/move/window/native.h"

#include "comm/sys.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The public callers are tern_group_mem_alloc, tern_ddp_new and tern_optim_shard. */
static const char func[] = "tern_group";

static tern__window *window_new(const tern__native *native, size_t bytes, bool is_caller, tern_error *err)
{
    tern__window *window = tern__alloc(sizeof(*window), func, err);
    if (!window) return NULL;
    window->bytes = bytes;
    window->mapped = tern__segment_mapped(bytes);
    window->is_caller = is_caller;
    window->bases = tern__alloc((size_t)native->world * sizeof(*window->bases), func, err);
    window->borrowed = tern__alloc((size_t)native->world * sizeof(*window->borrowed), func, err);
    if (window->bases && window->borrowed) return window;
    tern__free(window->bases);
    tern__free(window->borrowed);
    tern__free(window);
    return NULL;
}

static void release(const tern__native *native, tern__window *window)
{
    for (int rank = 0; rank < native->world; rank++) {
        if (!window->bases[rank] || window->borrowed[rank]) continue;
        if (rank != native->rank || !window->is_caller)
            munmap(window->bases[rank], window->mapped);
        else if (tern__segment_privatize(window->bases[rank], window->mapped, NULL))
            tern__log(TERN_LOG_WARN, "a closed window of %zu bytes stays shared: out of memory",
                      window->bytes);
    }
    tern__free(window->bases);
    tern__free(window->borrowed);
    tern__free(window);
}

/* ---- opening ---- */

static int send_to_all(tern__native *native, uint32_t serial, int fd, tern_error *err)
{
    int status = TERN_OK;
    for (int peer = 0; peer < native->world && !status; peer++)
        if (peer != native->rank) status = tern__segment_send(native, peer, serial, fd, err);
    return status;
}

static int attach_all(tern__native *native, uint32_t serial, tern__window *window, tern_error *err)
{
    int status = TERN_OK;
    for (int peer = 0; peer < native->world && !status; peer++) {
        int fd;
        if (peer == native->rank) continue;
        status = tern__segment_recv(native, peer, serial, &fd, err);
        if (status) return status;
        status = tern__segment_attach(native, peer, fd, window->bytes, &window->bases[peer],
                                      &window->borrowed[peer], err);
        tern__close(&fd);
    }
    return status;
}

static int share(tern__native *native, void *base, tern__window *window, tern_error *err)
{
    int fd;
    uint32_t serial = tern__serial_next(native);
    int status = tern__segment_create(&base, window->bytes, &fd, err);
    if (status) return status;
    window->bases[native->rank] = base;
    status = send_to_all(native, serial, fd, err);
    tern__close(&fd);
    return status ? status : attach_all(native, serial, window, err);
}

int tern__window_open(void *state, void *base, size_t bytes, uint32_t *number, tern_error *err)
{
    tern__native *native = state;
    if (!bytes || (base && bytes != tern__segment_mapped(bytes)))
        return tern__error_set(err, func, TERN_E_INVALID, "a window cannot have %zu bytes, expected %s",
                               bytes, base ? "whole pages" : "at least 1");
    int status = tern__native_check(native, err);
    if (!status)
        status = tern__array_reserve(&native->windows, &native->window_room, native->window_count + 1,
                                     sizeof(*native->windows), func, err);
    if (status) return status;
    tern__window *window = window_new(native, bytes, base != NULL, err);
    if (!window) return TERN_E_MEMORY;
    status = share(native, base, window, err);
    if (status) {
        release(native, window);
        return status;
    }
    *number = native->window_count++;
    native->windows[*number] = window;
    return TERN_OK;
}

void *tern__window_base(void *state, uint32_t window)
{
    const tern__native *native = state;
    return native->windows[window]->bases[native->rank];
}

char *tern__window_peer(void *state, uint32_t window, int rank)
{
    const tern__native *native = state;
    return native->windows[window]->bases[rank];
}

void tern__window_close(void *state, uint32_t window)
{
    tern__native *native = state;
    if (!native->windows[window]) return;
    release(native, native->windows[window]);
    native->windows[window] = NULL;
}
