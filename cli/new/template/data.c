/* data.c - reads the rows, shuffles them, scales their columns, and makes two datasets of them. */
#include "data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of the class of that name, which may be new; -1 if there are too many, or no name. */
static int class_find(data *d, const char *name)
{
    for (int k = 0; k < d->classes; k++)
        if (!strcmp(d->names[k], name)) return k;
    if (d->classes == CLASSES_MAX || !*name || strlen(name) >= sizeof(d->names[0])) return -1;
    strcpy(d->names[d->classes], name);
    return d->classes++;
}

/* Reads "5.1,3.5,setosa" into row n. Returns false if there are other than d->features numbers or no class;
 * the first line says how many numbers there are. */
static bool line_read(data *d, char *line, int64_t n)
{
    int64_t count = 0;
    line[strcspn(line, "\r\n")] = 0;
    if (!n)
        for (const char *c = line; *c; c++) d->features += *c == ',';
    float *row = d->features > 0 ? realloc(d->x, (size_t)((n + 1) * d->features) * sizeof(*row)) : NULL;
    int64_t *labels = row ? realloc(d->y, (size_t)(n + 1) * sizeof(*labels)) : NULL;
    if (row) d->x = row;
    if (!labels) return false;
    d->y = labels;
    for (char *end; count < d->features; count++, line = end + 1) {
        d->x[n * d->features + count] = strtof(line, &end);
        if (end == line || *end != ',') return false;
    }
    int label = strchr(line, ',') ? -1 : class_find(d, line);
    d->y[n] = label;
    return label >= 0;
}

static int64_t lines_read(data *d, const char *path, tern_error *err)
{
    char line[4096];
    int64_t rows = 0;
    FILE *file = err->code ? NULL : fopen(path, "r");
    if (!file) return tern_error_set(err, "data_open", TERN_E_IO, "cannot open %s", path), 0;
    while (!err->code && fgets(line, sizeof(line), file)) {
        if (line_read(d, line, rows))
            rows++;
        else
            tern_error_set(err, "data_open", TERN_E_RANGE,
                           "%s:%lld: expected %lld numbers and a class, got \"%s\"", path,
                           (long long)rows + 1, (long long)d->features, line);
    }
    fclose(file);
    if (!err->code && rows < 10)
        tern_error_set(err, "data_open", TERN_E_RANGE, "%s: expected 10 lines or more", path);
    return rows;
}

/* Every rank makes the same order, from the same seed. */
static void rows_shuffle(data *d, int64_t rows, tern_error *err)
{
    int64_t *order = malloc((size_t)rows * sizeof(*order)), *y = malloc((size_t)rows * sizeof(*y));
    float *x = malloc((size_t)(rows * d->features) * sizeof(*x));
    tern_sampler *sampler = tern_random_sampler_new(rows, 0, err);
    if (order && y && x && !tern_sampler_indices(sampler, order, err)) {
        for (int64_t n = 0; n < rows; n++) {
            memcpy(x + n * d->features, d->x + order[n] * d->features, (size_t)d->features * sizeof(*x));
            y[n] = d->y[order[n]];
        }
        memcpy(d->x, x, (size_t)(rows * d->features) * sizeof(*x));
        memcpy(d->y, y, (size_t)rows * sizeof(*y));
    }
    tern_sampler_free(sampler);
    free(x);
    free(y);
    free(order);
}

/* With the mean and deviation of the first `known` rows: those of the test count as not seen yet. */
static void columns_scale(data *d, int64_t rows, int64_t known)
{
    for (int64_t k = 0; k < d->features; k++) {
        double sum = 0, squares = 0;
        for (int64_t n = 0; n < known; n++) {
            double value = d->x[n * d->features + k];
            sum += value;
            squares += value * value;
        }
        double mean = sum / (double)known, variance = squares / (double)known - mean * mean;
        double scale = variance > 0 ? 1 / sqrt(variance) : 1;
        for (int64_t n = 0; n < rows; n++) {
            float *value = &d->x[n * d->features + k];
            *value = (float)((*value - mean) * scale);
        }
    }
}

/* The datasets share the memory of the rows. */
static tern_dataset *dataset_of(const data *d, int64_t first, int64_t count, tern_error *err)
{
    const int64_t shape[] = {count, d->features};
    tern_tensor *x = tern_tensor_wrap(d->x + first * d->features, TERN_F32, 2, shape, NULL, NULL, err);
    tern_tensor *y = tern_tensor_wrap(d->y + first, TERN_I64, 1, shape, NULL, NULL, err);
    tern_dataset *set = err->code ? NULL : tern_tensor_dataset_new(x, y, err);
    tern_tensor_free(x);
    tern_tensor_free(y);
    return set;
}

int data_open(data *d, const char *path, tern_error *err)
{
    *d = (data){0};
    int64_t rows = lines_read(d, path, err), train = rows * 4 / 5;
    if (err->code) return err->code;
    rows_shuffle(d, rows, err);
    columns_scale(d, rows, train);
    d->train = dataset_of(d, 0, train, err);
    d->test = dataset_of(d, train, rows - train, err);
    return err->code;
}

void data_close(data *d)
{
    tern_dataset_free(d->train);
    tern_dataset_free(d->test);
    free(d->x);
    free(d->y);
}
