/* test_patches.c - patches of volumes: grids, random patches, classes, mirrors, and refused options. */
#include "check.h"
#include "ledger.h"

#include <string.h>

/* Two volumes of different size, in which every voxel's value encodes its position, and their labels. */
enum { CHANNELS = 2, COUNT = 2 };
static const int64_t sizes[COUNT][3] = {{7, 9, 11}, {5, 8, 13}};
static const int64_t PATCH[3] = {4, 5, 6};
#define PATCH_VOXELS 120

static tern_volume *images[COUNT], *labels[COUNT];

static float value_at(int volume, int64_t c, int64_t z, int64_t y, int64_t x)
{
    return (float)((((volume * CHANNELS + c) * 20 + z) * 20 + y) * 20 + x);
}

/* Class 1 in a plane, class 3 in a single voxel, the rest 0. */
static float label_at(int64_t z, int64_t y, int64_t x)
{
    if (z == 6 && y == 7 && x == 10) return 3;
    return x == 2;
}

static void fill(tern_volume *volume, int number)
{
    float *v = volume->values;
    for (int64_t c = 0; c < volume->shape[0]; c++)
        for (int64_t z = 0; z < volume->shape[1]; z++)
            for (int64_t y = 0; y < volume->shape[2]; y++)
                for (int64_t x = 0; x < volume->shape[3]; x++)
                    *v++ = volume->shape[0] == 1 ? label_at(z, y, x) : value_at(number, c, z, y, x);
}

static int setup(void **state)
{
    (void)state;
    tern_error err = {0};
    for (int i = 0; i < COUNT; i++) {
        const int64_t *s = sizes[i];
        images[i] = tern_volume_new((int64_t[]){CHANNELS, s[0], s[1], s[2]}, &err);
        labels[i] = tern_volume_new((int64_t[]){1, s[0], s[1], s[2]}, &err);
        if (err.code) return -1;
        fill(images[i], i);
        fill(labels[i], i);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        tern_volume_free(images[i]);
        tern_volume_free(labels[i]);
    }
    return 0;
}

static tern_patches_opts small(void)
{
    tern_patches_opts opts = tern_patches_defaults();
    memcpy(opts.patch, PATCH, sizeof(opts.patch));
    opts.classes = 4;
    opts.std = 1; /* not normalised */
    return opts;
}

static tern_dataset *open_all(const tern_patches_opts *opts, tern_error *err)
{
    return tern_patches_new((const tern_volume *const *)images, (const tern_volume *const *)labels, COUNT,
                            opts, err);
}

/* Finds the patch's first voxel, and checks that all others follow from it. */
typedef struct place {
    int volume;
    int64_t start[3];
} place;

static place expect_box(const float *x, const uint8_t *y)
{
    int64_t first = (int64_t)x[0], v = 0;
    place p = {(int)(first / 8000 / CHANNELS), {first / 400 % 20, first / 20 % 20, first % 20}};
    for (int64_t c = 0; c < CHANNELS; c++)
        for (int64_t i = 0; i < PATCH_VOXELS; i++, v++) {
            int64_t at[3] = {p.start[0] + i / 30, p.start[1] + i / 6 % 5, p.start[2] + i % 6};
            assert_true(x[v] == value_at(p.volume, c, at[0], at[1], at[2]));
            if (!c) assert_int_equal(y[i], (int)label_at(at[0], at[1], at[2]));
        }
    for (int d = 0; d < 3; d++) assert_in_range(p.start[d], 0, sizes[p.volume][d] - PATCH[d]);
    return p;
}

static void the_grid_covers_every_voxel(void **state)
{
    (void)state;
    for (int64_t overlap = 0; overlap < 4; overlap++) {
        tern_error err = {0};
        tern_patches_opts opts = small();
        for (int d = 0; d < 3; d++) opts.overlap[d] = overlap;
        tern_dataset *dataset = open_all(&opts, &err);
        assert_ok(err);
        assert_int_equal(dataset->ndim, 4);
        assert_memory_equal(dataset->shape, ((int64_t[]){CHANNELS, 4, 5, 6}), sizeof(dataset->shape));
        assert_int_equal(dataset->target_ndim, 3);
        assert_memory_equal(dataset->target_shape, PATCH, sizeof(PATCH));
        static uint8_t seen[COUNT][20][20][20];
        memset(seen, 0, sizeof(seen));
        for (int64_t i = 0; i < dataset->length; i++) {
            float x[CHANNELS * PATCH_VOXELS];
            uint8_t y[PATCH_VOXELS];
            assert_int_equal(dataset->get(dataset, 0, i, x, y, &err), TERN_OK);
            place p = expect_box(x, y);
            for (int64_t v = 0; v < PATCH_VOXELS; v++)
                seen[p.volume][p.start[0] + v / 30][p.start[1] + v / 6 % 5][p.start[2] + v % 6]++;
        }
        for (int i = 0; i < COUNT; i++)
            for (int64_t v = 0; v < sizes[i][0] * sizes[i][1] * sizes[i][2]; v++)
                assert_true(
                    seen[i][v / sizes[i][2] / sizes[i][1]][v / sizes[i][2] % sizes[i][1]][v % sizes[i][2]] >
                    0);
        tern_dataset_free(dataset);
    }
}

/* As few as possible: ceil((size - patch) / (patch - overlap)) + 1 along each dimension. */
static void the_grid_is_as_small_as_can_be(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_patches_opts opts = small();
    tern_dataset *dataset = open_all(&opts, &err);
    assert_int_equal(dataset->length, 2 * 2 * 2 + 2 * 2 * 3);
    tern_dataset_free(dataset);
    opts.overlap[2] = 4;
    dataset = open_all(&opts, &err);
    assert_int_equal(dataset->length, 2 * 2 * 4 + 2 * 2 * 5);
    tern_dataset_free(dataset);
}

static void random_patches_follow_from_their_number(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_patches_opts opts = small();
    opts.count = 300;
    opts.seed = 5;
    tern_dataset *first = open_all(&opts, &err), *second = open_all(&opts, &err);
    opts.seed = 6;
    tern_dataset *other = open_all(&opts, &err);
    assert_ok(err);
    assert_int_equal(first->length, 300);
    int same_epoch = 0, same_seed = 0, starts[COUNT][3][16] = {0};
    for (int64_t i = 299; i >= 0; i--) {
        float x[4][CHANNELS * PATCH_VOXELS];
        uint8_t y[4][PATCH_VOXELS];
        first->get(first, 3, i, x[0], y[0], &err);
        second->get(second, 3, i, x[1], y[1], &err);
        second->get(second, 4, i, x[2], y[2], &err);
        other->get(other, 3, i, x[3], y[3], &err);
        place p = expect_box(x[0], y[0]);
        assert_int_equal(p.volume, i % COUNT);
        assert_memory_equal(x[0], x[1], sizeof(x[0]));
        same_epoch += x[0][0] == x[2][0];
        same_seed += x[0][0] == x[3][0];
        for (int d = 0; d < 3; d++) starts[p.volume][d][p.start[d]]++;
    }
    assert_true(same_epoch < 30 && same_seed < 30); /* 300 / 100 is expected, at most 400 / 75 */
    for (int i = 0; i < COUNT; i++)
        for (int d = 0; d < 3; d++)
            for (int64_t s = 0; s <= sizes[i][d] - PATCH[d]; s++) assert_true(starts[i][d][s] > 0);
    tern_dataset_free(first);
    tern_dataset_free(second);
    tern_dataset_free(other);
}

/* Class 3 is one voxel of volume 0 and none of volume 1; half of the patches of volume 0 are drawn for it. */
static void rare_classes_are_seen_as_often(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_patches_opts opts = small();
    opts.count = 1000;
    opts.foreground = 1;
    tern_dataset *dataset = open_all(&opts, &err);
    assert_ok(err);
    int with_rare = 0, starts[16] = {0};
    for (int64_t i = 0; i < dataset->length; i++) {
        float x[CHANNELS * PATCH_VOXELS];
        uint8_t y[PATCH_VOXELS];
        assert_int_equal(dataset->get(dataset, 0, i, x, y, &err), TERN_OK);
        place p = expect_box(x, y);
        int any = 0, rare = 0;
        for (int v = 0; v < PATCH_VOXELS; v++) {
            any |= y[v] != 0;
            rare |= y[v] == 3;
        }
        assert_true(any);
        assert_true(p.volume == 0 || !rare);
        with_rare += rare;
        if (rare) starts[p.start[1]]++;
    }
    assert_in_range(with_rare, 200, 400);
    assert_true(starts[3] > 50 && starts[4] > 50); /* in every patch that has row 7 */
    tern_dataset_free(dataset);
}

static void ignored_voxels_are_no_foreground(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_patches_opts opts = small();
    tern_volume *label = tern_volume_new((int64_t[]){1, 7, 9, 11}, &err);
    for (int64_t i = 0; i < 693; i++) label->values[i] = 255;
    label->values[0] = 1;
    opts.count = 20;
    opts.foreground = 1;
    const tern_volume *const image_list[] = {images[0]}, *const label_list[] = {label};
    tern_dataset *dataset = tern_patches_new(image_list, label_list, 1, &opts, &err);
    assert_ok(err);
    float x[CHANNELS * PATCH_VOXELS];
    uint8_t y[PATCH_VOXELS];
    for (int64_t i = 0; i < 20; i++) {
        assert_int_equal(dataset->get(dataset, 0, i, x, y, &err), TERN_OK);
        for (int v = 0; v < PATCH_VOXELS; v++) assert_int_equal(y[v], v ? 255 : 1);
    }
    tern_dataset_free(dataset);
    tern_volume_free(label);
}

/* Image and label are mirrored alike, in each dimension independently. */
static void patches_are_mirrored(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        tern_error err = {0};
        tern_patches_opts opts = small();
        opts.count = 50;
        tern_dataset *straight = open_all(&opts, &err);
        opts.flip[d] = 1;
        tern_dataset *mirrored = open_all(&opts, &err);
        assert_ok(err);
        for (int64_t i = 0; i < 50; i++) {
            float a[CHANNELS * PATCH_VOXELS], b[CHANNELS * PATCH_VOXELS];
            uint8_t p[PATCH_VOXELS], q[PATCH_VOXELS];
            straight->get(straight, 1, i, a, p, &err);
            mirrored->get(mirrored, 1, i, b, q, &err);
            for (int64_t v = 0; v < CHANNELS * PATCH_VOXELS; v++) {
                int64_t at[3] = {v / 30 % 4, v / 6 % 5, v % 6};
                at[d] = PATCH[d] - 1 - at[d];
                int64_t w = v / 120 * 120 + at[0] * 30 + at[1] * 6 + at[2];
                assert_true(a[v] == b[w]);
                if (v < PATCH_VOXELS) assert_int_equal(p[v], q[w]);
            }
        }
        tern_dataset_free(straight);
        tern_dataset_free(mirrored);
    }
}

static void values_are_normalised_and_targets_may_be_f32(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_volume *image = tern_volume_new((int64_t[]){1, 4, 4, 4}, &err);
    for (int i = 0; i < 64; i++) image->values[i] = i % 2 ? 7.0f : 3.0f; /* mean 5, std 2 */
    tern_patches_opts opts = tern_patches_defaults();
    for (int d = 0; d < 3; d++) opts.patch[d] = 4;
    opts.target = TERN_F32;
    const tern_volume *const list[] = {image};
    tern_dataset *dataset = tern_patches_new(list, list, 1, &opts, &err);
    assert_ok(err);
    assert_int_equal(dataset->length, 1);
    assert_int_equal(dataset->target_dtype, TERN_F32);
    float x[64], y[64];
    dataset->get(dataset, 0, 0, x, y, &err);
    for (int i = 0; i < 64; i++) assert_true(x[i] == (i % 2 ? 1 : -1) && y[i] == image->values[i]);
    tern_dataset_free(dataset);
    opts.mean = 3;
    opts.std = 0.5f;
    dataset = tern_patches_new(list, list, 1, &opts, &err);
    dataset->get(dataset, 0, 0, x, y, &err);
    for (int i = 0; i < 64; i++) assert_true(x[i] == (i % 2 ? 8 : 0));
    tern_dataset_free(dataset);
    tern_volume_free(image);
}

static void expect_error(const tern_patches_opts *opts, int code, const char *text)
{
    tern_error err = {0};
    assert_null(open_all(opts, &err));
    assert_string_equal(tern_status_name(err.code), tern_status_name(code));
    if (!strstr(err.text, text)) fail_msg("expected \"%s\" in: %s", text, err.text);
    assert_string_equal(err.func, "tern_patches_new");
}

#define WITH(change, code, text)                                                                             \
    do {                                                                                                     \
        tern_patches_opts opts = small();                                                                    \
        change;                                                                                              \
        expect_error(&opts, code, text);                                                                     \
    } while (0)

static void impossible_options_are_refused(void **state)
{
    (void)state;
    WITH(opts.patch[1] = 0, TERN_E_RANGE, "patch[1] is 0");
    WITH(opts.overlap[2] = 6, TERN_E_RANGE, "an overlap of 6");
    WITH(opts.flip[0] = 1.5, TERN_E_RANGE, "flip[0] is 1.5");
    WITH(opts.foreground = -1, TERN_E_RANGE, "foreground is -1");
    WITH(opts.count = -1, TERN_E_RANGE, "count -1");
    WITH(opts.classes = 257, TERN_E_RANGE, "classes is 257");
    WITH(opts.target = TERN_I64, TERN_E_DTYPE, "target is i64");
    WITH(opts.patch[0] = 6, TERN_E_SHAPE,
         "volume 1: dimension 0 is 5, but the label's is 5 and the patch's 6");
}

static void labels_are_checked(void **state)
{
    (void)state;
    WITH(opts.classes = 3, TERN_E_RANGE,
         "volume 0: the label of voxel 681 is 3, expected an integer in [0, 2]");
    float kept = labels[1]->values[17];
    labels[1]->values[17] = 0.5f;
    WITH((void)0, TERN_E_RANGE, "volume 1: the label of voxel 17 is 0.5");
    labels[1]->values[17] = -1;
    WITH(opts.classes = 0, TERN_E_RANGE, "volume 1: the label of voxel 17 is -1");
    labels[1]->values[17] = kept;
}

static void volumes_are_checked(void **state)
{
    (void)state;
    tern_volume *kept = labels[1];
    labels[1] = labels[0];
    WITH((void)0, TERN_E_SHAPE, "volume 1: dimension 0 is 5, but the label's is 7");
    labels[1] = images[1];
    WITH((void)0, TERN_E_SHAPE, "volume 1: the image has 2 channels and the label 2, expected 2 and 1");
    labels[1] = NULL;
    WITH((void)0, TERN_E_INVALID, "volume 1: expected an image and a label");
    labels[1] = kept;
    tern_error err = {0};
    assert_null(tern_patches_new(NULL, NULL, 0, NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
}

static void an_index_beyond_the_end_is_refused(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_patches_opts opts = small();
    tern_dataset *dataset = open_all(&opts, &err);
    assert_int_equal(dataset->get(dataset, 0, dataset->length, NULL, NULL, &err), TERN_E_RANGE);
    tern_dataset_free(dataset);
}

static void every_refused_allocation_is_an_error(void **state)
{
    (void)state;
    tern_patches_opts opts = small();
    opts.count = 2;
    opts.foreground = 0.5;
    for (int n = 1; n <= 4; n++) {
        tern_error err = {0};
        ledger books = {.refuse_at = n};
        ledger_open(&books);
        assert_null(open_all(&opts, &err));
        assert_int_equal(err.code, TERN_E_MEMORY);
        ledger_close(&books);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_grid_covers_every_voxel),
        cmocka_unit_test(the_grid_is_as_small_as_can_be),
        cmocka_unit_test(random_patches_follow_from_their_number),
        cmocka_unit_test(rare_classes_are_seen_as_often),
        cmocka_unit_test(ignored_voxels_are_no_foreground),
        cmocka_unit_test(patches_are_mirrored),
        cmocka_unit_test(values_are_normalised_and_targets_may_be_f32),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(labels_are_checked),
        cmocka_unit_test(volumes_are_checked),
        cmocka_unit_test(an_index_beyond_the_end_is_refused),
        cmocka_unit_test(every_refused_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
