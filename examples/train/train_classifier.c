/* train_classifier.c - trains a ResNet or a vision transformer on Fashion-MNIST, CIFAR or folders of
 * images in ImageNet's layout.
 *
 *     tern run -n 2 build/examples/train_classifier
 *     tern run -n 2 build/examples/train_classifier --dataset cifar10 --data cifar-10-batches-bin \
 *         --arch resnet18
 *     tern run -n 2 build/examples/train_classifier --dataset folder --data imagenet \
 *         --arch resnet50 -b 32 -j 4
 *
 * An image folder has train/CLASS/.. and val/CLASS/.. with JPEG, PNG or TIFF files.
 *
 * Prints top-1 and top-5 accuracy, counting each test image once. Writes curves for TensorBoard,
 * checkpoints for --resume and torch.load, and train_classifier.png. */
#include "trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN  32
#define ACROSS 8
#define TOP    5

#define CLASS_NAME 24 /* bytes of "class 12" */

static const char *const fashion_names[] = {"T-shirt", "trouser", "pullover", "dress", "coat",
                                            "sandal",  "shirt",   "sneaker",  "bag",   "boot"};
static const char *const cifar_names[] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                          "dog",      "frog",       "horse", "ship", "truck"};

#define FASHION_DIR "/usr/share/datasets/fashion-mnist"
#define DATASETS    "fashion|cifar10|cifar100|folder"
enum { FASHION, CIFAR10, CIFAR100, FOLDER };

/* The datasets that --dataset and --data select. */
typedef struct images {
    const char *name;
    tern_dataset *train, *test;         /* augmented, for the loaders              */
    tern_dataset *raw_train, *raw_test; /* without augmentation                    */
    const char *const *names;           /* of the classes; NULL: the folders' names, or numbers */
    bool folder;                        /* raw_train and raw_test are image folders         */
    float mean[3], std[3];              /* for the normalisation of pixels         */
} images;

typedef struct classifier {
    images images;
    int arch, dataset;
    int64_t size; /* rows and columns of a crop from an image folder */
    double label_smoothing;
    tern_confusion *seen; /* NULL: there are more classes than can be drawn */
    char numbers[TERN_CONFUSION_CHART_MAX][CLASS_NAME];
} classifier;

/* ---- data ---- */

static void open_fashion(images *i, const char *dir, tern_error *err)
{
    static const char *const names[] = {"train", "t10k"};
    tern_idx_opts opts = tern_idx_defaults();
    tern_dataset *sets[2];
    for (int k = 0; k < 2; k++) {
        char pixels[512], labels[512];
        snprintf(pixels, sizeof(pixels), "%s/%s-images-idx3-ubyte.gz", dir, names[k]);
        snprintf(labels, sizeof(labels), "%s/%s-labels-idx1-ubyte.gz", dir, names[k]);
        sets[k] = tern_idx_open(pixels, labels, &opts, err);
    }
    if (!strcmp(dir, FASHION_DIR)) trainer_name_package(err, "dataset-fashion-mnist");
    *i = (images){.name = "Fashion-MNIST",
                  .names = fashion_names,
                  .raw_train = sets[0],
                  .raw_test = sets[1],
                  .mean = {0.2860f},
                  .std = {0.3530f}};
}

static void open_cifar(images *i, int classes, const char *dir, tern_error *err)
{
    tern_cifar_opts opts = tern_cifar_defaults();
    opts.classes = classes;
    *i = (images){.name = classes == 10 ? "CIFAR-10" : "CIFAR-100",
                  .names = classes == 10 ? cifar_names : NULL,
                  .mean = {0.4914f, 0.4822f, 0.4465f},
                  .std = {0.2470f, 0.2435f, 0.2616f}};
    i->raw_train = tern_cifar_open(dir, &opts, err);
    opts.test = true;
    i->raw_test = tern_cifar_open(dir, &opts, err);
}

/* Checks that every label means the same class in both datasets. */
static void compare_classes(const tern_dataset *train, const tern_dataset *test, const char *dir,
                            tern_error *err)
{
    for (int k = 0; !err->code && k < train->classes + test->classes; k++) {
        const char *a = tern_image_folder_class(train, k), *b = tern_image_folder_class(test, k);
        if (!a && !b) return;
        if (a && b && !strcmp(a, b)) continue;
        err->code = TERN_E_MISMATCH;
        err->func = "train_classifier";
        if (a && b)
            snprintf(err->text, sizeof(err->text), "%s: class %d is \"%s\" in train and \"%s\" in val", dir,
                     k, a, b);
        else
            snprintf(err->text, sizeof(err->text), "%s: class \"%s\" is missing in %s", dir, a ? a : b,
                     a ? "val" : "train");
    }
}

/* Opens folders in ImageNet's layout, DIR/train/CLASS/.. and DIR/val/CLASS/..; crops a random part of each
 * training image and the centre of each test image. */
static void open_folder(images *i, const classifier *c, const flags *f, tern_error *err)
{
    char path[512];
    tern_image_folder_opts opts = tern_image_folder_defaults();
    opts.crop[0] = opts.crop[1] = c->size;
    opts.resize = c->size * 8 / 7;
    opts.seed = (uint64_t)f->seed;
    *i = (images){.name = "photographs",
                  .folder = true,
                  .mean = {0.485f, 0.456f, 0.406f},
                  .std = {0.229f, 0.224f, 0.225f}};
    opts.random = true;
    snprintf(path, sizeof(path), "%s/train", f->data);
    i->raw_train = tern_image_folder_open(path, &opts, err);
    opts.random = false;
    snprintf(path, sizeof(path), "%s/val", f->data);
    i->raw_test = tern_image_folder_open(path, &opts, err);
    compare_classes(i->raw_train, i->raw_test, f->data, err);
}

/* Normalises the images. For training it also shifts and mirrors them at random; `shift` is 0 for image
 * folders. */
static tern_dataset *augment(const images *i, const tern_dataset *raw, int64_t shift, bool train,
                             const flags *f, tern_error *err)
{
    tern_augment_opts opts = tern_augment_defaults();
    if (err->code) return NULL;
    opts.padding[0] = opts.padding[1] = train ? shift : 0;
    opts.random_crop = train;
    opts.flip = train ? 0.5 : 0;
    opts.channels = (int)raw->shape[0];
    memcpy(opts.mean, i->mean, sizeof(i->mean));
    memcpy(opts.std, i->std, sizeof(i->std));
    opts.seed = (uint64_t)f->seed;
    return tern_augment_new(raw, &opts, err);
}

static void open_data(classifier *c, const flags *f, tern_error *err)
{
    images *i = &c->images;
    if (c->dataset == FASHION)
        open_fashion(i, f->data ? f->data : FASHION_DIR, err);
    else if (c->dataset == FOLDER)
        open_folder(i, c, f, err);
    else
        open_cifar(i, c->dataset == CIFAR10 ? 10 : 100, f->data, err);
    int64_t shift = err->code || i->folder ? 0 : i->raw_train->shape[1] / 8;
    i->train = augment(i, i->raw_train, shift, true, f, err);
    i->test = augment(i, i->raw_test, 0, false, f, err);
}

static void close_data(images *i)
{
    tern_dataset_free(i->test);
    tern_dataset_free(i->train);
    tern_dataset_free(i->raw_test);
    tern_dataset_free(i->raw_train);
}

/* ---- the net ---- */

#define ARCHS "small|resnet18|resnet34|resnet50|resnet101|vit_tiny|vit_b_16|vit_l_16"
enum { SMALL, VIT_TINY = 5 };
static const char *const arch_names[] = {"small ResNet", "ResNet-18", "ResNet-34", "ResNet-50",
                                         "ResNet-101",   "ViT-Tiny",  "ViT-B/16",  "ViT-L/16"};
static const char *const vit_presets[] = {"vit_tiny", "vit_b_16", "vit_l_16"};

#define SMALL_IMAGE 64 /* smaller ones keep more of their size in the net */

/* `small` is the demo's net with 16, 32 and 64 channels. */
static tern_module *new_resnet(const classifier *c, const tern_dataset *set, tern_rng *rng, tern_error *err)
{
    static const int depths[] = {18, 18, 34, 50, 101};
    tern_resnet_opts opts = tern_resnet_preset(depths[c->arch]);
    opts.in_channels = set->shape[0];
    opts.classes = set->classes;
    opts.small_stem = set->shape[1] < SMALL_IMAGE;
    if (c->arch == SMALL) {
        opts.stages = 3;
        for (int i = 0; i < 3; i++) opts.blocks[i] = 1, opts.channels[i] = 16 << i;
    }
    return tern_resnet_new(&opts, rng, err);
}

static tern_module *new_vit(const classifier *c, const tern_dataset *set, tern_rng *rng, tern_error *err)
{
    tern_vit_opts opts = tern_vit_preset(vit_presets[c->arch - VIT_TINY]);
    opts.in_channels = set->shape[0];
    opts.classes = set->classes;
    opts.image_size = set->shape[1];
    if (set->shape[1] < SMALL_IMAGE) opts.patch_size = 4;
    return tern_vit_new(&opts, rng, err);
}

static tern_module *new_net(const classifier *c, const tern_dataset *set, tern_rng *rng, tern_error *err)
{
    if (err->code) return NULL;
    return c->arch >= VIT_TINY ? new_vit(c, set, rng, err) : new_resnet(c, set, rng, err);
}

static tern_tensor *loss(trainer *t, tern_tensor *scores, const tern_batch *b)
{
    const classifier *c = t->task->self;
    tern_cross_entropy_opts opts = tern_cross_entropy_defaults();
    opts.label_smoothing = c->label_smoothing;
    return tern_cross_entropy(t->s, scores, b->y, &opts);
}

/* ---- evaluation: exact, each image once over all ranks ---- */

/* Of a class whose name nobody knows, `number` is filled. */
static const char *class_name(const images *i, int64_t label, char number[CLASS_NAME])
{
    if (i->names) return i->names[label];
    if (i->folder) return tern_image_folder_class(i->raw_test, (int)label);
    snprintf(number, CLASS_NAME, "class %lld", (long long)label);
    return number;
}

/* The share of each class that was recognised. */
static void report_classes(trainer *t, const classifier *c)
{
    for (int64_t k = 0; k < c->images.test->classes; k++) {
        char name[48], number[CLASS_NAME];
        int64_t all = 0;
        for (int64_t j = 0; j < c->images.test->classes; j++) all += tern_confusion_count(c->seen, k, j);
        snprintf(name, sizeof(name), "recall/%s", class_name(&c->images, k, number));
        trainer_number(t, name, all ? (double)tern_confusion_count(c->seen, k, k) / (double)all : NAN);
    }
}

static void evaluate(trainer *t, tern_error *err)
{
    const classifier *c = t->task->self;
    int64_t n[3] = {0}; /* images with the right class first, among the first TOP, and all */
    double sum = 0;
    tern_batch b;
    while (trainer_test_next(t, &b, err)) {
        int64_t right[2] = {0};
        tern_tensor *scores = tern_forward(t->task->net, t->s, b.x);
        tern_topk_correct(t->s, scores, b.y, -1, 2, (int64_t[]){1, TOP}, right);
        if (c->seen) tern_confusion_update(c->seen, t->s, scores, b.y);
        sum += tern_item(tern_cross_entropy(t->s, scores, b.y, NULL)) * (double)b.count;
        n[0] += right[0];
        n[1] += right[1];
        n[2] += b.count;
        tern_scope_end(t->s, err);
    }
    if (c->seen) tern_confusion_reduce(c->seen, err);
    tern_all_reduce(t->world, n, 3, TERN_I64, TERN_SUM, err);
    tern_all_reduce(t->world, &sum, 1, TERN_F64, TERN_SUM, err);
    if (err->code) return;
    trainer_number(t, "loss/test", sum / (double)n[2]);
    trainer_number(t, "top1", (double)n[0] / (double)n[2]);
    trainer_number(t, "top5", (double)n[1] / (double)n[2]);
    if (c->seen) report_classes(t, c);
}

/* ---- images ---- */

static void show_image(const images *i, gallery *g, const float *x, int64_t guess, int64_t truth)
{
    char numbers[2][CLASS_NAME];
    int channels = (int)i->test->shape[0], rows = (int)i->test->shape[1], columns = (int)i->test->shape[2];
    bool right = guess == truth;
    const char *guessed = class_name(i, guess, numbers[0]), *is = class_name(i, truth, numbers[1]);
    uint8_t *pixels = right ? gallery_add(g, rows, columns, channels, false, "%s", guessed)
                            : gallery_add(g, rows, columns, channels, true, "%s (is %s)", guessed, is);
    gallery_image(pixels, x, rows, columns, channels, i->mean, i->std);
}

/* Chooses samples at equal distances: in an image folder, the classes follow each other. */
static tern_dataset *choose(const tern_dataset *set, tern_error *err)
{
    int64_t chosen[SHOWN], count = set->length < SHOWN ? set->length : SHOWN;
    for (int64_t i = 0; i < count; i++) chosen[i] = i * set->length / count;
    return tern_subset_new(set, chosen, count, err);
}

static void show_batch(trainer *t, tern_scope *s, gallery *g, const tern_batch *b, tern_error *err)
{
    const images *i = &((classifier *)t->task->self)->images;
    int64_t guess[SHOWN], truth[SHOWN], size = tern_tensor_count(b->x);
    size_t bytes = (size_t)b->count * sizeof(*guess);
    float *x = malloc((size_t)size * sizeof(*x));
    tern_tensor *best = tern_argmax(s, tern_forward(t->task->net, s, b->x), 1, false);
    if (x && best && !tern_tensor_read(b->x, x, (size_t)size * sizeof(*x), err) &&
        !tern_tensor_read(best, guess, bytes, err) && !tern_tensor_read(b->y, truth, bytes, err))
        for (int64_t n = 0; n < b->count; n++) show_image(i, g, x + n * size / b->count, guess[n], truth[n]);
    free(x);
}

static void show_confusion(classifier *c, gallery *g)
{
    const char *names[TERN_CONFUSION_CHART_MAX];
    int64_t classes = c->images.test->classes;
    if (!c->seen) return;
    for (int64_t k = 0; k < classes; k++) names[k] = class_name(&c->images, k, c->numbers[k]);
    gallery_confusion(g, c->seen, names, classes);
}

static void show(trainer *t, tern_scope *s, gallery *g, tern_error *err)
{
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = SHOWN;
    tern_dataset *few = choose(t->test_set, err);
    tern_loader *loader = err->code ? NULL : tern_loader_new(few, &opts, err);
    tern_batch b;
    g->across = ACROSS;
    show_confusion(t->task->self, g);
    if (loader && tern_loader_next(loader, s, &b)) {
        if (b.x) show_batch(t, s, g, &b, err);
        tern_scope_end(s, err);
    }
    tern_loader_free(loader);
    tern_dataset_free(few);
}

int main(int argc, char **argv)
{
    classifier c = {.size = 224};
    flags f =
        flags_defaults("train_classifier", "Trains a ResNet or a vision transformer to classify images.");
    const flag own[] = {
        {"arch", 0, FLAG_CHOICE, &c.arch, ARCHS, "the network", 0, 0},
        {"dataset", 0, FLAG_CHOICE, &c.dataset, DATASETS, "the kind of dataset in --data", 0, 0},
        {"image-size", 0, FLAG_COUNT, &c.size, "N", "height and width of crops from an image folder", 32,
         1024},
        {"label-smoothing", 0, FLAG_NUMBER, &c.label_smoothing, "S", "label smoothing", 0, 1},
        {0}};
    f.warm_up = 0.5;
    f.milestones = (flag_list){{5, 8}, 2};
    flags_read(&f, own, argc, argv);
    if (c.dataset != FASHION && !f.data)
        flags_wrong(&f, "--data: expected the folder of the dataset, got nothing");

    trainer t;
    tern_error err = {0};
    trainer_open(&t, &f, &err);
    open_data(&c, &f, &err);
    if (!err.code && c.images.test->classes <= TERN_CONFUSION_CHART_MAX)
        c.seen = tern_confusion_new(t.world, c.images.test->classes, -1, &err);
    const task k = {.model = arch_names[c.arch],
                    .data = c.images.name,
                    .net = new_net(&c, c.images.train, t.rng, &err),
                    .train = c.images.train,
                    .test = c.images.test,
                    .class_group = "recall/",
                    .best = "top1",
                    .self = &c,
                    .loss = loss,
                    .evaluate = evaluate,
                    .show = show};
    trainer_run(&t, &k, &err);
    tern_module_free(k.net);
    tern_confusion_free(c.seen);
    close_data(&c.images);
    return trainer_close(&t, &err);
}
