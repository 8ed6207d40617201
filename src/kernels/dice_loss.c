/* dice_loss.c - the loss from Dice's sums, and the slopes for its gradient. */
#include "kernels/dice_loss.h"

tern__channels tern__channels_of(const tern__view *x)
{
    tern__channels c = {x->shape[0], x->shape[1], 1};
    for (int d = 2; d < x->ndim; d++) c.inner *= x->shape[d];
    return c;
}

int tern__dice_label_error(const tern__call *call, const tern__channels *c, int64_t element, int64_t label)
{
    return tern__label_error(call->err, tern__dice_labels(call->attr, c), element, label);
}

/* ---- the loss ---- */

static void dice_put(const tern__call *call, int64_t i, double value)
{
    const tern__view *loss = call->out[0];
    tern__view_set(loss, i, call->add[0] ? tern__view_get(loss, i) + value : value);
}

static tern__overlap dice_total_of(const tern__channels *c, const tern__overlap *sums)
{
    tern__overlap total = {0};
    for (int64_t i = 0; i < c->samples * c->channels; i++) tern__overlap_add(&total, &sums[i]);
    return total;
}

void tern__dice_close(const tern__call *call, const tern__channels *c, const tern__overlap *sums)
{
    const tern__dice_attr *attr = call->attr;
    int64_t count = tern__dice_regions(attr, c);
    double dice = 0;
    for (int64_t i = 0; i < count; i++) {
        tern__overlap o = tern__dice_region(attr, c, sums, i / c->channels, i % c->channels);
        if (attr->each) dice_put(call, i, attr->dice * tern__dice_of(attr, &o));
        dice += tern__dice_of(attr, &o);
    }
    if (attr->each) return;
    double loss = attr->dice * (attr->mean ? dice / (double)count : dice);
    tern__overlap total = dice_total_of(c, sums);
    if (attr->entropy != 0)
        loss += attr->entropy * (attr->mean ? total.entropy / total.count : total.entropy);
    dice_put(call, 0, loss);
}

/* ---- slopes ---- */

tern__dice_back tern__dice_back_of(const tern__call *call)
{
    const tern__dice_attr *attr = call->attr;
    tern__dice_back back = {.call = call, .c = tern__channels_of(call->in[1])};
    if (attr->entropy == 0) return back;
    double count = attr->mean ? dice_total_of(&back.c, call->in[3]->data).count : 1;
    back.entropy = count > 0 ? tern__view_get(call->in[0], 0) * attr->entropy / count : 0;
    return back;
}

tern__dice_slope tern__dice_slope_of(const tern__dice_back *back, int64_t i)
{
    const tern__dice_attr *attr = back->call->attr;
    int64_t channel = i % back->c.channels, region = attr->over_batch ? channel : i;
    tern__overlap o =
        tern__dice_region(attr, &back->c, back->call->in[3]->data, i / back->c.channels, channel);
    double sent = tern__view_get(back->call->in[0], attr->each ? region : 0);
    return tern__dice_slope_by(attr, &back->c, &o, sent, back->entropy);
}
