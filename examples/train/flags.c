/* flags.c - reads the command line of a training program with getopt_long, from a table of flags. */
#include "flags.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGER 256 /* getopt's value of row 0, above chars */

flags flags_defaults(const char *program, const char *about)
{
    const tern_device_conv_opts conv = tern_device_conv_defaults();
    return (flags){.program = program,
                   .about = about,
                   .workers = 1,
                   .batch = 64,
                   .accumulate = 1,
                   .epochs = 10,
                   .lr = 0.1,
                   .momentum = 0.9,
                   .weight_decay = 1e-4,
                   .gamma = 0.1,
                   .opt_level = TERN_O1,
                   .exact_conv = conv.exact,
                   .deterministic = conv.deterministic};
}

/* ---- exiting ---- */

static bool speaks(void)
{
    return tern_launched_rank() <= 0;
}

/* A launcher ends all ranks as soon as one exits. So the ranks wait for each other before they exit, which
 * gives rank 0 time to print its message. */
static _Noreturn void exit_together(int status)
{
    tern_error err = {0};
    fflush(NULL);
    tern_group_close(tern_group_open(NULL, &err));
    exit(status);
}

void error_file_write(const char *text)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    cJSON *error = cJSON_CreateObject();
    cJSON_AddStringToObject(error, "message", text);
    char *json = cJSON_PrintUnformatted(error);
    if (json) fputs(json, file);
    cJSON_free(json);
    cJSON_Delete(error);
    fclose(file);
}

void flags_wrong(const flags *f, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    if (speaks()) fprintf(stderr, "%s: %s\n", f->program, text);
    error_file_write(text);
    exit_together(2);
}

/* ---- values ---- */

static bool read_number(const char *text, const flag *row, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end || errno || !isfinite(value) || value < row->low || value > row->high)
        return false;
    *out = value;
    return true;
}

static bool read_count(const char *text, const flag *row, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)value < row->low || (double)value > row->high) return false;
    *out = value;
    return true;
}

static bool read_choice(const char *text, const flag *row, int *out)
{
    size_t length = strlen(text);
    const char *word = row->wants;
    for (int i = 0; word; i++) {
        size_t size = strcspn(word, "|");
        if (size == length && !strncmp(word, text, size)) {
            *out = i;
            return true;
        }
        word = word[size] ? word + size + 1 : NULL;
    }
    return false;
}

static bool read_list(const char *text, flag_list *out)
{
    flag_list list = {.count = 0};
    for (const char *at = text; list.count < (int)(sizeof(list.items) / sizeof(*list.items)); at++) {
        char *end;
        long long value = strtoll(at, &end, 10);
        if (end == at || value < 1 || (list.count && value <= list.items[list.count - 1])) return false;
        list.items[list.count++] = value;
        at = end;
        if (!*at) *out = list;
        if (*at != ',') return !*at;
    }
    return false;
}

static bool read_value(const flag *row, const char *text)
{
    switch (row->kind) {
    case FLAG_COUNT: return read_count(text, row, row->value);
    case FLAG_NUMBER: return read_number(text, row, row->value);
    case FLAG_CHOICE: return read_choice(text, row, row->value);
    case FLAG_LIST: return read_list(text, row->value);
    case FLAG_TEXT: *(const char **)row->value = text; return *text;
    case FLAG_SWITCH:
        *(bool *)row->value = !text || strcmp(text, "off");
        return !text || !strcmp(text, "on") || !strcmp(text, "off");
    }
    return false;
}

static void describe_value(const flag *row, char *text, size_t size)
{
    switch (row->kind) {
    case FLAG_COUNT: snprintf(text, size, "a whole number from %.0f to %.0f", row->low, row->high); break;
    case FLAG_NUMBER:
        if (isfinite(row->high))
            snprintf(text, size, "a number from %g to %g", row->low, row->high);
        else
            snprintf(text, size, "a number of at least %g", row->low);
        break;
    case FLAG_LIST: snprintf(text, size, "increasing whole numbers of at least 1, as in 25,50,75"); break;
    case FLAG_SWITCH: snprintf(text, size, "on or off"); break;
    default: snprintf(text, size, "%s", row->wants); break;
    }
}

void flags_text(const flag *row, char *text, size_t size)
{
    const char *word = row->wants;
    const flag_list *list = row->value;
    size_t used = 0;
    *text = 0;
    switch (row->kind) {
    case FLAG_COUNT: snprintf(text, size, "%lld", (long long)*(int64_t *)row->value); break;
    case FLAG_NUMBER: snprintf(text, size, "%g", *(double *)row->value); break;
    case FLAG_CHOICE:
        for (int i = *(int *)row->value; i > 0; i--) word += strcspn(word, "|") + 1;
        snprintf(text, size, "%.*s", (int)strcspn(word, "|"), word);
        break;
    case FLAG_TEXT:
        if (*(const char **)row->value) snprintf(text, size, "%s", *(const char **)row->value);
        break;
    case FLAG_LIST:
        for (int i = 0; i < list->count && used < size; i++)
            used +=
                (size_t)snprintf(text + used, size - used, "%s%lld", i ? "," : "", (long long)list->items[i]);
        break;
    case FLAG_SWITCH: snprintf(text, size, "%s", *(bool *)row->value ? "on" : "off"); break;
    }
}

bool flags_given(const flags *f, const char *name)
{
    for (int i = 0; i < f->count; i++)
        if (!strcmp(f->rows[i].name, name)) return f->given[i];
    return false;
}

bool flags_may_change(const flag *row)
{
    static const char *const names[] = {"workers",        "epochs",    "start-epoch", "save-every",
                                        "evaluate-every", "max-steps", "prompt",      "sample-tokens",
                                        "temperature",    "backend",   "device",      "threads",
                                        "resume",         "log-dir"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (!strcmp(row->name, names[i])) return true;
    return false;
}

/* ---- help ---- */

static void print_default(const flag *row)
{
    char text[512];
    flags_text(row, text, sizeof(text));
    if (row->kind != FLAG_SWITCH && *text)
        printf(" (default %s)", text);
    else if (row->kind == FLAG_SWITCH && *(bool *)row->value)
        printf(" (default on; --%s=off)", row->name);
}

static void print_help(const flags *f, const flag *rows, int count)
{
    printf("usage: [tern run -n RANKS] %s [FLAG ..]\n\n%s\n\n", f->program, f->about);
    for (int i = 0; i < count; i++) {
        char head[64];
        snprintf(head, sizeof(head), "--%s%s%s", rows[i].name, rows[i].wants ? " " : "",
                 rows[i].wants ? rows[i].wants : "");
        if (rows[i].letter)
            printf("  -%c, %-30s  %s", rows[i].letter, head, rows[i].help);
        else
            printf("      %-30s  %s", head, rows[i].help);
        print_default(&rows[i]);
        putchar('\n');
    }
    printf("  -h, %-30s  print this text\n", "--help");
}

/* ---- reading ---- */

/* Fills in the flags of all programs, followed by the program's own. Returns their number. */
static int all_rows(flags *f, const flag *own, flag rows[FLAGS_MAX])
{
    const flag shared[] = {
        {"data", 0, FLAG_TEXT, &f->data, "PATH", "the dataset", 0, 0},
        {"skip-bad", 0, FLAG_SWITCH, &f->skip_bad, NULL, "skip samples that cannot be read", 0, 0},
        {"workers", 'j', FLAG_COUNT, &f->workers, "N", "loader threads per rank", 0, 256},
        {"batch-size", 'b', FLAG_COUNT, &f->batch, "N", "samples per rank and batch", 1, 1 << 20},
        {"accumulate", 0, FLAG_COUNT, &f->accumulate, "N", "batches of a step", 1, 1 << 20},
        {"microbatches", 0, FLAG_COUNT, &f->microbatches, "N",
         "batches of a step over all ranks: the same bits on any number of them; 0: off", 0, 1 << 20},
        {"epochs", 0, FLAG_COUNT, &f->epochs, "N", "passes over the training data", 0, 100000},
        {"start-epoch", 0, FLAG_COUNT, &f->start_epoch, "N", "start as if N epochs were done", 0, 100000},
        {"max-steps", 0, FLAG_COUNT, &f->max_steps, "N", "end after N steps in all; 0: --epochs counts", 0,
         1LL << 40},
        {"save-every", 0, FLAG_COUNT, &f->save_every, "N", "save every N steps, too; 0: only after epochs", 0,
         1LL << 40},
        {"evaluate-every", 0, FLAG_COUNT, &f->evaluate_every, "N", "evaluate every N steps, too", 0,
         1LL << 40},
        {"lr", 0, FLAG_NUMBER, &f->lr, "RATE", "learning rate", 0, INFINITY},
        {"momentum", 0, FLAG_NUMBER, &f->momentum, "M", "of SGD", 0, 1},
        {"weight-decay", 0, FLAG_NUMBER, &f->weight_decay, "W", "L2 penalty", 0, INFINITY},
        {"clip", 0, FLAG_NUMBER, &f->clip, "NORM", "largest norm of all gradients; 0: any", 0, INFINITY},
        {"shard", 0, FLAG_SWITCH, &f->shard, NULL, "cut the optimizer's state over the ranks (ZeRO-1)", 0, 0},
        {"warm-up", 0, FLAG_NUMBER, &f->warm_up, "EPOCHS", "during which the rate rises to --lr", 0, 100000},
        {"schedule", 0, FLAG_CHOICE, &f->schedule, FLAGS_SCHEDULES, "of the rate: by --gamma, or to --min-lr",
         0, 0},
        {"min-lr", 0, FLAG_NUMBER, &f->min_lr, "RATE", "the last one of a cosine", 0, INFINITY},
        {"milestones", 0, FLAG_LIST, &f->milestones, "E,E,..", "epochs after which the rate is multiplied ..",
         0, 0},
        {"gamma", 0, FLAG_NUMBER, &f->gamma, "G", ".. by this factor", 0, 1},
        {"opt-level", 0, FLAG_CHOICE, &f->opt_level, "O0|O1|O2|O3", "mixed precision, a level of apex", 0, 0},
        {"half", 0, FLAG_CHOICE, &f->half, "bf16|f16", "16-bit type of mixed precision", 0, 0},
        {"sync-bn", 0, FLAG_SWITCH, &f->sync_bn, NULL, "synchronise batch norm over all ranks", 0, 0},
        {"update-bn", 0, FLAG_COUNT, &f->update_bn, "N",
         "before an evaluation, compute batch norms' statistics anew from N batches; 0: do not", 0, 1 << 20},
        {"backend", 0, FLAG_TEXT, &f->backend, "NAME", "native, nccl, gloo ..; default: chosen to fit", 0, 0},
        {"device", 0, FLAG_TEXT, &f->device, "NAME",
         "cpu, cuda (one GPU per rank), cuda:1 ..; default TERN_DEVICE", 0, 0},
        {"threads", 0, FLAG_COUNT, &f->threads, "N", "kernel threads per rank; 0: its share of cores", 0,
         1024},
        {"exact-conv", 0, FLAG_SWITCH, &f->exact_conv, NULL, "multiply and add f32 in f32", 0, 0},
        {"deterministic", 0, FLAG_SWITCH, &f->deterministic, NULL, "compute the same bits in every run", 0,
         0},
        {"resume", 0, FLAG_TEXT, &f->resume, "FILE|latest", "resume from a checkpoint", 0, 0},
        {"log-dir", 0, FLAG_TEXT, &f->log_dir, "DIR", "for curves and checkpoints; default: a dated one", 0,
         0},
        {"seed", 0, FLAG_COUNT, &f->seed, "N", "for weights, order and augmentation", 0, 4294967295.0},
    };
    int count = sizeof(shared) / sizeof(*shared);
    memcpy(rows, shared, sizeof(shared));
    for (; own && own->name && count < FLAGS_MAX; own++) rows[count++] = *own;
    return count;
}

/* Translates the rows for getopt_long; its value of a long flag is LONGER + the row. */
static void describe_to_getopt(const flag *rows, int count, struct option *longs, char *shorts)
{
    *shorts++ = ':'; /* makes getopt return ':' for a missing argument */
    for (int i = 0; i < count; i++) {
        int takes = rows[i].kind == FLAG_SWITCH ? optional_argument : required_argument;
        longs[i] = (struct option){rows[i].name, takes, NULL, LONGER + i};
        if (!rows[i].letter) continue;
        *shorts++ = (char)rows[i].letter;
        if (takes == required_argument) *shorts++ = ':';
    }
    longs[count] = (struct option){"help", no_argument, NULL, 'h'};
    longs[count + 1] = (struct option){0};
    *shorts++ = 'h';
    *shorts = 0;
}

static const flag *row_of(const flag *rows, int count, int option)
{
    if (option >= LONGER) return &rows[option - LONGER];
    for (int i = 0; i < count; i++)
        if (rows[i].letter == option) return &rows[i];
    return NULL;
}

static void take_value(const flags *f, const flag *row, const char *text)
{
    char wants[128];
    if ((text || row->kind == FLAG_SWITCH) && read_value(row, text)) return;
    describe_value(row, wants, sizeof(wants));
    if (text)
        flags_wrong(f, "--%s: expected %s, got \"%s\"", row->name, wants, text);
    else
        flags_wrong(f, "--%s: expected %s, got nothing", row->name, wants);
}

/* No flag has that name, or several begin with it. */
static _Noreturn void fail_name(const flags *f, const struct option *longs, const char *word)
{
    const char *found[2] = {NULL, NULL};
    size_t length = strncmp(word, "--", 2) ? 0 : strcspn(word + 2, "=");
    for (int i = 0, count = 0; length && longs[i].name && count < 2; i++)
        if (!strncmp(longs[i].name, word + 2, length)) found[count++] = longs[i].name;
    if (found[1]) flags_wrong(f, "\"%s\" may be --%s or --%s", word, found[0], found[1]);
    flags_wrong(f, "unknown flag \"%s\"; --help lists them", word);
}

static void check_together(flags *f)
{
    if (flags_given(f, "milestones") && !flags_given(f, "schedule")) f->schedule = FLAGS_MILESTONES;
    if (f->resume && f->start_epoch)
        flags_wrong(f, "--start-epoch: cannot be combined with --resume, which restores the epoch, got %lld",
                    (long long)f->start_epoch);
    if (f->start_epoch && f->start_epoch >= f->epochs)
        flags_wrong(f, "--start-epoch: expected less than --epochs %lld, got %lld", (long long)f->epochs,
                    (long long)f->start_epoch);
    if (f->microbatches && f->accumulate > 1)
        flags_wrong(f, "--accumulate: --microbatches says how many batches a step has, got %lld",
                    (long long)f->accumulate);
    if (f->log_dir && strlen(f->log_dir) >= FLAGS_DIR)
        flags_wrong(f, "--log-dir: expected a path of less than %d bytes, got %zu", FLAGS_DIR,
                    strlen(f->log_dir));
}

void flags_read(flags *f, const flag *own, int argc, char **argv)
{
    struct option longs[FLAGS_MAX + 2];
    char shorts[2 * FLAGS_MAX + 3];
    int count = f->count = all_rows(f, own, f->rows);
    const flag *rows = f->rows;
    describe_to_getopt(rows, count, longs, shorts);
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (option == 'h') {
            if (speaks()) print_help(f, rows, count);
            exit_together(0);
        }
        const flag *row = row_of(rows, count, option == ':' ? optopt : option);
        if (!row) fail_name(f, longs, argv[optind - 1]);
        take_value(f, row, optarg);
        f->given[row - rows] = true;
    }
    if (optind < argc) flags_wrong(f, "expected flags only, got \"%s\"; --help lists them", argv[optind]);
    check_together(f);
}
