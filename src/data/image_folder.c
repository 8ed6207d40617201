/* image_folder.c - a dataset with one folder of images per class. An image is decoded when it is asked for.
 */
#include <tern/image_data.h>

#include "base/opts.h"
#include "data/draw.h"
#include "data/files.h"
#include "data/image_floats.h"
#include "data/dataset.h"
#include "data/scratch_pool.h"
#include "image/reader.h"
#include "image/resize.h"

#include <math.h>
#include <string.h>

static const char FUNC[] = "tern_image_folder_open", GET[] = "tern_image_folder_get";

enum { ATTEMPTS = 10, FIRST_NUMBER = 64, MAX_SIDE = 1 << 15 };

typedef struct image_folder {
    tern_dataset base;
    tern_image_folder_opts opts;
    tern_image_opts loading;
    tern__files classes, files;
    tern__scratch_pool pool; /* of workers */
} image_folder;

/* The scratch memory of one call of get. */
typedef struct worker {
    tern__scratch_entry pooled;
    tern__image_reader reader;
    tern__resizer resizer;
    tern_image image;
    uint8_t *sample; /* (H, W, C) */
} worker;

tern_image_folder_opts tern_image_folder_defaults(void)
{
    return (tern_image_folder_opts){.size = sizeof(tern_image_folder_opts),
                                    .channels = 3,
                                    .crop = {224, 224},
                                    .resize = 256,
                                    .scale = {0.08, 1},
                                    .ratio = {3.0 / 4, 4.0 / 3}};
}

/* ---- crop and size ---- */

/* room / 2, rounded as Python does: a half goes to the even number. */
static int64_t folder_centre(int64_t room)
{
    return (room + (room >> 1 & 1)) / 2;
}

static tern__resize cut_centre(const tern_image_folder_opts *o, int64_t height, int64_t width)
{
    int64_t size[2] = {o->resize, o->resize};
    if (height > width) size[0] = (int64_t)((double)(o->resize * height) / (double)width);
    if (width > height) size[1] = (int64_t)((double)(o->resize * width) / (double)height);
    return (tern__resize){.cut = {0, 0, height, width},
                          .size = {size[0], size[1]},
                          .part = {folder_centre(size[0] - o->crop[0]), folder_centre(size[1] - o->crop[1]),
                                   o->crop[0], o->crop[1]}};
}

/* The fallback when no crop of the wanted area and ratio fits: the middle of the image, with a ratio in the
 * range. */
static tern__resize_window cut_middle(const double *ratio, int64_t height, int64_t width)
{
    double own = (double)width / (double)height;
    tern__resize_window cut = {0, 0, height, width};
    if (own < ratio[0]) cut.height = (int64_t)nearbyint((double)width / ratio[0]);
    if (own > ratio[1]) cut.width = (int64_t)nearbyint((double)height * ratio[1]);
    cut.top = (height - cut.height) / 2;
    cut.left = (width - cut.width) / 2;
    return cut;
}

static tern__resize_window cut_random(const tern_image_folder_opts *o, uint64_t key, int64_t height,
                                      int64_t width)
{
    for (uint64_t i = FIRST_NUMBER; i < FIRST_NUMBER + 4 * ATTEMPTS; i += 4) {
        double area = (double)(height * width) *
                      tern__draw_between(tern__draw_number(key, i), o->scale[0], o->scale[1]);
        double ratio =
            exp(tern__draw_between(tern__draw_number(key, i + 1), log(o->ratio[0]), log(o->ratio[1])));
        tern__resize_window cut = {.height = (int64_t)nearbyint(sqrt(area / ratio)),
                                   .width = (int64_t)nearbyint(sqrt(area * ratio))};
        if (cut.height < 1 || cut.width < 1 || cut.height > height || cut.width > width) continue;
        cut.top = tern__draw_place(tern__draw_number(key, i + 2), height - cut.height + 1);
        cut.left = tern__draw_place(tern__draw_number(key, i + 3), width - cut.width + 1);
        return cut;
    }
    return cut_middle(o->ratio, height, width);
}

static tern__resize folder_choose(const image_folder *f, int64_t epoch, int64_t index,
                                  const tern_image *image)
{
    const tern_image_folder_opts *o = &f->opts;
    if (!o->random) return cut_centre(o, image->height, image->width);
    uint64_t key = tern__draw_key(o->seed, epoch, index);
    return (tern__resize){.cut = cut_random(o, key, image->height, image->width),
                          .size = {o->crop[0], o->crop[1]},
                          .part = {0, 0, o->crop[0], o->crop[1]}};
}

/* ---- a sample ---- */

/* Returns the factor, a power of 2, by which a JPEG may be decoded smaller before the crop is resized. */
static int64_t folder_part_of(const tern__resize *how)
{
    int64_t part = 1;
    while (part < 8 && how->cut.height >= 4 * part * how->size[0] &&
           how->cut.width >= 4 * part * how->size[1])
        part *= 2;
    return part;
}

/* Reads the header again and asks for a smaller image, if that is large enough. */
static int begin_smaller(const image_folder *f, worker *w, const char *path, int64_t part, tern_error *err)
{
    tern_image_opts loading = f->loading;
    loading.least[0] = (w->image.height + part - 1) / part;
    loading.least[1] = (w->image.width + part - 1) / part;
    return part > 1 ? tern__image_begin(&w->reader, path, &loading, &w->image, GET, err) : TERN_OK;
}

static int folder_begin(const image_folder *f, worker *w, int64_t epoch, int64_t index, tern__resize *how,
                        tern_error *err)
{
    const char *path = f->files.file[index].path;
    int status = tern__image_begin(&w->reader, path, &f->loading, &w->image, GET, err);
    if (!status && w->image.sample != TERN_IMAGE_U8)
        status = tern__error_set(err, GET, TERN_E_UNSUPPORTED, "%s: expected 8 bits per sample", path);
    if (status) return status;
    *how = folder_choose(f, epoch, index, &w->image);
    if (!f->opts.draft) return TERN_OK;
    status = begin_smaller(f, w, path, folder_part_of(how), err);
    if (!status) *how = folder_choose(f, epoch, index, &w->image);
    return status;
}

static int read_sample(const image_folder *f, worker *w, int64_t epoch, int64_t index, float *x,
                       tern_error *err)
{
    const char *path = f->files.file[index].path;
    tern__resize how;
    int status = folder_begin(f, w, epoch, index, &how, err);
    if (!status)
        status =
            tern__image_read(&w->reader, path, &f->loading, how.cut.top, how.cut.height, &w->image, GET, err);
    if (!status)
        status = tern__resize_u8(&w->resizer, w->image.data, w->image.width, f->opts.channels, &how,
                                 w->sample, GET, err);
    if (!status) tern__image_floats(w->sample, f->opts.channels, f->opts.crop[0] * f->opts.crop[1], x);
    return status;
}

static int image_folder_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                            tern_error *err)
{
    image_folder *f = (image_folder *)base;
    size_t bytes = (size_t)f->opts.channels * (size_t)f->opts.crop[0] * (size_t)f->opts.crop[1];
    worker *w = tern__scratch_pool_take(&f->pool, sizeof(*w), GET, err);
    if (!w) return TERN_E_MEMORY;
    if (!w->sample) w->sample = tern__alloc(bytes, GET, err);
    int status = w->sample ? read_sample(f, w, epoch, index, x, err) : TERN_E_MEMORY;
    tern__scratch_pool_give(&f->pool, w);
    *(int64_t *)y = f->files.file[index].label;
    return status;
}

static void image_folder_free(tern_dataset *base)
{
    image_folder *f = (image_folder *)base;
    for (worker *w; (w = tern__scratch_pool_close(&f->pool)); tern__free(w)) {
        tern__image_reader_free(&w->reader);
        tern__resizer_free(&w->resizer);
        tern_image_free(&w->image);
        tern__free(w->sample);
    }
    tern__files_free(&f->classes);
    tern__files_free(&f->files);
    tern__free(f);
}

/* ---- open ---- */

static bool is_image(const char *name)
{
    static const char *const ends[] = {".jpg", ".jpeg", ".png", ".tif", ".tiff",
                                       ".bmp", ".pgm",  ".ppm", ".webp"};
    for (size_t i = 0; i < TERN__COUNT(ends); i++)
        if (tern__ends_with(name, ends[i])) return true;
    return false;
}

static int find_files(image_folder *f, const char *root, tern_error *err)
{
    int status = tern__folders_list(&f->classes, root, FUNC, err);
    if (!status && (!f->classes.count || f->classes.count > INT32_MAX))
        return tern__error_set(err, FUNC, TERN_E_IO, "%s has no subfolders, expected one per class", root);
    for (int64_t c = 0; c < f->classes.count && !status; c++) {
        int64_t from = f->files.count;
        status = tern__files_walk(&f->files, f->classes.file[c].path, is_image, FUNC, err);
        if (!status && f->files.count == from)
            return tern__error_set(err, FUNC, TERN_E_IO, "there is no image in %s", f->classes.file[c].path);
        for (int64_t i = from; i < f->files.count; i++) f->files.file[i].label = c;
    }
    return status;
}

static int check_range(const char *name, const double *range, double most, tern_error *err)
{
    if (range[0] > 0 && range[0] <= range[1] && range[1] <= most) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_RANGE, "%s is [%g, %g], expected 0 < low <= high <= %g", name,
                           range[0], range[1], most);
}

static int folder_check_opts(const tern_image_folder_opts *o, tern_error *err)
{
    if (o->channels != 1 && o->channels != 3)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "channels is %d, expected 1 or 3", o->channels);
    for (int d = 0; d < 2; d++)
        if (o->crop[d] < 1 || o->crop[d] > MAX_SIDE)
            return tern__error_set(err, FUNC, TERN_E_RANGE, "crop[%d] is %lld, expected [1, %d]", d,
                                   (long long)o->crop[d], MAX_SIDE);
    int64_t least = TERN__MAX(o->crop[0], o->crop[1]);
    if (!o->random && (o->resize < least || o->resize > MAX_SIDE))
        return tern__error_set(err, FUNC, TERN_E_RANGE, "resize is %lld, expected [%lld, %d]",
                               (long long)o->resize, (long long)least, MAX_SIDE);
    int status = check_range("scale", o->scale, 1, err);
    return status ? status : check_range("ratio", o->ratio, 64, err);
}

static image_folder *image_folder_alloc(const tern_image_folder_opts *opts, tern_error *err)
{
    image_folder *f = tern__alloc(sizeof(*f), FUNC, err);
    if (!f) return NULL;
    *f = (image_folder){.base = {.ndim = 3,
                                 .shape = {opts->channels, opts->crop[0], opts->crop[1]},
                                 .get = image_folder_get,
                                 .free = image_folder_free},
                        .opts = *opts,
                        .loading = tern_image_defaults(),
                        .pool = TERN__SCRATCH_POOL_INITIALIZER};
    f->loading.channels = opts->channels;
    return f;
}

tern_dataset *tern_image_folder_open(const char *root, const tern_image_folder_opts *user, tern_error *err)
{
    tern_image_folder_opts opts = tern_image_folder_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err) ||
        folder_check_opts(&opts, err) || tern__need(root, "root", FUNC, err))
        return NULL;
    image_folder *f = image_folder_alloc(&opts, err);
    if (!f) return NULL;
    if (find_files(f, root, err)) {
        image_folder_free(&f->base);
        return NULL;
    }
    f->base.length = f->files.count;
    f->base.classes = (int)f->classes.count;
    return &f->base;
}

/* Returns the image folder behind a dataset, and maps *index; NULL if there is none. */
static const image_folder *folder_of(const tern_dataset *dataset, int64_t *index)
{
    const tern_dataset *origin = tern__dataset_origin(dataset, index);
    return origin && origin->get == image_folder_get ? (const image_folder *)origin : NULL;
}

const char *tern_image_folder_class(const tern_dataset *folder, int label)
{
    int64_t any = 0;
    const image_folder *f = folder_of(folder, &any);
    if (!f || label < 0 || label >= f->base.classes) return NULL;
    return f->classes.file[label].path + f->classes.file[label].folder + 1;
}

const char *tern_image_folder_path(const tern_dataset *folder, int64_t index)
{
    const image_folder *f = folder_of(folder, &index);
    return !f || index < 0 || index >= f->base.length ? NULL : f->files.file[index].path;
}
