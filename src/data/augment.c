/* augment.c - samples cut, mirrored and normalised, each by numbers of its own.
 *
 * What happens to a sample follows from (seed, epoch, index) alone, so no generator is shared and neither
 * workers, ranks nor a resume change anything. The three are hashed into a key, and the key starts SplitMix64
 * (draw.h): one multiplication chain a number and no state to set up, where the mt19937 of
 * tern_rng would fill 624 words for the three numbers that a sample needs. data.h has the recipe. */
#include <tern/data.h>

#include "base/base.h"
#include "base/opts.h"
#include "data/draw.h"

#include <pthread.h>
#include <string.h>

static const char FUNC[] = "tern_augment_new";

enum { MAX_CHANNELS = 4 /* that tern_augment_opts has room for */, MAX_PADDING = INT32_MAX };

/* A sample of the source; as many as there were calls at the same time. */
typedef struct spare {
    struct spare *next;
    float values[];
} spare;

typedef struct augment {
    tern_dataset base;
    const tern_dataset *source;
    tern_augment_opts opts;
    pthread_mutex_t lock;
    spare *spares; /* that no call uses */
} augment;

/* Where the cut begins in the source, negative in the padding, and whether it is mirrored. */
typedef struct change {
    int64_t top, left;
    bool flip;
} change;

tern_augment_opts tern_augment_defaults(void)
{
    return (tern_augment_opts){.size = sizeof(tern_augment_opts), .random_crop = true};
}

/* ---- what happens to a sample ---- */

/* room / 2 as Python rounds it: a half goes to the even number. */
static int64_t centre(int64_t room)
{
    return (room + (room >> 1 & 1)) / 2;
}

static change choose(const augment *a, int64_t epoch, int64_t index)
{
    const tern_augment_opts *o = &a->opts;
    uint64_t key = tern__draw_key(o->seed, epoch, index);
    int64_t down = a->source->shape[1] + 2 * o->padding[0] - o->crop[0];
    int64_t right = a->source->shape[2] + 2 * o->padding[1] - o->crop[1];
    bool random = o->random_crop;
    return (change){
        .top = (random ? tern__draw_place(tern__draw(key, 0), down + 1) : centre(down)) - o->padding[0],
        .left = (random ? tern__draw_place(tern__draw(key, 1), right + 1) : centre(right)) - o->padding[1],
        .flip = tern__draw_share(tern__draw(key, 2)) < o->flip,
    };
}

/* ---- doing it ---- */

static void mirror(float *row, int64_t n)
{
    for (int64_t i = 0; i < n / 2; i++) {
        float kept = row[i];
        row[i] = row[n - 1 - i];
        row[n - 1 - i] = kept;
    }
}

/* One row of the cut from one of the source; NULL: a row of the padding. */
static void cut_row(const augment *a, const change *c, const float *from, float *to)
{
    int64_t width = a->source->shape[2], cut = a->opts.crop[1];
    int64_t first = TERN__MAX(-c->left, 0), end = TERN__MIN(width - c->left, cut);
    memset(to, 0, (size_t)cut * sizeof(float));
    if (!from || first >= end) return;
    memcpy(to + first, from + c->left + first, (size_t)(end - first) * sizeof(float));
    if (c->flip) mirror(to, cut);
}

static void cut_channel(const augment *a, const change *c, const float *from, float *to)
{
    int64_t height = a->source->shape[1], width = a->source->shape[2];
    for (int64_t y = 0; y < a->opts.crop[0]; y++) {
        int64_t at = c->top + y;
        bool inside = at >= 0 && at < height;
        cut_row(a, c, inside ? from + at * width : NULL, to + y * a->opts.crop[1]);
    }
}

static void normalize(float *values, int64_t count, float mean, float std)
{
    for (int64_t i = 0; i < count; i++) values[i] = (values[i] - mean) / std;
}

static void apply(const augment *a, const change *c, const float *from, float *to)
{
    const tern_augment_opts *o = &a->opts;
    int64_t in = a->source->shape[1] * a->source->shape[2], out = o->crop[0] * o->crop[1];
    for (int64_t channel = 0; channel < a->source->shape[0]; channel++) {
        cut_channel(a, c, from + channel * in, to + channel * out);
        if (o->channels) normalize(to + channel * out, out, o->mean[channel], o->std[channel]);
    }
}

/* ---- the dataset ---- */

static spare *spare_take(augment *a, tern_error *err)
{
    pthread_mutex_lock(&a->lock);
    spare *taken = a->spares;
    if (taken) a->spares = taken->next;
    pthread_mutex_unlock(&a->lock);
    if (taken) return taken;
    const int64_t *shape = a->source->shape;
    return tern__alloc(sizeof(spare) + (size_t)(shape[0] * shape[1] * shape[2]) * sizeof(float),
                       "tern_augment_get", err);
}

static void spare_give(augment *a, spare *taken)
{
    pthread_mutex_lock(&a->lock);
    taken->next = a->spares;
    a->spares = taken;
    pthread_mutex_unlock(&a->lock);
}

static int augment_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                       tern_error *err)
{
    augment *a = (augment *)base;
    spare *sample = spare_take(a, err);
    if (!sample) return TERN_E_MEMORY;
    int status = a->source->get(a->source, epoch, index, sample->values, y, err);
    if (!status) {
        change c = choose(a, epoch, index);
        apply(a, &c, sample->values, x);
    }
    spare_give(a, sample);
    return status;
}

static void augment_free(tern_dataset *base)
{
    augment *a = (augment *)base;
    for (spare *s = a->spares, *next; s; s = next) {
        next = s->next;
        tern__free(s);
    }
    pthread_mutex_destroy(&a->lock);
    tern__free(a);
}

/* ---- making it ---- */

static int check_opts(const tern_augment_opts *o, tern_error *err)
{
    for (int d = 0; d < 2; d++)
        if (o->crop[d] < 0 || o->padding[d] < 0 || o->padding[d] > MAX_PADDING)
            return tern__error_set(
                err, FUNC, TERN_E_RANGE,
                "crop[%d] is %lld, expected at least 0; padding[%d] is %lld, expected [0, %d]", d,
                (long long)o->crop[d], d, (long long)o->padding[d], MAX_PADDING);
    if (!(o->flip >= 0 && o->flip <= 1))
        return tern__error_set(err, FUNC, TERN_E_RANGE, "flip is %g, expected [0, 1]", o->flip);
    if (o->channels < 0 || o->channels > MAX_CHANNELS)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "channels is %d, expected [0, %d]", o->channels,
                               MAX_CHANNELS);
    for (int c = 0; c < o->channels; c++)
        if (!(o->std[c] > 0))
            return tern__error_set(err, FUNC, TERN_E_RANGE, "std[%d] is %g, expected more than 0", c,
                                   (double)o->std[c]);
    return TERN_OK;
}

static int check_source(const tern_dataset *source, const tern_augment_opts *o, tern_error *err)
{
    if (!source || !source->get || source->target_ndim > 0)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "expected a dataset with get, of labels");
    const int64_t *shape = source->shape;
    if (source->ndim != 3)
        return tern__error_set(err, FUNC, TERN_E_SHAPE, "expected samples (C, H, W), got %d dimensions",
                               source->ndim);
    int64_t bytes = sizeof(float);
    for (int d = 0; d < 3; d++)
        if (shape[d] < 1 || __builtin_mul_overflow(bytes, shape[d], &bytes))
            return tern__error_set(err, FUNC, TERN_E_SHAPE,
                                   "expected samples (C, H, W), got (%lld, %lld, %lld)", (long long)shape[0],
                                   (long long)shape[1], (long long)shape[2]);
    if (o->channels && o->channels != shape[0])
        return tern__error_set(err, FUNC, TERN_E_SHAPE, "mean and std of %d channels, the samples have %lld",
                               o->channels, (long long)shape[0]);
    return TERN_OK;
}

/* Fills in the crop's default, the sample's own size. */
static int check_crop(const tern_dataset *source, tern_augment_opts *o, tern_error *err)
{
    static const char *const names[] = {"height", "width"};
    for (int d = 0; d < 2; d++) {
        int64_t padded = source->shape[d + 1] + 2 * o->padding[d];
        if (!o->crop[d]) o->crop[d] = source->shape[d + 1];
        if (o->crop[d] > padded)
            return tern__error_set(err, FUNC, TERN_E_SHAPE,
                                   "crop of %s %lld, the samples have %lld with their padding", names[d],
                                   (long long)o->crop[d], (long long)padded);
    }
    return TERN_OK;
}

tern_dataset *tern_augment_new(const tern_dataset *dataset, const tern_augment_opts *user, tern_error *err)
{
    tern_augment_opts opts = tern_augment_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err)) return NULL;
    if (check_opts(&opts, err) || check_source(dataset, &opts, err) || check_crop(dataset, &opts, err))
        return NULL;
    augment *a = tern__alloc(sizeof(*a), FUNC, err);
    if (!a) return NULL;
    *a = (augment){.base = *dataset, .source = dataset, .opts = opts, .lock = PTHREAD_MUTEX_INITIALIZER};
    a->base.shape[1] = opts.crop[0];
    a->base.shape[2] = opts.crop[1];
    a->base.get = augment_get;
    a->base.free = augment_free;
    return &a->base;
}
