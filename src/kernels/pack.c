#include "kernels/pack.h"

#include <string.h>

static struct tern__pack *pack_new(const void *format, size_t format_bytes, size_t bytes)
{
    struct tern__pack *pack = tern__alloc(sizeof(*pack) + format_bytes, __func__, NULL);
    if (!pack) return NULL;
    pack->data = tern__alloc_raw(bytes, TERN__LINE);
    if (!pack->data) {
        tern__free(pack);
        return NULL;
    }
    pack->format_bytes = format_bytes;
    memcpy(pack->format, format, format_bytes);
    return pack;
}

void *tern__pack_get(tern__packs *packs, const void *format, size_t format_bytes, size_t bytes, bool *stale)
{
    struct tern__pack *pack = packs->first;
    while (pack && (pack->format_bytes != format_bytes || memcmp(pack->format, format, format_bytes) != 0))
        pack = pack->next;
    *stale = !pack || pack->version != packs->version;
    if (!pack) {
        pack = pack_new(format, format_bytes, bytes);
        if (!pack) return NULL;
        pack->next = packs->first;
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
