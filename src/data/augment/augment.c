/* augment.c - a dataset that changes another one's samples at random. The random numbers of a sample depend
 * on (seed, epoch, index) alone: no generator is shared, so the number of workers or ranks and a resume
 * change nothing. Each slice of the sample and of its map is resized, if asked, only where the crop needs it,
 * and then cropped, mirrored and turned in one pass (cut.c). */
#include "data/augment/augment.h"

#include "base/opts.h"
#include "data/dataset.h"
#include "data/scratch_pool.h"
#include "image/resize.h"
#include "kernels/kernel.h"

#include <string.h>

static const char FUNC[] = "tern_augment_new", GET[] = "tern_augment_get";

enum { MAX_CHANNELS = 4 /* of tern_augment_opts' mean and std */, MAX_PADDING = INT32_MAX };
#define MAX_SCALE 64.0

typedef struct augment {
    tern_dataset base;
    const tern_dataset *source;
    tern_augment_opts opts;
    int64_t channels, from[3], size[3], cut[3]; /* of the source, resized, cropped         */
    size_t map_bytes;                           /* per element of the map; 0: no map, labels */
    uint64_t ignored;                           /* one element of the map: the padding       */
    bool resizes;
    tern__scratch_pool pool; /* of workers */
} augment;

/* The scratch memory of one call of get: the source's sample and map, and a part of a resized slice. */
typedef struct worker {
    tern__scratch_entry pooled;
    tern__resizer resizer;
    _Alignas(TERN__LINE) char memory[];
} worker;

tern_augment_opts tern_augment_defaults(void)
{
    return (tern_augment_opts){
        .size = sizeof(tern_augment_opts), .random_crop = true, .ignore = 255, .scale = {1, 1}};
}

/* ---- a worker's memory ---- */

static size_t augment_count_of(const int64_t size[3])
{
    return (size_t)(size[0] * size[1] * size[2]);
}

static size_t augment_sample_bytes(const augment *a)
{
    return tern__align_up((size_t)a->channels * augment_count_of(a->from) * sizeof(float), TERN__LINE);
}

static size_t target_bytes(const augment *a)
{
    return tern__align_up(augment_count_of(a->from) * a->map_bytes, TERN__LINE);
}

/* The largest part of a resized slice that a crop can need. */
static size_t part_bytes(const augment *a)
{
    size_t bytes = TERN__MAX(a->map_bytes, sizeof(float));
    for (int d = 1; d < 3; d++) {
        int64_t most = (int64_t)((double)a->size[d] * a->opts.scale[1]) + 1;
        bytes *= (size_t)TERN__MIN(a->cut[d], most);
    }
    return a->resizes ? bytes : 0;
}

/* ---- a slice ---- */

/* A sample or its map, as planes of (depth, height, width). */
typedef struct plane {
    int64_t channels;
    size_t bytes;     /* of an element */
    const void *fill; /* one element: the padding's value */
    bool nearest;     /* resized by taking the nearest element, not bilinearly */
} plane;

/* Returns the part of the resized slice that the crop covers. */
static tern__resize_window overlap(const augment *a, const tern__change *c)
{
    int64_t first[2], end[2];
    for (int d = 0; d < 2; d++) {
        first[d] = TERN__MAX(c->start[1 + d], 0);
        end[d] = TERN__MIN(c->start[1 + d] + a->cut[1 + d], c->size[1 + d]);
        end[d] = TERN__MAX(end[d], first[d]);
    }
    return (tern__resize_window){first[0], first[1], end[0] - first[0], end[1] - first[1]};
}

/* Replaces *slice by the resized part that the crop covers; leaves it alone if its size does not change. */
static int augment_resize(const augment *a, worker *w, const tern__change *c, bool nearest,
                          tern__image_slice *slice, tern_error *err)
{
    void *part = w->memory + augment_sample_bytes(a) + target_bytes(a);
    const tern__resize how = {
        .cut = {0, 0, a->from[1], a->from[2]}, .size = {c->size[1], c->size[2]}, .part = overlap(a, c)};
    int status = TERN_OK;
    if (c->size[1] == a->from[1] && c->size[2] == a->from[2]) return TERN_OK;
    if (!how.part.height || !how.part.width)
        status = TERN_OK;
    else if (nearest)
        status =
            tern__resize_nearest(&w->resizer, slice->data, a->from[2], slice->bytes, &how, part, GET, err);
    else
        status = tern__resize_f32(&w->resizer, slice->data, a->from[2], &how, part, GET, err);
    slice->data = part;
    slice->origin[0] = how.part.top;
    slice->origin[1] = how.part.left;
    slice->size[0] = how.part.height;
    slice->size[1] = how.part.width;
    return status;
}

/* Cuts every slice of the plane. */
static int cut_slices(const augment *a, worker *w, const tern__change *c, const plane *p, const char *from,
                      char *to, tern_error *err)
{
    size_t in = (size_t)(a->from[1] * a->from[2]) * p->bytes;
    size_t out = (size_t)(a->cut[1] * a->cut[2]) * p->bytes;
    int status = TERN_OK;
    for (int64_t i = 0; i < p->channels * a->cut[0] && !status; i++) {
        int64_t z = i % a->cut[0], at = c->start[0] + (c->flip[0] ? a->cut[0] - 1 - z : z);
        bool inside = at >= 0 && at < a->from[0];
        const char *data = from + (size_t)(i / a->cut[0] * a->from[0] + (inside ? at : 0)) * in;
        tern__image_slice slice = {
            .data = data, .size = {inside ? a->from[1] : 0, a->from[2]}, .bytes = p->bytes};
        if (inside) status = augment_resize(a, w, c, p->nearest, &slice, err);
        if (!status) tern__image_slice_cut(&slice, c, a->cut, p->fill, to + (size_t)i * out);
    }
    return status;
}

/* ---- values ---- */

TERN__SIMD static void normalize(float *values, int64_t count, float mean, float std)
{
    for (int64_t i = 0; i < count; i++) values[i] = (values[i] - mean) / std;
}

TERN__SIMD static void change_intensity(float *values, int64_t count, float scale, float shift)
{
    for (int64_t i = 0; i < count; i++) values[i] = values[i] * scale + shift;
}

static void change_values(const augment *a, const tern__change *c, float *x)
{
    const tern_augment_opts *o = &a->opts;
    int64_t count = (int64_t)augment_count_of(a->cut);
    if (a->source->ndim == 3) tern__colours_change(c, a->channels, count, x);
    if (o->intensity_scale != 0 || o->intensity_shift != 0)
        change_intensity(x, a->channels * count, c->scale, c->shift);
    for (int i = 0; i < o->channels; i++) normalize(x + i * count, count, o->mean[i], o->std[i]);
}

/* ---- the dataset ---- */

static int change_sample(const augment *a, worker *w, const tern__change *c, float *x, void *y,
                         tern_error *err)
{
    const float zero = 0;
    const plane sample = {a->channels, sizeof(float), &zero, .nearest = false};
    const plane map = {1, a->map_bytes, &a->ignored, .nearest = true};
    int status = cut_slices(a, w, c, &sample, w->memory, (char *)x, err);
    if (!status && a->map_bytes)
        status = cut_slices(a, w, c, &map, w->memory + augment_sample_bytes(a), y, err);
    if (!status) change_values(a, c, x);
    return status;
}

static int augment_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                       tern_error *err)
{
    augment *a = (augment *)base;
    size_t bytes = sizeof(worker) + augment_sample_bytes(a) + target_bytes(a) + part_bytes(a);
    worker *w = tern__scratch_pool_take(&a->pool, bytes, GET, err);
    if (!w) return TERN_E_MEMORY;
    void *target = a->map_bytes ? w->memory + augment_sample_bytes(a) : y;
    int status = a->source->get(a->source, epoch, index, (float *)(void *)w->memory, target, err);
    if (!status) {
        tern__change c = tern__change_draw(&a->opts, a->size, a->cut, epoch, index);
        status = change_sample(a, w, &c, x, y, err);
    }
    tern__scratch_pool_give(&a->pool, w);
    return status;
}

const tern_dataset *tern__augment_source(const tern_dataset *dataset)
{
    return dataset->get == augment_get ? ((const augment *)dataset)->source : NULL;
}

static void augment_free(tern_dataset *base)
{
    augment *a = (augment *)base;
    for (worker *w; (w = tern__scratch_pool_close(&a->pool)); tern__free(w)) tern__resizer_free(&w->resizer);
    tern__free(a);
}

/* ---- options ---- */

static int augment_check_sizes(const tern_augment_opts *o, tern_error *err)
{
    const struct {
        const char *crop, *padding;
        int64_t crops, pads;
    } sizes[] = {{"crop[0]", "padding[0]", o->crop[0], o->padding[0]},
                 {"crop[1]", "padding[1]", o->crop[1], o->padding[1]},
                 {"crop_depth", "padding_depth", o->crop_depth, o->padding_depth}};
    for (size_t i = 0; i < TERN__COUNT(sizes); i++)
        if (sizes[i].crops < 0 || sizes[i].pads < 0 || sizes[i].pads > MAX_PADDING)
            return tern__error_set(err, FUNC, TERN_E_RANGE,
                                   "%s is %lld, expected at least 0; %s is %lld, expected [0, %d]",
                                   sizes[i].crop, (long long)sizes[i].crops, sizes[i].padding,
                                   (long long)sizes[i].pads, MAX_PADDING);
    return TERN_OK;
}

static int check_interval(const char *name, double value, double most, tern_error *err)
{
    if (value >= 0 && value <= most) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_RANGE, "%s is %g, expected [0, %g]", name, value, most);
}

static int check_amounts(const tern_augment_opts *o, tern_error *err)
{
    const struct {
        const char *name;
        double value, most;
    } amounts[] = {{"flip", o->flip, 1},
                   {"flip_vertical", o->flip_vertical, 1},
                   {"flip_depth", o->flip_depth, 1},
                   {"brightness", o->brightness, 1},
                   {"contrast", o->contrast, 1},
                   {"saturation", o->saturation, 1},
                   {"hue", o->hue, 0.5},
                   {"intensity_scale", o->intensity_scale, 1e6},
                   {"intensity_shift", o->intensity_shift, 1e6}};
    int status = TERN_OK;
    for (size_t i = 0; i < TERN__COUNT(amounts) && !status; i++)
        status = check_interval(amounts[i].name, amounts[i].value, amounts[i].most, err);
    return status;
}

static int check_resizing(const tern_augment_opts *o, tern_error *err)
{
    bool one = !o->resize[0] != !o->resize[1];
    if (o->resize[0] < 0 || o->resize[1] < 0 || o->resize[0] > 1 << 15 || o->resize[1] > 1 << 15 || one)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "resize is %lld, %lld, expected [1, 32768], or 0, 0",
                               (long long)o->resize[0], (long long)o->resize[1]);
    if (!(o->scale[0] > 0 && o->scale[0] <= o->scale[1] && o->scale[1] <= MAX_SCALE))
        return tern__error_set(err, FUNC, TERN_E_RANGE, "scale is [%g, %g], expected 0 < low <= high <= %g",
                               o->scale[0], o->scale[1], MAX_SCALE);
    return TERN_OK;
}

static int check_normal(const tern_augment_opts *o, tern_error *err)
{
    if (o->channels < 0 || o->channels > MAX_CHANNELS)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "channels is %d, expected [0, %d]", o->channels,
                               MAX_CHANNELS);
    for (int c = 0; c < o->channels; c++)
        if (!(o->std[c] > 0))
            return tern__error_set(err, FUNC, TERN_E_RANGE, "std[%d] is %g, expected more than 0", c,
                                   (double)o->std[c]);
    return TERN_OK;
}

static int augment_check_opts(const tern_augment_opts *o, tern_error *err)
{
    int status = augment_check_sizes(o, err);
    if (!status) status = check_amounts(o, err);
    if (!status) status = check_resizing(o, err);
    return status ? status : check_normal(o, err);
}

/* ---- the source ---- */

static int check_shape(const tern_dataset *source, tern_error *err)
{
    static const char want[] = "expected samples (C, H, W) or (C, D, H, W), got";
    const int64_t *s = source->shape;
    if (source->ndim != 3 && source->ndim != 4)
        return tern__error_set(err, FUNC, TERN_E_SHAPE, "%s %d dimensions", want, source->ndim);
    if (source->dtype != TERN_F32)
        return tern__error_set(err, FUNC, TERN_E_DTYPE, "the samples are %s, expected f32",
                               tern_dtype_name(source->dtype));
    int64_t bytes = sizeof(float);
    for (int d = 0; d < source->ndim; d++)
        if (s[d] < 1 || __builtin_mul_overflow(bytes, s[d], &bytes))
            return tern__error_set(err, FUNC, TERN_E_SHAPE,
                                   source->ndim == 3 ? "%s (%lld, %lld, %lld)"
                                                     : "%s (%lld, %lld, %lld, %lld)",
                                   want, (long long)s[0], (long long)s[1], (long long)s[2], (long long)s[3]);
    return TERN_OK;
}

/* Stores the padding's label as one element of the map's dtype. */
static int find_ignored(augment *a, tern_dtype dtype, tern_error *err)
{
    const int64_t i64 = a->opts.ignore;
    const int32_t i32 = a->opts.ignore;
    const uint8_t u8 = (uint8_t)a->opts.ignore;
    const float f32 = (float)a->opts.ignore;
    const void *element = dtype == TERN_I64   ? (const void *)&i64
                          : dtype == TERN_I32 ? (const void *)&i32
                          : dtype == TERN_F32 ? (const void *)&f32
                          : dtype == TERN_U8  ? (const void *)&u8
                                              : NULL;
    if (!element)
        return tern__error_set(err, FUNC, TERN_E_DTYPE, "the maps are %s, expected f32, u8, i32 or i64",
                               tern_dtype_name(dtype));
    if (element == &u8 && u8 != i64)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "ignore is %lld, expected [0, 255] for maps of u8",
                               (long long)i64);
    a->map_bytes = tern_dtype_bytes(dtype);
    memcpy(&a->ignored, element, a->map_bytes);
    return TERN_OK;
}

static int check_map(augment *a, tern_error *err)
{
    const tern_dataset *source = a->source;
    if (!source->target_ndim) return TERN_OK;
    bool fits = source->target_ndim == source->ndim - 1;
    for (int d = 1; d < source->ndim && fits; d++) fits = source->target_shape[d - 1] == source->shape[d];
    if (fits) return find_ignored(a, source->target_dtype, err);
    return tern__error_set(err, FUNC, TERN_E_SHAPE, "expected maps of %d dimensions, as large as the samples",
                           source->ndim - 1);
}

/* Refuses options that the kind of sample does not have. */
static int augment_check_kind(const augment *a, tern_error *err)
{
    const tern_augment_opts *o = &a->opts;
    bool is_volume = a->source->ndim == 4;
    bool colours = o->brightness != 0 || o->contrast != 0 || o->saturation != 0 || o->hue != 0;
    if (is_volume && a->resizes)
        return tern__error_set(err, FUNC, TERN_E_SHAPE, "resize and scale are for images, not volumes");
    if (colours && (is_volume || (a->channels != 1 && a->channels != 3)))
        return tern__error_set(
            err, FUNC, TERN_E_SHAPE,
            "brightness, contrast, saturation and hue are for images of 1 or 3 channels, not %s of %lld",
            is_volume ? "volumes" : "images", (long long)a->channels);
    if (!is_volume && (o->crop_depth || o->padding_depth || o->flip_depth != 0))
        return tern__error_set(err, FUNC, TERN_E_SHAPE, "images have no depth");
    if (o->channels && o->channels != a->channels)
        return tern__error_set(err, FUNC, TERN_E_SHAPE,
                               "mean and std have %d channels, the samples have %lld", o->channels,
                               (long long)a->channels);
    return TERN_OK;
}

/* Sets the crop's size; its default is the sample's size. */
static int check_crop(augment *a, tern_error *err)
{
    static const char *const names[] = {"depth", "height", "width"};
    const tern_augment_opts *o = &a->opts;
    const int64_t crop[3] = {o->crop_depth, o->crop[0], o->crop[1]};
    const int64_t padding[3] = {o->padding_depth, o->padding[0], o->padding[1]};
    bool scales = o->scale[0] != 1 || o->scale[1] != 1;
    for (int d = 0; d < 3; d++) {
        int64_t padded = a->size[d] + 2 * padding[d];
        a->cut[d] = crop[d] ? crop[d] : a->size[d];
        if (a->cut[d] > (scales ? MAX_PADDING : padded))
            return tern__error_set(err, FUNC, TERN_E_SHAPE,
                                   "the crop's %s is %lld, the samples have %lld with padding", names[d],
                                   (long long)a->cut[d], (long long)padded);
    }
    if (o->rotate && a->cut[1] != a->cut[2])
        return tern__error_set(err, FUNC, TERN_E_SHAPE, "rotate: a crop of %lld x %lld is not square",
                               (long long)a->cut[1], (long long)a->cut[2]);
    return TERN_OK;
}

static void find_sizes(augment *a)
{
    const tern_augment_opts *o = &a->opts;
    const tern_dataset *s = a->source;
    a->channels = s->shape[0];
    a->from[0] = s->ndim == 4 ? s->shape[1] : 1;
    for (int d = 0; d < 2; d++) a->from[1 + d] = s->shape[s->ndim - 2 + d];
    a->size[0] = a->from[0];
    for (int d = 0; d < 2; d++) a->size[1 + d] = o->resize[d] ? o->resize[d] : a->from[1 + d];
    a->resizes = o->resize[0] || o->scale[0] != 1 || o->scale[1] != 1;
}

/* ---- new ---- */

tern_dataset *tern_augment_new(const tern_dataset *dataset, const tern_augment_opts *user, tern_error *err)
{
    tern_augment_opts opts = tern_augment_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err)) return NULL;
    if (!dataset || !dataset->get) {
        tern__error_set(err, FUNC, TERN_E_INVALID, "expected a dataset with get");
        return NULL;
    }
    if (augment_check_opts(&opts, err) || check_shape(dataset, err)) return NULL;
    augment made = {
        .base = *dataset, .source = dataset, .opts = opts, .pool = TERN__SCRATCH_POOL_INITIALIZER};
    find_sizes(&made);
    if (check_map(&made, err) || augment_check_kind(&made, err) || check_crop(&made, err)) return NULL;
    augment *a = tern__alloc(sizeof(*a), FUNC, err);
    if (!a) return NULL;
    *a = made;
    int d = a->source->ndim == 4 ? 0 : 1;
    for (int i = d; i < 3; i++) a->base.shape[1 + i - d] = a->cut[i];
    for (int i = d; i < 3 && a->map_bytes; i++) a->base.target_shape[i - d] = a->cut[i];
    a->base.get = augment_get;
    a->base.free = augment_free;
    return &a->base;
}
