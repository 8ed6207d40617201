/* window.c - windows: memory of the same size on every rank, shared with all ranks of the group. */
#include "comm/move/window/window.h"

#include "comm/sys.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The public callers are tern_group_mem_alloc, tern_ddp_new and tern_optim_shard. */
static const char func[] = "tern_group";

static tern__window *window_new(const tern__window_state *windows, size_t bytes, bool is_caller,
                                tern_error *err)
{
    tern__window *window = tern__alloc(sizeof(*window), func, err);
    if (!window) return NULL;
    window->bytes = bytes;
    window->mapped = tern__segment_mapped(bytes);
    window->is_caller = is_caller;
    window->sparse_fd = -1;
    window->bases = tern__alloc((size_t)windows->ranks.world * sizeof(*window->bases), func, err);
    window->borrowed = tern__alloc((size_t)windows->ranks.world * sizeof(*window->borrowed), func, err);
    if (window->bases && window->borrowed) return window;
    tern__free(window->bases);
    tern__free(window->borrowed);
    tern__free(window);
    return NULL;
}

static void window_release(const tern__window_state *windows, tern__window *window)
{
    for (int rank = 0; rank < windows->ranks.world; rank++) {
        if (!window->bases[rank] || window->borrowed[rank]) continue;
        if (rank != windows->ranks.rank || !window->is_caller)
            munmap(window->bases[rank], window->mapped);
        else if (tern__segment_privatize(window->bases[rank], window->mapped, NULL))
            tern__log(TERN_LOG_WARN, "a closed window of %zu bytes stays shared: out of memory",
                      window->bytes);
    }
    tern__close(&window->sparse_fd);
    tern__free(window->bases);
    tern__free(window->borrowed);
    tern__free(window);
}

/* ---- opening ---- */

static int send_to_all(tern__window_state *windows, uint32_t serial, int fd, tern_error *err)
{
    int status = TERN_OK;
    for (int peer = 0; peer < windows->ranks.world && !status; peer++)
        if (peer != windows->ranks.rank) status = tern__segment_send(&windows->ranks, peer, serial, fd, err);
    return status;
}

static int attach_all(tern__window_state *windows, uint32_t serial, tern__window *window, tern_error *err)
{
    int status = TERN_OK;
    for (int peer = 0; peer < windows->ranks.world && !status; peer++) {
        int fd;
        if (peer == windows->ranks.rank) continue;
        status = tern__segment_recv(&windows->ranks, peer, serial, &fd, err);
        if (status) return status;
        status = tern__segment_attach(&windows->ranks, peer, fd, window->bytes, window->sparse_fd >= 0,
                                      &window->bases[peer], &window->borrowed[peer], err);
        tern__close(&fd);
    }
    return status;
}

static int share_pages(tern__window_state *windows, const tern__window_opts *opts, tern__window *window,
                       tern_error *err)
{
    int fd;
    void *base = opts->base;
    uint32_t serial = tern__segment_serial(&windows->ranks);
    int status = opts->is_sparse ? tern__segment_create_sparse(&base, opts->bytes, &fd, err)
                                 : tern__segment_create(&base, opts->bytes, &fd, err);
    if (status) return status;
    window->bases[windows->ranks.rank] = base;
    if (opts->is_sparse) window->sparse_fd = fd;
    status = send_to_all(windows, serial, fd, err);
    if (!opts->is_sparse) tern__close(&fd);
    return status ? status : attach_all(windows, serial, window, err);
}

int tern__window_open(void *state, tern__window_opts *opts, uint32_t *number, tern_error *err)
{
    tern__window_state *windows = state;
    if (opts->is_sparse && !opts->bytes) opts->bytes = tern__segment_sparse_bytes(windows->ranks.world);
    if (!opts->bytes || (opts->base && opts->bytes != tern__segment_mapped(opts->bytes)))
        return tern__error_set(err, func, TERN_E_INVALID, "a window cannot have %zu bytes, expected %s",
                               opts->bytes, opts->base ? "whole pages" : "at least 1");
    int status = tern__failure_check(windows->ranks.group, err);
    if (!status)
        status = tern__array_reserve(&windows->list, &windows->room, windows->count + 1,
                                     sizeof(*windows->list), func, err);
    if (status) return status;
    tern__window *window = window_new(windows, opts->bytes, opts->base != NULL, err);
    if (!window) return TERN_E_MEMORY;
    status = share_pages(windows, opts, window, err);
    if (status) {
        window_release(windows, window);
        return status;
    }
    *number = windows->count++;
    windows->list[*number] = window;
    return TERN_OK;
}

char *tern__window_at(void *state, uint32_t window, int rank)
{
    const tern__window_state *windows = state;
    return windows->list[window]->bases[rank];
}

int tern__window_commit(void *state, uint32_t number, size_t offset, size_t bytes, bool has_pages,
                        tern_error *err)
{
    const tern__window_state *windows = state;
    const tern__window *window = windows->list[number];
    char *own = window->bases[windows->ranks.rank];
    return tern__segment_commit(window->sparse_fd, own, offset, bytes, has_pages, err);
}

void tern__window_close(void *state, uint32_t window)
{
    tern__window_state *windows = state;
    if (!windows->list[window]) return;
    window_release(windows, windows->list[window]);
    windows->list[window] = NULL;
}
