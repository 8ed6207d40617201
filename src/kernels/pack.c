#include "kernels/pack.h"

void *tern__pack_get(tern__packs *packs, const void *format, size_t bytes, bool *stale)
{
    struct tern__pack *pack = packs->first;
    while (pack && pack->format != format) pack = pack->next;
    *stale = !pack || pack->version != packs->version;
    if (!pack) {
        pack = tern__alloc(sizeof(*pack), __func__, NULL);
        void *data = pack ? tern__alloc_raw(bytes, TERN__LINE) : NULL;
        if (!data) {
            tern__free(pack);
            return NULL;
        }
        *pack = (struct tern__pack){.format = format, .data = data, .next = packs->first};
        packs->first = pack;
    }
    pack->version = packs->version;
    return pack->data;
}

void tern__packs_free(tern__packs *packs)
{
    for (struct tern__pack *pack = packs->first, *next; pack; pack = next) {
        next = pack->next;
        tern__free(pack->data);
        tern__free(pack);
    }
    packs->first = NULL;
}
