#include "kernels/dice_loss.h"
#include "kernels/labels.h"

tern__channels tern__channels_of(const tern__view *x)
{
    tern__channels c = {x->shape[0], x->shape[1], 1};
    for (int d = 2; d < x->ndim; d++) c.inner *= x->shape[d];
    return c;
}

int tern__dice_label_error(const tern__call *call, const tern__channels *c, int64_t element, int64_t label)
{
    const tern__dice_attr *attr = call->attr;
    int64_t classes = attr->classes ? c->channels : 2;
    int64_t of_sample = c->inner * (attr->classes ? 1 : c->channels);
    return tern__label_error(call->err, (tern__labels){attr->func, attr->op, NULL, classes, of_sample},
                             element, label);
}

/* The sums of the region that a channel of a sample is part of. */
static tern__overlap region_of(const tern__dice_attr *attr, const tern__channels *c,
                               const tern__overlap *sums, int64_t sample, int64_t channel)
{
    if (!attr->over_batch) return sums[sample * c->channels + channel];
    tern__overlap all = {0};
    for (int64_t n = 0; n < c->samples; n++) tern__overlap_add(&all, &sums[n * c->channels + channel]);
    return all;
}

static int64_t regions(const tern__dice_attr *attr, const tern__channels *c)
{
    return c->channels * (attr->over_batch ? 1 : c->samples);
}

/* ---- the loss ---- */

static double dice_of(const tern__dice_attr *attr, const tern__overlap *o)
{
    return 1 - (2 * o->both + attr->smooth) / (o->x + o->target + attr->smooth);
}

static void put(const tern__call *call, int64_t i, double value)
{
    const tern__view *loss = call->out[0];
    tern__view_set(loss, i, call->add[0] ? tern__view_get(loss, i) + value : value);
}

static tern__overlap total_of(const tern__channels *c, const tern__overlap *sums)
{
    tern__overlap total = {0};
    for (int64_t i = 0; i < c->samples * c->channels; i++) tern__overlap_add(&total, &sums[i]);
    return total;
}

void tern__dice_close(const tern__call *call, const tern__channels *c, const tern__overlap *sums)
{
    const tern__dice_attr *attr = call->attr;
    int64_t count = regions(attr, c);
    double dice = 0;
    for (int64_t i = 0; i < count; i++) {
        tern__overlap o = region_of(attr, c, sums, i / c->channels, i % c->channels);
        if (attr->each) put(call, i, attr->dice * dice_of(attr, &o));
        dice += dice_of(attr, &o);
    }
    if (attr->each) return;
    double loss = attr->dice * (attr->mean ? dice / (double)count : dice);
    tern__overlap total = total_of(c, sums);
    if (attr->entropy != 0)
        loss += attr->entropy * (attr->mean ? total.entropy / total.count : total.entropy);
    put(call, 0, loss);
}

/* ---- its slopes ---- */

tern__dice_back tern__dice_back_of(const tern__call *call)
{
    const tern__dice_attr *attr = call->attr;
    tern__dice_back back = {.call = call, .c = tern__channels_of(call->in[1])};
    if (attr->entropy == 0) return back;
    double count = attr->mean ? total_of(&back.c, call->in[3]->data).count : 1;
    back.entropy = count > 0 ? tern__view_get(call->in[0], 0) * attr->entropy / count : 0;
    return back;
}

tern__dice_slope tern__dice_slope_of(const tern__dice_back *back, int64_t i)
{
    const tern__dice_attr *attr = back->call->attr;
    int64_t channel = i % back->c.channels, region = attr->over_batch ? channel : i;
    tern__overlap o = region_of(attr, &back->c, back->call->in[3]->data, i / back->c.channels, channel);
    double sent = tern__view_get(back->call->in[0], attr->each ? region : 0);
    double dice = sent * attr->dice / (attr->mean ? (double)regions(attr, &back->c) : 1);
    double size = o.x + o.target + attr->smooth;
    return (tern__dice_slope){-2 * dice / size, dice * (2 * o.both + attr->smooth) / (size * size),
                              back->entropy};
}
