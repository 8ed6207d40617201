/* places.c - the sums of strided convolutions (taps/places.h).
 *
 * With a stride a tap's product is short: the outputs of a row, and for a gradient only every second of
 * them. So loading and storing sums between taps would take as long as multiplying. Here a sum stays in a
 * register for all taps and many inputs. A panel of sums needs places that the same taps see: inside the
 * image, at one of its borders, and in a gradient those that are equally far from a multiple of the stride.
 * Along an axis these are spans of places, an output's stride apart; a class is one span of each axis. The
 * places of a class may be anywhere, so a panel goes on over rows and images, and small images fill it too.
 *
 * A unit of work is a panel's outputs on some images, whose inputs stay in the second-level cache while all
 * outputs use them; if there are few images for the threads, on a band of rows. A sum is over some inputs
 * at a time and their taps in order, so no bit depends on how work is divided. Long sums are added up in
 * parts, as their rounding errors would grow with their length. */
#include "kernels/cpu/conv/taps/places.h"
#include "kernels/cpu/conv/product_panels.h"

#define AXIS_TAPS 8         /* most taps of an axis */
#define STRIDE    4         /* most distance of a gradient's outputs that a tap sees */
#define SPANS     32        /* enough for both */
#define TAPS      64        /* most taps */
#define CHUNK     128       /* inputs that are summed at once */
#define LONG      256       /* products after which a sum is added to the others, unless a tap has more */
#define CACHE     (1 << 18) /* bytes of a unit's inputs, unless an image has more */

/* Outputs of an axis from `first` on that see the same taps, each with the input that the first one reads. */
typedef struct span {
    int64_t first, count, taps;
    int64_t tap[AXIS_TAPS], in[AXIS_TAPS];
} span;

typedef struct job {
    const tern__call *call;
    const tern__view *in, *out;
    const tern__taps_space *space;
    const tern__taps_weight *w;
    const tern__product_panels *panels;
    const float *packed, *bias;
    span span[TERN__TAPS_AXES][SPANS];
    int spans[TERN__TAPS_AXES];
    int64_t images, chunks; /* images of a unit; chunks of all images */
    int64_t rows, bands;    /* rows of a band; bands of a sheet */
    int64_t parts;          /* panels of all outputs */
} job;

/* Where a unit's sums are: images, rows of each sheet, and outputs. */
typedef struct unit {
    int64_t image, last_image, row, last_row, out;
} unit;

/* A class of places, and the panel that is being filled with some. */
typedef struct class
{
    const span *span[TERN__TAPS_AXES];
    int64_t taps, in_of[TAPS], weight_of[TAPS];
    int64_t group, out;    /* the panel's first output: its group, and its place there */
    int64_t outputs, most; /* the panel's outputs and places */
    int64_t weights;       /* where the group's begin */
    tern__conv_places sum; /* what all its sums have in common */
    int count;
    const float *in[TERN__CONV_PLACES];
    float *to[TERN__CONV_PLACES];
} class;

bool tern__taps_places_takes(const tern__taps_space *s)
{
    bool takes = tern__taps_count(s) <= TAPS;
    for (int axis = 0; axis < TERN__TAPS_AXES; axis++)
        takes = takes && s->axis[axis].taps <= AXIS_TAPS && s->axis[axis].out_stride <= STRIDE;
    return takes;
}

/* ---- spans ---- */

/* The taps that an output sees. */
static span span_at(const tern__taps_axis *a, int64_t out)
{
    span s = {.first = out, .count = 1};
    for (int64_t tap = 0; tap < a->taps; tap++) {
        tern__taps_range seen = tern__taps_see(a, tap, out, out + 1);
        if (!seen.count) continue;
        s.tap[s.taps] = tap;
        s.in[s.taps++] = seen.in;
    }
    return s;
}

static bool sees_the_same(const span *a, const span *b)
{
    return a->taps == b->taps && memcmp(a->tap, b->tap, (size_t)a->taps * sizeof(*a->tap)) == 0;
}

/* Returns the number of spans. */
static int cut_axis(span to[SPANS], const tern__taps_axis *a)
{
    int count = 0;
    for (int64_t phase = 0; phase < a->out_stride; phase++) {
        span *last = NULL;
        for (int64_t out = phase; out < a->out; out += a->out_stride) {
            span s = span_at(a, out);
            if (last && sees_the_same(last, &s))
                last->count++;
            else
                *(last = &to[count++]) = s;
        }
    }
    return count;
}

/* ---- a class ---- */

/* Fills in what all sums of the class have in common. */
static void class_prepare(const job *j, class *c)
{
    const tern__taps_axis *axis = j->space->axis;
    c->outputs = TERN__MIN(j->panels->outputs, tern__taps_width(j->w, c->group));
    c->most = tern__product_positions(j->panels, c->outputs);
    c->weights = c->group * tern__taps_room(j->w, j->w->ins, tern__taps_count(j->space));
    c->sum = (tern__conv_places){.width = tern__taps_width(j->w, c->group),
                                 .in_pitch = axis[0].in * axis[1].in * axis[2].in * TERN__BLOCK,
                                 .sum_pitch = axis[0].out * axis[1].out * axis[2].out * TERN__BLOCK};
}

/* Multiplies the panel's places by some taps of inputs `in` .. in + CHUNK - 1. */
static void add_taps(const job *j, class *c, int64_t in, int64_t tap, int64_t taps)
{
    tern__conv_places *p = &c->sum;
    const float *later[TERN__CONV_PLACES], *const *from = c->in;
    bool first = in == 0 && tap == 0;
    p->weight = j->packed + c->weights + in * p->width;
    p->bias = first && j->bias ? j->bias + 32 * c->group : NULL;
    p->blocks = TERN__MIN(CHUNK, j->w->ins - in) / TERN__BLOCK;
    p->taps = taps;
    p->in_of = c->in_of + tap;
    p->weight_of = c->weight_of + tap;
    p->add = !first || j->call->add[0];
    if (in) {
        for (int i = 0; i < c->count; i++) later[i] = c->in[i] + in / TERN__BLOCK * p->in_pitch;
        from = later;
    }
    j->panels->sum_places(p, c->out, c->outputs, from, c->to, c->count);
}

/* Outputs that see no tap get the bias. */
static void panel_flush(const job *j, class *c)
{
    int64_t once = LONG / TERN__MIN(CHUNK, j->w->ins);
    for (int64_t in = 0; c->count && in < (c->taps ? j->w->ins : 1); in += CHUNK) {
        int64_t tap = 0;
        do add_taps(j, c, in, tap, TERN__MIN(once, c->taps - tap));
        while ((tap += once) < c->taps);
    }
    c->count = 0;
}

/* Lists the taps that all places of the class see, in their order. */
static void list_taps(const job *j, class *c)
{
    const tern__taps_axis *axis = j->space->axis;
    const span *z = c->span[TERN__TAPS_SHEETS], *y = c->span[TERN__TAPS_ROWS],
               *x = c->span[TERN__TAPS_COLUMNS];
    int64_t pitch = tern__taps_pitch(j->w, c->group, j->w->ins);
    c->taps = 0;
    for (int64_t l = 0; l < z->taps; l++)
        for (int64_t m = 0; m < y->taps; m++)
            for (int64_t n = 0; n < x->taps; n++) {
                int64_t tap = (z->tap[l] * axis[1].taps + y->tap[m]) * axis[2].taps + x->tap[n];
                int64_t in = (z->in[l] * axis[1].in + y->in[m]) * axis[2].in + x->in[n];
                c->in_of[c->taps] = in * TERN__BLOCK;
                c->weight_of[c->taps++] = tap * pitch;
            }
}

/* Puts a row's places into panels, which are summed as they fill. */
static void add_row(const job *j, class *c, const float *in, float *to)
{
    const tern__taps_axis *x = &j->space->axis[TERN__TAPS_COLUMNS];
    for (int64_t i = 0; i < c->span[TERN__TAPS_COLUMNS]->count; i++) {
        c->in[c->count] = in + i * x->in_stride * TERN__BLOCK;
        c->to[c->count++] = to + i * x->out_stride * TERN__BLOCK;
        if (c->count == c->most) panel_flush(j, c);
    }
}

/* Computes the unit's places of a class. */
static void compute_class(const job *j, const unit *u, class *c)
{
    const tern__taps_axis *sheets = &j->space->axis[TERN__TAPS_SHEETS];
    const tern__taps_axis *rows = &j->space->axis[TERN__TAPS_ROWS];
    const tern__taps_axis *columns = &j->space->axis[TERN__TAPS_COLUMNS];
    const span *z = c->span[TERN__TAPS_SHEETS], *y = c->span[TERN__TAPS_ROWS];
    int64_t first_column = c->span[TERN__TAPS_COLUMNS]->first;
    for (int64_t image = u->image; image < u->last_image; image++) {
        const float *in = tern__taps_block(j->in, image, 0);
        float *to = tern__taps_block(j->out, image, u->out / TERN__BLOCK);
        for (int64_t l = 0; l < z->count; l++)
            for (int64_t m = 0; m < y->count; m++) {
                int64_t row = y->first + m * rows->out_stride;
                int64_t sheet = z->first + l * sheets->out_stride;
                int64_t from = (l * sheets->in_stride * rows->in + m * rows->in_stride) * columns->in;
                if (row < u->row || row >= u->last_row) continue;
                add_row(j, c, in + from * TERN__BLOCK,
                        to + ((sheet * rows->out + row) * columns->out + first_column) * TERN__BLOCK);
            }
    }
    panel_flush(j, c);
}

static void compute_unit(const job *j, int64_t number)
{
    int64_t out = number % j->parts * j->panels->outputs, rows = j->space->axis[TERN__TAPS_ROWS].out;
    int64_t band = number / j->parts % j->bands, chunk = number / j->parts / j->bands;
    unit u = {.image = chunk * j->images,
              .last_image = TERN__MIN(j->out->shape[0], (chunk + 1) * j->images),
              .row = band * j->rows,
              .last_row = TERN__MIN(rows, (band + 1) * j->rows),
              .out = out};
    class c = {.group = out / 32, .out = out % 32};
    class_prepare(j, &c);
    for (int z = 0; z < j->spans[0]; z++)
        for (int y = 0; y < j->spans[1]; y++)
            for (int x = 0; x < j->spans[2]; x++) {
                c.span[0] = &j->span[0][z];
                c.span[1] = &j->span[1][y];
                c.span[2] = &j->span[2][x];
                list_taps(j, &c);
                compute_class(j, &u, &c);
            }
}

/* ---- the plan ---- */

static void places_plan(job *j)
{
    int64_t threads = j->call->device->threads, images = j->out->shape[0];
    int64_t bytes = tern__view_count(j->in) / images * (int64_t)sizeof(float);
    for (int axis = 0; axis < TERN__TAPS_AXES; axis++)
        j->spans[axis] = cut_axis(j->span[axis], &j->space->axis[axis]);
    j->images = TERN__MAX(1, TERN__MIN(CACHE / bytes, (images + threads - 1) / threads));
    j->chunks = (images + j->images - 1) / j->images;
    j->parts = (j->w->outs + j->panels->outputs - 1) / j->panels->outputs;
    int64_t whole = j->chunks * j->parts, rows = j->space->axis[TERN__TAPS_ROWS].out;
    int64_t cuts = TERN__MIN(rows, (threads + whole - 1) / whole);
    j->rows = (rows + cuts - 1) / cuts;
    j->bands = (rows + j->rows - 1) / j->rows;
}

void tern__taps_places(const tern__call *call, const tern__view *in, const tern__view *out,
                       const tern__taps_space *s, const tern__taps_weight *w, const float *packed,
                       const float *bias)
{
    job j = {.call = call,
             .in = in,
             .out = out,
             .space = s,
             .w = w,
             .panels = TERN__BY_WIDTH(tern__product_panels),
             .packed = packed,
             .bias = bias};
    places_plan(&j);
    int threads = call->device->threads;
    int64_t units = j.chunks * j.bands * j.parts;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        for (int64_t i = units * t / threads; i < units * (t + 1) / threads; i++) compute_unit(&j, i);
}
