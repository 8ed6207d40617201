/* test_arguments.c - arguments that are NULL where a path, a name or an array is needed, and errors that are
 * set already. */
#include "check.h"

#include "base/base.h"

#include <stdio.h>
#include <string.h>

#define IS_NULL(call, what)                                                                                  \
    do {                                                                                                     \
        tern_error err = {0};                                                                                \
        (void)(call);                                                                                        \
        if (err.code != TERN_E_INVALID || strcmp(err.text, "the " what " is NULL"))                          \
            fail_msg("%s: %s: %s", #call, tern_status_name(err.code), err.text);                             \
    } while (0)

static void paths(void **state)
{
    const char *none = *state;
    int64_t shape[] = {1, 2, 2, 2};
    uint8_t pixel = 0;
    tern_picture picture = {.pixels = &pixel, .rows = 1, .columns = 1};
    tern_image image = {0};
    tern_volume *volume = tern_volume_new(shape, NULL);
    tern_object *object = tern_object_none(NULL);
    tern_tensor *tensor = tern_tensor_wrap(volume->values, TERN_F32, 4, shape, NULL, NULL, NULL);
    IS_NULL(tern_load(none, NULL, &err), "path");
    IS_NULL(tern_save(none, object, &err), "path");
    IS_NULL(tern_npy_load(none, &err), "path");
    IS_NULL(tern_npy_save(none, tensor, &err), "path");
    IS_NULL(tern_volume_load(none, &err), "path");
    IS_NULL(tern_volume_save(none, volume, TERN_F32, &err), "path");
    IS_NULL(tern_image_load(none, NULL, &image, &err), "path");
    IS_NULL(tern_image_save(none, &image, NULL, &err), "path");
    IS_NULL(tern_picture_grid_save(none, "title", &picture, 1, 1, &err), "path");
    IS_NULL(tern_idx_open(none, "labels", NULL, &err), "path of the images");
    IS_NULL(tern_idx_open("images", none, NULL, &err), "path of the labels");
    IS_NULL(tern_image_folder_open(none, NULL, &err), "root");
    IS_NULL(tern_cityscapes_open(none, "train", NULL, &err), "root");
    IS_NULL(tern_cityscapes_open("root", none, NULL, &err), "split");
    IS_NULL(tern_cifar_open(none, NULL, &err), "folder");
    tern_tensor_free(tensor);
    tern_object_free(object);
    tern_volume_free(volume);
}

static void names(void **state)
{
    const char *none = *state;
    int64_t one = 1;
    tern_module *net = tern_sequential_new(NULL), *child = tern_flatten_new(NULL);
    IS_NULL(tern_parameter_add(net, none, TERN_F32, 1, &one, &err), "name");
    IS_NULL(tern_buffer_add(net, none, TERN_F32, 1, &one, &err), "name");
    IS_NULL(tern_module_add(net, none, child, &err), "name");
    assert_null(tern_module_add(net, none, NULL, NULL));
    assert_null(tern_module_add(net, none, net, NULL));
    assert_non_null(tern_parameter_add(net, "weight", TERN_F32, 1, &one, NULL));
    assert_null(tern_state_find(net, none));
    tern_module_free(net);
}

static void volumes(void **state)
{
    (void)state;
    int64_t shape[] = {1, 2, 2, 2};
    tern_volume *volume = tern_volume_new(shape, NULL);
    tern_device *device = tern_device_open("cpu", NULL);
    tern_scope *scope = tern_scope_new(device, NULL, NULL);
    tern_module *net = tern_sequential_new(NULL);
    IS_NULL(tern_volume_new(NULL, &err), "shape");
    IS_NULL(tern_volume_crop(NULL, shape, shape, &err), "volume");
    IS_NULL(tern_volume_crop(volume, NULL, shape, &err), "start");
    IS_NULL(tern_volume_crop(volume, shape, NULL, &err), "shape");
    IS_NULL(tern_volume_save("v.npy", NULL, TERN_F32, &err), "volume");
    IS_NULL(tern_sliding_window(NULL, scope, volume, 1, NULL, &err), "net");
    IS_NULL(tern_sliding_window(net, NULL, volume, 1, NULL, &err), "scope");
    IS_NULL(tern_sliding_window(net, scope, NULL, 1, NULL, &err), "volume");
    tern_module_free(net);
    tern_scope_free(scope);
    tern_device_close(device);
    tern_volume_free(volume);
}

/* Each of them would succeed without the error. */
static void an_error_that_is_set_is_returned(void **state)
{
    (void)state;
    tern_error err = {.code = TERN_E_IO, .text = "first"};
    float value = 1, got = 2;
    int64_t one = 1, whole = 2;
    bool truth = true;
    double real = 2;
    tern_device *device = tern_device_open("cpu", NULL);
    tern_store *store = tern_store_hash_new(NULL);
    tern_preempt *preempt = tern_preempt_new(NULL, NULL, NULL);
    tern_tensor *tensor = tern_tensor_wrap(&value, TERN_F32, 1, &one, NULL, NULL, NULL);
    tern_object *number = tern_object_int(1, NULL), *no = tern_object_bool(false, NULL);
    int threads = tern_device_threads_get(device);
    assert_int_equal(tern_tensor_read(tensor, &got, sizeof(got), &err), TERN_E_IO);
    assert_int_equal(tern_tensor_write(tensor, &got, sizeof(got), &err), TERN_E_IO);
    assert_int_equal(tern_object_to_int(number, &whole, &err), TERN_E_IO);
    assert_int_equal(tern_object_to_bool(no, &truth, &err), TERN_E_IO);
    assert_int_equal(tern_object_to_float(number, &real, &err), TERN_E_IO);
    assert_int_equal(tern_device_threads_set(device, threads + 1, &err), TERN_E_IO);
    assert_int_equal(tern_device_conv_set(device, NULL, &err), TERN_E_IO);
    assert_int_equal(tern_device_graphs_set(device, false, &err), TERN_E_IO);
    assert_int_equal(tern_store_timeout_set(store, 1, &err), TERN_E_IO);
    assert_int_equal(tern_preempt_pending(preempt, &err), TERN_E_IO);
    assert_true(value == 1 && got == 2 && whole == 2 && truth && real == 2);
    assert_int_equal(tern_device_threads_get(device), threads);
    assert_string_equal(err.text, "first");
    tern_object_free(no);
    tern_object_free(number);
    tern_tensor_free(tensor);
    tern_preempt_free(preempt);
    tern_store_close(store);
    tern_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths),
        cmocka_unit_test(names),
        cmocka_unit_test(volumes),
        cmocka_unit_test(an_error_that_is_set_is_returned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
