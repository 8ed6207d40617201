/* pack.c - copies of a parameter in a kernel's layout, kept with it. */
#include "kernels/pack.h"

#include <string.h>

static struct tern__pack *pack_find(const tern__packs *packs, const void *owner, const void *format,
                                    size_t format_bytes)
{
    struct tern__pack *pack = __atomic_load_n(&packs->first, __ATOMIC_ACQUIRE);
    while (pack && (pack->owner != owner || pack->format_bytes != format_bytes ||
                    memcmp(pack->format, format, format_bytes) != 0))
        pack = pack->next;
    return pack;
}

static void pack_add(tern__packs *packs, const void *owner, const void *format, size_t format_bytes)
{
    struct tern__pack *pack = tern__alloc(sizeof(*pack) + format_bytes, __func__, NULL);
    if (!pack) return;
    pack->owner = owner;
    pack->version = packs->version;
    pack->format_bytes = format_bytes;
    memcpy(pack->format, format, format_bytes);
    pack->next = __atomic_load_n(&packs->first, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&packs->first, &pack->next, pack, true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {
    }
}

void *tern__pack_get(tern__packs *packs, const void *owner, const void *format, size_t format_bytes,
                     size_t bytes, bool *stale)
{
    struct tern__pack *pack = pack_find(packs, owner, format, format_bytes);
    *stale = true;
    if (!pack) {
        pack_add(packs, owner, format, format_bytes);
        return NULL;
    }
    if (pack->version != packs->version) {
        pack->version = packs->version;
        pack->filled = false;
        return NULL;
    }
    if (!pack->data) pack->data = tern__alloc_raw(bytes, TERN__LINE);
    *stale = !pack->filled;
    pack->filled = pack->data != NULL;
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
