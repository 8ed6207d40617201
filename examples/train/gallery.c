/* gallery.c - collects example images, and the counts of a confusion matrix. */
#include "gallery.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG "Evaluation/examples"

uint8_t *gallery_add(gallery *g, int rows, int columns, int channels, bool marked, const char *caption, ...)
{
    uint8_t *pixels = g->count < GALLERY_MAX ? calloc((size_t)rows * columns, (size_t)channels) : NULL;
    if (!pixels) return NULL;
    va_list list;
    va_start(list, caption);
    vsnprintf(g->captions[g->count], sizeof(g->captions[0]), caption, list);
    va_end(list);
    g->pictures[g->count] = (tern_picture){.pixels = pixels,
                                           .rows = rows,
                                           .columns = columns,
                                           .caption = g->captions[g->count],
                                           .marked = marked,
                                           .channels = channels};
    g->count++;
    return pixels;
}

void gallery_free(gallery *g)
{
    for (int i = 0; i < g->count; i++) free((void *)g->pictures[i].pixels);
    g->count = g->classes = 0;
}

/* Returns the RGB pixels of all images, one image after the other; NULL if their sizes differ. */
static uint8_t *join_images(const gallery *g)
{
    const tern_picture *p = g->pictures;
    size_t bytes = (size_t)p->rows * (size_t)p->columns * 3;
    for (int i = 1; i < g->count; i++)
        if (p[i].rows != p->rows || p[i].columns != p->columns) return NULL;
    uint8_t *all = calloc((size_t)g->count, bytes);
    for (int i = 0; i < g->count && all; i++)
        for (size_t k = 0; k < bytes; k++)
            all[(size_t)i * bytes + k] = p[i].pixels[p[i].channels == 3 ? k : k / 3];
    return all;
}

static void log_grid(const gallery *g, tern_board *board, int64_t step)
{
    uint8_t *all = join_images(g);
    if (!all) return;
    tern_board_image_opts opts = tern_board_image_defaults();
    opts.format = "NHWC";
    opts.across = g->across;
    int64_t shape[] = {g->count, g->pictures->rows, g->pictures->columns, 3};
    tern_tensor *images = tern_tensor_wrap(all, TERN_U8, 4, shape, NULL, NULL, NULL);
    tern_board_image(board, TAG, images, step, &opts, NULL);
    tern_tensor_free(images);
    free(all);
}

void gallery_log(const gallery *g, tern_board *board, const char *dir, int64_t step)
{
    char path[600], title[32];
    tern_error err = {0};
    tern_image page = {0};
    tern_board_image_opts opts = tern_board_image_defaults();
    opts.format = "HWC";
    if (!g->count) return;
    snprintf(path, sizeof(path), "%s/examples.png", dir);
    snprintf(title, sizeof(title), "step %lld", (long long)step);
    tern_picture_grid_save(path, title, g->pictures, g->count, g->across, &err);
    if (!err.code) tern_image_load(path, NULL, &page, &err);
    int64_t shape[] = {page.height, page.width, page.channels};
    tern_tensor *image = err.code ? NULL : tern_tensor_wrap(page.data, TERN_U8, 3, shape, NULL, NULL, &err);
    if (image)
        tern_board_image(board, TAG, image, step, &opts, NULL);
    else
        log_grid(g, board, step);
    tern_tensor_free(image);
    tern_image_free(&page);
}

void gallery_image(uint8_t *pixels, const float *x, int rows, int columns, int channels, const float *mean,
                   const float *std)
{
    int64_t size = (int64_t)rows * columns;
    for (int c = 0; pixels && c < channels; c++)
        for (int64_t i = 0; i < size; i++) {
            float value = x[c * size + i] * (std ? std[c] : 1) + (mean ? mean[c] : 0);
            pixels[i * channels + c] = (uint8_t)lrintf(fminf(fmaxf(value, 0), 1) * 255);
        }
}

void gallery_map(uint8_t *pixels, const uint8_t *labels, int64_t count, const tern_legend *legend,
                 int classes)
{
    for (int64_t i = 0; pixels && i < count; i++)
        if (labels[i] < classes) memcpy(pixels + 3 * i, legend[labels[i]].colour, 3);
}

void gallery_confusion(gallery *g, const tern_confusion *seen, const char *const *names, int64_t classes)
{
    if (!tern_confusion_total(seen) || classes > TERN_CONFUSION_CHART_MAX) return;
    g->classes = (int)classes;
    for (int64_t i = 0; i < classes; i++) {
        g->names[i] = names[i];
        for (int64_t k = 0; k < classes; k++) g->counts[i * classes + k] = tern_confusion_count(seen, i, k);
    }
}
