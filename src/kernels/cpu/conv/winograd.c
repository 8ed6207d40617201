/* winograd.c - 3x3 convolutions by Winograd's algorithm (winograd/conv.h). */
#include "kernels/cpu/conv/winograd/conv.h"
#include "kernels/cpu/conv/winograd/transform.h"
#include "kernels/cpu/conv/conv.h"

static int64_t products(const tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *w = c->op[TERN__CONV_W].view;
    const tern__view *y = c->op[TERN__CONV_Y].view;
    return TERN__WINOGRAD_POINTS *
           tern__winograd_grid_of(x, y, tern__winograd_sheets(w), c->attr, false).count;
}

/* The number of products of the direct algorithm. */
static int64_t all_products(const tern__conv *c)
{
    return 9 * tern__conv_positions(c, TERN__CONV_Y);
}

/* Nearly empty tiles, with dilations almost as wide as the image, are not worth a try. */
static bool winograd_takes(const tern__conv *c)
{
    return tern__winograd_takes(c->call, c->op[TERN__CONV_X].view, c->op[TERN__CONV_W].view,
                                c->op[TERN__CONV_Y].view) &&
           products(c) <= 2 * all_products(c);
}

/* The transformed weights are four times as large and each is read once, which does not pay for a handful
 * of tiles. Nor do tiles that are less than half full, as for images hardly wider than the dilation. */
static bool winograd_pays(const tern__conv *c)
{
    return products(c) >= 16 * TERN__WINOGRAD_POINTS && 2 * products(c) <= all_products(c);
}

static size_t winograd_scratch(const tern__conv *c)
{
    return (c->op[TERN__CONV_W].result ? tern__winograd_weight_scratch : tern__winograd_scratch)(
        c->call, c->op[TERN__CONV_X].view, c->op[TERN__CONV_W].view, c->op[TERN__CONV_Y].view);
}

static int winograd_run(tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *w = c->op[TERN__CONV_W].view;
    const tern__view *y = c->op[TERN__CONV_Y].view;
    if (!c->op[TERN__CONV_W].result) return tern__winograd(c->call, x, w, y, c->op[TERN__CONV_B].view);
    int status = tern__winograd_weight_grad(c->call, x, y, w);
    return status ? status : tern__conv_sum_bias(c);
}

const tern__conv_algorithm tern__conv_winograd = {.name = "winograd",
                                                  .rounds_f32 = true,
                                                  .takes = winograd_takes,
                                                  .pays = winograd_pays,
                                                  .scratch = winograd_scratch,
                                                  .run = winograd_run};
