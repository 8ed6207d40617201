/* interpolate_rows.h - the rows of a resized tensor (interpolate.c). */
#ifndef TERN_SRC_KERNELS_CPU_INTERPOLATE_ROWS_H
#define TERN_SRC_KERNELS_CPU_INTERPOLATE_ROWS_H

#include "kernels/cpu/widths.h"
#include "kernels/kernel.h"
#include "kernels/space.h"

/* Elements first .. first + count - 1 of the source, with weights[at ..]. */
typedef struct tern__resize_band {
    int32_t first, count, at;
} tern__resize_band;

typedef struct tern__resize_axis {
    int64_t from, to;         /* sizes of the source and of the result */
    tern__resize_band *bands; /* [to]                                  */
    float *weights;           /* of all bands, one after the other */
    int64_t widest;
} tern__resize_axis;

/* A row of the source, and its weight. */
typedef struct tern__resize_part {
    int64_t at;
    float weight;
} tern__resize_part;

typedef struct tern__resizing {
    const tern__call *call;
    const tern__view *from, *to;
    tern__resize_axis axes[TERN__SPACE];
    int lanes;   /* of a position: 16, or 1 in the plain layout */
    char *rooms; /* of all threads */
    int64_t room, parts_room, from_room, to_room;
} tern__resizing;

/* A thread's memory. */
typedef struct tern__resize_room {
    tern__resize_part *parts;
    float *rows; /* added-up rows of the source: one, or 16 in the plain layout */
    float *side; /* plain: these interleaved */
    float *wide; /* plain: the resized rows */
    float *line; /* plain: one of these rows */
} tern__resize_room;

typedef struct tern__resize_fns {
    /* Computes rows first .. last - 1 of all planes' rows. */
    void (*rows)(const tern__resizing *r, int64_t first, int64_t last, const tern__resize_room *m);
} tern__resize_fns;

TERN__DECLARE_WIDTHS(tern__resize_fns, tern__resize);

#endif
