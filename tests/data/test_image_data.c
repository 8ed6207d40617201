/* test_image_data.c - image datasets: warm epochs allocate nothing, every failed allocation is an error, and
 * samples do not depend on workers or ranks. tests/torch compares the values. */
#include "base/base.h"
#include "data/loader/loader.h"
#include "ledger.h"
#include "report/folder.h"

#include <ftw.h>
#include <string.h>

enum { CLASSES = 2, EACH = 3, LENGTH = CLASSES * EACH, SIDE = 8, VALUES = 3 * SIDE * SIDE, EPOCHS = 2 };

/* ---- files ---- */

static void put_picture(const char *root, const char *below, const char *name, int64_t height, int64_t width,
                        int channels)
{
    static uint8_t pixels[64 * 64 * 3];
    char path[256];
    tern_error err = {0};
    for (size_t i = 0; i < sizeof(pixels); i++)
        pixels[i] = (uint8_t)(channels == 1 ? i % 4 : i * (size_t)width);
    for (const char *slash = below; slash; slash = strchr(slash + 1, '/')) {
        snprintf(path, sizeof(path), "%s/%.*s", root, (int)(slash - below), below);
        mkdir(path, 0777);
    }
    snprintf(path, sizeof(path), "%s/%s", root, below);
    mkdir(path, 0777);
    snprintf(path, sizeof(path), "%s/%s/%s", root, below, name);
    tern_image image = {.height = height, .width = width, .channels = channels, .data = pixels};
    tern_image_save(path, &image, NULL, &err);
    assert_ok(err);
}

static void put_all(const char *root)
{
    char name[64];
    need_part("png");
    for (int i = 0; i < LENGTH; i++) {
        snprintf(name, sizeof(name), "%d.png", i);
        put_picture(root, i < EACH ? "folder/a" : "folder/b", name, 20 + 7 * i, 60 - 5 * i, 3);
        snprintf(name, sizeof(name), "%d_leftImg8bit.png", i);
        put_picture(root, "cities/leftImg8bit/train/c", name, 21, 33, 3);
        snprintf(name, sizeof(name), "%d_gtFine_labelIds.png", i);
        put_picture(root, "cities/gtFine/train/c", name, 21, 33, 1);
    }
}

static int erase(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about;
    (void)kind;
    (void)place;
    return remove(path);
}

static int erase_folder(void **state)
{
    folder *f = *state;
    return nftw(f->path, erase, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- the datasets ---- */

static tern_dataset *folder_open(const char *root, tern_error *err)
{
    char path[256];
    tern_image_folder_opts opts = tern_image_folder_defaults();
    opts.crop[0] = opts.crop[1] = SIDE;
    opts.random = true;
    snprintf(path, sizeof(path), "%s/folder", root);
    return tern_image_folder_open(path, &opts, err);
}

static tern_dataset *cities_open(const char *root, tern_error *err)
{
    char path[256];
    tern_cityscapes_opts opts = tern_cityscapes_defaults();
    opts.resize[0] = opts.resize[1] = SIDE;
    snprintf(path, sizeof(path), "%s/cities", root);
    return tern_cityscapes_open(path, "train", &opts, err);
}

typedef tern_dataset *(*opener)(const char *root, tern_error *err);
static const opener openers[] = {folder_open, cities_open};

/* The bytes of a label or a map. */
typedef union target {
    int64_t label;
    uint8_t map[SIDE * SIDE];
} target;

/* Returns 0 or the first failure. */
static int get_all(const tern_dataset *dataset, int64_t epoch)
{
    float x[VALUES];
    target y;
    int status = TERN_OK;
    for (int64_t i = 0; i < LENGTH && !status; i++) status = dataset->get(dataset, epoch, i, x, &y, NULL);
    return status;
}

static void warm_epochs_ask_for_no_memory(void **state)
{
    folder *f = *state;
    put_all(f->path);
    for (size_t i = 0; i < TERN__COUNT(openers); i++) {
        ledger books = {0};
        ledger_open(&books);
        tern_dataset *dataset = openers[i](f->path, NULL);
        assert_non_null(dataset);
        tern_augment_opts opts = tern_augment_defaults();
        opts.hue = opts.contrast = 0.4;
        opts.scale[0] = 0.5;
        opts.rotate = true;
        tern_dataset *augmented = tern_augment_new(dataset, &opts, NULL);
        /* Crops have any size: after some epochs all buffers have reached their largest size. */
        for (int e = 0; e < 40; e++) assert_int_equal(get_all(augmented, e), TERN_OK);
        int requests = atomic_load(&books.requests);
        for (int e = 0; e < 40; e++) assert_int_equal(get_all(augmented, e), TERN_OK);
        assert_int_equal(atomic_load(&books.requests), requests);
        tern_dataset_free(augmented);
        tern_dataset_free(dataset);
        ledger_close(&books);
    }
}

static void every_refused_request_is_an_error(void **state)
{
    folder *f = *state;
    put_all(f->path);
    for (size_t i = 0; i < TERN__COUNT(openers); i++) {
        int status = TERN_E_MEMORY;
        for (int refused = 1; status; refused++) {
            ledger books = {.refuse_at = refused};
            tern_error err = {0};
            ledger_open(&books);
            tern_dataset *dataset = openers[i](f->path, &err);
            assert_int_equal(err.code, dataset ? TERN_OK : TERN_E_MEMORY);
            status = dataset ? get_all(dataset, 0) : err.code;
            assert_true(status == TERN_E_MEMORY || (!status && atomic_load(&books.requests) < refused));
            if (dataset) assert_int_equal(get_all(dataset, 0), TERN_OK); /* the failure was the only one */
            tern_dataset_free(dataset);
            ledger_close(&books);
        }
    }
}

/* ---- the same samples on all ranks ---- */

typedef float epochs[EPOCHS][LENGTH][VALUES];

static void fetch_epochs(const tern_dataset *dataset, epochs all)
{
    target y;
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; i < LENGTH; i++)
            assert_int_equal(dataset->get(dataset, e, i, all[e][i], &y, NULL), TERN_OK);
}

/* Compares a rank's batches: its sample k is sample rank + k * ranks of the epoch. */
static void expect_epochs(tern_dataset *dataset, int ranks, int rank, int workers, epochs want)
{
    tern_error err = {0};
    tern_distributed_opts sampling = tern_distributed_defaults();
    sampling.shuffle = sampling.pad = false;
    tern_loader_opts opts = tern_loader_defaults();
    opts.workers = workers;
    opts.sampler = tern_distributed_sampler_new(LENGTH, ranks, rank, &sampling, &err);
    tern_loader *loader = tern_loader_new(dataset, &opts, &err);
    assert_ok(err);
    for (int e = 0; e < EPOCHS; e++) {
        tern__batch batch;
        for (int i = rank; i < LENGTH; i += ranks) {
            assert_int_equal(tern__loader_next(loader, &batch, &err), 1);
            assert_memory_equal(batch.x, want[e][i], sizeof(want[e][i]));
            tern__loader_slot_release(loader, batch.slot);
        }
        assert_int_equal(tern__loader_next(loader, &batch, &err), 0);
    }
    tern_loader_free(loader);
    tern_sampler_free(opts.sampler);
}

static void the_same_for_any_workers_and_ranks(void **state)
{
    folder *f = *state;
    static epochs want;
    put_all(f->path);
    for (size_t i = 0; i < TERN__COUNT(openers); i++) {
        tern_dataset *dataset = openers[i](f->path, NULL);
        assert_non_null(dataset);
        fetch_epochs(dataset, want);
        for (int workers = 0; workers < 4; workers++)
            for (int ranks = 1; ranks < 4; ranks++)
                for (int rank = 0; rank < ranks; rank++) expect_epochs(dataset, ranks, rank, workers, want);
        if (openers[i] == folder_open) assert_memory_not_equal(want[0], want[1], sizeof(want[0]));
        tern_dataset_free(dataset);
    }
}

static void names(void **state)
{
    folder *f = *state;
    put_all(f->path);
    tern_dataset *dataset = folder_open(f->path, NULL);
    assert_string_equal(tern_image_folder_class(dataset, 1), "b");
    assert_null(tern_image_folder_class(dataset, -1));
    assert_null(tern_image_folder_class(dataset, CLASSES));
    assert_non_null(strstr(tern_image_folder_path(dataset, 3), "/folder/b/3.png"));
    assert_null(tern_image_folder_path(dataset, LENGTH));
    tern_dataset_free(dataset);
    dataset = cities_open(f->path, NULL);
    assert_non_null(strstr(tern_cityscapes_path(dataset, 3), "/leftImg8bit/train/c/3_leftImg8bit.png"));
    assert_null(tern_cityscapes_path(dataset, -1));
    tern_dataset_free(dataset);
}

/* ---- paths that are not files ---- */

static void put_pipe(const char *root, const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s", root, name);
    remove(path);
    assert_int_equal(mkfifo(path, 0600), 0);
}

static void expect_pipe(tern_dataset *dataset, const char *path, tern_error err)
{
    assert_null(dataset);
    assert_int_equal(err.code, TERN_E_IO);
    if (!strstr(err.text, path) || !strstr(err.text, " is a pipe, expected a regular file"))
        fail_msg("%s", err.text);
}

static void pipes_are_not_waited_for(void **state)
{
    folder *f = *state;
    char path[256];
    tern_error err = {0};
    tern_cifar_opts opts = tern_cifar_defaults();
    opts.test = true;
    put_all(f->path);
    put_pipe(f->path, "test_batch.bin", path);
    tern_dataset *dataset = tern_cifar_open(f->path, &opts, &err);
    expect_pipe(dataset, path, err);
    err = (tern_error){0};
    put_pipe(f->path, "cities/gtFine/train/c/2_gtFine_labelIds.png", path);
    dataset = cities_open(f->path, &err);
    expect_pipe(dataset, path, err);
}

/* A subset's and an augmentation's samples are files too; other datasets have none. */
static void names_are_found_behind_subsets(void **state)
{
    folder *f = *state;
    tern_error err = {0};
    put_all(f->path);
    tern_dataset *pictures = folder_open(f->path, &err), *cities = cities_open(f->path, &err);
    tern_dataset *few = tern_subset_new(pictures, (int64_t[]){4, 1}, 2, &err);
    tern_dataset *changed = tern_augment_new(few, NULL, &err);
    tern_dataset *town = tern_subset_new(cities, (int64_t[]){3}, 1, &err);
    assert_ok(err);
    assert_string_equal(tern_image_folder_class(changed, 1), "b");
    assert_string_equal(tern_image_folder_path(changed, 0), tern_image_folder_path(pictures, 4));
    assert_string_equal(tern_image_folder_path(few, 1), tern_image_folder_path(pictures, 1));
    assert_null(tern_image_folder_path(changed, 2));
    assert_string_equal(tern_cityscapes_path(town, 0), tern_cityscapes_path(cities, 3));
    assert_null(tern_cityscapes_path(few, 0));
    assert_null(tern_image_folder_path(town, 0));
    assert_null(tern_image_folder_class(cities, 0));
    assert_null(tern_image_folder_class(NULL, 0));
    tern_dataset *all[] = {changed, few, town, pictures, cities};
    for (size_t i = 0; i < TERN__COUNT(all); i++) tern_dataset_free(all[i]);
}

/* A folder whose link makes it look endless. */
static void a_link_that_leads_back_is_named(void **state)
{
    folder *f = *state;
    char path[256];
    tern_error err = {0};
    put_all(f->path);
    snprintf(path, sizeof(path), "%s/folder/a/up", f->path);
    assert_int_equal(symlink("..", path), 0);
    snprintf(path, sizeof(path), "%s/folder/a/again", f->path);
    assert_int_equal(symlink(".", path), 0);
    assert_null(folder_open(f->path, &err));
    assert_int_equal(err.code, TERN_E_IO);
    if (!strstr(err.text, "/folder/a/") || !strstr(err.text, "is a link to a folder that contains it"))
        fail_msg("%s", err.text);
    remove(path);
    assert_int_equal(symlink("../b", path), 0); /* which does not */
    snprintf(path, sizeof(path), "%s/folder/a/up", f->path);
    remove(path);
    tern_dataset *dataset = folder_open(f->path, NULL);
    assert_int_equal(dataset->length, LENGTH + EACH);
    tern_dataset_free(dataset);
}

#define WITH_FILES(test) cmocka_unit_test_setup_teardown(test, open_folder, erase_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FILES(warm_epochs_ask_for_no_memory),      WITH_FILES(every_refused_request_is_an_error),
        WITH_FILES(the_same_for_any_workers_and_ranks), WITH_FILES(names),
        WITH_FILES(pipes_are_not_waited_for),           WITH_FILES(a_link_that_leads_back_is_named),
        WITH_FILES(names_are_found_behind_subsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
