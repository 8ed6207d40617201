/* board.c - opens, flushes and frees a board; writes scalars and text. */
#include "report/board.h"

#include "base/file.h"
#include "base/opts.h"
#include "base/text.h"

#include <tern/collectives.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DIR_ROOM 768

tern_board_opts tern_board_defaults(void)
{
    return (tern_board_opts){
        .size = sizeof(tern_board_opts), .flush_seconds = 120, .queue = 10, .purge_step = -1};
}

/* ---- shared by all calls ---- */

int tern__board_end(const tern_error *why, tern_error *err)
{
    if (why->code && err) *err = *why;
    if (why->code && !err) tern__log(TERN_LOG_WARN, "%s: %s", why->func, why->text);
    return why->code;
}

int tern__text_check(const char *what, const char *text, const char *func, tern_error *err)
{
    if (!text || !*text)
        return tern__error_set(err, func, TERN_E_INVALID, "%s is %s", what, text ? "empty" : "NULL");
    if (tern__utf8_check(text, strlen(text)) < 0) return TERN_OK;
    return tern__error_set(err, func, TERN_E_FORMAT, "%s is not UTF-8", what);
}

int tern__tag_check(const char *tag, const char *func, tern_error *err)
{
    if (tern__text_check("the tag", tag, func, err)) return err->code;
    if (strlen(tag) < TERN__TAG_ROOM) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "the tag has %zu bytes, expected at most %d", strlen(tag),
                           TERN__TAG_ROOM - 1);
}

/* ---- tensors ---- */

void *tern__board_room(tern_board *board, tern__room which, size_t bytes, const char *func, tern_error *err)
{
    if (board->spaces[which].bytes >= bytes) return board->spaces[which].data;
    void *data = tern__alloc(bytes, func, err);
    if (!data) return NULL;
    tern__free(board->spaces[which].data);
    board->spaces[which].data = data;
    board->spaces[which].bytes = bytes;
    return data;
}

int tern__board_view(tern_board *board, const tern_tensor *tensor, bool dense, tern__view *view,
                     const char *func, tern_error *err)
{
    if (tern__tensor_check(tensor, func, err)) return err->code;
    const tern__view *own = &tensor->view;
    *view = *own;
    bool is_here = !tern__memory_device(own->data);
    if (is_here && (dense ? tern__view_is_dense(own) : own->layout == TERN__PLAIN)) return TERN_OK;
    *view = tern__view_make(own->dtype, TERN__PLAIN, own->ndim, own->shape);
    view->data = tern__board_room(board, TERN__ROOM_PLAIN, tern__view_bytes(view), func, err);
    if (!view->data) return TERN_E_MEMORY;
    return tern__view_copy(view, own, err);
}

/* ---- new, flush, free ---- */

/* SummaryWriter's naming: runs/Nov21_17-05-59_host. */
static int dated_name(char dir[DIR_ROOM], const char *tag, tern_error *err)
{
    char date[32], host[256] = "localhost";
    time_t now = time(NULL);
    struct tm local;
    strftime(date, sizeof(date), "%b%d_%H-%M-%S", localtime_r(&now, &local));
    gethostname(host, sizeof(host) - 1);
    if (snprintf(dir, DIR_ROOM, "runs/%s_%s%s", date, host, tag ? tag : "") < DIR_ROOM - 32) return TERN_OK;
    return tern__error_set(err, "tern_board_new", TERN_E_RANGE, "the tag is too long: %zu bytes",
                           strlen(tag));
}

/* Makes a folder for this board alone: boards that start in the same second get "_2", "_3" .. appended. */
static int claim_folder(char dir[DIR_ROOM], tern_error *err)
{
    size_t used = strlen(dir);
    char *last = strrchr(dir, '/'); /* a tag may have one, too */
    *last = 0;
    if (tern__folder_make(dir, 0777, "tern_board_new", err)) return err->code;
    *last = '/';
    for (int number = 2; mkdir(dir, 0777); number++) {
        if (errno != EEXIST)
            return tern__error_errno(err, "tern_board_new", TERN_E_IO, "cannot make the folder \"%s\"", dir);
        snprintf(dir + used, DIR_ROOM - used, "_%d", number);
    }
    return TERN_OK;
}

static int dated_folder(char dir[DIR_ROOM], const char *tag, tern_error *err)
{
    int status = dated_name(dir, tag, err);
    return status ? status : claim_folder(dir, err);
}

static int given_folder(char dir[DIR_ROOM], const char *log_dir, tern_error *err)
{
    if (snprintf(dir, DIR_ROOM, "%s", log_dir) < DIR_ROOM - 32 && *dir) return TERN_OK;
    return tern__error_set(err, "tern_board_new", TERN_E_RANGE, "log_dir has %zu bytes, expected 1 to %d",
                           strlen(log_dir), DIR_ROOM - 33);
}

/* Finds the folder that this rank writes to. With all_ranks, rank 0 broadcasts its name, since clocks differ;
 * an empty name tells the ranks that rank 0 failed, so that none waits. */
static int find_folder(char dir[DIR_ROOM], const char *log_dir, tern_group *group,
                       const tern_board_opts *opts, tern_error *err)
{
    tern_error own = {0};
    bool names = !group || tern_group_rank(group) == 0;
    if (names && (log_dir ? given_folder(dir, log_dir, &own) : dated_folder(dir, opts->tag, &own))) *dir = 0;
    if (opts->all_ranks && group && tern_broadcast(group, dir, DIR_ROOM, TERN_U8, 0, err)) return err->code;
    if (!*dir) {
        tern__error_set(&own, "tern_board_new", TERN_E_PEER, "rank 0 could not find a name for the folder");
        *err = own;
        return err->code;
    }
    size_t used = strlen(dir);
    if (opts->all_ranks) snprintf(dir + used, DIR_ROOM - used, "/rank%d", group ? tern_group_rank(group) : 0);
    return TERN_OK;
}

static int board_check_opts(const tern_board_opts *opts, tern_error *err)
{
    if (opts->queue < 1)
        return tern__error_set(err, "tern_board_new", TERN_E_RANGE, "expected queue >= 1, got %d",
                               opts->queue);
    if (!(opts->flush_seconds >= 0 && opts->flush_seconds <= 1e9))
        return tern__error_set(err, "tern_board_new", TERN_E_RANGE,
                               "expected flush_seconds from 0 to 1e9, got %g", opts->flush_seconds);
    return TERN_OK;
}

static int open_board(tern_board *board, const char *log_dir, tern_group *group, tern_error *err)
{
    char dir[DIR_ROOM] = "";
    bool writes = !group || tern_group_rank(group) == 0 || board->opts.all_ranks;
    if (!writes) return TERN_OK;
    if (find_folder(dir, log_dir, group, &board->opts, err)) return err->code;
    board->dir = tern__strdup(dir, "tern_board_new", err);
    if (!board->dir || !tern__board_run(board, "", "tern_board_new", err)) return err->code;
    return tern__tables_open(board, "tern_board_new", err);
}

tern_board *tern_board_new(const char *log_dir, tern_group *group, const tern_board_opts *opts,
                           tern_error *err)
{
    tern_error why = {0};
    if (tern__is_set(err)) return NULL;
    tern_board *board = tern__alloc(sizeof(*board), __func__, &why);
    if (board) {
        board->opts = tern_board_defaults();
        if (tern__opts_read(&board->opts, sizeof(board->opts), opts, __func__, &why) ||
            board_check_opts(&board->opts, &why) || open_board(board, log_dir, group, &why)) {
            tern_board_free(board);
            board = NULL;
        }
    }
    tern__board_end(&why, err);
    return board;
}

const char *tern_board_dir(const tern_board *board)
{
    return board ? board->dir : NULL;
}

static int board_write_all(tern_board *board, const char *func, tern_error *err)
{
    for (tern__event_file *run = board->runs; run; run = run->next)
        tern__journal_write(&run->events, func, err);
    for (int i = 0; i < TERN__TABLE_COUNT; i++) tern__journal_write(&board->tables[i], func, err);
    return err->code;
}

int tern_board_flush(tern_board *board, tern_error *err)
{
    tern_error why = {0};
    if (tern__board_is_off(board, err)) return tern__board_skip(err);
    board_write_all(board, __func__, &why);
    return tern__board_end(&why, err);
}

void tern_board_free(tern_board *board)
{
    if (!board) return;
    tern_board_flush(board, NULL);
    tern__event_files_free(board->runs);
    for (int i = 0; i < TERN__TABLE_COUNT; i++)
        if (board->tables[i].path) tern__journal_close(&board->tables[i]);
    for (int i = 0; i < TERN__ROOM_COUNT; i++) tern__free(board->spaces[i].data);
    tern__free(board->dir);
    tern__free(board);
}

/* ---- numbers ---- */

int tern__board_put_scalar(const tern_board *board, tern__event_file *run, const char *tag, double number,
                           int64_t step, const char *func, tern_error *err)
{
    Tern__Pb__Value value = TERN__PB__VALUE__INIT;
    value.tag = (char *)tag;
    value.what_case = TERN__PB__VALUE__WHAT_SIMPLE_VALUE;
    value.simple_value = (float)number;
    return run ? tern__board_put(board, run, &value, step, func, err) : err->code;
}

int tern_board_scalar(tern_board *board, const char *tag, double value, int64_t step, tern_error *err)
{
    tern_error why = {0};
    if (tern__board_is_off(board, err)) return tern__board_skip(err);
    if (!tern__tag_check(tag, __func__, &why)) {
        tern__board_put_scalar(board, board->runs, tag, value, step, __func__, &why);
        tern__tables_put(board, tag, NULL, value, step, __func__, &why);
    }
    return tern__board_end(&why, err);
}

/* Names the folder of a curve's run: "loss/train" and "a" give "loss_train_a". */
static int curve_folder(char *folder, size_t size, const char *tag, const char *name, tern_error *err)
{
    int length = snprintf(folder, size, "%s_%s", tag, name);
    for (char *c = folder; *c && c < folder + strlen(tag); c++)
        if (*c == '/') *c = '_';
    if (length < (int)size) return TERN_OK;
    return tern__error_set(err, "tern_board_scalars", TERN_E_RANGE,
                           "tag and name together have %d bytes, expected at most %zu", length, size - 1);
}

static int put_curve(tern_board *board, const char *tag, const char *name, double value, int64_t step,
                     tern_error *err)
{
    char folder[256];
    const char *func = "tern_board_scalars";
    if (tern__text_check("a name", name, func, err)) return err->code;
    if (curve_folder(folder, sizeof(folder), tag, name, err)) return err->code;
    tern__board_put_scalar(board, tern__board_run(board, folder, func, err), tag, value, step, func, err);
    return tern__tables_put(board, tag, name, value, step, func, err);
}

int tern_board_scalars(tern_board *board, const char *tag, int count, const char *const *names,
                       const double *values, int64_t step, tern_error *err)
{
    tern_error why = {0};
    if (tern__board_is_off(board, err)) return tern__board_skip(err);
    if (count > 0 && (!names || !values))
        tern__error_set(&why, __func__, TERN_E_INVALID, "names or values is NULL");
    if (!why.code) tern__tag_check(tag, __func__, &why);
    for (int i = 0; i < count && !why.code; i++) put_curve(board, tag, names[i], values[i], step, &why);
    return tern__board_end(&why, err);
}

/* ---- text ---- */

/* TensorBoard's text plug-in reads a tensor of one string. */
static int put_text(tern_board *board, const char *tag, const char *text, int64_t step, tern_error *err)
{
    Tern__Pb__Dim one = {PROTOBUF_C_MESSAGE_INIT(&tern__pb__dim__descriptor), 1}, *dims[] = {&one};
    Tern__Pb__Shape shape = TERN__PB__SHAPE__INIT;
    Tern__Pb__Tensor tensor = TERN__PB__TENSOR__INIT;
    Tern__Pb__Plugin plugin = TERN__PB__PLUGIN__INIT;
    Tern__Pb__Metadata metadata = TERN__PB__METADATA__INIT;
    Tern__Pb__Value value = TERN__PB__VALUE__INIT;
    ProtobufCBinaryData string = {strlen(text), (uint8_t *)text};
    shape.n_dim = tensor.n_string_value = 1;
    shape.dim = dims;
    tensor.dtype = 7; /* DT_STRING */
    tensor.shape = &shape;
    tensor.string_value = &string;
    plugin.name = "text";
    metadata.plugin = &plugin;
    value.tag = (char *)tag;
    value.metadata = &metadata;
    value.what_case = TERN__PB__VALUE__WHAT_TENSOR;
    value.tensor = &tensor;
    return tern__board_put(board, board->runs, &value, step, "tern_board_text", err);
}

int tern_board_text(tern_board *board, const char *tag, const char *text, int64_t step, tern_error *err)
{
    tern_error why = {0};
    char full[TERN__TAG_ROOM + 16];
    if (tern__board_is_off(board, err)) return tern__board_skip(err);
    if (!tern__tag_check(tag, __func__, &why) && !tern__text_check("the text", text, __func__, &why)) {
        snprintf(full, sizeof(full), "%s/text_summary", tag);
        put_text(board, full, text, step, &why);
    }
    return tern__board_end(&why, err);
}
