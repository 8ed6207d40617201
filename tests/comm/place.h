/* place.h - a rank that calls its back end directly, with its own channels of few slots and a window. */
#ifndef TERN_TESTS_COMM_PLACE_H
#define TERN_TESTS_COMM_PLACE_H

#include "group_fixture.h"

#include "parallel/ddp.h"

enum { place_slots = 4, place_channels = 3 };

typedef struct place {
    tern_group *group;
    const tern__comm_backend *backend;
    void *channel[place_channels];
    uint32_t window;
    char *base;                          /* the window's memory */
    tern__extent extent[place_channels]; /* 100 f32 in the window for a work in each channel */
    int rank, world;
    tern_error err;
} place;

static inline int place_open(place *p, int rank, const tern__bootstrap *boot, size_t bytes)
{
    *p = (place){.rank = rank, .world = boot->world};
    tern__label_kind_add(&tern__ddp_label);
    p->group = open_group(boot, &p->err);
    RANK_CHECK_OK(rank, p->err);
    p->backend = p->group->backend;
    for (int i = 0; i < place_channels; i++) {
        p->channel[i] =
            p->backend->channel_open(p->group->state, &(tern__channel_opts){.slots = place_slots}, &p->err);
        RANK_CHECK_OK(rank, p->err);
    }
    p->backend->window_open(p->group->state, &(tern__window_opts){.bytes = bytes}, &p->window, &p->err);
    RANK_CHECK_OK(rank, p->err);
    p->base = tern__window_own(p->group, p->window);
    for (uint64_t i = 0; i < place_channels; i++) p->extent[i] = (tern__extent){p->window, i * 400, 100};
    return 0;
}

static inline void place_close(place *p)
{
    if (p->err.code) tern__group_fail(p->group, &p->err);
    for (int i = 0; i < place_channels; i++) p->backend->channel_close(p->channel[i]);
    tern_group_close(p->group);
}

/* Runs a work in the first channel. */
static inline uint64_t place_run(place *p, const tern__post *post)
{
    uint64_t seq = 0;
    if (!p->backend->post(p->channel[0], post, &seq, &p->err)) p->backend->wait(p->channel[0], seq, &p->err);
    return seq;
}

#endif
