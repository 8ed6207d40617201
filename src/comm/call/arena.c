/* arena.c - blocks of a group's arena: first fit in the gaps between them.
 *
 * The arena is address space as large as the machine's memory, so gaps between blocks cost nothing, and only
 * a block's pages count. The blocks are an array in the order of their offsets, which is all that is known of
 * the gaps: a block that is freed leaves a gap that has joined its neighbours already. */
#include "comm/call/arena.h"

#include "base/pages.h"

#include <string.h>

/* ---- life ---- */

tern__group_arena *tern__arena_open(tern_group *group, tern_error *err)
{
    tern__group_arena *arena = tern__alloc(sizeof(*arena), "tern_group_mem_alloc", err);
    if (!arena) return NULL;
    arena->group = group;
    tern__window_opts opts = {.is_sparse = true};
    if (group->backend->window_open(group->state, &opts, &arena->window, err)) {
        tern__free(arena);
        return NULL;
    }
    arena->bytes = opts.bytes;
    arena->base = tern__window_own(group, arena->window);
    return arena;
}

void tern__arena_close(tern__group_arena *arena)
{
    if (!arena) return;
    arena->group->backend->window_close(arena->group->state, arena->window);
    tern__free(arena->blocks);
    tern__free(arena);
}

/* ---- blocks ---- */

/* Returns the index of the first block that ends after `offset`. */
static size_t block_after(const tern__group_arena *arena, size_t offset)
{
    size_t low = 0, high = arena->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const tern__group_block *block = &arena->blocks[mid];
        if (block->offset + block->pages > offset)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Returns the index for a block in the first gap that has room, or -1, and sets the gap's offset. */
static ptrdiff_t find_gap(const tern__group_arena *arena, size_t pages, size_t *offset)
{
    *offset = 0;
    for (size_t i = 0; i <= arena->count; i++) {
        size_t end = i < arena->count ? arena->blocks[i].offset : arena->bytes;
        if (end - *offset >= pages) return (ptrdiff_t)i;
        if (i < arena->count) *offset = end + arena->blocks[i].pages;
    }
    return -1;
}

static int fail_room(size_t bytes, tern_error *err)
{
    return tern__error_set(err, "tern_group_mem_alloc", TERN_E_MEMORY,
                           "no room for %zu bytes in the memory that the ranks share", bytes);
}

static int block_add(tern__group_arena *arena, size_t bytes, size_t *offset, tern_error *err)
{
    size_t page = tern__page_bytes(), pages = tern__align_up(bytes, page);
    ptrdiff_t index = bytes <= arena->bytes ? find_gap(arena, pages, offset) : -1;
    if (index < 0) return fail_room(bytes, err);
    int status = tern__array_reserve(&arena->blocks, &arena->room, arena->count + 1, sizeof(*arena->blocks),
                                     "tern_group_mem_alloc", err);
    if (!status)
        status = arena->group->backend->window_commit(arena->group->state, arena->window, *offset, pages,
                                                      true, err);
    if (status) return status;
    tern__group_block *at = &arena->blocks[index];
    memmove(at + 1, at, (arena->count - (size_t)index) * sizeof(*at));
    *at = (tern__group_block){.offset = *offset, .pages = pages, .bytes = bytes};
    arena->count++;
    return TERN_OK;
}

/* In a forked child the pages are those of the parent, which still uses them. */
void tern__arena_free(tern__group_arena *arena, const char *at)
{
    size_t offset = (uintptr_t)at - (uintptr_t)arena->base;
    const tern__group_block *block = tern__arena_search(arena, offset);
    if (!block || offset != block->offset || !*arena->group->root->mark) return;
    arena->group->backend->window_commit(arena->group->state, arena->window, block->offset, block->pages,
                                         false, NULL);
    size_t index = (size_t)(block - arena->blocks);
    arena->count--;
    memmove(&arena->blocks[index], &arena->blocks[index + 1], (arena->count - index) * sizeof(*block));
}

const tern__group_block *tern__arena_search(tern__group_arena *arena, size_t offset)
{
    arena->found = block_after(arena, offset);
    const tern__group_block *block = &arena->blocks[arena->found];
    return arena->found < arena->count && block->offset <= offset ? block : NULL;
}

char *tern__arena_alloc(tern__group_arena *arena, size_t bytes, tern_error *err)
{
    size_t offset = 0;
    return block_add(arena, bytes, &offset, err) ? NULL : arena->base + offset;
}
