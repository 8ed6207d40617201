/* data.c - reads the rows, shuffles them, scales their columns, and makes two datasets of them. */
#include "data.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of the class of that name, which may be new; -1 if there are too many. */
static int class_find(data *d, const char *name)
{
    for (int k = 0; k < d->classes; k++)
        if (!strcmp(d->names[k], name)) return k;
    if (d->classes == CLASSES_MAX) return -1;
    strcpy(d->names[d->classes], name);
    return d->classes++;
}

/* Makes room for row n. */
static bool row_reserve(data *d, int64_t n)
{
    float *x = realloc(d->x, (size_t)((n + 1) * d->features) * sizeof(*x));
    if (x) d->x = x;
    int64_t *y = realloc(d->y, (size_t)(n + 1) * sizeof(*y));
    if (y) d->y = y;
    return x && y;
}

/* Reads "5.1,3.5,setosa" into row n. An error says what is wrong with it. */
static int line_read(data *d, const char *line, int64_t n, const char *path, int number, tern_error *err)
{
    const char *at = line;
    int64_t count = 0;
    if (!row_reserve(d, n)) return tern_error_set(err, "data_open", TERN_E_MEMORY, "%s: no memory", path);
    for (char *end; count < d->features; count++, at = end + 1) {
        d->x[n * d->features + count] = strtof(at, &end);
        if (end == at || *end != ',' || !isfinite(d->x[n * d->features + count])) break;
    }
    if (count < d->features || !*at || strchr(at, ',') || strlen(at) >= sizeof(d->names[0]))
        return tern_error_set(err, "data_open", TERN_E_RANGE,
                              "%s:%d: expected %lld finite numbers and a class, got \"%s\"", path, number,
                              (long long)d->features, line);
    int label = class_find(d, at);
    d->y[n] = label;
    if (label >= 0) return TERN_OK;
    return tern_error_set(err, "data_open", TERN_E_RANGE, "%s:%d: expected at most %d classes, got \"%s\"",
                          path, number, CLASSES_MAX, at);
}

/* The first line may name the columns. Empty lines and blanks at the end of a line mean nothing. */
static int64_t lines_read(data *d, const char *path, tern_error *err)
{
    char *line = NULL, *end;
    size_t room = 0;
    int64_t rows = 0;
    FILE *file = err->code ? NULL : fopen(path, "r");
    if (!file)
        return tern_error_set(err, "data_open", TERN_E_IO, "cannot open %s: %s", path, strerror(errno)), 0;
    for (int number = 1; !err->code && getline(&line, &room, file) > 0; number++) {
        if (number == 1 && !strncmp(line, "\xEF\xBB\xBF", 3)) /* the mark of a spreadsheet's UTF-8 */
            memmove(line, line + 3, strlen(line + 3) + 1);
        size_t length = strlen(line);
        while (length && isspace((unsigned char)line[length - 1])) line[--length] = '\0';
        if (!length) continue;
        if (!d->features) {
            for (const char *c = line; *c; c++) d->features += *c == ',';
            strtof(line, &end);
            if (!d->features) {
                tern_error_set(err, "data_open", TERN_E_RANGE,
                               "%s:%d: expected numbers and a class with commas between them, got \"%s\"",
                               path, number, line);
                break;
            }
            if (end == line) continue; /* names */
        }
        if (!line_read(d, line, rows, path, number, err)) rows++;
    }
    free(line);
    fclose(file);
    if (!err->code && (rows < 10 || d->classes < 2))
        tern_error_set(err, "data_open", TERN_E_RANGE,
                       "%s: expected 10 rows or more of 2 classes or more, got %lld of %d", path,
                       (long long)rows, d->classes);
    return rows;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The numbers of classes are in the order of their names, whatever the order of the rows. */
static void classes_sort(data *d, int64_t rows)
{
    char before[CLASSES_MAX][sizeof(d->names[0])];
    int number[CLASSES_MAX];
    memcpy(before, d->names, sizeof(before));
    qsort(d->names, (size_t)d->classes, sizeof(d->names[0]), compare_names);
    for (int k = 0; k < d->classes; k++) number[k] = class_find(d, before[k]);
    for (int64_t n = 0; n < rows; n++) d->y[n] = number[d->y[n]];
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
        d->mean[k] = mean;
        d->deviation[k] = variance > 0 ? sqrt(variance) : 1;
        for (int64_t n = 0; n < rows; n++) {
            float *value = &d->x[n * d->features + k];
            *value = (float)((*value - mean) / d->deviation[k]);
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
    d->mean = calloc((size_t)d->features, sizeof(*d->mean));
    d->deviation = calloc((size_t)d->features, sizeof(*d->deviation));
    if (!d->mean || !d->deviation)
        return tern_error_set(err, "data_open", TERN_E_MEMORY, "%s: no memory", path);
    classes_sort(d, rows);
    rows_shuffle(d, rows, err);
    columns_scale(d, rows, train);
    d->train = dataset_of(d, 0, train, err);
    d->test = dataset_of(d, train, rows - train, err);
    return err->code;
}

static tern_object *numbers_object(const double *numbers, int64_t count, tern_error *err)
{
    tern_object *list = tern_object_list(err);
    for (int64_t i = 0; i < count; i++) tern_object_append(list, tern_object_float(numbers[i], err), err);
    return list;
}

void data_describe(const data *d, tern_object *best, tern_error *err)
{
    tern_object *classes = tern_object_list(err);
    for (int k = 0; k < d->classes; k++)
        tern_object_append(classes, tern_object_string(d->names[k], err), err);
    tern_object_set(best, "classes", classes, err);
    tern_object_set(best, "mean", numbers_object(d->mean, d->features, err), err);
    tern_object_set(best, "deviation", numbers_object(d->deviation, d->features, err), err);
}

void data_print(const data *d)
{
    printf("%lld + %lld rows of %lld numbers, classes:", (long long)d->train->length,
           (long long)d->test->length, (long long)d->features);
    for (int k = 0; k < d->classes; k++) printf("%s %s", k ? "," : "", d->names[k]);
    putchar('\n');
}

void data_close(data *d)
{
    tern_dataset_free(d->train);
    tern_dataset_free(d->test);
    free(d->mean);
    free(d->deviation);
    free(d->x);
    free(d->y);
}
