/* inspect.c - `tern inspect`: what is in a checkpoint, and `--diff`: in what two differ. */
#include "inspect/inspect.h"
#include "cli.h"
#include "inspect/rows.h"

#include "base/text.h"
#include "checkpoint/torch.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const char usage[] =
    "usage: tern inspect [--json] [--all] [--records] [--memory N] FILE\n"
    "       tern inspect --diff [--records] [--memory N] FILE FILE\n"
    "\n"
    "Shows what a checkpoint holds (.pt, .pth, .safetensors): what is no tensor as a tree, and of each "
    "tensor name, shape,\n"
    "dtype, statistics of the finite values (std as torch.std) and the XXH3 checksum of its bytes. Nothing "
    "in the file is\n"
    "executed. The checksum of all tensors is that of their names and values, in any order and format.\n"
    "\n"
    "  --json     one JSON object instead of text\n"
    "  --all      the whole tree, however long\n"
    "  --records  show objects of classes (torch.save(net)) by name and state\n"
    "  --memory N let what is in the file take N MiB (16) beyond its size\n"
    "  --diff     in what two files differ: exit status 0 in nothing, 1 in something, 2 trouble\n";

typedef struct settings {
    bool json, all, diff;
    tern_load_opts load;
    const char *paths[2];
} settings;

/* ---- a file ---- */

/* Sets the size and the format of a file that tern_load has taken. */
static int look_at(tern__inspected *file, tern_error *err)
{
    tern__input in;
    uint8_t head[4];
    if (tern__input_open(&in, file->path, 0, err)) return err->code;
    file->bytes = in.size;
    if (!tern__input_read(&in, 0, head, sizeof(head), err))
        file->format = memcmp(head, "PK\3\4", sizeof(head)) == 0 ? "PyTorch"
                       : tern__legacy_is(&in)                    ? "PyTorch before 1.6"
                                                                 : "safetensors";
    tern__input_close(&in);
    return err->code;
}

int tern__inspected_open(tern__inspected *file, const char *path, const tern_load_opts *opts, tern_error *err)
{
    *file = (tern__inspected){.path = path, .object = tern_load(path, opts, err)};
    int status = file->object ? look_at(file, err) : err->code;
    return status ? status : tern__content_list(&file->content, file->object, err);
}

void tern__inspected_close(tern__inspected *file)
{
    tern__content_free(&file->content);
    tern_object_free(file->object);
}

/* ---- the table ---- */

void tern__inspect_add(tern__values *total, const tern__content_item *item, const tern__values *values)
{
    total->count += values->count;
    total->nan += values->nan;
    total->inf += values->inf;
    total->checksum += XXH3_64bits_withSeed(item->name, item->name_bytes, values->checksum);
}

/* "-" where there is none. */
static void add_number(tern__rows *table, double value, tern_error *err)
{
    if (isnan(value))
        tern__rows_add(table, err, "-");
    else
        tern__rows_add(table, err, "%.4g", value);
}

static void add_row(tern__rows *table, const tern__content_item *item, const tern__values *v, tern_error *err)
{
    char shape[TERN__SHAPE_TEXT];
    const tern__view *view = &tern_object_to_tensor(item->value)->view;
    size_t bytes = tern__escape(item->name, item->name_bytes, NULL, 0) + 1;
    char *name = tern__alloc(bytes, "tern inspect", err);
    if (!name) return;
    tern__escape(item->name, item->name_bytes, name, bytes);
    tern__rows_add(table, err, "%s", name);
    tern__free(name);
    tern__rows_add(table, err, "%s", tern__shape_text(view, shape));
    tern__rows_add(table, err, "%s", tern_dtype_name(view->dtype));
    if (v->nan || v->inf)
        tern__rows_add(table, err, "%lld NaN %lld Inf", (long long)v->nan, (long long)v->inf);
    else
        tern__rows_add(table, err, "%s", "");
    const double numbers[] = {v->min, v->mean, v->max, v->std};
    for (size_t i = 0; i < TERN__COUNT(numbers); i++) add_number(table, numbers[i], err);
    tern__rows_add(table, err, "%016llx", (unsigned long long)v->checksum);
}

typedef struct totals {
    int64_t tensors, bytes;
    tern__values values;
} totals;

static int fill_table(const tern__content *content, tern__rows *table, totals *sum, tern_error *err)
{
    tern__values values;
    for (int64_t i = 0; i < content->count && !err->code; i++) {
        const tern__content_item *item = &content->items[i];
        if (!tern__item_is_tensor(item)) continue;
        const tern_tensor *tensor = tern_object_to_tensor(item->value);
        if (tern__values_measure(&values, tensor, err)) break;
        add_row(table, item, &values, err);
        tern__inspect_add(&sum->values, item, &values);
        sum->tensors++;
        sum->bytes += (int64_t)tern__view_bytes(&tensor->view);
    }
    return err->code;
}

/* "44.6 MiB" */
static const char *human(int64_t bytes, char text[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < TERN__COUNT(units)) value /= 1024, unit++;
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

static void print_totals(const totals *sum)
{
    char size[32];
    printf("%lld tensor%s, %lld value%s, %s", (long long)sum->tensors, sum->tensors == 1 ? "" : "s",
           (long long)sum->values.count, sum->values.count == 1 ? "" : "s", human(sum->bytes, size));
    if (sum->values.nan || sum->values.inf)
        printf(", %lld NaN, %lld Inf", (long long)sum->values.nan, (long long)sum->values.inf);
    printf(", checksum %016llx\n", (unsigned long long)sum->values.checksum);
}

static int print_text(const tern__inspected *file, bool all, tern_error *err)
{
    static const char *const heads[] = {"<name", "<shape", "<dtype", "<",       "min",
                                        "mean",  "max",    "std",    "checksum"};
    tern__rows table = {.columns = TERN__COUNT(heads), .heads = heads};
    totals sum = {0};
    char size[32];
    if (!fill_table(&file->content, &table, &sum, err)) {
        printf("%s: %s, %s\n\n", file->path, file->format, human(file->bytes, size));
        tern__inspect_tree(file->object, all);
        if (table.count) tern__rows_print(&table, tern__terminal_width());
        if (table.count) putchar('\n');
        print_totals(&sum);
    }
    tern__rows_free(&table);
    return err->code;
}

/* ---- the command ---- */

static int show(const settings *set, tern_error *err)
{
    tern__inspected file;
    int status = tern__inspected_open(&file, set->paths[0], &set->load, err);
    if (!status) status = set->json ? tern__inspect_json(&file, err) : print_text(&file, set->all, err);
    tern__inspected_close(&file);
    return status ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}

/* Trouble is 2, as that of diff. */
static int compare(const settings *set, tern_error *err)
{
    tern__inspected a, b = {0};
    int exit = TERN__EXIT_USAGE;
    if (!tern__inspected_open(&a, set->paths[0], &set->load, err) &&
        !tern__inspected_open(&b, set->paths[1], &set->load, err))
        exit = tern__inspect_diff(&a, &b, err);
    tern__inspected_close(&a);
    tern__inspected_close(&b);
    return err->code ? TERN__EXIT_USAGE : exit;
}

/* TERN__EXIT_OK to go on; -1 after --help; TERN__EXIT_USAGE. */
static int parse(int argc, char **argv, settings *set)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'},
        {"all", no_argument, NULL, 'a'},
        {"records", no_argument, NULL, 'r'},
        {"memory", required_argument, NULL, 'm'},
        {"diff", no_argument, NULL, 'd'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    argv[0] = "tern inspect"; /* as getopt names it */
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (option) {
        case 'j': set->json = true; break;
        case 'a': set->all = true; break;
        case 'r': set->load.records = true; break;
        case 'd': set->diff = true; break;
        case 'm':
            if (!tern__memory_parse(argv[0], optarg, &set->load.memory)) return TERN__EXIT_USAGE;
            break;
        case 'h': fputs(usage, stdout); return -1;
        default: return TERN__EXIT_USAGE;
        }
    }
    int wanted = set->diff ? 2 : 1, given = argc - optind;
    if (given == wanted && !(set->diff && set->json)) {
        for (int i = 0; i < wanted; i++) set->paths[i] = argv[optind + i];
        return TERN__EXIT_OK;
    }
    if (given != wanted)
        fprintf(stderr, "tern inspect: expected %s, got %d\n", set->diff ? "two files" : "one file", given);
    else
        fprintf(stderr, "tern inspect: --diff has no --json\n");
    return TERN__EXIT_USAGE;
}

int tern__cli_inspect(int argc, char **argv)
{
    settings set = {.load = tern_load_defaults()};
    tern_error err = {0};
    set.load.metadata = true;
    int status = parse(argc, argv, &set);
    if (status) return status < 0 ? tern__cli_flush("tern inspect") : status;
    int exit = set.diff ? compare(&set, &err) : show(&set, &err);
    if (fflush(stdout)) tern__error_errno(&err, "tern inspect", TERN_E_IO, "cannot write");
    if (!err.code) return exit;
    tern_error_print(&err);
    return set.diff ? TERN__EXIT_USAGE : TERN__EXIT_FAILED;
}
