/* train_segmentation.c - trains DeepLabV3 on images and label maps in the layout of Cityscapes.
 *
 *     build/examples/blue_marble blue_marble
 *     tern run -n 2 build/examples/train_segmentation
 *
 * trains on the earth from space (blue_marble.c). It reaches an IoU of ocean 0.987, land 0.954, lake 0.294,
 * ice 0.972, mean 0.802; colours alone reach 0.990, 0.963, 0.048, 0.972, mean 0.743. For streets, in a folder
 * with leftImg8bit and gtFine:
 *
 *     tern run -n 8 build/examples/train_segmentation --dataset cityscapes --data cityscapes \
 *         --arch resnet50 --crop 769 --scale-min 0.5 --scale-max 2 --repeat 1 --uniform=off \
 *         --balance 0 --aux 0.5 --lr 0.01 --epochs 200 --milestones 150,180
 *
 * Prints the IoU of every class over all pixels of `val`. Writes curves for TensorBoard, checkpoints for
 * --resume and torch.load, and train_segmentation.png. */
#include "trainer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLASSES_MAX 19
#define IGNORED     255
#define SHOWN       4  /* samples in the gallery ..      */
#define LOOKED_AT   16 /* .. chosen from so many samples */

static const tern_legend earth_labels[] = {
    {"ocean", {20, 60, 130}}, {"land", {70, 120, 50}}, {"lake", {230, 60, 50}}, {"ice", {235, 240, 245}}};
static const tern_legend street_labels[CLASSES_MAX] = {{"road", {128, 64, 128}},
                                                       {"sidewalk", {244, 35, 232}},
                                                       {"building", {70, 70, 70}},
                                                       {"wall", {102, 102, 156}},
                                                       {"fence", {190, 153, 153}},
                                                       {"pole", {153, 153, 153}},
                                                       {"traffic light", {250, 170, 30}},
                                                       {"traffic sign", {220, 220, 0}},
                                                       {"vegetation", {107, 142, 35}},
                                                       {"terrain", {152, 251, 152}},
                                                       {"sky", {70, 130, 180}},
                                                       {"person", {220, 20, 60}},
                                                       {"rider", {255, 0, 0}},
                                                       {"car", {0, 0, 142}},
                                                       {"truck", {0, 0, 70}},
                                                       {"bus", {0, 60, 100}},
                                                       {"train", {0, 80, 100}},
                                                       {"motorcycle", {0, 0, 230}},
                                                       {"bicycle", {119, 11, 32}}};
/* The mean and standard deviation of ImageNet. */
static const float mean[] = {0.485f, 0.456f, 0.406f}, deviation[] = {0.229f, 0.224f, 0.225f};

enum { EARTH, STREETS };
enum { LIGHT, RESNET18, RESNET50, RESNET101 };
static const char *const models[] = {"DeepLabV3, light", "DeepLabV3, ResNet-18", "DeepLabV3, ResNet-50",
                                     "DeepLabV3, ResNet-101"};

typedef struct segmentation {
    int dataset, arch;
    int64_t crop, repeat;
    bool uniform;
    double scale[2], balance, aux;
    const char *dir;
    bool is_ours; /* `dir` is the default folder of blue_marble */
    const tern_legend *labels;
    int classes;
    tern_dataset *files[2], *sampled, *train, *test;
    float weights[CLASSES_MAX]; /* of the classes in the loss                 */
    tern_tensor *second;        /* the auxiliary classifier's scores, or NULL */
    tern_confusion *seen;
} segmentation;

/* ---- data ---- */

static tern_dataset *open_files(segmentation *g, const char *split, tern_error *err)
{
    static const uint8_t as_they_are[] = {0, 1, 2, 3};
    tern_cityscapes_opts opts = tern_cityscapes_defaults();
    if (g->dataset == EARTH) {
        opts.train_ids = as_they_are;
        opts.ids = opts.classes = g->classes;
    }
    if (err->code) return NULL;
    tern_dataset *set = tern_cityscapes_open(g->dir, split, &opts, err);
    size_t used = strlen(err->text);
    if (!set && g->is_ours && err->native == ENOENT)
        snprintf(err->text + used, sizeof(err->text) - used, "; build/examples/blue_marble %s makes it",
                 g->dir);
    return set;
}

/* Returns counts[i][c], the pixels of class c in sample i; the caller frees it. NULL if memory is short. */
static int64_t (*count_pixels(const tern_dataset *set, tern_error *err))[256]
{
    int64_t pixels = set->target_shape[0] * set->target_shape[1];
    int64_t(*counts)[256] = calloc((size_t)set->length, sizeof(*counts));
    float *x = malloc((size_t)pixels * 3 * sizeof(*x));
    uint8_t *map = malloc((size_t)pixels);
    for (int64_t i = 0; counts && x && map && i < set->length; i++) {
        if (set->get(set, 0, i, x, map, err)) break;
        for (int64_t k = 0; k < pixels; k++) counts[i][map[k]]++;
    }
    free(map);
    free(x);
    return counts;
}

/* Chooses `count` samples in proportion to their pixels of class c: places `count` points at equal distances
 * along all pixels of the class and takes the sample in which each point lies. */
static void spread(int64_t (*counts)[256], int64_t length, int c, int64_t count, int64_t *indices)
{
    int64_t all = 0, before = 0, at = 0;
    for (int64_t i = 0; i < length; i++) all += counts[i][c];
    for (int64_t i = 0; i < count; i++) {
        while (at + 1 < length && before + counts[at][c] <= (2 * i + 1) * all / (2 * count))
            before += counts[at++][c];
        indices[i] = all ? at : i % length;
    }
}

/* Sets the weight of each class to its share of the pixels to the power of -balance, so that rare classes
 * count more; 1 if the class is absent. */
static void weigh_classes(segmentation *g, int64_t (*counts)[256], const int64_t *indices, int64_t count,
                          tern_error *err)
{
    double of[CLASSES_MAX] = {0}, sum = 0;
    for (int64_t i = 0; i < count; i++)
        for (int c = 0; c < g->classes; c++) of[c] += (double)counts[indices[i]][c];
    for (int c = 0; c < g->classes; c++) sum += of[c];
    if (sum == 0)
        tern_error_set(err, "train_segmentation", TERN_E_INVALID,
                       "no pixel of a class in gtFine/train of %s: expected the labels of --dataset %s",
                       g->dir, g->dataset == EARTH ? "blue-marble" : "cityscapes");
    for (int c = 0; c < g->classes; c++) g->weights[c] = of[c] > 0 ? (float)pow(of[c] / sum, -g->balance) : 1;
}

/* Chooses the samples of an epoch's crops: each sample equally often or, with --uniform, equally many samples
 * for each class that they show. */
static tern_dataset *sample(segmentation *g, const tern_dataset *set, tern_error *err)
{
    if (err->code) return NULL;
    bool looks = g->uniform || g->balance > 0;
    int64_t count = set->length * g->repeat, *indices = malloc((size_t)count * sizeof(*indices));
    int64_t(*counts)[256] = looks ? count_pixels(set, err) : NULL;
    for (int64_t i = 0; indices && i < count; i++) indices[i] = i % set->length;
    for (int c = 0; indices && counts && g->uniform && c < g->classes; c++) {
        int64_t first = count * c / g->classes, last = count * (c + 1) / g->classes;
        spread(counts, set->length, c, last - first, indices + first);
    }
    for (int c = 0; c < g->classes; c++) g->weights[c] = 1;
    if (indices && counts) weigh_classes(g, counts, indices, count, err);
    tern_dataset *sampled = indices && !err->code ? tern_subset_new(set, indices, count, err) : NULL;
    free(counts);
    free(indices);
    return sampled;
}

static tern_dataset *augment(const segmentation *g, const tern_dataset *set, bool train, const flags *f,
                             tern_error *err)
{
    tern_augment_opts opts = tern_augment_defaults();
    if (train) {
        opts.crop[0] = opts.crop[1] = g->crop;
        memcpy(opts.scale, g->scale, sizeof(opts.scale));
        opts.flip = 0.5;
        opts.flip_vertical = g->dataset == EARTH ? 0.5 : 0;
    }
    opts.channels = 3;
    memcpy(opts.mean, mean, sizeof(mean));
    memcpy(opts.std, deviation, sizeof(deviation));
    opts.seed = (uint64_t)f->seed;
    return err->code ? NULL : tern_augment_new(set, &opts, err);
}

static void open_data(segmentation *g, const flags *f, tern_error *err)
{
    g->labels = g->dataset == EARTH ? earth_labels : street_labels;
    g->classes = g->dataset == EARTH ? 4 : CLASSES_MAX;
    g->is_ours = !f->data && g->dataset == EARTH;
    g->dir = f->data ? f->data : g->dataset == EARTH ? "blue_marble" : "cityscapes";
    g->files[0] = open_files(g, "train", err);
    g->files[1] = open_files(g, "val", err);
    g->sampled = sample(g, g->files[0], err);
    g->train = augment(g, g->sampled, true, f, err);
    g->test = augment(g, g->files[1], false, f, err);
}

static void close_data(segmentation *g)
{
    tern_dataset_free(g->test);
    tern_dataset_free(g->train);
    tern_dataset_free(g->sampled);
    tern_dataset_free(g->files[1]);
    tern_dataset_free(g->files[0]);
}

/* ---- the network ---- */

/* The light network is narrow and keeps a high resolution, for objects of a few pixels: it does not halve the
 * image before the second stage, and has features of half the image size and a pyramid of small dilations. */
static tern_module *new_net(const segmentation *g, int64_t output_stride, tern_rng *rng, tern_error *err)
{
    static const int depths[] = {18, 18, 50, 101};
    tern_deeplabv3_opts opts = tern_deeplabv3_defaults();
    opts.depth = depths[g->arch];
    opts.classes = g->classes;
    opts.aux = g->aux > 0;
    if (g->arch == LIGHT) {
        opts.small_stem = true;
        opts.output_stride = 2;
        opts.head_channels = 64;
        opts.dropout = 0.1;
        memcpy(opts.channels, (int64_t[]){16, 32, 64, 64}, sizeof(opts.channels));
        memcpy(opts.rates, (int64_t[]){6, 12, 18}, sizeof(opts.rates));
    }
    if (output_stride) opts.output_stride = (int)output_stride;
    return err->code ? NULL : tern_deeplabv3_new(&opts, rng, err);
}

static tern_tensor *cross_entropy(const segmentation *g, tern_scope *s, tern_tensor *scores, tern_tensor *map)
{
    tern_cross_entropy_opts opts = tern_cross_entropy_defaults();
    opts.ignore_index = IGNORED;
    opts.weight = tern_tensor_from(s, g->weights, TERN_F32, 1, (int64_t[]){g->classes});
    return tern_cross_entropy(s, scores, map, &opts);
}

static tern_tensor *forward(trainer *t, const tern_batch *b)
{
    segmentation *g = t->task->self;
    return tern_deeplabv3_forward(t->task->net, t->s, b->x, g->aux > 0 ? &g->second : NULL);
}

static tern_tensor *loss(trainer *t, tern_tensor *scores, const tern_batch *b)
{
    const segmentation *g = t->task->self;
    tern_tensor *first = cross_entropy(g, t->s, scores, b->y);
    if (!g->second) return first;
    tern_tensor *share = tern_full(t->s, TERN_F32, 0, NULL, g->aux);
    return tern_add(t->s, first, tern_mul(t->s, cross_entropy(g, t->s, g->second, b->y), share));
}

/* ---- evaluation: exact, each pixel once over all ranks ---- */

static void report(trainer *t, const segmentation *g, double test_loss)
{
    trainer_number(t, "loss/test", test_loss);
    trainer_number(t, "mIoU", tern_confusion_mean_iou(g->seen));
    for (int c = 0; c < g->classes; c++) {
        char name[48];
        snprintf(name, sizeof(name), "iou/%s", g->labels[c].name);
        trainer_number(t, name, tern_confusion_iou(g->seen, c));
    }
}

static void evaluate(trainer *t, tern_error *err)
{
    segmentation *g = t->task->self;
    double sums[2] = {0}; /* losses, and their number */
    tern_batch b;
    while (trainer_test_next(t, &b, err)) {
        tern_tensor *scores = tern_forward(t->task->net, t->s, b.x);
        tern_confusion_update(g->seen, t->s, scores, b.y);
        sums[0] += tern_item(cross_entropy(g, t->s, scores, b.y)) * (double)b.count;
        sums[1] += (double)b.count;
        tern_scope_end(t->s, err);
    }
    tern_all_reduce(t->world, sums, 2, TERN_F64, TERN_SUM, err);
    tern_confusion_reduce(g->seen, err);
    if (!err->code) report(t, g, sums[0] / sums[1]);
}

/* ---- images ---- */

/* Returns how many classes the label map of a sample has. */
static int richness(const tern_dataset *set, int64_t index, float *x, uint8_t *map, tern_error *err)
{
    bool there[256] = {false};
    int count = 0;
    if (set->get(set, 0, index, x, map, err)) return 0;
    for (int64_t k = 0; k < set->target_shape[0] * set->target_shape[1]; k++) there[map[k]] = true;
    for (int c = 0; c < IGNORED; c++) count += there[c];
    return count;
}

/* Chooses the samples with the most classes among the first LOOKED_AT. Returns how many. */
static int choose(const tern_dataset *set, int64_t chosen[SHOWN], tern_error *err)
{
    int rich[LOOKED_AT], looked = (int)(set->length < LOOKED_AT ? set->length : LOOKED_AT), count = 0;
    int64_t pixels = set->target_shape[0] * set->target_shape[1];
    float *x = malloc((size_t)pixels * 3 * sizeof(*x));
    uint8_t *map = malloc((size_t)pixels);
    for (int i = 0; i < looked; i++) rich[i] = x && map ? richness(set, i, x, map, err) : 0;
    for (; count < SHOWN && count < looked; count++) {
        int best = 0;
        for (int i = 1; i < looked; i++)
            if (rich[i] > rich[best]) best = i;
        chosen[count] = best;
        rich[best] = -1;
    }
    free(map);
    free(x);
    return count;
}

static void show_map(const segmentation *g, gallery *a, const uint8_t *map, int rows, int columns,
                     const char *caption)
{
    gallery_map(gallery_add(a, rows, columns, 3, false, "%s", caption), map, (int64_t)rows * columns,
                g->labels, g->classes);
}

static void show_sample(trainer *t, tern_scope *s, gallery *a, const tern_batch *b, tern_error *err)
{
    const segmentation *g = t->task->self;
    const int64_t *shape = g->test->shape;
    int rows = (int)shape[1], columns = (int)shape[2];
    size_t pixels = (size_t)rows * (size_t)columns;
    float *x = malloc(3 * pixels * sizeof(*x));
    int64_t *best = malloc(pixels * sizeof(*best));
    uint8_t *map = malloc(pixels);
    tern_tensor *classes = tern_argmax(s, tern_forward(t->task->net, s, b->x), 1, false);
    if (x && best && map && classes && !tern_tensor_read(b->x, x, 3 * pixels * sizeof(*x), err) &&
        !tern_tensor_read(b->y, map, pixels, err) &&
        !tern_tensor_read(classes, best, pixels * sizeof(*best), err)) {
        gallery_image(gallery_add(a, rows, columns, 3, false, "image"), x, rows, columns, 3, mean, deviation);
        show_map(g, a, map, rows, columns, "label");
        for (size_t i = 0; i < pixels; i++) map[i] = (uint8_t)best[i];
        show_map(g, a, map, rows, columns, "prediction");
    }
    free(map);
    free(best);
    free(x);
}

static void show(trainer *t, tern_scope *s, gallery *a, tern_error *err)
{
    const segmentation *g = t->task->self;
    int64_t chosen[SHOWN];
    const char *names[CLASSES_MAX];
    int count = choose(g->test, chosen, err);
    tern_dataset *few = tern_subset_new(g->test, chosen, count, err);
    tern_loader *loader = err->code ? NULL : tern_loader_new(few, NULL, err);
    tern_batch b;
    a->across = 3;
    a->legend = g->labels;
    a->legend_count = g->classes;
    for (int c = 0; c < g->classes; c++) names[c] = g->labels[c].name;
    gallery_confusion(a, g->seen, names, g->classes);
    while (!err->code && tern_loader_next(loader, s, &b)) {
        show_sample(t, s, a, &b, err);
        tern_scope_end(s, err);
    }
    tern_loader_free(loader);
    tern_dataset_free(few);
}

int main(int argc, char **argv)
{
    int64_t output_stride = 0;
    segmentation g = {.crop = 257, .repeat = 6, .scale = {1, 1.5}, .uniform = true, .balance = 0.5};
    flags f = flags_defaults("train_segmentation", "Trains DeepLabV3 to classify each pixel.");
    f.batch = 4;
    f.lr = 0.03;
    f.warm_up = 1;
    f.epochs = 12;
    f.schedule = FLAGS_COSINE;
    f.opt_level = 1;
    f.sync_bn = true;
    f.update_bn = 15;
    const flag own[] = {
        {"dataset", 0, FLAG_CHOICE, &g.dataset, "blue-marble|cityscapes", "whose labels --data has", 0, 0},
        {"arch", 0, FLAG_CHOICE, &g.arch, "light|resnet18|resnet50|resnet101", "the backbone", 0, 0},
        {"output-stride", 0, FLAG_COUNT, &output_stride, "N", "of the backbone's features; 0: its default", 0,
         32},
        {"crop", 0, FLAG_COUNT, &g.crop, "N", "rows and columns of a training sample", 33, 4096},
        {"repeat", 0, FLAG_COUNT, &g.repeat, "N", "crops per image and epoch", 1, 10000},
        {"uniform", 0, FLAG_SWITCH, &g.uniform, NULL, "show every class equally often", 0, 0},
        {"scale-min", 0, FLAG_NUMBER, &g.scale[0], "S", "scale images by a factor from this ..", 0.1, 10},
        {"scale-max", 0, FLAG_NUMBER, &g.scale[1], "S", ".. to this before cropping", 0.1, 10},
        {"balance", 0, FLAG_NUMBER, &g.balance, "P", "weight of a class in the loss: share^-P", 0, 1},
        {"aux", 0, FLAG_NUMBER, &g.aux, "W", "weight of an auxiliary classifier's loss; 0: none", 0, 1},
        {0}};
    flags_read(&f, own, argc, argv);

    trainer t;
    tern_error err = {0};
    trainer_open(&t, &f, &err);
    open_data(&g, &f, &err);
    g.seen = err.code ? NULL : tern_confusion_new(t.world, g.classes, IGNORED, &err);
    const task k = {.model = models[g.arch],
                    .data = g.dataset == EARTH ? "Blue Marble" : "Cityscapes",
                    .net = new_net(&g, output_stride, t.rng, &err),
                    .train = g.train,
                    .test = g.test,
                    .class_group = "iou/",
                    .best = "mIoU",
                    .self = &g,
                    .forward = forward,
                    .loss = loss,
                    .evaluate = evaluate,
                    .show = show};
    trainer_run(&t, &k, &err);
    tern_module_free(k.net);
    tern_confusion_free(g.seen);
    close_data(&g);
    return trainer_close(&t, &err);
}
