/* cityscapes.c - images with label maps, in the folder layout of the Cityscapes dataset. */
#include <tern/image_data.h>

#include "base/file.h"
#include "base/opts.h"
#include "data/files.h"
#include "data/image_floats.h"
#include "data/dataset.h"
#include "data/scratch_pool.h"
#include "image/reader.h"
#include "image/resize.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char FUNC[] = "tern_cityscapes_open", GET[] = "tern_cityscapes_get";
static const char IMAGES[] = "leftImg8bit", MAPS[] = "gtFine";
static const char IMAGE_END[] = "_leftImg8bit.png", MAP_END[] = "_gtFine_labelIds.png";

enum { MAX_IDS = 256, IGNORED = 255, MAX_SIDE = 1 << 15 };

/* Maps the ids of the files to the classes that the benchmark evaluates:
 * https://github.com/mcordts/cityscapesScripts, labels.py. */
static const uint8_t usual_ids[] = {255, 255, 255, 255, 255, 255, 255, 0,  1,  255, 255, 2,
                                    3,   4,   255, 255, 255, 5,   255, 6,  7,  8,   9,   10,
                                    11,  12,  13,  14,  15,  255, 255, 16, 17, 18};

typedef struct cityscapes {
    tern_dataset base;
    int64_t resize[2];
    uint8_t train_ids[MAX_IDS];
    int ids;
    tern_image_opts image, map; /* how to load them */
    tern__files images;
    char **maps;             /* (images.count) */
    tern__scratch_pool pool; /* of workers       */
} cityscapes;

/* The scratch memory of one call of get. */
typedef struct worker {
    tern__scratch_entry pooled;
    tern__image_reader reader;
    tern__resizer resizer;
    tern_image image, map;
    uint8_t *resized; /* (H, W, 3) */
} worker;

tern_cityscapes_opts tern_cityscapes_defaults(void)
{
    return (tern_cityscapes_opts){
        .size = sizeof(tern_cityscapes_opts), .ids = TERN__COUNT(usual_ids), .classes = 19};
}

/* ---- a sample ---- */

static int cityscapes_load(worker *w, const char *path, const tern_image_opts *opts, tern_image *image,
                           tern_error *err)
{
    int status = tern__image_begin(&w->reader, path, opts, image, GET, err);
    if (!status) status = tern__image_read(&w->reader, path, opts, 0, image->height, image, GET, err);
    if (status || image->sample == TERN_IMAGE_U8) return status;
    return tern__error_set(err, GET, TERN_E_UNSUPPORTED, "%s: expected 8 bits per sample", path);
}

static int cityscapes_check_sizes(const cityscapes *c, const worker *w, int64_t index, tern_error *err)
{
    const char *path = c->images.file[index].path;
    const int64_t *shape = c->base.target_shape;
    const tern_image *p = &w->image, *m = &w->map;
    if (p->height != m->height || p->width != m->width)
        return tern__error_set(err, GET, TERN_E_SHAPE, "%s is %lld x %lld, but its map %s is %lld x %lld",
                               path, (long long)p->height, (long long)p->width, c->maps[index],
                               (long long)m->height, (long long)m->width);
    if (!c->resize[0] && (p->height != shape[0] || p->width != shape[1]))
        return tern__error_set(err, GET, TERN_E_SHAPE, "%s is %lld x %lld, expected %lld x %lld like %s",
                               path, (long long)p->height, (long long)p->width, (long long)shape[0],
                               (long long)shape[1], c->images.file[0].path);
    return TERN_OK;
}

/* Replaces ids by classes, in place. */
static int translate(const cityscapes *c, const tern_image *map, const char *path, tern_error *err)
{
    uint8_t *id = map->data;
    for (int64_t i = 0; i < map->height * map->width; i++) {
        if (id[i] >= c->ids)
            return tern__error_set(err, GET, TERN_E_RANGE,
                                   "%s: id %d at row %lld, column %lld, expected [0, %d]", path, id[i],
                                   (long long)(i / map->width), (long long)(i % map->width), c->ids - 1);
        id[i] = c->train_ids[id[i]];
    }
    return TERN_OK;
}

static int put_resized(const cityscapes *c, worker *w, float *x, uint8_t *y, tern_error *err)
{
    const int64_t *size = c->resize;
    const tern__resize how = {.cut = {0, 0, w->image.height, w->image.width},
                              .size = {size[0], size[1]},
                              .part = {0, 0, size[0], size[1]}};
    if (!w->resized) w->resized = tern__alloc((size_t)(size[0] * size[1]) * 3, GET, err);
    if (!w->resized ||
        tern__resize_u8(&w->resizer, w->image.data, w->image.width, 3, &how, w->resized, GET, err) ||
        tern__resize_nearest(&w->resizer, w->map.data, w->map.width, 1, &how, y, GET, err))
        return TERN_E_MEMORY;
    tern__image_floats(w->resized, 3, size[0] * size[1], x);
    return TERN_OK;
}

static int cityscapes_put(const cityscapes *c, worker *w, float *x, uint8_t *y, tern_error *err)
{
    int64_t pixels = w->map.height * w->map.width;
    if (c->resize[0]) return put_resized(c, w, x, y, err);
    tern__image_floats(w->image.data, 3, pixels, x);
    memcpy(y, w->map.data, (size_t)pixels);
    return TERN_OK;
}

static int read_sample(const cityscapes *c, worker *w, int64_t index, float *x, uint8_t *y, tern_error *err)
{
    int status = cityscapes_load(w, c->images.file[index].path, &c->image, &w->image, err);
    if (!status) status = cityscapes_load(w, c->maps[index], &c->map, &w->map, err);
    if (!status) status = cityscapes_check_sizes(c, w, index, err);
    if (!status) status = translate(c, &w->map, c->maps[index], err);
    return status ? status : cityscapes_put(c, w, x, y, err);
}

static int cityscapes_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                          tern_error *err)
{
    (void)epoch;
    cityscapes *c = (cityscapes *)base;
    worker *w = tern__scratch_pool_take(&c->pool, sizeof(*w), GET, err);
    if (!w) return TERN_E_MEMORY;
    int status = read_sample(c, w, index, x, y, err);
    tern__scratch_pool_give(&c->pool, w);
    return status;
}

static void cityscapes_free(tern_dataset *base)
{
    cityscapes *c = (cityscapes *)base;
    for (worker *w; (w = tern__scratch_pool_close(&c->pool)); tern__free(w)) {
        tern__image_reader_free(&w->reader);
        tern__resizer_free(&w->resizer);
        tern_image_free(&w->image);
        tern_image_free(&w->map);
        tern__free(w->resized);
    }
    for (int64_t i = 0; c->maps && i < c->images.count; i++) tern__free(c->maps[i]);
    tern__free(c->maps);
    tern__files_free(&c->images);
    tern__free(c);
}

/* ---- open ---- */

static bool is_image(const char *name)
{
    return tern__ends_with(name, IMAGE_END);
}

static char *cityscapes_join(const char *root, const char *kind, const char *split, const char *rest,
                             size_t length, const char *end, tern_error *err)
{
    size_t bytes = strlen(root) + strlen(kind) + strlen(split) + length + strlen(end) + 3;
    char *path = tern__alloc(bytes, FUNC, err);
    if (path) snprintf(path, bytes, "%s/%s/%s%.*s%s", root, kind, split, (int)length, rest, end);
    return path;
}

/* The map of CITY/NAME_leftImg8bit.png is CITY/NAME_gtFine_labelIds.png. `base` is the length of the images'
 * folder in their paths. */
static int find_maps(cityscapes *c, const char *root, const char *split, size_t base, tern_error *err)
{
    c->maps = tern__alloc((size_t)c->images.count * sizeof(char *), FUNC, err);
    if (!c->maps) return TERN_E_MEMORY;
    for (int64_t i = 0; i < c->images.count; i++) {
        const char *rest = c->images.file[i].path + base;
        c->maps[i] = cityscapes_join(root, MAPS, split, rest, strlen(rest) - strlen(IMAGE_END), MAP_END, err);
        if (!c->maps[i]) return TERN_E_MEMORY;
        tern_error why = {0};
        int fd = tern__file_open(c->maps[i], O_RDONLY, 0, NULL, FUNC, &why);
        if (fd < 0)
            return tern__error_set(err, FUNC, TERN_E_IO, "%s has no map: %s", c->images.file[i].path,
                                   why.text);
        close(fd);
    }
    return TERN_OK;
}

static int find_files(cityscapes *c, const char *root, const char *split, tern_error *err)
{
    char *folder = cityscapes_join(root, IMAGES, split, "", 0, "", err);
    int status = folder ? tern__files_walk(&c->images, folder, is_image, FUNC, err) : TERN_E_MEMORY;
    if (!status && !c->images.count)
        status = tern__error_set(err, FUNC, TERN_E_IO, "there is no CITY/NAME%s in %s", IMAGE_END, folder);
    if (!status) status = find_maps(c, root, split, strlen(folder), err);
    tern__free(folder);
    return status;
}

/* Without `resize`, samples have the size of the first image. */
static int find_size(cityscapes *c, tern_error *err)
{
    tern_image first = {0};
    int64_t size[2] = {c->resize[0], c->resize[1]};
    if (!size[0]) {
        tern__image_reader reader = {0};
        int status = tern__image_begin(&reader, c->images.file[0].path, &c->image, &first, FUNC, err);
        tern__image_reader_free(&reader);
        if (status) return status;
        size[0] = first.height;
        size[1] = first.width;
    }
    for (int d = 0; d < 2; d++) c->base.shape[1 + d] = c->base.target_shape[d] = size[d];
    return TERN_OK;
}

static int cityscapes_check_opts(const tern_cityscapes_opts *o, const uint8_t *train_ids, tern_error *err)
{
    if (o->ids < 1 || o->ids > (o->train_ids ? MAX_IDS : (int)TERN__COUNT(usual_ids)))
        return tern__error_set(err, FUNC, TERN_E_RANGE, "ids is %d, expected [1, %d]", o->ids,
                               o->train_ids ? MAX_IDS : (int)TERN__COUNT(usual_ids));
    for (int i = 0; i < o->ids; i++)
        if (train_ids[i] >= o->classes && train_ids[i] != IGNORED)
            return tern__error_set(err, FUNC, TERN_E_RANGE, "train_ids[%d] is %d, expected [0, %d] or 255", i,
                                   train_ids[i], o->classes - 1);
    for (int d = 0; d < 2; d++)
        if (o->resize[d] < 0 || o->resize[d] > MAX_SIDE || !o->resize[0] != !o->resize[1])
            return tern__error_set(err, FUNC, TERN_E_RANGE, "resize is %lld, %lld, expected [1, %d], or 0, 0",
                                   (long long)o->resize[0], (long long)o->resize[1], MAX_SIDE);
    return TERN_OK;
}

static cityscapes *cityscapes_alloc(const tern_cityscapes_opts *o, const uint8_t *train_ids, tern_error *err)
{
    cityscapes *c = tern__alloc(sizeof(*c), FUNC, err);
    if (!c) return NULL;
    *c = (cityscapes){.base = {.ndim = 3,
                               .shape = {3},
                               .target_ndim = 2,
                               .target_dtype = TERN_U8,
                               .classes = o->classes,
                               .get = cityscapes_get,
                               .free = cityscapes_free},
                      .resize = {o->resize[0], o->resize[1]},
                      .ids = o->ids,
                      .image = tern_image_defaults(),
                      .map = tern_image_defaults(),
                      .pool = TERN__SCRATCH_POOL_INITIALIZER};
    memcpy(c->train_ids, train_ids, (size_t)o->ids);
    c->image.channels = 3;
    c->map.indices = true;
    return c;
}

tern_dataset *tern_cityscapes_open(const char *root, const char *split, const tern_cityscapes_opts *user,
                                   tern_error *err)
{
    tern_cityscapes_opts opts = tern_cityscapes_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err)) return NULL;
    const uint8_t *train_ids = opts.train_ids ? opts.train_ids : usual_ids;
    if (cityscapes_check_opts(&opts, train_ids, err) || tern__need(root, "root", FUNC, err) ||
        tern__need(split, "split", FUNC, err))
        return NULL;
    cityscapes *c = cityscapes_alloc(&opts, train_ids, err);
    if (!c) return NULL;
    if (find_files(c, root, split, err) || find_size(c, err)) {
        cityscapes_free(&c->base);
        return NULL;
    }
    c->base.length = c->images.count;
    return &c->base;
}

const char *tern_cityscapes_path(const tern_dataset *dataset, int64_t index)
{
    const tern_dataset *origin = tern__dataset_origin(dataset, &index);
    if (!origin || origin->get != cityscapes_get) return NULL;
    const cityscapes *c = (const cityscapes *)origin;
    return index < 0 || index >= c->base.length ? NULL : c->images.file[index].path;
}
