/* call.c - checks that no buffer of the user's collectives is changed, or used by another call, before the
 * work is done.
 *
 * Memory that a call only reads is checked when the call is done. Memory that the result replaces piece by
 * piece is checked when the first piece arrives, before anything is replaced. */
#include "comm/call/debug/debug.h"
#include "comm/call/staging.h"
#include "device/device.h"

#include <stdio.h>

static tern__debug *debug_of(const tern_group *group)
{
    return group && group->backend == &tern__comm_debug ? group->state : NULL;
}

static int add_range(tern__flight *flight, const void *at, size_t bytes, bool is_written, tern_error *err)
{
    tern__debug_range range = {
        .at = (char *)at, .bytes = bytes, .is_written = is_written, .window = TERN__NO_WINDOW};
    return bytes && at ? tern__flight_add(flight, &range, err) : TERN_OK;
}

/* Returns the number of ranks' parts in a call's `in` or `out`. */
static size_t ranges_of(const tern_work *work, bool is_out)
{
    const tern__bootstrap *boot = &work->group->boot;
    size_t world = (size_t)boot->world;
    bool is_root = boot->rank == work->post.root;
    switch (work->post.kind) {
    case TERN__ALL_TO_ALL: return world;
    case TERN__ALL_GATHER: return is_out ? world : 1;
    case TERN__GATHER: return !is_out ? 1 : is_root ? world : 0;
    case TERN__REDUCE_SCATTER: return is_out ? 1 : world;
    case TERN__SCATTER: return is_out ? 1 : is_root ? world : 0;
    case TERN__BROADCAST: return is_out != is_root;
    case TERN__REDUCE: return !is_out || is_root;
    default: return 1;
    }
}

static int add_all(const tern_work *work, tern__flight *flight, bool is_out, tern_error *err)
{
    size_t size = tern_dtype_bytes(work->post.dtype), parts = ranges_of(work, is_out);
    const tern_span *spans = is_out ? work->takes : work->gives;
    int status = TERN_OK;
    for (size_t i = 0; i < work->operand_count && !work->gives && !status; i++) {
        const tern__work_operand *operand = &work->operands[i];
        status = add_range(flight, is_out ? operand->out : operand->in, operand->count * parts * size, is_out,
                           err);
    }
    for (int rank = 0; spans && rank < work->group->boot.world && !status; rank++)
        status = add_range(flight, spans[rank].data, spans[rank].count * size, is_out, err);
    return status;
}

/* Chooses the ranges to check. A result may replace its own input: if it comes from the staging ring, only
 * when a piece lands, so the input is kept until then; otherwise earlier (and backend.c checks it). */
static void choose_kept(tern__flight *flight, const tern_work *work)
{
    bool is_reduced = work->post.kind == TERN__ALL_REDUCE || work->post.kind == TERN__REDUCE;
    bool comes_late = is_reduced && !work->extents;
    for (int i = 0; i < flight->count; i++) {
        tern__debug_range *in = &flight->ranges[i];
        for (int j = 0; j < flight->count && !in->is_written; j++) {
            const tern__debug_range *out = &flight->ranges[j];
            bool meets = in->at < out->at + out->bytes && out->at < in->at + in->bytes;
            in->is_in_place |= out->is_written && meets;
        }
        bool is_here =
            !tern__memory_device(in->at); /* a checksum of a device's memory would wait for the device */
        in->is_kept = is_here && !in->is_written && (!in->is_in_place || comes_late);
    }
}

static tern__flight *take_flight(tern__debug *debug, tern_error *err)
{
    tern__flight *flight = debug->spare;
    if (!flight) return tern__alloc(sizeof(*flight), "tern_work_wait", err);
    debug->spare = flight->next;
    flight->count = 0;
    return flight;
}

static void flight_release(tern__debug *debug, tern__flight *flight)
{
    tern__flight_drop(&debug->calls, flight);
    flight->next = debug->spare;
    debug->spare = flight;
}

int tern__debug_call_begin(tern_work *work, uint64_t number, tern_error *err)
{
    tern__debug *debug = debug_of(work->group);
    tern__flight *flight = debug ? take_flight(debug, err) : NULL;
    tern__desc desc;
    if (!flight) return debug ? TERN_E_MEMORY : TERN_OK;
    tern__desc_write(&desc, &work->post);
    desc.number = number;
    tern__desc_text(&desc, 0, flight->text, sizeof(flight->text));
    int status = add_all(work, flight, false, err);
    if (!status) status = add_all(work, flight, true, err);
    if (!status) choose_kept(flight, work);
    if (!status) status = tern__flight_begin(&debug->calls, flight, err);
    if (!status) work->call = flight;
    if (status) flight_release(debug, flight);
    return tern__debug_tell(debug, status, err);
}

int tern__debug_call_land(const tern_work *work, tern_error *err)
{
    tern__debug *debug = debug_of(work->group);
    tern__flight *flight = work->call;
    bool is_first = work->landed == work->asks, is_last = work->landed + 1 == work->pieces;
    if (work->landed < work->asks && !is_last) return TERN_OK;
    int status = flight && (is_first || is_last) ? tern__flight_check(flight, err) : TERN_OK;
    for (int i = 0; flight && i < flight->count; i++)
        flight->ranges[i].is_kept &= !flight->ranges[i].is_in_place;
    return debug ? tern__debug_tell(debug, status, err) : status;
}

void tern__debug_call_end(tern_work *work)
{
    tern__debug *debug = debug_of(work->group);
    if (debug && work->call) flight_release(debug, work->call);
    work->call = NULL;
}

static void free_all(tern__flight *list)
{
    while (list) {
        tern__flight *next = list->next;
        tern__free(list->ranges);
        tern__free(list);
        list = next;
    }
}

void tern__debug_calls_free(tern__debug *debug)
{
    for (const tern__flight *call = debug->calls; call && !debug->group->root->error.code; call = call->next)
        tern__debug_say(debug, "E_STATE: nobody waited for %s", call->text);
    free_all(debug->calls);
    free_all(debug->spare);
}
