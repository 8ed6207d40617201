/* direct.c - finds out whether a work can be done in a device's memory, and names its extents there. */
#include "comm/call/piece.h"

#include "comm/call/request.h"
#include "device/memory.h"

/* ---- where the memory is ---- */

/* Devices' back ends have no bitwise operations, and reduce no i16. */
static bool has_operation(const tern__post *post)
{
    bool is_bits = post->op >= TERN_BAND && post->op <= TERN_BXOR;
    return !tern__kind_reduces(post->kind) || (!is_bits && post->dtype != TERN_I16);
}

/* True if `data` is on a device, and on the same one as all buffers before it. */
static bool joins_home(tern_device **home, const void *data)
{
    tern_device *device = tern__memory_device(data);
    if (!device || (*home && *home != device)) return false;
    *home = device;
    return true;
}

/* True if all used sides of the operands are on one device. */
static bool items_join(tern_device **home, const tern_work *work, const tern_group *group)
{
    tern__parts parts = tern__request_parts(group, work->post.kind, work->post.root);
    for (size_t i = 0; i < work->operand_count; i++) {
        const tern__work_operand *operand = &work->operands[i];
        if (!operand->count) continue;
        if (parts.in && !joins_home(home, operand->in)) return false;
        if (parts.out && !joins_home(home, operand->out)) return false;
    }
    return true;
}

/* True if all given spans are on one device, also those whose count is 0. */
static bool spans_join(tern_device **home, const tern_work *work, const tern_group *group)
{
    for (int rank = 0; rank < group->boot.world; rank++) {
        if (work->gives[rank].data && !joins_home(home, work->gives[rank].data)) return false;
        if (work->takes[rank].data && !joins_home(home, work->takes[rank].data)) return false;
    }
    return true;
}

/* Returns the device that has all memory of the work. NULL: there is none, or the back end cannot reach it.
 */
static tern_device *find_home(const tern_work *work, const tern_group *group)
{
    tern_device *home = NULL;
    bool is_able = group->backend->reaches_devices && tern__memory_any() && has_operation(&work->post);
    if (!is_able || work->extents) return NULL;
    bool is_one = work->gives ? spans_join(&home, work, group) : items_join(&home, work, group);
    return is_one ? home : NULL;
}

/* ---- extents ---- */

static tern__extent extent_of(const tern_work *work, const char *at, uint32_t window, uint64_t count)
{
    return (tern__extent){window, (uint64_t)(at - work->home->memory.base), count};
}

/* Fills in the extents. After the operands of a list there is room for two extents each. */
static void reach_operands(tern_work *work, const tern_group *group, uint32_t window)
{
    tern__kind kind = work->post.kind;
    bool is_list = work->operands != &work->operand, scatters = kind == TERN__REDUCE_SCATTER;
    tern__extent *extents = is_list ? (tern__extent *)(work->operands + work->operand_count) : &work->extent;
    tern__extent *outs = is_list && scatters ? extents + work->operand_count : NULL;
    for (size_t i = 0; i < work->operand_count; i++) {
        const tern__work_operand *operand = &work->operands[i];
        if (!operand->count) continue;
        if (outs) outs[work->extent_count] = extent_of(work, operand->out, window, operand->count);
        extents[work->extent_count++] = extent_of(work, kind == TERN__ALL_GATHER ? operand->out : operand->in,
                                                  window, operand->count * tern__staging_parts(group, kind));
    }
    work->extents = extents;
    work->outs = outs;
}

/* Opens the window. Moves have no extents of data: the moves themselves say what is sent and received. */
static int open_direct(tern_work *work, const tern_group *group, tern_error *err)
{
    uint32_t window;
    int status = tern__window_of(group, work->home, &window, err);
    if (status) return status;
    work->is_direct = true;
    if (!tern__kind_is_move(work->post.kind)) {
        reach_operands(work, group, window);
        return TERN_OK;
    }
    work->extent = (tern__extent){.window = window};
    work->extents = &work->extent;
    work->extent_count = 1;
    return TERN_OK;
}

int tern__direct_begin(tern_work *work, const tern_group *group, tern_error *err)
{
    work->home = find_home(work, group);
    return work->home && !work->gives ? open_direct(work, group, err) : TERN_OK;
}

int tern__direct_move(tern_work *work, const tern_group *group, uint64_t most, tern_error *err)
{
    work->piece = most;
    return open_direct(work, group, err);
}
