/* board.c - `bench_parts board`: the time that a board's calls take from a training loop. The boards write to
 * a temporary folder, which is removed at the end; the times include each call's share of the file writes. */
#include "parts.h"

#include <tern.h>

#include <cjson/cJSON.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS_MAX = 1000, CALLS = 1000, VALUES = 1000000, IMAGES = 64, SIDE = 28 };

typedef struct settings {
    long rounds;
    bool json;
} settings;

typedef struct bench {
    char folder[64];
    tern_board *plain, *tables;
    tern_tensor *values, *images;
    int64_t step;
    double us[ROUNDS_MAX];
} bench;

static settings chosen = {.rounds = 30};

static const tern__cli_option options[] = {
    {"rounds", .value = "K", .help = "calls are timed in K rounds (default 30)", .number = &chosen.rounds,
     .most = ROUNDS_MAX},
    {"json", .help = "print a JSON object a line instead of text", .on = &chosen.json},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page board_page = {
    NULL,
    "Times a board's calls and prints the median: a scalar, a scalar with CSV and JSON lines, a histogram of "
    "1000000 f32, a grid of 64 images of 28x28. The files are written to $TMPDIR (default /tmp) and "
    "removed.\n",
    options,
};

/* ---- subjects ---- */

static void add_scalar(bench *b, tern_error *err)
{
    tern_board_scalar(b->plain, "loss", 0.5, b->step++, err);
}

static void add_scalar_tables(bench *b, tern_error *err)
{
    tern_board_scalar(b->tables, "loss", 0.5, b->step++, err);
}

static void add_histogram(bench *b, tern_error *err)
{
    tern_board_histogram(b->plain, "values", b->values, b->step++, err);
}

static void add_image(bench *b, tern_error *err)
{
    tern_board_image(b->plain, "images", b->images, b->step++, NULL, err);
}

static const struct {
    const char *name;
    void (*call)(bench *b, tern_error *err);
    int calls; /* per round */
} subjects[] = {
    {"scalar", add_scalar, CALLS},
    {"scalar, csv, jsonl", add_scalar_tables, CALLS},
    {"histogram", add_histogram, 1},
    {"image", add_image, 1},
};

/* ---- open and close ---- */

static tern_tensor *draw_tensor(tern_scope *scope, tern_rng *rng, int ndim, const int64_t *shape,
                                tern_error *err)
{
    if (err->code) return NULL;
    tern_tensor *kept = tern_keep(tern_rand(scope, rng, ndim, shape), err);
    tern_scope_end(scope, err);
    return kept;
}

static void open_tensors(bench *b, tern_error *err)
{
    tern_device *device = tern_device_open(NULL, err);
    tern_scope *scope = tern_scope_new(device, NULL, err);
    tern_rng *rng = tern_rng_new(0, err);
    b->values = draw_tensor(scope, rng, 1, (int64_t[]){VALUES}, err);
    b->images = draw_tensor(scope, rng, 4, (int64_t[]){IMAGES, 1, SIDE, SIDE}, err);
    tern_rng_free(rng);
    tern_scope_free(scope);
    tern_device_close(device);
}

static void open_bench(bench *b, tern_error *err)
{
    char path[96];
    const char *place = tern__env("TMPDIR");
    snprintf(b->folder, sizeof(b->folder), "%.40s/tern-board-XXXXXX", place ? place : "/tmp");
    if (!mkdtemp(b->folder)) {
        tern__error_errno(err, "bench_parts board", TERN_E_IO, "cannot make %s", b->folder);
        *b->folder = 0;
    }
    tern_board_opts opts = tern_board_defaults();
    b->plain = tern_board_new(b->folder, NULL, &opts, err);
    opts.csv = opts.jsonl = true;
    snprintf(path, sizeof(path), "%s/tables", b->folder);
    b->tables = tern_board_new(path, NULL, &opts, err);
    open_tensors(b, err);
}

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *walk)
{
    (void)info;
    (void)flag;
    (void)walk;
    return remove(path);
}

static void close_bench(bench *b)
{
    tern_tensor_free(b->images);
    tern_tensor_free(b->values);
    tern_board_free(b->tables);
    tern_board_free(b->plain);
    if (*b->folder) nftw(b->folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- measuring and printing ---- */

/* Returns the median over the rounds. The first round is a warm-up: it allocates memory. */
static double measure_call(bench *b, const settings *set, int subject, tern_error *err)
{
    int calls = subjects[subject].calls;
    for (long round = -1; round < set->rounds && !err->code; round++) {
        int64_t began = tern__now_ns();
        for (int i = 0; i < calls; i++) subjects[subject].call(b, err);
        b->us[TERN__MAX(round, 0)] = (double)(tern__now_ns() - began) * 1e-3 / calls;
    }
    return tern__bench_median(b->us, (size_t)set->rounds);
}

static void print_row(const settings *set, int subject, double us)
{
    if (!set->json) {
        printf("%-20s %12.2f\n", subjects[subject].name, us);
        return;
    }
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "call", subjects[subject].name);
    cJSON_AddNumberToObject(line, "median_us", us);
    tern__bench_print(line);
}

static void run_subjects(bench *b, const settings *set, tern_error *err)
{
    if (!set->json) printf("%-20s %12s\n", "call", "median us");
    for (int i = 0; i < (int)TERN__COUNT(subjects) && !err->code; i++) {
        double us = measure_call(b, set, i, err);
        if (!err->code) print_row(set, i, us);
    }
}

int bench_board(int argc, char **argv)
{
    int status = tern__flags_read_all(&board_page, "bench_parts board", argc, argv);
    if (status) return status < 0 ? tern__cli_flush(argv[0]) : status;
    bench b = {.step = 0};
    tern_error err = {0};
    open_bench(&b, &err);
    if (!err.code) run_subjects(&b, &chosen, &err);
    tern_error_print(&err);
    close_bench(&b);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
