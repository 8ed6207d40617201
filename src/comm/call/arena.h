/* arena.h - a group's memory that its peers reach: one window of address space, from which each rank
 * allocates by itself. */
#ifndef TERN_SRC_COMM_CALL_ARENA_H
#define TERN_SRC_COMM_CALL_ARENA_H

#include "comm/move/backend.h"

/* A block from tern_group_mem_alloc. It has whole pages. */
typedef struct tern__group_block {
    size_t offset, pages; /* bytes */
    size_t bytes;         /* as requested */
} tern__group_block;

typedef struct tern__group_arena {
    tern_group *group;
    uint32_t window;
    char *base;
    size_t bytes;
    tern__group_block *blocks; /* by offset */
    size_t count, room;
    size_t found; /* the index of the block that was found last */
} tern__group_arena;

/* Opens a group's arena. Collective. */
tern__group_arena *tern__arena_open(tern_group *group, tern_error *err);
/* Frees all blocks; NULL does nothing. */
void tern__arena_close(tern__group_arena *arena);

/* Allocates a zeroed block, page-aligned. E_MEMORY: the arena or the machine has no room. */
char *tern__arena_alloc(tern__group_arena *arena, size_t bytes, tern_error *err);
/* Frees the block that begins at `at`; does nothing if there is none. */
void tern__arena_free(tern__group_arena *arena, const char *at);
/* Returns the block that holds byte `offset` of the arena, or NULL. */
const tern__group_block *tern__arena_search(tern__group_arena *arena, size_t offset);
/* The same, and faster if it is the block that was found last. */
static inline const tern__group_block *tern__arena_find(tern__group_arena *arena, size_t offset)
{
    const tern__group_block *last = &arena->blocks[arena->found];
    bool is_last = arena->found < arena->count && offset - last->offset < last->pages;
    return is_last ? last : tern__arena_search(arena, offset);
}

#endif
