/* flight.c - pending works and messages: finds conflicts between their memory, and changes to it. */
#include "comm/call/debug/debug.h"

#include <stdio.h>
#include <xxhash.h>

void tern__range_text(const tern__debug_range *range, char *text, size_t size)
{
    if (range->window == TERN__NO_WINDOW)
        snprintf(text, size, "%zu bytes at %p", range->bytes, (void *)range->at);
    else
        snprintf(text, size, "bytes %zu to %zu of window %u", range->offset, range->offset + range->bytes,
                 range->window);
}

int tern__flight_add(tern__flight *flight, const tern__debug_range *range, tern_error *err)
{
    if (tern__array_reserve(&flight->ranges, &flight->room, flight->count + 1, sizeof(*flight->ranges),
                            "tern_group_open", err))
        return TERN_E_MEMORY;
    flight->ranges[flight->count++] = *range;
    return TERN_OK;
}

static bool ranges_clash(const tern__debug_range *one, const tern__debug_range *other)
{
    if (!one->is_written && !other->is_written) return false;
    return one->at < other->at + other->bytes && other->at < one->at + one->bytes;
}

static const tern__debug_range *find_clash(const tern__flight *one, const tern__flight *other)
{
    for (int i = 0; i < one->count; i++)
        for (int j = 0; j < other->count; j++)
            if (ranges_clash(&one->ranges[i], &other->ranges[j])) return &one->ranges[i];
    return NULL;
}

int tern__flight_begin(tern__flight **list, tern__flight *flight, tern_error *err)
{
    char text[96];
    for (const tern__flight *other = *list; other; other = other->next) {
        const tern__debug_range *range = find_clash(flight, other);
        if (!range) continue;
        tern__range_text(range, text, sizeof(text));
        return tern__error_set(err, "tern_work_wait", TERN_E_INVALID,
                               "%s uses %s, which is still in use by %s", flight->text, text, other->text);
    }
    for (int i = 0; i < flight->count; i++) {
        tern__debug_range *range = &flight->ranges[i];
        if (range->is_kept) range->sum = XXH3_64bits(range->at, range->bytes);
    }
    flight->began = tern__now_ns();
    flight->next = *list;
    *list = flight;
    return TERN_OK;
}

void tern__flight_drop(tern__flight **list, tern__flight *flight)
{
    while (*list && *list != flight) list = &(*list)->next;
    if (*list) *list = flight->next;
    flight->next = NULL;
}

int tern__flight_check(const tern__flight *flight, tern_error *err)
{
    char text[96];
    for (int i = 0; i < flight->count; i++) {
        const tern__debug_range *range = &flight->ranges[i];
        if (!range->is_kept || range->sum == XXH3_64bits(range->at, range->bytes)) continue;
        tern__range_text(range, text, sizeof(text));
        return tern__error_set(err, "tern_work_wait", TERN_E_STATE,
                               "the memory of %s was changed while it was pending: %s", flight->text, text);
    }
    return TERN_OK;
}
