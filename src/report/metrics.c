/* metrics.c - metrics over all ranks. Each rank fills a ledger of fixed size. An all_gather gives every rank
 * all ledgers, and every rank combines them in the order of the ranks. So one collective serves sums, means,
 * minima and maxima, ranks may use different names, and an error of one rank reaches the others in its
 * ledger. */
#include "base/base.h"
#include "base/text.h"

#include <tern/collectives.h>
#include <tern/metrics.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROOM 32 /* names */
#define NAME 32 /* bytes per name */

typedef enum metric { MEAN, SUM, MIN, MAX } metric;

static const char *const kind_names[] = {"mean", "sum", "min", "max"};

typedef struct entry {
    char name[NAME];
    int64_t kind;
    double value;  /* for a mean, the sum of weight * value   */
    double weight; /* for other kinds, the number of updates  */
} entry;

typedef struct ledger {
    entry entries[ROOM];
    int64_t count;
    int64_t code; /* of the first error, and its text */
    char text[120];
} ledger;

struct tern_metrics {
    tern_group *group;
    ledger own, reduced;
    ledger *all; /* [ranks] */
    int ranks;
};

tern_metrics *tern_metrics_new(tern_group *group, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    tern_metrics *metrics = tern__alloc(sizeof(*metrics), __func__, err);
    if (!metrics) return NULL;
    metrics->group = group;
    metrics->ranks = group ? tern_group_size(group) : 1;
    metrics->all = tern__alloc((size_t)metrics->ranks * sizeof(*metrics->all), __func__, err);
    if (metrics->all) return metrics;
    tern_metrics_free(metrics);
    return NULL;
}

void tern_metrics_free(tern_metrics *metrics)
{
    if (!metrics) return;
    tern__free(metrics->all);
    tern__free(metrics);
}

/* ---- a ledger ---- */

/* Keeps the first error. */
static void note_mistake(ledger *l, int code, const char *name, const char *what)
{
    if (l->code) return;
    l->code = code;
    char quote[TERN__QUOTE_TEXT];
    snprintf(l->text, sizeof(l->text), "%s: %s", tern__excerpt(name, strlen(name), 40, quote), what);
}

static entry *find_entry(const ledger *l, const char *name)
{
    for (int64_t i = 0; i < l->count; i++)
        if (!strcmp(l->entries[i].name, name)) return (entry *)&l->entries[i];
    return NULL;
}

/* Returns the entry of that name, or a new one. NULL: no room, or the entry is of another kind. */
static entry *open_entry(ledger *l, const char *name, metric kind)
{
    entry *e = find_entry(l, name);
    if (!e && l->count < ROOM) {
        e = &l->entries[l->count++];
        *e = (entry){.kind = (int64_t)kind};
        snprintf(e->name, NAME, "%s", name);
    }
    return e && e->kind == (int64_t)kind ? e : NULL;
}

/* NaN wins over any number. */
static double further_of(int64_t kind, double a, double b)
{
    if (isnan(a) || isnan(b)) return NAN;
    return kind == MIN ? fmin(a, b) : fmax(a, b);
}

static void combine_entry(entry *into, double value, double weight)
{
    if (into->kind == MEAN || into->kind == SUM)
        into->value += value;
    else
        into->value = into->weight > 0 ? further_of(into->kind, into->value, value) : value;
    into->weight += weight;
}

/* ---- updates ---- */

static void add_value(tern_metrics *metrics, const char *name, metric kind, double value, double weight)
{
    if (!metrics) return;
    ledger *l = &metrics->own;
    if (!name || strlen(name) >= NAME) {
        note_mistake(l, TERN_E_RANGE, name ? name : "", "a name has 1 to 31 characters");
        return;
    }
    entry *e = open_entry(l, name, kind);
    if (e)
        combine_entry(e, value, weight);
    else if (find_entry(l, name))
        note_mistake(l, TERN_E_INVALID, name, "used as two kinds of metric");
    else
        note_mistake(l, TERN_E_RANGE, name, "more than 32 names");
}

void tern_metrics_mean(tern_metrics *metrics, const char *name, double value, double weight)
{
    if (metrics && !(weight >= 0))
        note_mistake(&metrics->own, TERN_E_RANGE, name ? name : "", "the weight is below 0");
    else if (weight > 0)
        add_value(metrics, name, MEAN, weight * value, weight);
    else
        add_value(metrics, name, MEAN, 0, 0);
}

void tern_metrics_sum(tern_metrics *metrics, const char *name, double value)
{
    add_value(metrics, name, SUM, value, 1);
}

void tern_metrics_min(tern_metrics *metrics, const char *name, double value)
{
    add_value(metrics, name, MIN, value, 1);
}

void tern_metrics_max(tern_metrics *metrics, const char *name, double value)
{
    add_value(metrics, name, MAX, value, 1);
}

/* ---- reduction ---- */

static int add_rank(tern_metrics *metrics, int rank, tern_error *err)
{
    const ledger *theirs = &metrics->all[rank];
    if (theirs->code)
        return tern__error_set(err, "tern_metrics_reduce", (int)theirs->code, "rank %d: %s", rank,
                               theirs->text);
    for (int64_t i = 0; i < theirs->count; i++) {
        const entry *from = &theirs->entries[i];
        entry *into = open_entry(&metrics->reduced, from->name, (metric)from->kind);
        if (into) {
            combine_entry(into, from->value, from->weight);
            continue;
        }
        const entry *other = find_entry(&metrics->reduced, from->name);
        if (!other)
            return tern__error_set(err, "tern_metrics_reduce", TERN_E_RANGE,
                                   "rank %d: \"%s\": all ranks together use more than %d names", rank,
                                   from->name, ROOM);
        return tern__error_set(err, "tern_metrics_reduce", TERN_E_MISMATCH,
                               "\"%s\" is a %s on rank %d and a %s on a lower rank", from->name,
                               kind_names[from->kind], rank, kind_names[other->kind]);
    }
    return TERN_OK;
}

int tern_metrics_reduce(tern_metrics *metrics, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!metrics) return tern__error_set(err, __func__, TERN_E_INVALID, "the metrics are NULL");
    int status = TERN_OK;
    if (metrics->group)
        status =
            tern_all_gather(metrics->group, &metrics->own, metrics->all, sizeof(metrics->own), TERN_U8, err);
    else
        metrics->all[0] = metrics->own;
    metrics->own = metrics->reduced = (ledger){0};
    for (int rank = 0; rank < metrics->ranks && !status; rank++) status = add_rank(metrics, rank, err);
    if (status) metrics->reduced = (ledger){0};
    return status;
}

/* ---- reading ---- */

double tern_metrics_get(const tern_metrics *metrics, const char *name)
{
    const entry *e = metrics && name ? find_entry(&metrics->reduced, name) : NULL;
    if (!e) return NAN;
    return e->kind == MEAN ? e->value / e->weight : e->value;
}

double tern_metrics_weight(const tern_metrics *metrics, const char *name)
{
    const entry *e = metrics && name ? find_entry(&metrics->reduced, name) : NULL;
    return e ? e->weight : 0;
}

const char *tern_metrics_name(const tern_metrics *metrics, int index)
{
    bool known = metrics && index >= 0 && index < metrics->reduced.count;
    return known ? metrics->reduced.entries[index].name : NULL;
}
