/* mirror.c - copies of other devices' memory that a device's kernels read. */
#include "device/mirror.h"

#include "device/backend.h"

#include <stdlib.h>

/* ---- wanted places ---- */

static int mirror_grow(tern__mirrors *m, tern_error *err)
{
    int room = m->room ? 2 * m->room : 16;
    size_t old = (size_t)m->room * sizeof(tern__mirror), all = (size_t)room * sizeof(tern__mirror);
    tern__mirror *list = tern__realloc_array(m->list, old, all, "tern_data_parallel", err);
    if (list) m->list = list;
    tern__mirror *wanted = list ? tern__realloc_array(m->wanted, old, all, "tern_data_parallel", err) : NULL;
    if (!wanted) return TERN_E_MEMORY;
    m->wanted = wanted;
    m->room = room;
    return TERN_OK;
}

int tern__mirrors_want(tern__mirrors *m, void *begin, size_t bytes, tern_error *err)
{
    const tern_device *owner = tern__memory_device(begin);
    if (!bytes || !owner || owner == m->device || !m->device->backend) return TERN_OK;
    if (m->wanted_count == m->room && mirror_grow(m, err)) return TERN_E_MEMORY;
    m->wanted[m->wanted_count++] = (tern__mirror){begin, (char *)begin + bytes, NULL};
    return TERN_OK;
}

static int by_place(const void *a, const void *b)
{
    uintptr_t one = (uintptr_t)((const tern__mirror *)a)->begin;
    uintptr_t other = (uintptr_t)((const tern__mirror *)b)->begin;
    return (one > other) - (one < other);
}

/* Places less than a page apart are merged: the gap lies in pages that they use, so it can be read. */
#define GAP 4096

static bool is_beside(const tern__mirror *last, const tern__mirror *next)
{
    return next->begin < last->end + GAP &&
           tern__memory_device(next->begin) == tern__memory_device(last->begin);
}

/* Merges places that are less than GAP apart. */
static void mirror_join(tern__mirrors *m)
{
    int count = 0;
    if (m->wanted_count > 1) qsort(m->wanted, (size_t)m->wanted_count, sizeof(*m->wanted), by_place);
    for (int i = 0; i < m->wanted_count; i++) {
        tern__mirror next = m->wanted[i], *last = count ? &m->wanted[count - 1] : NULL;
        if (last && is_beside(last, &next))
            last->end = TERN__MAX(last->end, next.end);
        else
            m->wanted[count++] = next;
    }
    m->wanted_count = count;
}

/* ---- copies ---- */

static bool is_as_wanted(const tern__mirrors *m)
{
    bool is = m->count == m->wanted_count;
    for (int i = 0; is && i < m->count; i++)
        is = m->list[i].begin == m->wanted[i].begin && m->list[i].end == m->wanted[i].end;
    return is;
}

static void mirror_drop(tern__mirrors *m)
{
    for (int i = 0; i < m->count; i++) tern__device_free(m->device, m->list[i].copy);
    m->count = 0;
}

static int mirror_take(tern__mirrors *m, tern_error *err)
{
    for (; m->count < m->wanted_count; m->count++) {
        tern__mirror *mirror = &m->list[m->count];
        *mirror = m->wanted[m->count];
        size_t bytes = (size_t)(mirror->end - mirror->begin);
        mirror->copy = tern__memory_new(m->device, bytes, "tern_data_parallel", err);
        if (!mirror->copy) return TERN_E_MEMORY;
    }
    return TERN_OK;
}

int tern__mirrors_fill(tern__mirrors *m, tern_error *err)
{
    int status = TERN_OK;
    mirror_join(m);
    if (!is_as_wanted(m)) {
        mirror_drop(m);
        status = mirror_take(m, err);
    }
    m->wanted_count = 0;
    for (int i = 0; i < m->count && !status; i++) {
        const tern__mirror *mirror = &m->list[i];
        status = tern__memory_copy(mirror->copy, mirror->begin, (size_t)(mirror->end - mirror->begin), err);
    }
    return status;
}

void tern__mirrors_free(tern__mirrors *m)
{
    mirror_drop(m);
    tern__free(m->list);
    tern__free(m->wanted);
    *m = (tern__mirrors){0};
}

/* ---- use ---- */

void tern__mirrors_lend(tern_device *device, const tern__mirrors *m)
{
    device->mirrors = m;
}

char *tern__mirror_of(const tern_device *device, const char *begin, const char *end)
{
    const tern__mirrors *m = device->mirrors;
    for (int i = 0; m && i < m->count; i++)
        if (m->list[i].begin <= begin && end <= m->list[i].end)
            return m->list[i].copy + (begin - m->list[i].begin);
    return NULL;
}
