/* attach.c - registers the memory of windows with NCCL (ncclCommRegister), which then moves it without copies
 * of its own. A ddp opens such windows over its gradients.
 *
 * NCCL maps a whole allocation of the driver's into the other ranks and expects the buffers of all ranks at
 * the same offset in it. Either all ranks register a window or none does. So only windows that begin a page
 * and fill at least one are registered: they have an allocation to themselves. Smaller ones would gain
 * nothing, since latency decides for them and not copies. The ranks tell each other whether they could
 * register. A registration belongs to a communicator, so a window is attached when it is known which one
 * moves it. */
#include "comm/move/nccl/nccl.h"

#define PAGE ((size_t)2 << 20)

static void window_attach(tern__nccl_window *window)
{
    tern__nccl *nccl = window->gpu->nccl;
    if ((uintptr_t)window->base % PAGE || tern__nccl_comm_await(window->comm, "to take memory", NULL)) return;
    pthread_mutex_lock(&nccl->lock);
    if (window->comm->handle)
        window->handle = nccl->plugin->attach(window->comm->handle, window->base, window->bytes);
    pthread_mutex_unlock(&nccl->lock);
}

/* Sets *rank to the highest rank that has not registered its window; -1: all have. */
static int find_without(tern__nccl_window *window, int *rank, tern_error *err)
{
    tern__nccl *nccl = window->gpu->nccl;
    int world = nccl->group->boot.world;
    bool *attached = tern__alloc((size_t)world * sizeof(*attached), "tern_ddp_new", err);
    if (!attached) return TERN_E_MEMORY;
    attached[nccl->group->boot.rank] = window->handle;
    int status = tern__nccl_tell(nccl, attached, sizeof(*attached), err);
    for (*rank = world - 1; *rank >= 0 && attached[*rank];) --*rank;
    tern__free(attached);
    return status;
}

int tern__nccl_attach(tern__nccl_window *window, tern__nccl_comm *comm, tern_error *err)
{
    int without;
    if (window->comm || window->gpu->nccl->group->boot.world == 1 || window->bytes < PAGE) return TERN_OK;
    window->comm = comm;
    window_attach(window);
    int status = find_without(window, &without, err);
    if (status) return status;
    if (without >= 0) {
        tern__nccl_detach(window);
        tern__log(TERN_LOG_INFO,
                  "NCCL copies %zu bytes of %s as it moves them: rank %d cannot register its own",
                  window->bytes, window->gpu->device->name, without);
    }
    return TERN_OK;
}

void tern__nccl_detach(tern__nccl_window *window)
{
    const tern__nccl_comm *comm = window->comm;
    void *handle = window->handle;
    window->handle = NULL;
    if (!handle || tern__nccl_comm_drain(comm)) return;
    tern__nccl *nccl = comm->gpu->nccl;
    pthread_mutex_lock(&nccl->lock);
    if (comm->handle) nccl->plugin->detach(comm->handle, handle);
    pthread_mutex_unlock(&nccl->lock);
}
