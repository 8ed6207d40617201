/* window.h - what the files of the mover `window` share: it moves data between ranks of one host, in memory
 * that they all see. window.c (the ranks' data), channel.c (the struct of functions, and who does which
 * part of a work), chunks.c (what a chunk of a work is). For messages between two ranks see mailbox.h. */
#ifndef TERN_SRC_COMM_MOVE_WINDOW_WINDOW_H
#define TERN_SRC_COMM_MOVE_WINDOW_WINDOW_H

#include "comm/meet/failure.h"
#include "comm/meet/meeting.h"
#include "comm/move/backend.h"

/* A window as this rank sees it. */
typedef struct tern__window {
    size_t bytes;   /* as requested */
    size_t mapped;  /* bytes of each mapping */
    bool is_caller; /* bases[rank] is memory of the caller's */
    int sparse_fd;  /* of a sparse window: bases[rank]'s pages; -1: it is not sparse */
    bool *borrowed; /* [world] bases[r] is rank r's own mapping, in this process */
    char **bases;   /* [world] rank r's memory, mapped here */
} tern__window;

typedef struct tern__window_state {
    tern__shm_group ranks;
    struct tern__mailbox *mailbox; /* NULL until the first message */
    tern__window **list;           /* by number; NULL once closed */
    uint32_t count;
    size_t room;
} tern__window_state;

/* A work cut into chunks. There is one slice of `slice` elements per rank, in which that rank starts; or
 * one chunk per rank, which only that rank does (is_own); or no chunk at all, if it is carried. */
typedef struct tern__cut {
    uint64_t slice, chunk; /* elements */
    uint64_t chunks;       /* of all slices together */
    uint64_t carried;      /* bytes of each rank's data in its post; 0: it is not carried */
    bool is_own;
} tern__cut;

/* The data of a rank that is carried by its post. */
typedef struct tern__carried {
    _Alignas(TERN__LINE) char data[TERN__LINE];
} tern__carried;

/* An ordered sequence of works in windows. */
typedef struct tern__channel {
    tern__window_state *windows;
    tern__meeting *meeting;
    tern__cut *cuts;        /* [slots of the meeting] */
    char **at;              /* [world] where the current piece starts in each rank's window */
    char **to;              /* [world] where its result goes, this rank's first */
    const tern__desc *said; /* [world] what the ranks say about the current work */
} tern__channel;

static inline tern__cut *tern__channel_cut(const tern__channel *channel, uint64_t seq)
{
    return &channel->cuts[seq & (channel->meeting->slots - 1)];
}

/* ---- window.c ---- */

int tern__window_open(void *state, tern__window_opts *opts, uint32_t *window, tern_error *err);
char *tern__window_at(void *state, uint32_t window, int rank);
void tern__window_close(void *state, uint32_t window);
int tern__window_commit(void *state, uint32_t window, size_t offset, size_t bytes, bool has_pages,
                        tern_error *err);

/* ---- channel.c ---- */

/* Open and close the state of the mover; `group` has two ranks or more. */
void *tern__windows_open(tern_group *group, tern_error *err);
void tern__windows_close(void *state);
/* Returns the group's ranks, for movers that use this one within a host. */
static inline tern__shm_group *tern__windows_ranks(void *state)
{
    return &((tern__window_state *)state)->ranks;
}

/* ---- chunks.c ---- */

void tern__cut_make(tern__cut *cut, const tern__met *work, int world);
/* Returns the number of chunks in the slice of `rank`. */
uint64_t tern__cut_chunks(const tern__cut *cut, const tern__met *work, int rank);
/* Copies this rank's data of a carried work to its post. */
void tern__carried_write(const tern__channel *channel, const tern__met *work, char *own, size_t bytes);
/* Computes this rank's result of a carried work from the ranks' data: `bytes` each at `all`, a line apart. */
void tern__carried_run(const tern__channel *channel, const tern__met *work, char *all, size_t bytes);
/* Does one chunk of the slice of `owner`. */
void tern__chunk_run(tern__channel *channel, uint64_t seq, int owner, uint64_t chunk);

#endif
