/* test_volume.c - volumes and arrays when memory or the disk is short. tests/torch/test_volume.py compares
 * the values. */
#include "check.h"
#include "ledger.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/tern-volume-XXXXXX";
static char npy[64], nifti[64], out[64];

/* Volumes of 3 x 4 x 5 in files: an array in Fortran order, and a NIfTI file where the plug-in is. */
static int setup(void **state)
{
    (void)state;
    tern_error err = {0};
    if (choose_plugins() || !mkdtemp(folder)) return -1;
    snprintf(npy, sizeof(npy), "%s/a.npy", folder);
    snprintf(nifti, sizeof(nifti), "%s/a.nii.gz", folder);
    snprintf(out, sizeof(out), "%s/out.npy", folder);
    FILE *file = fopen(npy, "wb");
    static const char header[] = "{'descr': '|u1', 'fortran_order': True, 'shape': (3, 4, 5), }\n";
    if (!file) return -1;
    fwrite("\x93NUMPY\x01\x00", 1, 8, file);
    fwrite((char[]){sizeof(header) - 1, 0}, 1, 2, file);
    fwrite(header, 1, sizeof(header) - 1, file);
    for (int i = 0; i < 60; i++) fputc(i, file);
    fclose(file);
    tern_volume *volume = tern_volume_load(npy, &err);
    if (has_part("nifti")) tern_volume_save(nifti, volume, TERN_U8, &err);
    tern_volume_free(volume);
    if (err.code) print_error("%s\n", err.text);
    return err.code ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(npy);
    unlink(nifti);
    unlink(out);
    return rmdir(folder);
}

static void fortran_order_is_turned(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_volume *volume = tern_volume_load(npy, &err);
    assert_ok(err);
    for (int z = 0; z < 3; z++)
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 5; x++)
                assert_true(volume->values[(z * 4 + y) * 5 + x] == (float)(x * 12 + y * 3 + z));
    tern_volume_free(volume);
}

/* Lets the n-th allocation fail, for every n until the call succeeds. */
static void expect_no_memory(void (*call)(tern_error *err))
{
    for (int n = 1;; n++) {
        tern_error err = {0};
        ledger books = {.refuse_at = n};
        ledger_open(&books);
        call(&err);
        int requests = atomic_load(&books.requests);
        ledger_close(&books);
        if (requests < n) {
            assert_ok(err);
            assert_true(n > 1);
            return;
        }
        assert_string_equal(tern_status_name(err.code), "E_MEMORY");
    }
}

static void load_npy(tern_error *err)
{
    tern_volume_free(tern_volume_load(npy, err));
}

static void load_nifti(tern_error *err)
{
    tern_volume_free(tern_volume_load(nifti, err));
}

static void crop_and_save(tern_error *err)
{
    tern_volume *volume = tern_volume_load(npy, err);
    tern_volume *box =
        volume ? tern_volume_crop(volume, (int64_t[]){1, 1, 1}, (int64_t[]){2, 3, 4}, err) : NULL;
    if (box) tern_volume_save(out, box, TERN_U8, err);
    tern_volume_free(box);
    tern_volume_free(volume);
}

static void every_refused_allocation_is_an_error(void **state)
{
    (void)state;
    expect_no_memory(load_npy);
    expect_no_memory(crop_and_save);
    need_part("nifti");
    expect_no_memory(load_nifti);
}

static void expect_refused(const char *path, const char *why)
{
    tern_error err = {0};
    tern_volume *volume = tern_volume_load(npy, NULL);
    assert_int_equal(tern_volume_save(path, volume, TERN_U8, &err), TERN_E_IO);
    if (!strstr(err.text, path) || !strstr(err.text, why)) fail_msg("%s", err.text);
    tern_volume_free(volume);
}

static void a_pipe_is_not_replaced(void **state)
{
    (void)state;
    struct stat about;
    unlink(out);
    assert_int_equal(mkfifo(out, 0600), 0);
    expect_refused(out, "exists and is not a regular file");
    assert_int_equal(stat(out, &about), 0);
    assert_true(S_ISFIFO(about.st_mode));
}

/* Removing the folder shows that nothing is left beside the files. */
static void a_full_disk_is_said(void **state)
{
    (void)state;
    struct rlimit whole;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &whole);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){100, whole.rlim_max});
    unlink(out);
    expect_refused(out, "File too large");
    if (has_part("nifti")) expect_refused(nifti, "File too large");
    setrlimit(RLIMIT_FSIZE, &whole);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(access(out, F_OK), -1);
    need_part("nifti");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fortran_order_is_turned),
        cmocka_unit_test(every_refused_allocation_is_an_error),
        cmocka_unit_test(a_pipe_is_not_replaced),
        cmocka_unit_test(a_full_disk_is_said),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
