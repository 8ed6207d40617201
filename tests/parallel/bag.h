/* bag.h - a model that is a bag of parameters. Its loss is the sum of the parameters times numbers that the
 * test chooses, so every gradient is known exactly, and any parameter may be left out. */
#ifndef TERN_TESTS_PARALLEL_BAG_H
#define TERN_TESTS_PARALLEL_BAG_H

#include "parallel/ddp_fixture.h"

#define BAG_MAX 8

typedef struct bag {
    tern_module base;
    int count;
    tern_tensor *p[BAG_MAX]; /* "p0", "p1", .. */
    tern_group *world;
    tern_device *dev;
    tern_ddp *ddp;
    tern_scope *s;
} bag;

/* Makes the parameters; parameter k has 5 + 7 k elements of dtypes[k]. */
static inline void bag_init(bag *b, const tern_dtype *dtypes, int count, tern_error *err)
{
    *b = (bag){.count = count};
    tern_module_init(&b->base, "bag", NULL, err);
    for (int k = 0; k < count; k++) {
        char name[16];
        snprintf(name, sizeof(name), "p%d", k);
        b->p[k] = tern_parameter_add(&b->base, name, dtypes[k], 1, (int64_t[]){5 + 7 * k}, err);
    }
}

static inline void bag_open(bag *b, const tern__bootstrap *boot, const tern_dtype *dtypes, int count,
                            const tern_ddp_opts *opts, tern_error *err)
{
    bag_init(b, dtypes, count, err);
    b->world = tern__group_open_boot(boot, NULL, err);
    b->dev = tern_device_open("cpu", err);
    b->ddp = tern_ddp_new(&b->base, b->world, opts, err);
    b->s = tern_scope_new(b->dev, b->world, err);
}

static inline void bag_close(bag *b)
{
    tern_scope_free(b->s);
    tern_ddp_free(b->ddp);
    tern_module_release(&b->base);
    tern_device_close(b->dev);
    tern_group_close(b->world);
}

/* Returns element i of the gradient of parameter k on `rank` in `step`: a multiple of 1/16 below 16 in size.
 */
static inline double bag_number(int step, int rank, int k, int64_t i)
{
    uint32_t state = (uint32_t)(step * 1009 + rank * 101 + k * 11 + i) * 2654435761u;
    return (double)((int)(state >> 23) - 256) / 16;
}

/* Returns sum(p[k] * the rank's numbers). */
static inline tern_tensor *bag_term(bag *b, tern_scope *s, int step, int rank, int k)
{
    int64_t count = tern_tensor_count(b->p[k]);
    tern_tensor *numbers = tern_full(s, tern_tensor_dtype(b->p[k]), 1, &count, 0);
    for (int64_t i = 0; numbers && i < count; i++)
        tern__view_set(&numbers->view, i, bag_number(step, rank, k, i));
    return tern_cast(s, tern_sum(s, tern_mul(s, b->p[k], numbers)), TERN_F32);
}

/* Returns the sum of the terms whose bit is set in `mask`; NULL if there are none. */
static inline tern_tensor *bag_loss(bag *b, tern_scope *s, int step, int rank, unsigned mask)
{
    tern_tensor *loss = NULL;
    for (int k = 0; k < b->count; k++) {
        if (!(mask >> k & 1)) continue;
        tern_tensor *term = bag_term(b, s, step, rank, k);
        loss = loss ? tern_add(s, loss, term) : term;
    }
    return loss;
}

/* True if element i of the gradient is `want`, rounded to its dtype. */
static inline bool bag_holds(const bag *b, int k, int64_t i, double want)
{
    const tern__view *grad = &tern_grad_get(b->p[k])->view;
    char rounded[8];
    tern__view one = tern__view_make(grad->dtype, TERN__PLAIN, 0, NULL);
    one.data = rounded;
    tern__view_set(&one, 0, want);
    return tern__view_get(grad, i) == tern__view_get(&one, 0);
}

#endif
