/* test_board.c - boards: when they write, which ranks write, and what happens if writing fails.
 * tests/torch/test_board.py reads what they write. */
#include "report/records.h"

#include "base/hash.h"
#include "comm/move/backend.h"
#include "comm/ranks.h"
#include "ledger.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static tern_board *open_board(const char *folder, int queue, double seconds)
{
    tern_error err = {0};
    tern_board_opts opts = tern_board_defaults();
    opts.queue = queue;
    opts.flush_seconds = seconds;
    tern_board *board = tern_board_new(folder, NULL, &opts, &err);
    assert_ok(err);
    return board;
}

static void put(tern_board *board, int count)
{
    tern_error err = {0};
    for (int i = 0; i < count; i++) tern_board_scalar(board, "loss", 0.5, i, &err);
    assert_ok(err);
}

/* RFC 3720, B.4, and the usual check value of CRC-32C. */
static void known_crcs(void **state)
{
    (void)state;
    uint8_t data[32];
    memset(data, 0, 32);
    assert_int_equal(tern__crc32c(data, 32), 0x8a9136aa);
    memset(data, 0xff, 32);
    assert_int_equal(tern__crc32c(data, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) data[i] = (uint8_t)i;
    assert_int_equal(tern__crc32c(data, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++) data[i] = (uint8_t)(31 - i);
    assert_int_equal(tern__crc32c(data, 32), 0x113fdb5c);
    assert_int_equal(tern__crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(tern__crc32c(data, 0), 0);
}

/* ---- when boards write ---- */

static void a_queue_is_written_when_it_is_full(void **state)
{
    const char *folder = *state;
    tern_error err = {0};
    tern_board *board = open_board(folder, 4, 1e9);
    assert_string_equal(tern_board_dir(board), folder);
    assert_int_equal(records_in(folder), 1); /* what it is */
    put(board, 3);
    assert_int_equal(records_in(folder), 1);
    put(board, 1);
    assert_int_equal(records_in(folder), 5);
    put(board, 6);
    assert_int_equal(records_in(folder), 9);
    tern_board_flush(board, &err);
    assert_int_equal(records_in(folder), 11);
    tern_board_flush(board, &err);
    put(board, 1);
    tern_board_free(board);
    assert_int_equal(records_in(folder), 12);
    assert_ok(err);
}

static void what_has_waited_is_written(void **state)
{
    const char *folder = *state;
    tern_board *board = open_board(folder, 1000000, 0);
    for (int i = 1; i <= 5; i++) {
        put(board, 1);
        assert_int_equal(records_in(folder), 1 + i);
    }
    tern_board_free(board);
}

static void a_mebibyte_is_enough_to_write(void **state)
{
    const char *folder = *state;
    tern_board *board = open_board(folder, 1000000, 1e9);
    char *text = malloc(300000);
    memset(text, 'x', 299999);
    text[299999] = 0;
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(tern_board_text(board, "t", text, i, NULL), TERN_OK);
        assert_int_equal(records_in(folder), i < 4 ? 1 : 5);
    }
    free(text);
    tern_board_free(board);
}

static void a_restart_goes_on_in_a_new_file(void **state)
{
    const char *folder = *state;
    char path[PATH_ROOM];
    for (int run = 1; run <= 3; run++) {
        tern_board *board = open_board(folder, 10, 120);
        put(board, run);
        tern_board_free(board);
        assert_int_equal(find_file(folder, "events.", path), run);
        assert_int_equal(records_in(folder), 1 + run);
    }
}

/* Readers go by the order of names, so a new file's name comes last, even after one from the future. */
static void a_file_is_the_last_by_its_name(void **state)
{
    const char *folder = *state;
    char path[PATH_ROOM];
    snprintf(path, sizeof(path), "%s/events.out.tfevents.8999999999.host.9.0", folder);
    int file = creat(path, 0666);
    assert_true(file >= 0);
    close(file);
    tern_board_free(open_board(folder, 1, 1));
    assert_int_equal(find_file(folder, "events.", path), 2);
    assert_non_null(strstr(path, "/events.out.tfevents.9000000000."));
    assert_int_equal(records_in(folder), 1);
}

static void a_folder_has_its_date_and_tag(void **state)
{
    const char *folder = *state;
    tern_error err = {0};
    char host[256], before[1024], path[PATH_ROOM], expected[1400];
    assert_non_null(getcwd(before, sizeof(before)));
    assert_return_code(chdir(folder), errno);
    tern_board_opts opts = tern_board_defaults();
    opts.tag = "_lr0.1";
    int day, hour, minute, second;
    char month[4], rest[600];
    tern_board *board = tern_board_new(NULL, NULL, &opts, &err);
    assert_ok(err);
    assert_int_equal(sscanf(tern_board_dir(board), "runs/%3s%2d_%2d-%2d-%2d%599s", month, &day, &hour,
                            &minute, &second, rest),
                     6);
    gethostname(host, sizeof(host));
    snprintf(expected, sizeof(expected), "_%s_lr0.1", host);
    assert_string_equal(rest, expected);
    assert_int_equal(find_file(tern_board_dir(board), "events.", path), 1);
    tern_board_free(board);
    assert_return_code(chdir(before), errno);
}

static size_t text_of(const char *folder, const char *name, char *text, size_t size)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t bytes = fread(text, 1, size - 1, file);
    fclose(file);
    text[bytes] = 0;
    return bytes;
}

static tern_board *open_tables(const char *folder)
{
    tern_error err = {0};
    tern_board_opts opts = tern_board_defaults();
    opts.csv = opts.jsonl = true;
    tern_board *board = tern_board_new(folder, NULL, &opts, &err);
    assert_ok(err);
    return board;
}

/* A crash may leave half a line; the next run removes it and continues the table, which has one heading. */
static void tables_go_on_behind_their_last_whole_line(void **state)
{
    const char *folder = *state;
    static const char *const names[] = {"scalars.csv", "scalars.jsonl"};
    char path[PATH_ROOM], text[2][4096];
    for (int cut = 0; cut < 2; cut++) {
        tern_board *board = open_tables(folder);
        put(board, 3);
        tern_board_free(board);
        for (int i = 0; i < 2; i++) {
            size_t bytes = text_of(folder, names[i], text[cut], sizeof(text[cut]));
            int lines = 0;
            for (const char *c = text[cut]; *c; c++) lines += *c == '\n';
            assert_int_equal(lines, !i + (cut ? 2 + 3 : 3));
            assert_int_equal(text[cut][bytes - 1], '\n');
            assert_int_equal(strncmp(text[cut], "wall_time,step,tag,value\n", 25) == 0, !i);
            assert_null(strstr(text[cut] + 1, "wall_time,step"));
            snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
            assert_return_code(truncate(path, (off_t)bytes - 3), errno);
        }
    }
}

/* ---- when writing fails ---- */

/* Replaces the C library's function: a disk that cannot be read. */
static bool is_broken;
ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    if (!is_broken) return syscall(SYS_pread64, fd, to, bytes, at);
    errno = EIO;
    return -1;
}

/* Ubuntu's gcc calls this one in its place, which also knows how much there is room for. */
ssize_t __pread_chk(int fd, void *to, size_t bytes, off_t at, size_t room);
ssize_t __pread_chk(int fd, void *to, size_t bytes, off_t at, size_t room)
{
    assert_true(bytes <= room);
    return pread(fd, to, bytes, at);
}

static void tables_that_cannot_be_read_are_left_alone(void **state)
{
    const char *folder = *state;
    char before[4096], after[4096];
    tern_error err = {0};
    tern_board_opts opts = tern_board_defaults();
    opts.csv = true;
    tern_board *board = open_tables(folder);
    put(board, 3);
    tern_board_free(board);
    text_of(folder, "scalars.csv", before, sizeof(before));
    is_broken = true;
    assert_null(tern_board_new(folder, NULL, &opts, &err));
    is_broken = false;
    assert_int_equal(err.code, TERN_E_IO);
    assert_non_null(strstr(err.text, "scalars.csv\": Input/output error"));
    text_of(folder, "scalars.csv", after, sizeof(after));
    assert_string_equal(after, before);
}

/* With standard error closed, messages must not go to the next file that is opened. */
static void standard_error_is_closed(void **state)
{
    int kept = dup(STDERR_FILENO);
    close(STDERR_FILENO);
    tern_board *board = open_board(*state, 1, 1e9);
    ssize_t said = write(STDERR_FILENO, "a warning\n", 10);
    dup2(kept, STDERR_FILENO);
    close(kept);
    assert_int_equal(said, -1);
    put(board, 1);
    assert_int_equal(records_in(*state), 2);
    tern_board_free(board);
}

static char last_warning[1024];
static int warnings;

static void hear(tern_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level != TERN_LOG_WARN) return;
    warnings++;
    snprintf(last_warning, sizeof(last_warning), "%s", text);
}

/* Limits the size of this process's files: a write beyond it is partial, as on a full disk. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_return_code(getrlimit(RLIMIT_FSIZE, &limit), errno);
    limit.rlim_cur = bytes;
    assert_return_code(setrlimit(RLIMIT_FSIZE, &limit), errno);
}

static off_t size_of(const char *path)
{
    struct stat info;
    assert_return_code(stat(path, &info), errno);
    return info.st_size;
}

static void a_full_disk_is_told_once(void **state)
{
    const char *folder = *state;
    char path[PATH_ROOM];
    tern_error err = {0};
    tern_board *board = open_board(folder, 2, 1e9);
    put(board, 4);
    assert_int_equal(find_file(folder, "events.", path), 1);
    off_t whole = size_of(path);
    signal(SIGXFSZ, SIG_IGN);
    tern_log_set(hear, NULL);
    warnings = 0;
    limit_files((rlim_t)whole + 40); /* one record and a part of the next */
    assert_int_equal(tern_board_scalar(board, "loss", 1, 5, &err), TERN_OK);
    assert_int_equal(tern_board_scalar(board, "loss", 1, 6, &err), TERN_E_IO);
    assert_int_equal(err.native, EFBIG);
    assert_string_equal(err.func, "tern_board_scalar");
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "2 records are lost"));
    assert_int_equal(size_of(path), whole);
    for (int i = 0; i < 10; i++) assert_int_equal(tern_board_scalar(board, "loss", 1, i, NULL), TERN_OK);
    assert_int_equal(warnings, 0);
    err = (tern_error){0};
    tern_board_scalar(board, "loss", 1, 7, NULL);
    assert_int_equal(tern_board_flush(board, &err), TERN_E_IO); /* the caller gets the error */
    assert_int_equal(records_in(folder), 5);
    limit_files(RLIM_INFINITY);
    put(board, 2);
    assert_int_equal(records_in(folder), 7);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "13 records are missing"));
    limit_files((rlim_t)size_of(path)); /* the next failure is a new one, and the caller passes no err */
    for (int i = 0; i < 4; i++) tern_board_scalar(board, "loss", 1, i, NULL);
    assert_int_equal(warnings, 2);
    assert_non_null(strstr(last_warning, "tern_board_scalar: cannot write to"));
    limit_files(RLIM_INFINITY);
    put(board, 2);
    assert_non_null(strstr(last_warning, "; 4 records are missing"));
    tern_board_free(board);
    tern_log_set(NULL, NULL);
    signal(SIGXFSZ, SIG_DFL);
}

static void a_disk_full_from_the_start(void **state)
{
    char path[PATH_ROOM];
    tern_error err = {0};
    signal(SIGXFSZ, SIG_IGN);
    limit_files(10);
    assert_null(tern_board_new(*state, NULL, NULL, &err));
    limit_files(RLIM_INFINITY);
    assert_int_equal(err.code, TERN_E_IO);
    assert_string_equal(err.func, "tern_board_new");
    assert_int_equal(find_file(*state, "events.", path), 1);
    assert_int_equal(size_of(path), 0);
    signal(SIGXFSZ, SIG_DFL);
}

static int close_error; /* of every close, as on a network file system; 0: none */

int close(int fd)
{
    int status = (int)syscall(SYS_close, fd);
    if (!close_error) return status;
    errno = close_error;
    return -1;
}

static void a_disk_that_is_full_only_when_a_file_is_closed(void **state)
{
    char path[PATH_ROOM];
    tern_board *board = open_board(*state, 2, 1e9);
    put(board, 4);
    assert_int_equal(find_file(*state, "events.", path), 1);
    tern_log_set(hear, NULL);
    warnings = 0;
    close_error = EDQUOT;
    tern_board_free(board);
    close_error = 0;
    tern_log_set(NULL, NULL);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, path));
    assert_non_null(strstr(last_warning, "may be lost: Disk quota exceeded"));
}

/* A rank that is killed at any time leaves whole records and at most a part of one; the next run continues.
 */
static void a_killed_process_leaves_whole_records(void **state)
{
    const char *folder = *state;
    char path[PATH_ROOM];
    size_t rest;
    for (int kills = 1; kills <= 5; kills++) {
        fflush(NULL);
        pid_t pid = fork();
        if (!pid) {
            tern_board *board = open_board(folder, 3, 1e9);
            for (int64_t i = 0;; i++) tern_board_scalar(board, "loss", 1, i, NULL);
        }
        assert_true(pid > 0);
        while (find_file(folder, "events.", path) < kills || size_of(path) < 20000 * kills) usleep(100);
        assert_return_code(kill(pid, SIGKILL), errno);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_true(count_records(path, &rest) > 300 * kills);
        assert_true(rest < 150); /* of three records */
    }
}

/* ---- which ranks write ---- */

typedef struct shared {
    const char *folder;
    bool all_ranks, is_dated;
} shared;

/* Makes every call on every rank. A rank that writes nothing accepts any argument. */
static int rank_writes(int rank, const tern__bootstrap *boot, void *arg)
{
    const shared *s = arg;
    tern_error err = {0};
    char path[PATH_ROOM], expected[1100];
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_board_opts opts = tern_board_defaults();
    opts.all_ranks = s->all_ranks;
    opts.tag = rank ? "_b" : "_a";
    tern_board *board = tern_board_new(s->is_dated ? NULL : s->folder, world, &opts, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, board != NULL);
    tern_board_scalar(board, "loss", rank, 1, &err);
    RANK_CHECK_OK(rank, err);
    bool writes = s->all_ranks || rank == 0;
    RANK_CHECK(rank, !tern_board_dir(board) == !writes);
    RANK_CHECK(rank, tern_board_scalar(board, NULL, rank, 1, &err) == (writes ? TERN_E_INVALID : TERN_OK));
    err = (tern_error){0};
    if (!s->is_dated && writes) {
        snprintf(expected, sizeof(expected), s->all_ranks ? "%s/rank%d" : "%s", s->folder, rank);
        RANK_CHECK(rank, !strcmp(tern_board_dir(board), expected));
    }
    snprintf(expected, sizeof(expected), "%s", writes ? tern_board_dir(board) : "");
    tern_board_free(board);
    if (writes) RANK_CHECK(rank, find_file(expected, "events.", path) == 1 && records_in(expected) == 2);
    tern_barrier(world, &err);
    tern_group_close(world);
    RANK_CHECK_OK(rank, err);
    return 0;
}

static int count_folders(const char *folder, const char *begins)
{
    char path[PATH_ROOM];
    return find_file(folder, begins, path);
}

static void rank_0_writes(void **state)
{
    shared s = {.folder = *state};
    for (int world = 1; world <= 4; world++) {
        assert_ranks_ok(ranks_run(world, rank_writes, &s));
        char path[PATH_ROOM];
        assert_int_equal(find_file(*state, "", path), 2 + 1); /* ".", ".." and a file */
        assert_return_code(unlink(path), errno);
    }
}

static void all_ranks_write_if_asked(void **state)
{
    char folder[1024];
    shared s = {.folder = folder, .all_ranks = true};
    for (int world = 1; world <= 4; world++) {
        snprintf(folder, sizeof(folder), "%s/%d/of/many", (char *)*state, world);
        assert_ranks_ok(world == 3 ? ranks_run_threads(world, rank_writes, &s)
                                   : ranks_run(world, rank_writes, &s));
        assert_int_equal(count_folders(folder, "rank"), world);
    }
}

/* Ranks' clocks and tags may differ, their folders may not. */
static void a_dated_folder_is_rank_0s(void **state)
{
    char before[1024];
    shared s = {.folder = *state, .all_ranks = true, .is_dated = true};
    assert_non_null(getcwd(before, sizeof(before)));
    assert_return_code(chdir(*state), errno);
    assert_ranks_ok(ranks_run(3, rank_writes, &s));
    char path[PATH_ROOM];
    assert_int_equal(find_file("runs", "", path), 2 + 1);
    assert_string_equal(path + strlen(path) - 2, "_a");
    assert_int_equal(count_folders(path, "rank"), 3);
    assert_return_code(chdir(before), errno);
}

/* As jobs of a sweep that were started together. */
static int opens_alone(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)boot;
    (void)arg;
    tern_error err = {0};
    char path[PATH_ROOM], dir[1100];
    tern_board_opts opts = tern_board_defaults();
    opts.tag = "_sweep";
    tern_board *board = tern_board_new(NULL, NULL, &opts, &err);
    tern_board_scalar(board, "loss", rank, 1, &err);
    RANK_CHECK_OK(rank, err);
    snprintf(dir, sizeof(dir), "%s", tern_board_dir(board));
    tern_board_free(board);
    RANK_CHECK(rank, find_file(dir, "events.", path) == 1);
    return 0;
}

static void a_dated_folder_is_of_one_job(void **state)
{
    char before[1024];
    assert_non_null(getcwd(before, sizeof(before)));
    assert_return_code(chdir(*state), errno);
    assert_ranks_ok(ranks_run(8, opens_alone, NULL));
    assert_int_equal(count_folders("runs", ""), 2 + 8);
    assert_return_code(chdir(before), errno);
}

static void the_next_of_a_second_is_numbered(void **state)
{
    char before[1024], expected[1100];
    const char *names[3];
    tern_error err = {0};
    assert_non_null(getcwd(before, sizeof(before)));
    assert_return_code(chdir(*state), errno);
    tern_board *boards[3] = {NULL};
    do { /* until all three are in the same second */
        for (int i = 0; i < 3; i++) {
            tern_board_free(boards[i]);
            boards[i] = tern_board_new(NULL, NULL, NULL, &err);
            assert_ok(err);
            names[i] = tern_board_dir(boards[i]);
        }
    } while (strncmp(names[0], names[2], strlen("runs/Nov21_17-05-59")));
    for (int i = 1; i < 3; i++) {
        snprintf(expected, sizeof(expected), "%s_%d", names[0], i + 1);
        assert_string_equal(names[i], expected);
    }
    for (int i = 0; i < 3; i++) tern_board_free(boards[i]);
    assert_return_code(chdir(before), errno);
}

/* The rank whose tag is too long; only rank 0's is used. */
static int rank_has_no_name(int rank, const tern__bootstrap *boot, void *arg)
{
    char tag[1001];
    int bad = *(int *)arg;
    tern_error err = {0}, why = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_board_opts opts = tern_board_defaults();
    opts.all_ranks = true;
    memset(tag, 'a', sizeof(tag) - 1);
    tag[rank == bad ? 1000 : 3] = 0;
    opts.tag = tag;
    tern_board *board = tern_board_new(NULL, world, &opts, &why);
    RANK_CHECK(rank, !board == (bad == 0));
    RANK_CHECK(rank, why.code == (bad ? TERN_OK : rank ? TERN_E_PEER : TERN_E_RANGE));
    tern_board_free(board);
    tern_barrier(world, &err);
    tern_group_close(world);
    RANK_CHECK_OK(rank, err);
    return 0;
}

static void all_learn_that_rank_0_has_no_name(void **state)
{
    char before[1024];
    assert_non_null(getcwd(before, sizeof(before)));
    assert_return_code(chdir(*state), errno);
    for (int bad = 0; bad < 2; bad++) assert_ranks_ok(ranks_run(3, rank_has_no_name, &bad));
    assert_return_code(chdir(before), errno);
}

static void no_board_is_a_board(void **state)
{
    (void)state;
    const double value = 1;
    const char *name = "a";
    tern_error err = {0}, set = {.code = TERN_E_PEER};
    for (int i = 0; i < 2; i++) {
        tern_error *e = i ? &set : &err;
        int want = i ? TERN_E_PEER : TERN_OK;
        assert_int_equal(tern_board_scalar(NULL, "a", 1, 1, e), want);
        assert_int_equal(tern_board_scalars(NULL, "a", 1, &name, &value, 1, e), want);
        assert_int_equal(tern_board_text(NULL, "a", "b", 1, e), want);
        assert_int_equal(tern_board_image(NULL, "a", NULL, 1, NULL, e), want);
        assert_int_equal(tern_board_histogram(NULL, "a", NULL, 1, e), want);
        assert_int_equal(tern_board_parameters(NULL, NULL, 1, e), want);
        assert_int_equal(tern_board_gradients(NULL, NULL, 1, e), want);
        assert_int_equal(tern_board_hparams(NULL, NULL, 1, NULL, e), want);
        assert_int_equal(tern_board_flush(NULL, e), want);
    }
    assert_null(tern_board_dir(NULL));
    assert_null(tern_board_new("/nowhere", NULL, NULL, &set));
    tern_board_free(NULL);
    assert_ok(err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_crcs),
        IN_A_FOLDER(a_queue_is_written_when_it_is_full),
        IN_A_FOLDER(what_has_waited_is_written),
        IN_A_FOLDER(a_mebibyte_is_enough_to_write),
        IN_A_FOLDER(a_restart_goes_on_in_a_new_file),
        IN_A_FOLDER(a_file_is_the_last_by_its_name),
        IN_A_FOLDER(a_folder_has_its_date_and_tag),
        IN_A_FOLDER(tables_go_on_behind_their_last_whole_line),
        IN_A_FOLDER(tables_that_cannot_be_read_are_left_alone),
        IN_A_FOLDER(standard_error_is_closed),
        IN_A_FOLDER(a_full_disk_is_told_once),
        IN_A_FOLDER(a_disk_full_from_the_start),
        IN_A_FOLDER(a_disk_that_is_full_only_when_a_file_is_closed),
        IN_A_FOLDER(a_killed_process_leaves_whole_records),
        IN_A_FOLDER(rank_0_writes),
        IN_A_FOLDER(all_ranks_write_if_asked),
        IN_A_FOLDER(a_dated_folder_is_rank_0s),
        IN_A_FOLDER(a_dated_folder_is_of_one_job),
        IN_A_FOLDER(the_next_of_a_second_is_numbered),
        IN_A_FOLDER(all_learn_that_rank_0_has_no_name),
        cmocka_unit_test(no_board_is_a_board),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
