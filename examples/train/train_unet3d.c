/* train_unet3d.c - trains a 3-D U-Net to find grain boundaries in stacks of micrographs, the brain in a head,
 * or tissues in a brain.
 *
 *     tern run -n 2 build/examples/train_unet3d --data grains
 *     tern run -n 2 build/examples/train_unet3d --data brain
 *     tern run -n 2 build/examples/train_unet3d --data macaque
 *     tern run -n 2 build/examples/train_unet3d --data DIR --classes 4    volumes of your own (volumes.h)
 *
 * Trains on patches at random places and prints Dice and IoU over a grid of patches of the test volumes, each
 * patch once over all ranks. At the end it predicts the whole first test volume and writes prediction.nii.gz,
 * with image.nii.gz and label.nii.gz, for any viewer, and train_unet3d.png. --preset article uses the sizes
 * of a well-known script: 100 epochs, 8 patches of 32x160x160 per rank, Adam with a rate of 2e-4 that drops
 * to a fifth after 25, 50 and 75 epochs. */
#include "slices.h"
#include "trainer.h"
#include "volumes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 4, MOST_CLASSES = 9 };

/* The defaults for a dataset; flags override them. */
typedef struct plan {
    const char *data;
    int64_t patch[3], patches, batch, epochs, width, volumes, update_bn;
    flag_list milestones;
    double lr, foreground, flip[3];
} plan;

/* These take minutes on two cores. */
static const plan plans[] = {{.data = "grains",
                              .patch = {32, 64, 64},
                              .patches = 128,
                              .batch = 2,
                              .epochs = 8,
                              .width = 16,
                              .volumes = 2,
                              .update_bn = 16,
                              .milestones = {{5, 7}, 2},
                              .lr = 1e-3,
                              .flip = {.5, .5, .5}},
                             {.data = "brain",
                              .patch = {64, 64, 64},
                              .patches = 96,
                              .batch = 2,
                              .epochs = 6,
                              .width = 16,
                              .update_bn = 16,
                              .milestones = {{4, 5}, 2},
                              .lr = 1e-3,
                              .foreground = .3,
                              .flip = {0, 0, .5}},
                             {.data = "macaque",
                              .patch = {48, 64, 64},
                              .patches = 128,
                              .batch = 1,
                              .epochs = 30,
                              .width = 16,
                              .update_bn = 16,
                              .milestones = {{18, 26}, 2},
                              .lr = 3e-3,
                              .foreground = .7,
                              .flip = {0, 0, .5}}};
static const plan any_folder = {.data = "",
                                .patch = {32, 64, 64},
                                .patches = 128,
                                .batch = 2,
                                .epochs = 20,
                                .width = 16,
                                .update_bn = 16,
                                .milestones = {{10, 15}, 2},
                                .lr = 1e-3,
                                .foreground = .5,
                                .flip = {0, 0, .5}};
static const plan article = {.data = "grains",
                             .patch = {32, 160, 160},
                             .patches = 96,
                             .batch = 8,
                             .epochs = 100,
                             .width = 32,
                             .volumes = 8,
                             .milestones = {{25, 50, 75}, 3},
                             .lr = 2e-4,
                             .flip = {.5, .5, .5}};

typedef struct unet {
    plan plan;
    volumes volumes;
    int64_t classes; /* of --data DIR */
    int preset;
    const char *patch, *stack; /* texts of the command line */
    int64_t size[3];           /* of volumes of grains */
    tern_dataset *train, *test;
    float weights[MOST_CLASSES + 1];
    tern_tensor *weight; /* of the classes, over `weights` */
} unet;

/* ---- command line ---- */

/* Returns the value of a flag, "" for a switch; NULL if it is not given. */
static const char *given(int argc, char **argv, const char *name)
{
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], name)) return i + 1 < argc ? argv[i + 1] : "";
        if (!strncmp(argv[i], name, length) && argv[i][length] == '=') return argv[i] + length + 1;
    }
    return NULL;
}

/* Finds the plan before the flags are read, so that --help prints the defaults of the given --data. */
static plan find_plan(int argc, char **argv)
{
    const char *data = given(argc, argv, "--data"), *preset = given(argc, argv, "--preset");
    if (preset && !strcmp(preset, "article")) return article;
    for (size_t i = 0; i < sizeof(plans) / sizeof(*plans); i++)
        if (!data || !strcmp(data, plans[i].data)) return plans[i];
    return any_folder;
}

static void read_size(const flags *f, const char *name, const char *text, int64_t size[3])
{
    long long d[3];
    int rest = 0;
    if (sscanf(text, "%lldx%lldx%lld%n", &d[0], &d[1], &d[2], &rest) != 3 || text[rest] || d[0] < 1 ||
        d[1] < 1 || d[2] < 1)
        flags_wrong(f, "--%s: expected DxHxW, as in 32x64x64, got \"%s\"", name, text);
    for (int i = 0; i < 3; i++) size[i] = d[i];
}

static void read_flags(unet *u, flags *f, int argc, char **argv)
{
    plan *p = &u->plan;
    *p = find_plan(argc, argv);
    const flag own[] = {
        {"patch", 0, FLAG_TEXT, &u->patch, "DxHxW", "size of patches; default depends on --data", 0, 0},
        {"patches", 0, FLAG_COUNT, &p->patches, "N", "random patches per epoch", 1, 1 << 20},
        {"width", 0, FLAG_COUNT, &p->width, "N", "channels of the first level", 1, 1024},
        {"foreground", 0, FLAG_NUMBER, &p->foreground, "SHARE", "share of patches that contain a drawn class",
         0, 1},
        {"stack", 0, FLAG_TEXT, &u->stack, "DxHxW", "size of volumes of grains", 0, 0},
        {"volumes", 0, FLAG_COUNT, &p->volumes, "N", "training volumes of grains", 1, VOLUMES_MAX},
        {"classes", 0, FLAG_COUNT, &u->classes, "N", "of --data DIR; 1: labels are 0 and 1", 1, MOST_CLASSES},
        {"preset", 0, FLAG_CHOICE, &u->preset, "data|article",
         "defaults for --data, or those of a well-known script", 0, 0},
        {0}};
    f->data = p->data;
    f->batch = p->batch;
    f->epochs = p->epochs;
    f->lr = p->lr;
    f->milestones = p->milestones;
    f->gamma = 0.2;
    f->sync_bn = true;
    f->update_bn = p->update_bn;
    flags_read(f, own, argc, argv);
    if (u->patch) read_size(f, "patch", u->patch, p->patch);
    read_size(f, "stack", u->stack, u->size);
    bool is_folder = strcmp(f->data, "grains") && strcmp(f->data, "brain") && strcmp(f->data, "macaque");
    if (u->classes > 1 && !is_folder)
        flags_wrong(f, "--classes: expected only if --data is a folder, got %lld with %s",
                    (long long)u->classes, f->data);
}

/* ---- data ---- */

static tern_dataset *open_patches(const unet *u, const volume_set *set, bool train, uint64_t seed,
                                  tern_error *err)
{
    tern_patches_opts opts = tern_patches_defaults();
    opts.classes = u->volumes.classes == 1 ? 2 : u->volumes.classes;
    memcpy(opts.patch, u->plan.patch, sizeof(opts.patch));
    opts.seed = seed;
    if (train) {
        opts.count = u->plan.patches;
        opts.foreground = u->plan.foreground;
        memcpy(opts.flip, u->plan.flip, sizeof(opts.flip));
    }
    return tern_patches_new((const tern_volume *const *)set->images, (const tern_volume *const *)set->labels,
                            set->count, &opts, err);
}

/* Weighs each class by one over the root of its share of the training voxels, so that rare classes count
 * more. */
static void weigh_classes(unet *u, tern_error *err)
{
    double counts[MOST_CLASSES + 1] = {0}, all = 0;
    const volume_set *set = &u->volumes.train;
    int64_t classes = u->volumes.classes;
    for (int i = 0; i < set->count && !err->code && classes > 1; i++) {
        const int64_t *s = set->labels[i]->shape, voxels = s[1] * s[2] * s[3];
        for (int64_t v = 0; v < voxels; v++)
            if (set->labels[i]->values[v] >= 0 && set->labels[i]->values[v] < (float)classes)
                counts[(int)set->labels[i]->values[v]]++, all++;
    }
    for (int k = 0; k < classes; k++) u->weights[k] = counts[k] > 0 ? (float)sqrt(all / counts[k]) : 1;
    u->weight = tern_tensor_wrap(u->weights, TERN_F32, 1, &classes, NULL, NULL, err);
}

static void open_data(unet *u, const flags *f, tern_error *err)
{
    uint64_t seed = (uint64_t)f->seed;
    volumes *v = &u->volumes;
    if (!strcmp(f->data, "grains") && !err->code && tern_launched_rank() <= 0)
        printf("drawing %d volumes of grains ..\n", (int)u->plan.volumes + 1), fflush(stdout);
    if (!strcmp(f->data, "grains"))
        volumes_grains(v, (int)u->plan.volumes, u->size, seed, err);
    else if (!strcmp(f->data, "brain"))
        volumes_brain(v, err);
    else if (!strcmp(f->data, "macaque"))
        volumes_macaque(v, err);
    else
        volumes_folder(v, f->data, (int)u->classes, err);
    weigh_classes(u, err);
    u->train = open_patches(u, &v->train, true, seed, err);
    u->test = open_patches(u, &v->test, false, seed, err);
}

/* ---- the network ---- */

static tern_module *new_net(const unet *u, tern_rng *rng, tern_error *err)
{
    if (err->code) return NULL;
    tern_unet3d_opts opts = tern_unet3d_defaults();
    opts.in_channels = u->train->shape[0];
    opts.classes = u->volumes.classes;
    opts.width = u->plan.width;
    return tern_unet3d_new(&opts, rng, err);
}

static tern_optim *new_adam(trainer *t, tern_error *err)
{
    tern_adam_opts opts = tern_adam_defaults();
    opts.lr = t->flags->lr;
    opts.weight_decay = t->flags->weight_decay;
    return tern_adam_new(t->task->net, &opts, err);
}

/* A mask uses binary cross entropy and Dice; a map of classes uses weighted cross entropy and Dice. */
static tern_tensor *loss(trainer *t, tern_tensor *scores, const tern_batch *b)
{
    const unet *u = t->task->self;
    tern_dice_opts dice = tern_dice_defaults();
    if (u->volumes.classes == 1) return tern_bce_dice_loss(t->s, scores, b->y, 1, 1, &dice);
    tern_cross_entropy_opts entropy = tern_cross_entropy_defaults();
    dice.classes = true;
    dice.ignore_index = entropy.ignore_index = 255;
    entropy.weight = u->weight;
    return tern_add(t->s, tern_cross_entropy(t->s, scores, b->y, &entropy),
                    tern_dice_loss(t->s, scores, b->y, &dice));
}

/* ---- evaluation: exact, each patch once over all ranks ---- */

/* Converts scores (N, classes, d, h, w) to labels. */
static tern_tensor *labels_of(const unet *u, tern_scope *s, tern_tensor *scores)
{
    if (u->volumes.classes > 1) return tern_cast(s, tern_argmax(s, scores, 1, false), TERN_U8);
    return tern_cast(s, tern_gt(s, scores, tern_full(s, TERN_F32, 0, NULL, 0)), TERN_U8);
}

/* Reports the means over all classes except the background. */
static void report(trainer *t, const tern_confusion *seen)
{
    const volumes *v = &((const unet *)t->task->self)->volumes;
    double dice = 0, iou = 0;
    int last = volumes_labels(v) - 1;
    for (int k = 1; k <= last; k++) {
        char name[48];
        snprintf(name, sizeof(name), "dice/%s", v->legend[k].name);
        if (last > 1) trainer_number(t, name, tern_confusion_dice(seen, k));
        dice += tern_confusion_dice(seen, k) / last;
        iou += tern_confusion_iou(seen, k) / last;
    }
    trainer_number(t, "dice", dice);
    trainer_number(t, "iou", iou);
}

static void evaluate(trainer *t, tern_error *err)
{
    const unet *u = t->task->self;
    tern_confusion *seen = tern_confusion_new(t->world, volumes_labels(&u->volumes), 255, err);
    double sums[2] = {0}; /* loss and patches */
    tern_batch b;
    while (trainer_test_next(t, &b, err)) {
        tern_tensor *scores = tern_cast(t->s, tern_forward(t->task->net, t->s, b.x), TERN_F32);
        if (u->volumes.classes > 1)
            tern_confusion_update(seen, t->s, scores, b.y);
        else
            tern_confusion_update_mask(seen, t->s, scores, b.y, 0);
        sums[0] += tern_item(loss(t, scores, &b)) * (double)b.count;
        sums[1] += (double)b.count;
        tern_scope_end(t->s, err);
    }
    tern_confusion_reduce(seen, err);
    tern_all_reduce(t->world, sums, 2, TERN_F64, TERN_SUM, err);
    if (!err->code) trainer_number(t, "loss/test", sums[0] / sums[1]);
    if (!err->code) report(t, seen);
    tern_confusion_free(seen);
}

/* ---- images ---- */

/* Shows slice 0 of patches at equal distances in the grid. */
static void show_patches(trainer *t, tern_scope *s, gallery *g, tern_error *err)
{
    const unet *u = t->task->self;
    const int64_t *p = u->plan.patch, voxels = p[0] * p[1] * p[2];
    float *x = malloc((size_t)(voxels * u->test->shape[0]) * sizeof(*x));
    uint8_t *truth = malloc((size_t)voxels), *guess = malloc((size_t)voxels);
    for (int64_t i = 0; x && truth && guess && !err->code && i < SHOWN; i++) {
        int64_t index = u->test->length * (2 * i + 1) / (2 * SHOWN);
        if (u->test->get(u->test, 0, index, x, truth, err)) break;
        const int64_t shape[5] = {1, u->test->shape[0], p[0], p[1], p[2]};
        tern_tensor *scores = tern_forward(t->task->net, s, tern_tensor_from(s, x, TERN_F32, 5, shape));
        tern_tensor *labels = labels_of(u, s, tern_cast(s, scores, TERN_F32));
        if (labels && !tern_tensor_read(labels, guess, (size_t)voxels, err))
            slices_add(g, &u->volumes, x, truth, guess, (int)p[1], (int)p[2], "slice 0");
        tern_scope_end(s, err);
    }
    free(x);
    free(truth);
    free(guess);
}

/* ---- a whole volume ---- */

static void to_bytes(const tern_volume *from, uint8_t *to)
{
    int64_t count = from->shape[1] * from->shape[2] * from->shape[3];
    for (int64_t i = 0; i < count; i++) to[i] = (uint8_t)from->values[i];
}

/* Saves a NIfTI file; a missing plug-in only prints an error. */
static void save(const trainer *t, const char *name, const tern_volume *volume, tern_dtype dtype)
{
    char path[600];
    tern_error err = {0};
    snprintf(path, sizeof(path), "%s/%s.nii.gz", t->dir, name);
    tern_volume_save(path, volume, dtype, &err);
    tern_error_print(&err);
}

static void print_scores(const unet *u, tern_scope *s, uint8_t *guess, uint8_t *truth, int64_t voxels,
                         tern_error *err)
{
    tern_confusion *seen = tern_confusion_new(NULL, volumes_labels(&u->volumes), 255, err);
    tern_confusion_update(seen, s, tern_tensor_from(s, guess, TERN_U8, 1, &voxels),
                          tern_tensor_from(s, truth, TERN_U8, 1, &voxels));
    tern_confusion_reduce(seen, err);
    tern_scope_end(s, err);
    printf("the whole volume:");
    for (int k = 1; k < volumes_labels(&u->volumes); k++)
        printf("  %s Dice %.4f IoU %.4f", u->volumes.legend[k].name, tern_confusion_dice(seen, k),
               tern_confusion_iou(seen, k));
    putchar('\n');
    tern_confusion_free(seen);
}

static void show_volume(trainer *t, tern_scope *s, gallery *g, tern_error *err)
{
    const unet *u = t->task->self;
    const tern_volume *image = u->volumes.test.images[0], *label = u->volumes.test.labels[0];
    int64_t voxels = image->shape[1] * image->shape[2] * image->shape[3];
    tern_window_opts opts = tern_window_defaults();
    memcpy(opts.patch, u->plan.patch, sizeof(opts.patch));
    opts.output = TERN_WINDOW_CLASSES;
    if (!err->code) puts("segmenting the whole test volume .."), fflush(stdout);
    tern_volume *found = tern_sliding_window(t->task->net, s, image, u->volumes.classes, &opts, err);
    if (!found) return;
    save(t, "image", image, TERN_F32);
    save(t, "label", label, TERN_U8);
    save(t, "prediction", found, TERN_U8);
    uint8_t *guess = malloc((size_t)voxels), *truth = malloc((size_t)voxels);
    if (guess && truth) {
        to_bytes(found, guess);
        to_bytes(label, truth);
        print_scores(u, s, guess, truth, voxels, err);
        slices_of(g, &u->volumes, image, truth, guess);
    }
    free(guess);
    free(truth);
    tern_volume_free(found);
}

static void show(trainer *t, tern_scope *s, gallery *g, tern_error *err)
{
    g->across = 3;
    if (trainer_has_ended(t))
        show_volume(t, s, g, err);
    else
        show_patches(t, s, g, err);
}

int main(int argc, char **argv)
{
    unet u = {.classes = 1, .stack = "74x320x320"};
    flags f = flags_defaults("train_unet3d", "Trains a 3-D U-Net to segment volumes.");
    read_flags(&u, &f, argc, argv);

    trainer t;
    tern_error err = {0};
    trainer_open(&t, &f, &err);
    open_data(&u, &f, &err);
    const task k = {.model = "3-D U-Net",
                    .data = u.volumes.name,
                    .net = new_net(&u, t.rng, &err),
                    .train = u.train,
                    .test = u.test,
                    .class_group = "dice/",
                    .best = "dice",
                    .self = &u,
                    .optim = new_adam,
                    .loss = loss,
                    .evaluate = evaluate,
                    .show = show};
    trainer_run(&t, &k, &err);
    tern_module_free(k.net);
    tern_tensor_free(u.weight);
    tern_dataset_free(u.test);
    tern_dataset_free(u.train);
    volumes_free(&u.volumes);
    return trainer_close(&t, &err);
}
