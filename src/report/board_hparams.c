/* board_hparams.c - hyperparameters, as TensorBoard's plug-in for them reads them: one value whose metadata
 * describes the table's columns, and one with this run's row. */
#include "report/board.h"

#include "base/text.h"

#include <string.h>

#define FUNC "tern_board_hparams"

enum { TEXT = 1, TRUTH, NUMBER }; /* the plug-in's types */

/* A column, and this run's value in it. */
typedef struct entry {
    Tern__Pb__HParam column;
    Tern__Pb__Pair pair;
    Tern__Pb__Scalar value;
} entry;

typedef struct metric {
    Tern__Pb__Metric column;
    Tern__Pb__MetricName name;
} metric;

/* The memory that the two messages point to. */
typedef struct table {
    entry *entries;
    metric *metrics;
    Tern__Pb__HParam **columns;
    Tern__Pb__Pair **pairs;
    Tern__Pb__Metric **metric_columns;
    size_t count, metric_count;
} table;

static int make_table(table *t, size_t count, size_t metrics, tern_error *err)
{
    *t = (table){.entries = tern__alloc(count * sizeof(*t->entries), FUNC, err)};
    t->metrics = tern__alloc(metrics * sizeof(*t->metrics), FUNC, err);
    t->columns = tern__alloc(count * sizeof(*t->columns), FUNC, err);
    t->pairs = tern__alloc(count * sizeof(*t->pairs), FUNC, err);
    t->metric_columns = tern__alloc(metrics * sizeof(*t->metric_columns), FUNC, err);
    return err->code;
}

/* Returns the value's type; 0 for None, and for other objects that a table cannot hold, with an error. */
static int fill_value(Tern__Pb__Scalar *value, const char *key, const tern_object *object, tern_error *err)
{
    bool truth;
    char quote[TERN__QUOTE_TEXT];
    tern_object_kind kind = tern_object_kind_get(object);
    tern__pb__scalar__init(value);
    switch (kind) {
    case TERN_OBJECT_NONE: return 0;
    case TERN_OBJECT_STRING:
        value->what_case = TERN__PB__SCALAR__WHAT_TEXT;
        value->text = (char *)tern_object_to_string(object);
        return TEXT;
    case TERN_OBJECT_BOOL:
        tern_object_to_bool(object, &truth, err);
        value->what_case = TERN__PB__SCALAR__WHAT_TRUTH;
        value->truth = truth;
        return TRUTH;
    case TERN_OBJECT_INT:
    case TERN_OBJECT_FLOAT:
        value->what_case = TERN__PB__SCALAR__WHAT_NUMBER;
        tern_object_to_float(object, &value->number, err);
        return NUMBER;
    default:
        tern__error_set(err, FUNC, TERN_E_DTYPE, "hparams[%s]: expected a bool, number or string, got a %s",
                        tern__quote(key, strlen(key), quote), tern_object_kind_name(kind));
        return 0;
    }
}

static void hparams_add_entry(table *t, const tern_object *hparams, int64_t i, tern_error *err)
{
    const char *key = tern_object_to_string(tern_object_key(hparams, i));
    entry *e = &t->entries[t->count];
    if (tern__tag_check(key, FUNC, err)) return;
    int type = fill_value(&e->value, key, tern_object_at(hparams, i), err);
    if (!type || err->code) return;
    tern__pb__hparam__init(&e->column);
    tern__pb__pair__init(&e->pair);
    e->column.name = e->pair.key = (char *)key;
    e->column.type = type;
    e->pair.value = &e->value;
    t->columns[t->count] = &e->column;
    t->pairs[t->count++] = &e->pair;
}

static void add_metric(table *t, const char *tag, tern_error *err)
{
    metric *m = &t->metrics[t->metric_count];
    if (tern__tag_check(tag, FUNC, err)) return;
    tern__pb__metric__init(&m->column);
    tern__pb__metric_name__init(&m->name);
    m->name.tag = (char *)tag;
    m->column.name = &m->name;
    t->metric_columns[t->metric_count++] = &m->column;
}

static int put_content(tern_board *board, char *tag, const Tern__Pb__HParams *content, tern_error *err)
{
    Tern__Pb__Plugin plugin = TERN__PB__PLUGIN__INIT;
    Tern__Pb__Metadata metadata = TERN__PB__METADATA__INIT;
    Tern__Pb__Value value = TERN__PB__VALUE__INIT;
    plugin.name = "hparams";
    plugin.content.len = tern__pb__hparams__get_packed_size(content);
    plugin.content.data = tern__board_room(board, TERN__ROOM_PLAIN, plugin.content.len, FUNC, err);
    if (!plugin.content.data) return TERN_E_MEMORY;
    tern__pb__hparams__pack(content, plugin.content.data);
    metadata.plugin = &plugin;
    value.tag = tag;
    value.metadata = &metadata;
    return tern__board_put(board, board->runs, &value, 0, FUNC, err);
}

static int put_table(tern_board *board, const table *t, tern_error *err)
{
    Tern__Pb__Experiment experiment = TERN__PB__EXPERIMENT__INIT;
    Tern__Pb__Session session = TERN__PB__SESSION__INIT;
    Tern__Pb__HParams content = TERN__PB__HPARAMS__INIT;
    experiment.n_hparam = session.n_hparam = t->count;
    experiment.hparam = t->columns;
    experiment.n_metric = t->metric_count;
    experiment.metric = t->metric_columns;
    session.hparam = t->pairs;
    content.what_case = TERN__PB__HPARAMS__WHAT_EXPERIMENT;
    content.experiment = &experiment;
    if (put_content(board, "_hparams_/experiment", &content, err)) return err->code;
    content.what_case = TERN__PB__HPARAMS__WHAT_SESSION;
    content.session = &session;
    return put_content(board, "_hparams_/session_start_info", &content, err);
}

int tern_board_hparams(tern_board *board, const tern_object *hparams, int count, const char *const *metrics,
                       tern_error *err)
{
    tern_error why = {0};
    table t = {.count = 0};
    if (tern__board_is_off(board, err)) return tern__board_skip(err);
    if (tern_object_kind_get(hparams) != TERN_OBJECT_DICT || (count > 0 && !metrics))
        tern__error_set(&why, __func__, TERN_E_INVALID, "expected a dict and the metrics' tags, got a %s",
                        tern_object_kind_name(tern_object_kind_get(hparams)));
    else
        make_table(&t, (size_t)tern_object_count(hparams), (size_t)TERN__MAX(count, 0), &why);
    for (int64_t i = 0; !why.code && i < tern_object_count(hparams); i++)
        hparams_add_entry(&t, hparams, i, &why);
    for (int i = 0; !why.code && i < count; i++) add_metric(&t, metrics[i], &why);
    if (!why.code) put_table(board, &t, &why);
    tern__free(t.entries);
    tern__free(t.metrics);
    tern__free(t.columns);
    tern__free(t.pairs);
    tern__free(t.metric_columns);
    return tern__board_end(&why, err);
}
