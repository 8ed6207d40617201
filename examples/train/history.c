/* history.c - stores the numbers of every epoch and saves them in checkpoints. */
#include "history.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_EPOCHS 1000000

static int find_series(const history *h, const char *name)
{
    for (int i = 0; i < h->count; i++)
        if (!strcmp(h->series[i].name, name)) return i;
    return -1;
}

/* Makes room for the current epoch. */
static double *grow_series(history *h, int i)
{
    size_t room = (size_t)h->epochs + 1;
    double *values = realloc(h->series[i].values, room * sizeof(*values));
    if (values) h->series[i].values = values;
    return values;
}

static int add_series(history *h, const char *name)
{
    if (h->count == HISTORY_NAMES) return -1;
    snprintf(h->series[h->count].name, sizeof(h->series[0].name), "%s", name);
    double *values = grow_series(h, h->count);
    for (int64_t e = 0; values && e < h->epochs; e++) values[e] = NAN;
    return values ? h->count++ : -1;
}

void history_set(history *h, const char *name, double value)
{
    int i = find_series(h, name);
    if (i < 0) i = add_series(h, name);
    double *values = i < 0 ? NULL : grow_series(h, i);
    if (values) values[h->epochs] = value;
}

double history_get(const history *h, const char *name, int64_t epoch)
{
    int i = find_series(h, name);
    return i < 0 ? NAN : h->series[i].values[epoch];
}

bool history_is_best(const history *h, const char *name)
{
    double last = history_get(h, name, h->epochs);
    for (int64_t e = 0; e < h->epochs; e++)
        if (history_get(h, name, e) >= last) return false;
    return !isnan(last);
}

static bool is_in_group(const char *name, const char *group)
{
    return group && !strncmp(name, group, strlen(group));
}

bool history_is_main(const history *h, const char *name)
{
    return !strchr(name, '/') || is_in_group(name, "loss/") || is_in_group(name, h->main_group);
}

const char *history_short_name(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

void history_free(history *h)
{
    for (int i = 0; i < h->count; i++) free(h->series[i].values);
    *h = (history){.main_group = h->main_group};
}

/* ---- in a checkpoint: {"epochs": 2, "loss_sum": .., "loss_count": .., "numbers": {"top1": [.., ..], ..}}
 * ---- */

tern_object *history_save(void *self, tern_error *err)
{
    const history *h = self;
    tern_object *state = tern_object_dict(err), *numbers = tern_object_dict(err);
    for (int i = 0; i < h->count; i++) {
        tern_object *list = tern_object_list(err);
        for (int64_t e = 0; e < h->epochs; e++)
            tern_object_append(list, tern_object_float(h->series[i].values[e], err), err);
        tern_object_set(numbers, h->series[i].name, list, err);
    }
    tern_object_set(state, "epochs", tern_object_int(h->epochs, err), err);
    tern_object_set(state, "loss_sum", tern_object_float(h->loss_sum, err), err);
    tern_object_set(state, "loss_count", tern_object_float(h->loss_count, err), err);
    tern_object_set(state, "numbers", numbers, err);
    return state;
}

static void load_series(history *h, const char *name, const tern_object *list, tern_error *err)
{
    int i = name && tern_object_count(list) == h->epochs ? add_series(h, name) : -1;
    for (int64_t e = 0; i >= 0 && e < h->epochs; e++)
        tern_object_to_float(tern_object_at(list, e), &h->series[i].values[e], err);
}

int history_load(const tern_object *state, void *self, tern_error *err)
{
    history *h = self;
    const tern_object *numbers = tern_object_get(state, "numbers");
    history_free(h);
    tern_object_to_int(tern_object_get(state, "epochs"), &h->epochs, err);
    if (h->epochs < 0 || h->epochs > MOST_EPOCHS) {
        snprintf(err->text, sizeof(err->text), "history of %lld epochs, expected 0 to %d",
                 (long long)h->epochs, MOST_EPOCHS);
        h->epochs = 0;
        return err->code = TERN_E_RANGE;
    }
    tern_object_to_float(tern_object_get(state, "loss_sum"), &h->loss_sum, err);
    tern_object_to_float(tern_object_get(state, "loss_count"), &h->loss_count, err);
    for (int64_t i = 0; i < tern_object_count(numbers) && !err->code; i++)
        load_series(h, tern_object_to_string(tern_object_key(numbers, i)), tern_object_at(numbers, i), err);
    return err->code;
}
