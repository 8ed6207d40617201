/* diff.c - `tern inspect --diff`: prints the values that only one file has, the tensors that differ in shape,
 * dtype or any bit of their values, and the other values that differ. Metadata of safetensors describes the
 * file and is not compared. */
#include "inspect/inspect.h"
#include "cli.h"
#include "inspect/rows.h"

#include "base/text.h"
#include "checkpoint/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct diff {
    tern__rows table; /* the tensors that differ */
    int64_t alone[2], others, both, shapes, values;
} diff;

static bool is_metadata(const tern__content_item *item)
{
    static const char name[] = TERN__SAFETENSORS_METADATA;
    size_t bytes = sizeof(name) - 1;
    bool begins = item->name_bytes >= bytes && memcmp(item->name, name, bytes) == 0;
    return begins && (item->name_bytes == bytes || item->name[bytes] == '.');
}

static void print_line(const char *head, const tern__content_item *item)
{
    char shown[104], *name = tern__item_name(item, NULL), *text = tern__value_text(item->value);
    if (text) tern__message_format(shown, sizeof(shown), "%s", text);
    if (name && text) printf("%s%s: %s\n", head, name, shown);
    tern__free(name);
    free(text);
}

/* ---- values in one file ---- */

static void print_alone(const tern__inspected *from, const tern__inspected *in, int64_t *count)
{
    char head[300];
    tern__message_format(head, sizeof(head) - strlen(": "), "only in %s", from->path);
    strcat(head, ": ");
    for (int64_t i = 0; i < from->content.count; i++) {
        const tern__content_item *item = &from->content.items[i];
        if (is_metadata(item) || tern__content_find(&in->content, item)) continue;
        print_line(head, item);
        ++*count;
    }
}

/* ---- values in both files ---- */

static void compare_others(diff *d, const tern__content_item *a, const tern__content_item *b)
{
    char *x = tern__value_text(a->value), *y = tern__value_text(b->value);
    if (x && y && strcmp(x, y) != 0) {
        print_line("- ", a);
        print_line("+ ", b);
        d->others++;
    }
    free(x);
    free(y);
}

/* `distance` is NULL if the shapes differ; its largest differences are NaN if there are only bytes. */
static void diff_add_row(diff *d, const tern__content_item *item, const char *description,
                         const tern__distance *distance, tern_error *err)
{
    char *name = tern__item_name(item, err);
    if (!name) return;
    tern__rows_add(&d->table, err, "%s", name);
    tern__free(name);
    tern__rows_add(&d->table, err, "%s", description);
    if (!distance) {
        for (int i = 0; i < 3; i++) tern__rows_add(&d->table, err, "-");
        return;
    }
    tern__rows_add(&d->table, err, "%lld of %lld", (long long)(distance->count - distance->equal),
                   (long long)distance->count);
    const double apart[] = {distance->absolute, distance->relative};
    for (int i = 0; i < 2; i++) tern__rows_add(&d->table, err, isnan(apart[i]) ? "-" : "%.4g", apart[i]);
}

enum { DESCRIPTION = 2 * TERN__SHAPE_TEXT + 32 };

/* Writes "(3, 4) f32", or "(3, 4) f32 -> (3, 5) f32" if they differ. */
static void describe_pair(const tern__tensor_info *a, const tern__tensor_info *b, bool same,
                          char out[DESCRIPTION])
{
    if (same)
        snprintf(out, DESCRIPTION, "%s %s", a->shape, a->dtype);
    else
        snprintf(out, DESCRIPTION, "%s %s -> %s %s", a->shape, a->dtype, b->shape, b->dtype);
}

static bool has_same_shape(const tern__tensor_info *a, const tern__tensor_info *b)
{
    if (!a->dimensions && !b->dimensions) return tern__view_same_shape(&a->tensor->view, &b->tensor->view);
    return strcmp(a->shape, b->shape) == 0 && a->count == b->count;
}

/* Compares values, or only bytes: those of dtypes that tern does not have mean nothing to it. */
static int compare_infos(tern__distance *out, const tern__tensor_info *a, const tern__tensor_info *b,
                         tern_error *err)
{
    if (a->has_values && b->has_values) return tern__values_compare(out, a->tensor, b->tensor, err);
    *out = (tern__distance){.count = a->count, .absolute = NAN, .relative = NAN};
    if (strcmp(a->dtype, b->dtype) != 0) return TERN_OK;
    return tern__bytes_compare(out, a->tensor, b->tensor, err);
}

static void compare_tensors(diff *d, const tern__content_item *a, const tern__content_item *b,
                            tern_error *err)
{
    char text[DESCRIPTION];
    tern__distance distance;
    tern__tensor_info x, y;
    if (!tern__tensor_info_get(&x, a->value) || !tern__tensor_info_get(&y, b->value)) return;
    bool same_shape = has_same_shape(&x, &y), same_dtype = strcmp(x.dtype, y.dtype) == 0;
    describe_pair(&x, &y, same_shape && same_dtype, text);
    if (same_shape && compare_infos(&distance, &x, &y, err)) return;
    if (same_shape && same_dtype && distance.equal == distance.count) return;
    if (!same_shape || !same_dtype)
        d->shapes++;
    else
        d->values++;
    diff_add_row(d, a, text, same_shape ? &distance : NULL, err);
}

static void compare_both(diff *d, const tern__inspected *a, const tern__inspected *b, tern_error *err)
{
    for (int64_t i = 0; i < a->content.count && !err->code; i++) {
        const tern__content_item *item = &a->content.items[i], *other = tern__content_find(&b->content, item);
        if (!other || is_metadata(item)) continue;
        bool tensors = tern__item_is_tensor(item) && tern__item_is_tensor(other);
        d->both += tensors;
        if (tensors)
            compare_tensors(d, item, other, err);
        else
            compare_others(d, item, other);
    }
}

/* ---- the summary ---- */

static void print_verdict(const diff *d)
{
    if (d->table.count) tern__rows_print(&d->table, tern__terminal_width());
    printf("%lld tensor%s in both: %lld equal, %lld of other values, %lld of another shape or dtype\n",
           (long long)d->both, d->both == 1 ? "" : "s", (long long)(d->both - d->values - d->shapes),
           (long long)d->values, (long long)d->shapes);
    if (d->others)
        printf("%lld other value%s not equal\n", (long long)d->others, d->others == 1 ? " is" : "s are");
    if (d->alone[0] || d->alone[1])
        printf("only in the first: %lld, only in the second: %lld\n", (long long)d->alone[0],
               (long long)d->alone[1]);
}

int tern__inspect_diff(tern__inspected *a, tern__inspected *b, tern_error *err)
{
    static const char *const heads[] = {"<name", "<shape and dtype", "differ", "max |a - b|", "relative"};
    diff d = {.table = {.columns = TERN__COUNT(heads), .heads = heads}};
    tern__content_sort(&a->content);
    tern__content_sort(&b->content);
    print_alone(a, b, &d.alone[0]);
    print_alone(b, a, &d.alone[1]);
    compare_both(&d, a, b, err);
    if (!err->code) print_verdict(&d);
    tern__rows_free(&d.table);
    return d.alone[0] || d.alone[1] || d.others || d.shapes || d.values ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
