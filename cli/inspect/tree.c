/* tree.c - prints all values of a file but tensors as an indented tree; a branch that holds only tensors
 * shows their number. */
#include "inspect/inspect.h"
#include "inspect/rows.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 16, LINE = 160 }; /* limits without --all: items per container, characters per line */

typedef struct tree {
    bool all;
    int width;
} tree;

static bool is_container(const tern_object *value)
{
    tern_object_kind kind = tern_object_kind_get(value);
    return kind == TERN_OBJECT_DICT || kind == TERN_OBJECT_LIST || kind == TERN_OBJECT_TUPLE;
}

static bool is_nothing(const tern_object *value)
{
    return tern_object_kind_get(value) == TERN_OBJECT_NONE ||
           (is_container(value) && !tern_object_count(value));
}

/* The number of values below a node; containers count only if they are empty. */
typedef struct below {
    int64_t tensors, others;
} below;

static void count_below(const tern_object *value, below *sum)
{
    if (!value) return;
    bool is_tensor = tern__value_is_tensor(value);
    if (tern_object_kind_get(value) == TERN_OBJECT_RECORD && !is_tensor) {
        sum->others++;
        count_below(tern_object_record_args(value), sum);
        count_below(tern_object_record_state(value), sum);
        return;
    }
    int64_t *count = is_tensor ? &sum->tensors : &sum->others;
    *count += !is_container(value) || tern_object_count(value) == 0;
    for (int64_t i = 0; is_container(value) && i < tern_object_count(value); i++)
        count_below(tern_object_at(value, i), sum);
}

/* ---- lines ---- */

static void print_key(const tern_object *key, int64_t index, int depth)
{
    char plain[256];
    printf("%*s", 2 * depth, "");
    if (!key)
        printf("[%lld]", (long long)index);
    else if (tern_object_to_string(key)) {
        tern__escape(tern_object_to_string(key), (size_t)tern_object_count(key), plain, sizeof(plain));
        fputs(plain, stdout);
    } else
        tern__object_print(stdout, key);
    putchar(':');
}

enum { TEXT = 1000 }; /* without --all, longer texts are not shown */

/* Prints the value as Python does, cut at the end of the line. */
static void print_cut(const tree *t, const tern_object *value, int used)
{
    char text[TEXT] = "";
    size_t room = (size_t)TERN__MIN(TERN__MAX((t->width ? t->width : LINE) - used, 16), TEXT - 8);
    FILE *memory = fmemopen(text, room, "w");
    if (!memory) return;
    setbuf(memory, NULL);
    tern__object_print(memory, value);
    fclose(memory);
    size_t shown = strlen(text);
    bool cut = shown + 1 >= room;
    while (cut && shown > room - 4) shown--;
    while (cut && shown && ((uint8_t)text[shown] & 0xc0) == 0x80) shown--;
    printf("%.*s%s\n", (int)shown, text, cut ? "..." : "");
}

static void print_value(const tree *t, const tern_object *value, int used)
{
    tern_object_kind kind = tern_object_kind_get(value);
    long long count = tern_object_count(value);
    if (t->all) {
        tern__object_print(stdout, value);
        putchar('\n');
    } else if (count > TEXT && (kind == TERN_OBJECT_STRING || kind == TERN_OBJECT_BYTES))
        printf("%s of %lld bytes\n", tern_object_kind_name(kind), count);
    else
        print_cut(t, value, used);
}

static void print_node(const tree *t, const tern_object *value, int depth, int used);

/* `brief` skips values that are None or empty, as most attributes of an object are. */
static void print_children(const tree *t, const tern_object *value, int depth, bool brief)
{
    int64_t others = 0;
    bool is_dict = tern_object_kind_get(value) == TERN_OBJECT_DICT;
    for (int64_t i = 0; i < tern_object_count(value); i++) {
        const tern_object *item = tern_object_at(value, i);
        if (brief && !t->all && is_nothing(item)) continue;
        if (tern__value_is_tensor(item) || (others++ >= SHOWN && !t->all)) continue;
        print_key(is_dict ? tern_object_key(value, i) : NULL, i, depth);
        print_node(t, item, depth, 2 * depth + 8);
    }
    if (others > SHOWN && !t->all)
        printf("%*s... %lld more (--all)\n", 2 * depth, "", (long long)(others - SHOWN));
}

static void print_record(const tree *t, const tern_object *record, int depth)
{
    const tern_object *args = tern_object_record_args(record), *state = tern_object_record_state(record);
    char name[256];
    const char *class = tern_object_record_name(record);
    tern__escape(class, strlen(class), name, sizeof(name));
    printf("<%s>\n", name);
    if (tern_object_count(args)) print_children(t, args, depth + 1, false);
    if (is_container(state))
        print_children(t, state, depth + 1, true);
    else if (state) {
        printf("%*sstate:", 2 * depth + 2, "");
        print_node(t, state, depth + 1, 2 * depth + 10);
    }
}

/* Is the value printed on the line of its key? So are plain values and lists of them. */
static bool is_line(const tern_object *value)
{
    bool is_plain = true;
    if (!is_container(value) || tern_object_count(value) == 0) return true;
    for (int64_t i = 0; is_plain && i < tern_object_count(value); i++) {
        tern_object_kind kind = tern_object_kind_get(tern_object_at(value, i));
        is_plain = kind < TERN_OBJECT_LIST;
    }
    return is_plain && tern_object_kind_get(value) != TERN_OBJECT_DICT;
}

/* Prints what follows "key:". If there are only tensors below, it prints their number. */
static void print_node(const tree *t, const tern_object *value, int depth, int used)
{
    below sum = {0};
    count_below(value, &sum);
    if (sum.tensors && !sum.others)
        printf(" %lld tensor%s\n", (long long)sum.tensors, sum.tensors == 1 ? "" : "s");
    else if (tern_object_kind_get(value) == TERN_OBJECT_RECORD) {
        putchar(' ');
        print_record(t, value, depth);
    } else if (is_line(value)) {
        putchar(' ');
        print_value(t, value, used);
    } else {
        putchar('\n');
        print_children(t, value, depth + 1, false);
    }
}

void tern__inspect_tree(const tern_object *object, bool all)
{
    tree t = {.all = all, .width = tern__terminal_width()};
    below sum = {0};
    count_below(object, &sum);
    if (!sum.others) return;
    if (tern_object_kind_get(object) == TERN_OBJECT_RECORD)
        print_record(&t, object, 0);
    else if (is_line(object))
        print_value(&t, object, 0);
    else
        print_children(&t, object, 0, false);
    putchar('\n');
}
