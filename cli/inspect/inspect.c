/* inspect.c - `tern inspect`: prints what a checkpoint holds, or with --diff how two differ. */
#include "inspect/inspect.h"
#include "cli.h"
#include "flags.h"
#include "inspect/rows.h"

#include "base/text.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct settings {
    bool json, all, diff;
    tern_load_opts load;
    const char *paths[2];
} settings;

/* ---- the table ---- */

/* Adds "-" for NaN: the tensor has too few finite values. */
static void add_number(tern__rows *table, double value, tern_error *err)
{
    if (isnan(value))
        tern__rows_add(table, err, "-");
    else
        tern__rows_add(table, err, "%.4g", value);
}

static void inspect_add_row(tern__rows *table, const tern__content_item *item, const tern__values *v,
                            tern_error *err)
{
    tern__tensor_info info;
    char *name = tern__item_name(item, err);
    if (!name || !tern__tensor_info_get(&info, item->value)) return;
    tern__rows_add(table, err, "%s", name);
    tern__free(name);
    tern__rows_add(table, err, "%s", info.shape);
    tern__rows_add(table, err, "%s", info.dtype);
    if (v->nan || v->inf)
        tern__rows_add(table, err, "%lld NaN %lld Inf", (long long)v->nan, (long long)v->inf);
    else
        tern__rows_add(table, err, "%s", "");
    const double numbers[] = {v->min, v->mean, v->max, v->std};
    for (size_t i = 0; i < TERN__COUNT(numbers); i++) add_number(table, numbers[i], err);
    tern__rows_add(table, err, "%016llx", (unsigned long long)v->checksum);
}

static int fill_table(const tern__content *content, tern__rows *table, tern__totals *sum, tern_error *err)
{
    tern__values values;
    for (int64_t i = 0; i < content->count && !err->code; i++) {
        const tern__content_item *item = &content->items[i];
        if (!tern__item_is_tensor(item)) continue;
        if (!tern__inspect_measure(&values, item, sum, err)) inspect_add_row(table, item, &values, err);
    }
    return err->code;
}

/* Writes and returns "44.6 MiB". */
static const char *bytes_text(int64_t bytes, char text[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < TERN__COUNT(units)) value /= 1024, unit++;
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

static void print_totals(const tern__totals *sum)
{
    char size[32];
    printf("%lld tensor%s, %lld value%s, %s", (long long)sum->tensors, sum->tensors == 1 ? "" : "s",
           (long long)sum->values, sum->values == 1 ? "" : "s", bytes_text(sum->bytes, size));
    if (sum->nan || sum->inf) printf(", %lld NaN, %lld Inf", (long long)sum->nan, (long long)sum->inf);
    printf(", checksum %016llx\n", (unsigned long long)sum->checksum);
}

static int inspect_print_text(const tern__inspected *file, bool all, tern_error *err)
{
    static const char *const heads[] = {"<name", "<shape", "<dtype", "<",       "min",
                                        "mean",  "max",    "std",    "checksum"};
    tern__rows table = {.columns = TERN__COUNT(heads), .heads = heads};
    tern__totals sum = {0};
    char size[32], path[TERN__MESSAGE_MOST];
    if (!fill_table(&file->content, &table, &sum, err)) {
        tern__message_format(path, sizeof(path), "%s", file->path);
        printf("%s: %s, %s\n\n", path, file->format, bytes_text(file->bytes, size));
        tern__inspect_tree(file->object, all);
        if (table.count) tern__rows_print(&table, tern__terminal_width());
        if (table.count) putchar('\n');
        print_totals(&sum);
    }
    tern__rows_free(&table);
    return err->code;
}

/* ---- the command ---- */

static int show_file(const settings *set, tern_error *err)
{
    tern__inspected file;
    int status = tern__inspected_open(&file, set->paths[0], &set->load, err);
    if (!status)
        status = set->json ? tern__inspect_json(&file, err) : inspect_print_text(&file, set->all, err);
    tern__inspected_close(&file);
    return status ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}

/* Errors exit with 2, as those of diff(1) do. */
static int compare_files(const settings *set, tern_error *err)
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

static int take_files(int count, char **files, settings *set)
{
    int wanted = set->diff ? 2 : 1;
    if (count != wanted) {
        fprintf(stderr, "tern inspect: expected %s, got %d%s\n", set->diff ? "two files" : "one file", count,
                count == 2 ? ": --diff compares two" : "");
        return TERN__EXIT_USAGE;
    }
    if (set->diff && set->json) {
        fprintf(stderr, "tern inspect: --diff cannot be combined with --json\n");
        return TERN__EXIT_USAGE;
    }
    for (int i = 0; i < count; i++) set->paths[i] = files[i];
    return TERN__EXIT_OK;
}

static settings chosen;

static const tern__cli_option options[] = {
    {"json", .help = "print one JSON object instead of text", .on = &chosen.json},
    {"all", .help = "print the whole tree, however long", .on = &chosen.all},
    {"records", .help = "show instances of classes (torch.save(net)) by class name and state",
     .on = &chosen.load.records},
    {"memory", .value = "N", .take = tern__memory_take, .to = &chosen.load.memory,
     .help = "allow the file's objects N MiB (default 16) of memory beyond the file's size"},
    {"diff", .help = "print how two files differ; exit status 0: equal, 1: different, 2: error",
     .on = &chosen.diff},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page tern__inspect_page = {
    "FILE\n--diff FILE FILE",
    "Shows what a checkpoint holds (.pt, .pth, .safetensors): values other than tensors as a tree, and for "
    "each tensor its name, shape, dtype, statistics of its finite values (std as torch.std) and the XXH3 "
    "checksum of its bytes. Of a dtype that tern does not have (u16, f8_e4m3 ..) there are no statistics. "
    "Nothing in the file is executed. The checksum of all tensors covers their names and values and depends "
    "neither on their order nor on the format.\n",
    options,
};

/* Returns what tern__flags_read does, and TERN__EXIT_USAGE if the files are wrong. */
static int inspect_read_options(int argc, char **argv)
{
    chosen.load = tern_load_defaults();
    chosen.load.metadata = true;
    int status = tern__flags_read(&tern__inspect_page, "tern inspect", argc, argv);
    return status ? status : take_files(argc - optind, argv + optind, &chosen);
}

int tern__cli_inspect(int argc, char **argv)
{
    tern_error err = {0};
    int status = inspect_read_options(argc, argv);
    if (status) return status < 0 ? tern__cli_flush("tern inspect") : status;
    int exit = chosen.diff ? compare_files(&chosen, &err) : show_file(&chosen, &err);
    if (fflush(stdout)) tern__error_errno(&err, "tern inspect", TERN_E_IO, "cannot write");
    if (!err.code) return exit;
    tern_error_print(&err);
    return chosen.diff ? TERN__EXIT_USAGE : TERN__EXIT_FAILED;
}
