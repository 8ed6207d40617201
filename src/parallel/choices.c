/* choices.c - one rank measures convolutions, and all compute them alike.
 *
 * Clocks differ, so ranks that measure each for itself would choose differently; then they take different
 * times for the same work and wait for each other, and which bits a run has depends on more clocks than one.
 * So only rank 0 measures, as in the first step everybody waits for it anyhow, and the others take what the
 * fixed table says until they are told (nn/module.c makes their devices follow). With the synchronised
 * backwards 1, 2, 4, 8 .. rank 0's lines (kernels/choices.h) are broadcast, beside the gradients and without
 * a wait of their own. All ranks do so at the same points whatever they have met, so nothing can hang where
 * shapes differ. What is sent is all that rank 0 knows, so who has missed a round misses nothing; a network
 * of more cases than there is room for hears of the newest. Equal text is not read twice. Of a round in which
 * rank 0 has no inputs left (tern_ddp_join) nobody learns anything. */
#include "parallel/ddp.h"

#include "kernels/choices.h"

#include <string.h>
#include <xxhash.h>

#define ROOM    ((size_t)256 << 10) /* bytes of lines: about 600 cases */
#define DEVICES 16

/* ---- life ---- */

int tern__sharing_open(tern_ddp *ddp, tern_error *err)
{
    tern__sharing *self = &ddp->choices;
    if (tern_group_size(ddp->group) == 1) return TERN_OK;
    int status = ddp->group->backend->window_open(ddp->group->state, NULL, ROOM, &self->window, err);
    self->has_window = !status;
    self->extent = (tern__extent){self->window, 0, ROOM};
    return status;
}

void tern__sharing_close(tern_ddp *ddp)
{
    if (ddp->choices.has_window) ddp->group->backend->window_close(ddp->group->state, ddp->choices.window);
}

/* ---- a backward ---- */

static char *lines_of(const tern_ddp *ddp)
{
    return ddp->group->backend->window_base(ddp->group->state, ddp->choices.window);
}

static int add_device(tern_device *list[DEVICES], int count, tern_device *device)
{
    for (int i = 0; i < count; i++)
        if (list[i] == device) return count;
    if (!device || count == DEVICES) return count;
    list[count] = device;
    return count + 1;
}

/* That the running backward computes on: its scope's and the parameters' own. */
static int list_devices(const tern_ddp *ddp, tern_device *list[DEVICES])
{
    int count = add_device(list, 0, ddp->stats.scope->device);
    for (int i = 0; i < ddp->leaf_count; i++)
        count = add_device(list, count, ddp->seal->leaves[ddp->order[i]]->parameter->device);
    return count;
}

static void write_lines(tern_ddp *ddp)
{
    tern_device *devices[DEVICES];
    int count = list_devices(ddp, devices);
    char *text = lines_of(ddp);
    uint64_t serial = 0;
    size_t used = 0;
    for (int i = 0; i < count; i++) serial += tern__choices_serial(devices[i]);
    if (serial == ddp->choices.serial) return;
    for (int i = 0; i < count; i++) used += tern__choices_write(devices[i], text + used, ROOM - used);
    ddp->choices.serial = serial;
}

/* A shadow's place is taken by another rank, whose window is empty. */
static void prepare(tern_ddp *ddp)
{
    bool leads = tern_group_rank(ddp->group) == 0;
    if (leads && !ddp->shadow) {
        write_lines(ddp);
        return;
    }
    *lines_of(ddp) = '\0';
    ddp->choices.serial = 0;
}

int tern__sharing_post(tern_ddp *ddp, tern_error *err)
{
    tern__sharing *self = &ddp->choices;
    self->rounds++;
    self->is_posted = self->has_window && (self->rounds & (self->rounds - 1)) == 0;
    if (!self->is_posted) return TERN_OK;
    prepare(ddp);
    tern__post work = {.kind = TERN__BROADCAST,
                       .dtype = TERN_U8,
                       .bucket = (uint32_t)ddp->bucket_count,
                       .extents = &self->extent,
                       .extent_count = 1};
    return tern__ddp_post(ddp, &work, err);
}

void tern__sharing_done(tern_ddp *ddp)
{
    tern__sharing *self = &ddp->choices;
    tern_device *devices[DEVICES];
    if (!self->is_posted || ddp->shadow || tern_group_rank(ddp->group) == 0) return;
    const char *text = lines_of(ddp);
    size_t bytes = strnlen(text, ROOM);
    uint64_t hash = XXH3_64bits_withSeed(text, bytes, (uintptr_t)ddp->stats.scope->device);
    if (hash == self->hash) return;
    self->hash = hash;
    int count = list_devices(ddp, devices);
    for (int i = 0; i < count; i++) tern__choices_read(devices[i], text, bytes);
}
