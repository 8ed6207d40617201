/* attach.c - memory that NCCL moves without copies of its own (ncclCommRegister): that of windows which are
 * opened over it, as a ddp's over its gradients.
 *
 * NCCL opens to the other ranks what the driver has allocated as one, and wants the buffers of all ranks at
 * the same place in it; and either all ranks' are attached or none. So only windows that begin a page and
 * fill one are, which have their allocation to themselves (smaller ones gain nothing: they are moved by who
 * waits least, not by who copies least), and the ranks tell each other whether that was done. A communicator
 * knows its own memory only, so a window is attached when it is known whose works move it. */
#include "comm/nccl/nccl.h"

#define PAGE ((size_t)2 << 20)

static void attach(tern__nccl_window *window)
{
    tern__nccl *nccl = window->link->nccl;
    if ((uintptr_t)window->base % PAGE || tern__nccl_line_await(window->line, "to take memory", NULL)) return;
    pthread_mutex_lock(&nccl->lock);
    if (window->line->comm)
        window->handle = nccl->plugin->attach(window->line->comm, window->base, window->bytes);
    pthread_mutex_unlock(&nccl->lock);
}

/* The first rank that has not attached its own; -1: there is none. */
static int find_without(tern__nccl_window *window, int *rank, tern_error *err)
{
    tern__nccl *nccl = window->link->nccl;
    int world = nccl->group->boot.world;
    bool *attached = tern__alloc((size_t)world * sizeof(*attached), "tern_ddp_new", err);
    if (!attached) return TERN_E_MEMORY;
    attached[nccl->group->boot.rank] = window->handle;
    int status = tern__nccl_tell(nccl, attached, sizeof(*attached), err);
    for (*rank = world - 1; *rank >= 0 && attached[*rank];) --*rank;
    tern__free(attached);
    return status;
}

int tern__nccl_attach(tern__nccl_window *window, tern__nccl_line *line, tern_error *err)
{
    int without;
    if (window->line || window->link->nccl->group->boot.world == 1 || window->bytes < PAGE) return TERN_OK;
    window->line = line;
    attach(window);
    int status = find_without(window, &without, err);
    if (status) return status;
    if (without >= 0) {
        tern__nccl_detach(window);
        tern__log(TERN_LOG_INFO,
                  "NCCL copies %zu bytes of %s as it moves them: rank %d cannot register its own",
                  window->bytes, window->link->device->name, without);
    }
    return TERN_OK;
}

void tern__nccl_detach(tern__nccl_window *window)
{
    const tern__nccl_line *line = window->line;
    void *handle = window->handle;
    window->handle = NULL;
    if (!handle || tern__nccl_line_drain(line)) return;
    tern__nccl *nccl = line->link->nccl;
    pthread_mutex_lock(&nccl->lock);
    if (line->comm) nccl->plugin->detach(line->comm, handle);
    pthread_mutex_unlock(&nccl->lock);
}
