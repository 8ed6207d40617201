/* image.c - fuzzes the readers of image files: any input must give an error or all pixels. */
#include "fuzz.h"

#include <tern/image.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIXELS_MOST = 1 << 16, CHANNELS_MOST = 3, BYTES_MOST = 4 };

/* The plug-ins are in the build folder, the parent of this program's folder. */
static void choose_plugins(void)
{
    char path[512] = "";
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 4);
    if (length <= 0 || !strrchr(path, '/')) abort();
    strcpy(strrchr(path, '/'), "/..");
    setenv("TERN_PLUGIN_PATH", path, 1);
}

/* Uses every byte, so that the compiler does not remove the reads. */
static void read_all(const tern_image *image)
{
    static const size_t bytes[] = {[TERN_IMAGE_U8] = 1, [TERN_IMAGE_U16] = 2, [TERN_IMAGE_F32] = 4};
    size_t size =
        (size_t)image->height * (size_t)image->width * (size_t)image->channels * bytes[image->sample];
    if (!size || size > (size_t)PIXELS_MOST * CHANNELS_MOST * BYTES_MOST) abort();
    char *copy = malloc(size);
    if (copy) memcpy(copy, image->data, size);
    if (copy && memcmp(copy, image->data, size)) abort();
    free(copy);
}

static void load(const char *path, int channels, int indices)
{
    tern_error err = {0};
    tern_image image = {0}, probe = {0};
    tern_image_opts opts = tern_image_defaults();
    opts.channels = channels;
    opts.indices = indices;
    opts.pixels_most = PIXELS_MOST;
    int status = tern_image_load(path, &opts, &image, &err);
    if (status != err.code || strstr(err.text, "needs the package")) abort();
    if (!status) {
        read_all(&image);
        if (tern_image_probe(path, &opts, &probe, NULL) || probe.height != image.height ||
            probe.channels != image.channels || probe.sample != image.sample)
            abort();
    }
    tern_image_free(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH];
    static int is_ready;
    if (!is_ready++) choose_plugins();
    int fd = fuzz_file(data, size, path);
    load(path, 0, 0);
    load(path, 1, 0);
    load(path, 3, 0);
    load(path, 0, 1);
    close(fd);
    return 0;
}
