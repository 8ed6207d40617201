/* history.c - stores the numbers of every evaluation and saves them in checkpoints. */
#include "history.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 1000000

static int find_series(const history *h, const char *name)
{
    for (int i = 0; i < h->count; i++)
        if (!strcmp(h->series[i].name, name)) return i;
    return -1;
}

/* Makes room for the current row. */
static double *grow_values(const history *h, double **values)
{
    double *grown = realloc(*values, ((size_t)h->rows + 1) * sizeof(*grown));
    if (grown) *values = grown;
    return grown;
}

static int add_series(history *h, const char *name)
{
    if (h->count == HISTORY_NAMES) return -1;
    snprintf(h->series[h->count].name, sizeof(h->series[0].name), "%s", name);
    double *values = grow_values(h, &h->series[h->count].values);
    for (int64_t row = 0; values && row <= h->rows; row++) values[row] = NAN;
    return values ? h->count++ : -1;
}

void history_set(history *h, const char *name, double value)
{
    int i = find_series(h, name);
    if (i < 0) i = add_series(h, name);
    if (i < 0) return;
    h->series[i].values[h->rows] = value;
    h->series[i].is_set = true;
}

double history_get(const history *h, const char *name, int64_t row)
{
    int i = find_series(h, name);
    return i < 0 ? NAN : h->series[i].values[row];
}

void history_loss_add(history *h, double loss)
{
    h->loss_sum += loss;
    h->loss_count++;
    h->row_loss_sum += loss;
    h->row_loss_count++;
}

void history_row_end(history *h, double epochs)
{
    if (!grow_values(h, &h->epochs)) return;
    h->epochs[h->rows++] = epochs;
    h->row_loss_sum = h->row_loss_count = 0;
    for (int i = 0; i < h->count; i++) {
        double *values = grow_values(h, &h->series[i].values);
        if (values) values[h->rows] = NAN;
        h->series[i].is_set = false;
    }
}

void history_log(const history *h, tern_board *board, int64_t step)
{
    for (int i = 0; i < h->count; i++) {
        char tag[64];
        const char *name = h->series[i].name, *group = strncmp(name, "loss/", 5) ? HISTORY_EVALUATION : "";
        snprintf(tag, sizeof(tag), "%s%s", group, name);
        if (h->series[i].is_set) tern_board_scalar(board, tag, h->series[i].values[h->rows], step, NULL);
    }
}

bool history_is_best(const history *h, const char *name, bool least)
{
    double last = history_get(h, name, h->rows), sign = least ? -1 : 1;
    for (int64_t row = 0; row < h->rows; row++)
        if (sign * history_get(h, name, row) >= sign * last) return false;
    return !isnan(last);
}

bool history_is_of_class(const history *h, const char *name)
{
    return h->class_group && !strncmp(name, h->class_group, strlen(h->class_group));
}

int history_classes(const history *h)
{
    int count = 0;
    for (int i = 0; i < h->count; i++) count += history_is_of_class(h, h->series[i].name);
    return count;
}

const char *history_short_name(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

void history_free(history *h)
{
    for (int i = 0; i < h->count; i++) free(h->series[i].values);
    free(h->epochs);
    *h = (history){.class_group = h->class_group};
}

/* ---- in a checkpoint: {"epochs": [1, 2], "loss_sum": .., "numbers": {"top1": [.., ..], ..}} ---- */

static const char *const sums[] = {"loss_sum", "loss_count", "row_loss_sum", "row_loss_count"};

static double *sum_of(history *h, int i)
{
    return (double *[]){&h->loss_sum, &h->loss_count, &h->row_loss_sum, &h->row_loss_count}[i];
}

static tern_object *values_save(const double *values, int64_t rows, tern_error *err)
{
    tern_object *list = tern_object_list(err);
    for (int64_t row = 0; row < rows; row++)
        tern_object_append(list, tern_object_float(values[row], err), err);
    return list;
}

tern_object *history_save(void *self, tern_error *err)
{
    history *h = self;
    tern_object *state = tern_object_dict(err), *numbers = tern_object_dict(err);
    for (int i = 0; i < h->count; i++)
        tern_object_set(numbers, h->series[i].name, values_save(h->series[i].values, h->rows, err), err);
    tern_object_set(state, "epochs", values_save(h->epochs, h->rows, err), err);
    for (int i = 0; i < 4; i++) tern_object_set(state, sums[i], tern_object_float(*sum_of(h, i), err), err);
    tern_object_set(state, "numbers", numbers, err);
    return state;
}

static void load_series(history *h, const char *name, const tern_object *list, tern_error *err)
{
    int i = name && tern_object_count(list) == h->rows ? add_series(h, name) : -1;
    for (int64_t row = 0; i >= 0 && row < h->rows; row++)
        tern_object_to_float(tern_object_at(list, row), &h->series[i].values[row], err);
}

int history_load(const tern_object *state, void *self, tern_error *err)
{
    history *h = self;
    const tern_object *numbers = tern_object_get(state, "numbers"),
                      *epochs = tern_object_get(state, "epochs");
    int64_t rows = tern_object_count(epochs);
    history_free(h);
    if (rows > MOST_ROWS) {
        snprintf(err->text, sizeof(err->text), "history of %lld rows, expected at most %d", (long long)rows,
                 MOST_ROWS);
        return err->code = TERN_E_RANGE;
    }
    for (int64_t row = 0; row < rows; row++) {
        double passed = NAN;
        tern_object_to_float(tern_object_at(epochs, row), &passed, err);
        history_row_end(h, passed);
    }
    for (int i = 0; i < 4; i++) tern_object_to_float(tern_object_get(state, sums[i]), sum_of(h, i), err);
    for (int64_t i = 0; i < tern_object_count(numbers) && !err->code; i++)
        load_series(h, tern_object_to_string(tern_object_key(numbers, i)), tern_object_at(numbers, i), err);
    return err->code;
}
