/* volumes.c - loads or generates the volumes of train_unet3d. */
#include "volumes.h"

#include "grains.h"
#include "trainer.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

#define TEMPLATES "/usr/share/mricron/templates/"

enum { BACKGROUND, CORTEX, WHITE_MATTER, SUBCORTICAL, CEREBELLUM, CSF, TISSUES };

static const tern_legend two[] = {{"background", {0, 0, 0}}, {"foreground", {230, 159, 0}}};
static const tern_legend tissues[TISSUES] = {
    {"background", {0, 0, 0}},      {"cortex", {230, 159, 0}},     {"white matter", {240, 240, 240}},
    {"subcortical", {0, 114, 178}}, {"cerebellum", {0, 158, 115}}, {"csf", {204, 121, 167}}};
static const tern_legend numbers[] = {{"0", {0, 0, 0}},      {"1", {230, 159, 0}}, {"2", {240, 240, 240}},
                                      {"3", {0, 114, 178}},  {"4", {0, 158, 115}}, {"5", {204, 121, 167}},
                                      {"6", {86, 180, 233}}, {"7", {213, 94, 0}},  {"8", {240, 228, 66}}};

static void add_pair(volume_set *set, tern_volume *image, tern_volume *label)
{
    set->images[set->count] = image;
    set->labels[set->count++] = label;
}

/* ---- grains ---- */

static void add_grains(volume_set *set, const int64_t shape[3], uint64_t seed, tern_error *err)
{
    const int64_t full[4] = {1, shape[0], shape[1], shape[2]};
    tern_volume *image = tern_volume_new(full, err), *label = tern_volume_new(full, err);
    add_pair(set, image, label);
    if (!err->code) grains_make(image, label, seed, err);
}

void volumes_grains(volumes *v, int count, const int64_t shape[3], uint64_t seed, tern_error *err)
{
    *v = (volumes){.name = "grains", .classes = 1, .legend = two};
    for (int i = 0; i < count; i++) add_grains(&v->train, shape, 1000 * seed + 1 + (uint64_t)i, err);
    add_grains(&v->test, shape, 1000 * seed + 500, err);
}

/* ---- brains ---- */

static tern_volume *half_of(const tern_volume *volume, bool right, tern_error *err)
{
    const int64_t *s = volume->shape, half = s[3] / 2;
    const int64_t start[3] = {0, 0, right ? s[3] - half : 0}, shape[3] = {s[1], s[2], half};
    return tern_volume_crop(volume, start, shape, err);
}

static void add_halves(volumes *v, tern_volume *image, tern_volume *label, tern_error *err)
{
    if (!err->code) add_pair(&v->train, half_of(image, false, err), half_of(label, false, err));
    if (!err->code) add_pair(&v->test, half_of(image, true, err), half_of(label, true, err));
    tern_volume_free(image);
    tern_volume_free(label);
}

static int64_t count_of(const tern_volume *volume)
{
    const int64_t *s = volume->shape;
    return s[0] * s[1] * s[2] * s[3];
}

/* Loads one of mricron-data's templates. */
static tern_volume *load_template(const char *name, tern_error *err)
{
    char path[128];
    if (err->code) return NULL;
    snprintf(path, sizeof(path), TEMPLATES "%s", name);
    tern_volume *volume = tern_volume_load(path, err);
    trainer_name_package(err, "mricron-data");
    return volume;
}

void volumes_brain(volumes *v, tern_error *err)
{
    *v = (volumes){.name = "brain (ch2)", .classes = 1, .legend = two};
    tern_volume *image = load_template("ch2.nii.gz", err);
    tern_volume *label = load_template("ch2bet.nii.gz", err);
    for (int64_t i = 0; !err->code && i < count_of(label); i++) label->values[i] = label->values[i] > 0;
    add_halves(v, image, label, err);
}

/* The macaque atlas inia19 (T. Rohlfing et al. 2012, "The INIA19 template and NeuroMaps atlas for primate
 * brain image parcellation and spatial normalization", Front. Neuroinform. 6:27, CC-BY) labels 502 regions in
 * each half of the brain. This table groups them by their names.
 *
 * The tissues of regions 0 to 606, which are in the left half; regions of the right half have numbers 1000
 * higher. c: cortex, w: white matter, s: subcortical grey matter and brain stem, b: cerebellum, f:
 * cerebrospinal fluid. */
static const char regions[] =
    ".cwccccccccwsswwwsswsswwsssswwwwssswwcsswwsswcswsswfsscwwwcwssscwcwwwccwwffwwwswswswwwcwwwssswwsswsw"
    "ssswswwsfswcwwwsssssswsswfswwwswswwsssssswssssscswwwscswswssswssssscwwsswssswsswcwswwbsswsssswfwcwss"
    "wfsswsswwswsscccccsbcwcsbbbccccbsbbbbwbsbbbsbbbbbbccbcwssswwsfssssssswsswsswssssswwscswssswwswbbbwss"
    "wwwsswffcbsswcswssssssssssssssswwwssw.....c..................s.ssswwsswfwws.sswwwwwsssssscsswcswssss"
    "swssbwsssswwswsssssssswsswwsswscssswwssssswsssswcsccccsccccsssscccssssscswcwsssssssssswbwsssssswssss"
    "swfsccssswwssb.s.b...s..............s..........................................w..fssss..s....s....."
    ".....ss";

static int tissue_of(int region)
{
    static const char letters[] = ".cwsbf"; /* in the order of the enumeration */
    if (region >= 1000) region -= 1000;
    if (region < 0 || region >= (int)sizeof(regions) - 1) return BACKGROUND;
    return (int)(strchr(letters, regions[region]) - letters);
}

void volumes_macaque(volumes *v, tern_error *err)
{
    *v = (volumes){.name = "macaque (inia19)", .classes = TISSUES, .legend = tissues};
    tern_volume *image = load_template("inia19-t1-brain.nii.gz", err);
    tern_volume *label = load_template("inia19-NeuroMaps.nii.gz", err);
    for (int64_t i = 0; !err->code && i < count_of(label); i++)
        label->values[i] = (float)tissue_of((int)label->values[i]);
    add_halves(v, image, label, err);
}

/* ---- a folder ---- */

static void fail(tern_error *err, const char *text, const char *path)
{
    if (err->code) return;
    *err = (tern_error){.code = TERN_E_IO, .func = "volumes_folder"};
    snprintf(err->text, sizeof(err->text), "%.400s: %s", path, text);
}

static void add_folder(volume_set *set, const char *dir, const char *part, tern_error *err)
{
    char path[1024];
    glob_t found = {0};
    snprintf(path, sizeof(path), "%s/%s/images/*", dir, part);
    if (glob(path, 0, NULL, &found)) fail(err, "no volumes", path);
    if (found.gl_pathc > VOLUMES_MAX) fail(err, "too many volumes", path);
    for (size_t i = 0; !err->code && i < found.gl_pathc; i++) {
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        snprintf(path, sizeof(path), "%s/%s/labels/%s", dir, part, name);
        tern_volume *image = tern_volume_load(found.gl_pathv[i], err);
        add_pair(set, image, tern_volume_load(path, err));
    }
    globfree(&found);
}

void volumes_folder(volumes *v, const char *dir, int classes, tern_error *err)
{
    *v = (volumes){.name = dir, .classes = classes, .legend = classes == 1 ? two : numbers};
    add_folder(&v->train, dir, "train", err);
    add_folder(&v->test, dir, "val", err);
}

int volumes_labels(const volumes *v)
{
    return v->classes == 1 ? 2 : v->classes;
}

static void free_set(volume_set *set)
{
    for (int i = 0; i < set->count; i++) {
        tern_volume_free(set->images[i]);
        tern_volume_free(set->labels[i]);
    }
}

void volumes_free(volumes *v)
{
    free_set(&v->train);
    free_set(&v->test);
}
