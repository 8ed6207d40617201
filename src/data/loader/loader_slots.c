/* loader_slots.c - finds a loader's slots by state or batch number. */
#include "data/loader/loader_inner.h"

tern__loader_slot *tern__loader_slot_in(const tern_loader *loader, tern__slot_state state)
{
    for (int i = 0; i < loader->slot_count; i++)
        if (loader->slots[i].state == state) return &loader->slots[i];
    return NULL;
}

tern__loader_slot *tern__loader_slot_of(const tern_loader *loader, int64_t index)
{
    for (int i = 0; i < loader->slot_count; i++)
        if (loader->slots[i].state == TERN__READY && loader->slots[i].batch.index == index)
            return &loader->slots[i];
    return NULL;
}

bool tern__loader_is_skipped(const tern_loader *loader, int64_t index)
{
    return loader->stream && loader->readers[index % loader->reader_count].ended;
}
