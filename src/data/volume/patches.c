/* patches.c - a dataset of boxes cut from volumes: on a regular grid, or at random, where the foreground's
 * classes can be drawn with equal frequency. */
#include "base/opts.h"
#include "data/draw.h"
#include "data/volume/grid.h"
#include "data/volume/volume.h"

#include <math.h>
#include <string.h>

static const char FUNC[] = "tern_patches_new";

enum { CLASSES = 256, IGNORED = 255 };

/* Which of a sample's random numbers decides what. */
enum { DRAW_FOREGROUND, DRAW_CLASS, DRAW_VOXEL, DRAW_START, DRAW_FLIP = DRAW_START + 3 };

/* An image and its label volume, and the positions of the foreground. */
typedef struct pair {
    const tern_volume *image, *label;
    float mean, std;
    int64_t grid[3], first; /* patches along each dimension; index of the grid's first patch here */
    int64_t *voxels;        /* of the foreground, class by class                                   */
    int classes;            /* that occur in the foreground                                        */
    int64_t ends[CLASSES];  /* class k ends before voxels[ends[k]]                                 */
} pair;

typedef struct patches {
    tern_dataset base;
    tern_patches_opts opts;
    int count;
    pair *pairs;
} patches;

tern_patches_opts tern_patches_defaults(void)
{
    return (tern_patches_opts){.size = sizeof(tern_patches_opts), .patch = {32, 64, 64}, .target = TERN_U8};
}

/* ---- the position of a patch ---- */

typedef struct cut {
    const pair *pair;
    int64_t start[3];
    bool flip[3];
} cut;

static cut cut_of_grid(const patches *p, int64_t index)
{
    int i = 0;
    while (i + 1 < p->count && p->pairs[i + 1].first <= index) i++;
    const pair *at = &p->pairs[i];
    cut c = {.pair = at};
    index -= at->first;
    for (int d = 2; d >= 0; d--) {
        c.start[d] =
            tern__grid_start(at->image->shape[d + 1], p->opts.patch[d], at->grid[d], index % at->grid[d]);
        index /= at->grid[d];
    }
    return c;
}

/* Draws a patch that contains the voxel. */
static void start_around(const patches *p, cut *c, int64_t voxel, uint64_t key)
{
    const int64_t *size = c->pair->image->shape + 1, *patch = p->opts.patch;
    const int64_t at[3] = {voxel / (size[1] * size[2]), voxel / size[2] % size[1], voxel % size[2]};
    for (int d = 0; d < 3; d++) {
        int64_t low = TERN__MAX(at[d] - patch[d] + 1, 0), high = TERN__MIN(at[d], size[d] - patch[d]);
        c->start[d] =
            low + tern__draw_place(tern__draw_number(key, (uint64_t)(DRAW_START + d)), high - low + 1);
    }
}

static cut cut_at_random(const patches *p, int64_t epoch, int64_t index)
{
    uint64_t key = tern__draw_key(p->opts.seed, epoch, index);
    cut c = {.pair = &p->pairs[index % p->count]};
    const pair *at = c.pair;
    if (at->classes && tern__draw_share(tern__draw_number(key, DRAW_FOREGROUND)) < p->opts.foreground) {
        int64_t class = tern__draw_place(tern__draw_number(key, DRAW_CLASS), at->classes);
        int64_t begin = class ? at->ends[class - 1] : 0;
        int64_t which = begin + tern__draw_place(tern__draw_number(key, DRAW_VOXEL), at->ends[class] - begin);
        start_around(p, &c, at->voxels[which], key);
    } else {
        for (int d = 0; d < 3; d++) {
            int64_t room = c.pair->image->shape[d + 1] - p->opts.patch[d];
            c.start[d] = tern__draw_place(tern__draw_number(key, (uint64_t)(DRAW_START + d)), room + 1);
        }
    }
    for (int d = 0; d < 3; d++)
        c.flip[d] = tern__draw_share(tern__draw_number(key, (uint64_t)(DRAW_FLIP + d))) < p->opts.flip[d];
    return c;
}

/* ---- cutting ---- */

/* Returns row (z, y) of the patch, in channel `channel` of the volume. */
static const float *patches_row_of(const tern_volume *volume, const cut *c, const int64_t patch[3],
                                   int64_t channel, int64_t z, int64_t y)
{
    const int64_t *shape = volume->shape;
    if (c->flip[0]) z = patch[0] - 1 - z;
    if (c->flip[1]) y = patch[1] - 1 - y;
    return volume->values + ((channel * shape[1] + c->start[0] + z) * shape[2] + c->start[1] + y) * shape[3] +
           c->start[2];
}

static void cut_image(const patches *p, const cut *c, float *x)
{
    const int64_t *patch = p->opts.patch, width = patch[2];
    const float mean = c->pair->mean, scale = 1.0f / c->pair->std;
    for (int64_t channel = 0; channel < c->pair->image->shape[0]; channel++)
        for (int64_t z = 0; z < patch[0]; z++)
            for (int64_t y = 0; y < patch[1]; y++, x += width) {
                const float *row = patches_row_of(c->pair->image, c, patch, channel, z, y);
                for (int64_t i = 0; i < width; i++)
                    x[i] = (row[c->flip[2] ? width - 1 - i : i] - mean) * scale;
            }
}

static void cut_label(const patches *p, const cut *c, void *y)
{
    const int64_t *patch = p->opts.patch, width = patch[2];
    uint8_t *map = y;
    float *values = y;
    for (int64_t row = 0; row < patch[0] * patch[1]; row++) {
        const float *from = patches_row_of(c->pair->label, c, patch, 0, row / patch[1], row % patch[1]);
        for (int64_t i = 0; i < width; i++) {
            float value = from[c->flip[2] ? width - 1 - i : i];
            if (p->opts.target == TERN_U8)
                *map++ = (uint8_t)value;
            else
                *values++ = value;
        }
    }
}

static int patches_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                       tern_error *err)
{
    const patches *p = (const patches *)base;
    if (index < 0 || index >= base->length)
        return tern__error_set(err, "tern_patches_get", TERN_E_RANGE, "index is %lld, expected [0, %lld]",
                               (long long)index, (long long)base->length - 1);
    cut c = p->opts.count ? cut_at_random(p, epoch, index) : cut_of_grid(p, index);
    cut_image(p, &c, x);
    cut_label(p, &c, y);
    return TERN_OK;
}

static void patches_free(tern_dataset *base)
{
    patches *p = (patches *)base;
    for (int i = 0; i < p->count; i++) tern__free(p->pairs[i].voxels);
    tern__free(p->pairs);
    tern__free(p);
}

/* ---- checks ---- */

static int patches_check_opts(const tern_patches_opts *o, tern_error *err)
{
    for (int d = 0; d < 3; d++) {
        if (o->patch[d] < 1 || o->overlap[d] < 0 || o->overlap[d] >= o->patch[d])
            return tern__error_set(err, FUNC, TERN_E_RANGE,
                                   "patch[%d] is %lld with an overlap of %lld, expected 0 <= overlap < patch",
                                   d, (long long)o->patch[d], (long long)o->overlap[d]);
        if (!(o->flip[d] >= 0 && o->flip[d] <= 1))
            return tern__error_set(err, FUNC, TERN_E_RANGE, "flip[%d] is %g, expected [0, 1]", d, o->flip[d]);
    }
    if (!(o->foreground >= 0 && o->foreground <= 1) || o->count < 0 || !(o->std >= 0))
        return tern__error_set(err, FUNC, TERN_E_RANGE,
                               "foreground is %g, count %lld and std %g, expected [0, 1] and at least 0",
                               o->foreground, (long long)o->count, (double)o->std);
    if (o->classes < 0 || o->classes > CLASSES)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "classes is %d, expected [0, %d]", o->classes,
                               CLASSES);
    return o->target == TERN_U8 || o->target == TERN_F32
               ? TERN_OK
               : tern__error_set(err, FUNC, TERN_E_DTYPE, "target is %s, expected u8 or f32",
                                 tern_dtype_name(o->target));
}

static int check_pair(const tern_volume *image, const tern_volume *label, int i, int64_t channels,
                      const tern_patches_opts *o, tern_error *err)
{
    if (!image || !label)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "volume %d: expected an image and a label", i);
    const int64_t *a = image->shape, *b = label->shape;
    if (a[0] != channels || b[0] != 1)
        return tern__error_set(
            err, FUNC, TERN_E_SHAPE,
            "volume %d: the image has %lld channels and the label %lld, expected %lld and 1", i,
            (long long)a[0], (long long)b[0], (long long)channels);
    for (int d = 0; d < 3; d++)
        if (a[d + 1] != b[d + 1] || a[d + 1] < o->patch[d])
            return tern__error_set(
                err, FUNC, TERN_E_SHAPE,
                "volume %d: dimension %d is %lld, but the label's is %lld and the patch's %lld", i, d,
                (long long)a[d + 1], (long long)b[d + 1], (long long)o->patch[d]);
    return TERN_OK;
}

static int patches_check_labels(const tern_volume *label, int i, const tern_patches_opts *o, tern_error *err)
{
    float most = (float)(o->classes ? o->classes - 1 : IGNORED);
    for (int64_t v = 0; o->target == TERN_U8 && v < tern__volume_count(label); v++) {
        float value = label->values[v];
        if (value == IGNORED || (value >= 0 && value <= most && value == truncf(value))) continue;
        return tern__error_set(
            err, FUNC, TERN_E_RANGE,
            "volume %d: the label of voxel %lld is %g, expected an integer in [0, %g] or %d", i, (long long)v,
            (double)value, (double)most, IGNORED);
    }
    return TERN_OK;
}

/* ---- the foreground ---- */

/* Returns the class that a random patch may be drawn for; 0: none. */
static int class_of(const tern_patches_opts *o, float value)
{
    if (o->target != TERN_U8) return value > 0;
    return value == IGNORED ? 0 : (int)value;
}

/* Sorts the foreground's voxels by class, with a counting sort. */
static int list_foreground(pair *at, const tern_patches_opts *o, tern_error *err)
{
    int64_t counts[CLASSES] = {0}, next[CLASSES] = {0}, voxels = tern__volume_count(at->label), total = 0;
    for (int64_t v = 0; v < voxels; v++) counts[class_of(o, at->label->values[v])]++;
    for (int class = 1; class < CLASSES; class ++) {
        if (!counts[class]) continue;
        next[class] = total;
        total += counts[class];
        at->ends[at->classes++] = total;
    }
    if (!total) return TERN_OK;
    at->voxels = tern__alloc((size_t)total * sizeof(*at->voxels), FUNC, err);
    if (!at->voxels) return TERN_E_MEMORY;
    for (int64_t v = 0; v < voxels; v++) {
        int class = class_of(o, at->label->values[v]);
        if (class) at->voxels[next[class]++] = v;
    }
    return TERN_OK;
}

/* ---- new ---- */

static int open_pair(patches *p, int i, const tern_volume *image, const tern_volume *label, tern_error *err)
{
    const tern_patches_opts *o = &p->opts;
    pair *at = &p->pairs[i];
    *at = (pair){.image = image, .label = label, .mean = o->mean, .std = o->std, .first = p->base.length};
    if (!(o->std > 0)) tern__volume_statistics(image, &at->mean, &at->std);
    int64_t patches_here = 1;
    for (int d = 0; d < 3; d++) {
        at->grid[d] = tern__grid_count(image->shape[d + 1], o->patch[d], o->patch[d] - o->overlap[d]);
        patches_here *= at->grid[d];
    }
    p->base.length += patches_here;
    return o->count && o->foreground > 0 ? list_foreground(at, o, err) : TERN_OK;
}

static int open_pairs(patches *p, const tern_volume *const *images, const tern_volume *const *labels,
                      tern_error *err)
{
    for (int i = 0; i < p->count; i++) {
        int status = check_pair(images[i], labels[i], i, images[0] ? images[0]->shape[0] : 0, &p->opts, err);
        if (!status) status = patches_check_labels(labels[i], i, &p->opts, err);
        if (!status) status = open_pair(p, i, images[i], labels[i], err);
        if (status) return status;
    }
    if (p->opts.count) p->base.length = p->opts.count;
    p->base.shape[0] = images[0]->shape[0];
    return TERN_OK;
}

tern_dataset *tern_patches_new(const tern_volume *const *images, const tern_volume *const *labels, int count,
                               const tern_patches_opts *user, tern_error *err)
{
    tern_patches_opts opts = tern_patches_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err) ||
        patches_check_opts(&opts, err))
        return NULL;
    if (count < 1) tern__error_set(err, FUNC, TERN_E_INVALID, "expected volumes, got %d", count);
    patches *p = count < 1 ? NULL : tern__alloc(sizeof(*p), FUNC, err);
    if (!p) return NULL;
    const int64_t *s = opts.patch;
    *p = (patches){.base = {.ndim = 4,
                            .shape = {0, s[0], s[1], s[2]},
                            .target_ndim = 3,
                            .target_shape = {s[0], s[1], s[2]},
                            .target_dtype = opts.target,
                            .classes = opts.classes,
                            .get = patches_get,
                            .free = patches_free},
                   .opts = opts,
                   .count = count};
    p->pairs = tern__alloc((size_t)count * sizeof(*p->pairs), FUNC, err);
    if (!p->pairs) p->count = 0;
    if (p->pairs && !open_pairs(p, images, labels, err)) return &p->base;
    patches_free(&p->base);
    return NULL;
}
