/* test_snapshot.c - snapshots on all ranks: what fails on one rank fails on all, on a full disk or when a
 * rank is lost. test_snapshot_folder.c tests the files, test_resume.c resuming. */
#include "checkpoint/single.h"

#include "autograd/autograd.h"
#include "ledger.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- a disk that fails ---- */

static const char *_Atomic bad_folder; /* in which the calls below fail; NULL: nowhere. Any thread asks */
static int bad_call;                   /* the call that fails, counted from 1 */
static int bad_errno, calls_made;
static bool has_failed;

/* Counts a call for a file in the folder. Returns true if it is the one that fails. */
static bool fails(const char *path)
{
    if (!bad_folder || strncmp(path, bad_folder, strlen(bad_folder)) || ++calls_made != bad_call)
        return false;
    has_failed = true;
    errno = bad_errno;
    return true;
}

static bool fails_open(int fd, const char *part)
{
    char link[64], path[512] = "";
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (!bad_folder || readlink(link, path, sizeof(path) - 1) < 0 || !strstr(path, part)) return false;
    return fails(path);
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (flags & O_CREAT && fails(path)) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    if (fails_open(fd, ".tmp")) return -1;
    return syscall(SYS_write, fd, bytes, count);
}

int fsync(int fd)
{
    return fails_open(fd, "") ? -1 : (int)syscall(SYS_fsync, fd);
}

/* ThreadSanitizer has to see that a descriptor is closed, or takes the next one of its number for it. */
static int (*next_close)(int fd);

__attribute__((constructor)) static void find_next_close(void)
{
    next_close = (int (*)(int))dlsym(RTLD_NEXT, "close");
}

/* Closes the descriptor even if it fails, which says something of written files only. */
int close(int fd)
{
    bool is_bad = fails_open(fd, ".tmp");
    int status = next_close ? next_close(fd) : (int)syscall(SYS_close, fd);
    if (is_bad) errno = bad_errno;
    return is_bad ? -1 : status;
}

int rename(const char *from, const char *to)
{
    return fails(from) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int symlink(const char *target, const char *path)
{
    return fails(path) ? -1 : (int)syscall(SYS_symlinkat, target, AT_FDCWD, path);
}

/* ---- all ranks ---- */

static trainee_opts in_folder(const folder *f)
{
    return (trainee_opts){.dir = f->path, .batch_size = 3};
}

/* Limits the size of files, as on a full disk. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = TERN__MIN(bytes, limit.rlim_max);
    setrlimit(RLIMIT_FSIZE, &limit);
}

static int full_body(int rank, const tern__bootstrap *boot, void *arg)
{
    trainee t;
    trainee_opts opts = in_folder(arg);
    trainee_open(&t, boot, &opts);
    trainee_run(&t, 2);
    trainee_save(&t);
    uint64_t hash = trainee_hash(&t);
    RANK_CHECK_OK(rank, t.err);
    trainee_run(&t, 4);
    signal(SIGXFSZ, SIG_IGN);
    if (rank == 0) limit_files(3000);
    RANK_CHECK(rank, trainee_save(&t) == TERN_E_IO);
    RANK_CHECK(rank, strstr(t.err.text, "rank 0: ") && strstr(t.err.text, "step-4.pt"));
    RANK_CHECK(rank, t.err.native == EFBIG);
    t.err = (tern_error){0};
    RANK_CHECK(rank, tern_snapshot_step(t.snapshot) == 2);
    RANK_CHECK(rank, trainee_load(&t, NULL) == 1 && t.step == 2 && trainee_hash(&t) == hash);
    if (rank == 0) {
        RANK_CHECK(rank, folder_count(opts.dir, "") == 2); /* step-2.pt and latest */
        limit_files(RLIM_INFINITY);
    }
    trainee_run(&t, 4); /* the group still works */
    trainee_save(&t);
    RANK_CHECK(rank, tern_snapshot_step(t.snapshot) == 4);
    RANK_CHECK_OK(rank, t.err);
    return trainee_close(&t);
}

static void a_full_disk_is_the_same_error_everywhere(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) {
        folder f = open_folder();
        assert_ranks_ok(ranks_run(world, full_body, &f));
        close_folder(&f);
    }
}

/* Saves step 4 over step 2 with rank 0's k-th call failing. All ranks have one error or none, and what is
 * loaded then is one of the two steps: the old one, unless only the last sync of the folder failed. */
static int fail_at(trainee *t, int rank, const char *dir, int call, int native, const uint64_t hash[2])
{
    RANK_CHECK(rank, trainee_load(t, NULL) == 1 && t->step == 2);
    trainee_run(t, 4);
    if (rank == 0) bad_folder = dir;
    bad_call = call, bad_errno = native, calls_made = 0, has_failed = false;
    trainee_save(t);
    bad_folder = NULL;
    tern_error saved = t->err, first = saved;
    t->err = (tern_error){0};
    tern_broadcast(t->world, &first, sizeof(first), TERN_U8, 0, &t->err);
    tern_broadcast(t->world, &has_failed, 1, TERN_U8, 0, &t->err);
    RANK_CHECK_OK(rank, t->err);
    RANK_CHECK(rank, saved.code == first.code && saved.native == first.native);
    RANK_CHECK(rank, !strcmp(saved.text, first.text));
    RANK_CHECK(rank, has_failed == (saved.code != TERN_OK));
    if (has_failed) {
        RANK_CHECK(rank, saved.code == TERN_E_IO && saved.native == native);
        RANK_CHECK(rank, strstr(saved.text, dir) && (t->size == 1 || strstr(saved.text, "rank 0: ")));
    }
    RANK_CHECK(rank, trainee_load(t, NULL) == 1 && (t->step == 2 || t->step == 4));
    RANK_CHECK(rank, saved.code || t->step == 4);
    RANK_CHECK(rank, trainee_hash(t) == hash[t->step / 4]);
    RANK_CHECK_OK(rank, t->err);
    return 0;
}

/* Removes step 4 again. */
static int go_back(int rank, const char *dir)
{
    char path[512];
    if (rank > 0) return 0;
    RANK_CHECK(rank, folder_count(dir, ".tmp") == 0);
    snprintf(path, sizeof(path), "%s/step-4.pt", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/latest", dir);
    unlink(path);
    RANK_CHECK(rank, symlink("step-2.pt", path) == 0);
    return 0;
}

static int bad_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static const int natives[] = {ENOSPC, EDQUOT, EIO, EROFS, EACCES};
    uint64_t hash[2];
    trainee t;
    trainee_opts opts = in_folder(arg);
    trainee_open(&t, boot, &opts);
    trainee_run(&t, 2);
    trainee_save(&t);
    hash[0] = trainee_hash(&t);
    trainee_run(&t, 4);
    hash[1] = trainee_hash(&t);
    RANK_CHECK_OK(rank, t.err);
    int call = 0;
    do {
        call++;
        for (size_t i = 0; i < TERN__COUNT(natives); i++) {
            if (fail_at(&t, rank, opts.dir, call, natives[i], hash)) return 1;
            tern_barrier(t.world, &t.err);
            if (go_back(rank, opts.dir)) return 1;
            tern_barrier(t.world, &t.err);
        }
    } while (has_failed);
    RANK_CHECK(rank, call > 8); /* open, write, fsync, close, rename, folder, link, rename, folder */
    return trainee_close(&t);
}

static void whatever_fails_on_the_disk_is_the_same_error_everywhere(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world += 2) {
        folder f = open_folder();
        assert_ranks_ok(ranks_run(world, bad_body, &f));
        close_folder(&f);
    }
}

/* SIGXFSZ kills rank 0 in the middle of the file. */
static int lost_body(int rank, const tern__bootstrap *boot, void *arg)
{
    trainee t;
    trainee_opts opts = in_folder(arg);
    trainee_open(&t, boot, &opts);
    trainee_run(&t, 2);
    trainee_save(&t);
    RANK_CHECK_OK(rank, t.err);
    trainee_run(&t, 3);
    if (rank == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        limit_files(3000);
    }
    trainee_save(&t);
    RANK_CHECK(rank, rank > 0 && t.err.code == TERN_E_PEER && strstr(t.err.text, "rank 0"));
    trainee_close(&t);
    return 3;
}

static void the_writer_may_be_lost(void **state)
{
    (void)state;
    folder f = open_folder();
    ranks r = ranks_run(3, lost_body, &f);
    assert_int_equal(r.status[0], 128 + SIGXFSZ);
    assert_int_equal(r.status[1], 3);
    assert_int_equal(r.status[2], 3);
    assert_int_equal(folder_count(f.path, ".tmp"), 1);
    trainee t;
    trainee_opts opts = in_folder(&f);
    trainee_open(&t, NULL, &opts);
    assert_int_equal(folder_count(f.path, ".tmp"), 0);
    assert_int_equal(trainee_load(&t, NULL), 1);
    assert_int_equal(t.step, 2);
    assert_ok(t.err);
    trainee_close(&t);
    close_folder(&f);
}

/* An item that fails on one rank only. */
typedef struct moody {
    bool fails_save, fails_load;
} moody;

static tern_object *moody_save(void *ctx, tern_error *err)
{
    moody *m = ctx;
    if (m->fails_save) {
        tern__error_set(err, "moody", TERN_E_RANGE, "not today");
        return NULL;
    }
    return tern_object_string("fine", err);
}

static int moody_load(const tern_object *state, void *ctx, tern_error *err)
{
    moody *m = ctx;
    if (m->fails_load) return tern__error_set(err, "moody", TERN_E_DTYPE, "not so");
    return tern_object_to_string(state) ? TERN_OK : TERN_E_DTYPE;
}

static int moody_body(int rank, const tern__bootstrap *boot, void *arg)
{
    trainee t;
    trainee_opts opts = in_folder(arg);
    moody m = {0};
    trainee_open(&t, boot, &opts);
    tern_snapshot_add(t.snapshot, "mood", moody_save, moody_load, &m, &t.err);
    RANK_CHECK_OK(rank, t.err);
    m.fails_save = rank == 1;
    RANK_CHECK(rank, trainee_save(&t) == TERN_E_RANGE);
    RANK_CHECK(rank, !strcmp(t.err.text, "rank 1: \"mood\": not today"));
    t.err = (tern_error){0};
    m.fails_save = false;
    trainee_save(&t);
    RANK_CHECK_OK(rank, t.err);
    m.fails_load = rank == 2;
    RANK_CHECK(rank, trainee_load(&t, NULL) == TERN_E_DTYPE);
    char said[TERN_ERROR_TEXT];
    snprintf(said, sizeof(said), "rank 2: %s: \"mood\": not so", opts.dir);
    RANK_CHECK(rank, !strcmp(t.err.text, said));
    t.err = (tern_error){0};
    m.fails_load = false;
    if (rank == 1) tern__error_set(&t.err, "user", TERN_E_LIFETIME, "lost before");
    RANK_CHECK(rank, trainee_load(&t, NULL) == TERN_E_LIFETIME);
    t.err = (tern_error){0};
    if (rank == 2) tern__error_set(&t.err, "user", TERN_E_LIFETIME, "lost before");
    RANK_CHECK(rank, trainee_save(&t) == TERN_E_LIFETIME);
    RANK_CHECK(rank, strstr(t.err.text, "rank 2: lost before"));
    t.err = (tern_error){0};
    RANK_CHECK(rank, trainee_load(&t, NULL) == 1);
    RANK_CHECK_OK(rank, t.err);
    return trainee_close(&t);
}

/* The error starts with the rank that could not read, once. */
static bool is_of_rank_0(const tern_error *err)
{
    return strstr(err->text, "rank 0: ") == err->text && !strstr(err->text + 1, "rank 0: ");
}

static int unread_body(int rank, const tern__bootstrap *boot, void *arg)
{
    trainee t;
    trainee_opts opts = in_folder(arg);
    int64_t other = 0;
    trainee_open(&t, boot, &opts);
    trainee_save(&t);
    tern_snapshot_add_int(t.snapshot, "other", &other, &t.err);
    RANK_CHECK_OK(rank, t.err);
    RANK_CHECK(rank, trainee_load(&t, NULL) == TERN_E_INVALID && is_of_rank_0(&t.err));
    t.err = (tern_error){0};
    RANK_CHECK(rank, trainee_load(&t, "nowhere.pt") == TERN_E_IO && is_of_rank_0(&t.err));
    return trainee_close(&t);
}

static void what_cannot_be_read_is_said_once(void **state)
{
    (void)state;
    folder f = open_folder();
    assert_ranks_ok(ranks_run(2, unread_body, &f));
    close_folder(&f);
}

static void what_fails_on_one_rank_fails_on_all(void **state)
{
    (void)state;
    folder f = open_folder();
    assert_ranks_ok(ranks_run(3, moody_body, &f));
    assert_ranks_ok(ranks_run_threads(3, moody_body, &f));
    assert_int_equal(folder_count(f.path, ".tmp"), 0);
    close_folder(&f);
}

static int damaged_body(int rank, const tern__bootstrap *boot, void *arg)
{
    trainee t;
    trainee_opts opts = in_folder(arg);
    trainee_open(&t, boot, &opts);
    trainee_run(&t, 3);
    trainee_save(&t);
    uint64_t hash = trainee_hash(&t);
    trainee_run(&t, 5);
    trainee_save(&t);
    RANK_CHECK_OK(rank, t.err);
    if (rank == 0) damage(opts.dir, 5, 0);
    tern_log_set(note_warning, NULL);
    RANK_CHECK(rank, trainee_load(&t, NULL) == 1 && t.step == 3 && trainee_hash(&t) == hash);
    RANK_CHECK(rank, (rank == 0) == (strstr(warning, "step-5.pt is damaged") != NULL));
    tern_log_set(NULL, NULL);
    RANK_CHECK_OK(rank, t.err);
    return trainee_close(&t);
}

static void ranks_pass_over_the_same(void **state)
{
    (void)state;
    folder f = open_folder();
    assert_ranks_ok(ranks_run(2, damaged_body, &f));
    close_folder(&f);
}

/* ---- another number of ranks ---- */

typedef struct numbers {
    const folder *f;
    int64_t seen[4]; /* samples that each rank has had in this epoch */
} numbers;

static int first_body(int rank, const tern__bootstrap *boot, void *arg)
{
    trainee t;
    trainee_opts opts = in_folder(((numbers *)arg)->f);
    trainee_open(&t, boot, &opts);
    trainee_run(&t, 4);
    trainee_save(&t);
    RANK_CHECK_OK(rank, t.err);
    return trainee_close(&t);
}

static int second_body(int rank, const tern__bootstrap *boot, void *arg)
{
    numbers *n = arg;
    trainee t;
    char own[TERN_RNG_STATE_BYTES], now[TERN_RNG_STATE_BYTES];
    trainee_opts opts = in_folder(n->f);
    trainee_open(&t, boot, &opts);
    tern_rng_state_get(t.rng, own);
    RANK_CHECK(rank, trainee_load(&t, NULL) == 1);
    tern_rng_state_get(t.rng, now);
    RANK_CHECK(rank, (rank < 3) == (memcmp(own, now, sizeof(own)) != 0)); /* three ranks saved */
    RANK_CHECK(rank, t.scope->seed == 5 && t.scope->step == 4);
    tern_batch batch;
    while (tern_loader_next(t.loader, t.scope, &batch)) {
        n->seen[rank] += batch.count;
        trainee_learn(&t, &batch);
        tern_scope_end(t.scope, &t.err);
    }
    RANK_CHECK_OK(rank, t.err);
    return trainee_close(&t);
}

/* Three ranks have seen 36 of 54 samples; the other number of ranks sees the rest. */
static void other_ranks_go_on(void **state)
{
    (void)state;
    folder f = open_folder();
    numbers *n = share_memory(sizeof(*n));
    *n = (numbers){.f = &f};
    assert_ranks_ok(ranks_run(3, first_body, n));
    for (int world = 1; world <= 4; world++) {
        memset(n->seen, 0, sizeof(n->seen));
        assert_ranks_ok(ranks_run(world, second_body, n));
        for (int rank = 0; rank < world; rank++)
            assert_int_equal(n->seen[rank], (54 + world - 1) / world - 36 / world);
    }
    munmap(n, sizeof(*n));
    close_folder(&f);
}

/* ---- refused calls ---- */

static void what_cannot_be(void **state)
{
    (void)state;
    folder f = open_folder();
    single s = open_single(f.path, 3);
    tern_error *e = &s.err;
    tern_snapshot *snap = s.snapshot;
    int64_t other = 0;
    tern_snapshot_add_int(snap, "value", &s.value, e);
    assert_ok(s.err);
    expect_error(tern_snapshot_add_int(snap, "value", &other, e), e, TERN_E_INVALID,
                 "already has a \"value\"");
    expect_error(tern_snapshot_add_int(snap, "step", &other, e), e, TERN_E_INVALID, "\"step\"");
    expect_error(tern_snapshot_add_int(snap, "world_size", &other, e), e, TERN_E_INVALID, "\"world_size\"");
    expect_error(tern_snapshot_add_int(snap, "choices", &other, e), e, TERN_E_INVALID, "\"choices\"");
    expect_error(tern_snapshot_add_int(snap, "", &other, e), e, TERN_E_INVALID, "empty");
    expect_error(tern_snapshot_add_int(snap, "\xc3", &other, e), e, TERN_E_INVALID, "\"\\xc3\" is not UTF-8");
    expect_error(tern_snapshot_add_int(snap, NULL, &other, e), e, TERN_E_INVALID, "empty");
    expect_error(tern_snapshot_add_int(snap, "n", NULL, e), e, TERN_E_INVALID, "\"n\"");
    expect_error(tern_snapshot_add_rng(snap, "rng", NULL, e), e, TERN_E_INVALID, "\"rng\"");
    expect_error(tern_snapshot_add_int(NULL, "n", &other, e), e, TERN_E_INVALID, "snapshot is NULL");
    expect_error(tern_snapshot_add(snap, "n", NULL, moody_load, NULL, e), e, TERN_E_INVALID, "NULL");
    expect_error(tern_snapshot_save(snap, -1, e), e, TERN_E_RANGE, "step is -1");
    expect_error(tern_snapshot_save(NULL, 1, e), e, TERN_E_INVALID, "NULL");
    expect_error(tern_snapshot_load(NULL, NULL, e), e, TERN_E_INVALID, "NULL");
    save_single(&s, 1);
    tern_snapshot_add_int(snap, "other", &other, e);
    expect_error(tern_snapshot_load(snap, NULL, e), e, TERN_E_INVALID, "step-1.pt has no \"other\"");
    tern_rng *rng = tern_rng_new(1, e);
    single s2 = open_single(f.path, 3);
    tern_snapshot_add_rng(s2.snapshot, "value", rng, &s2.err);
    expect_error(tern_snapshot_load(s2.snapshot, NULL, &s2.err), &s2.err, TERN_E_INVALID, "expected a list");
    expect_error(tern_snapshot_load(s2.snapshot, NULL, &s2.err), &s2.err, TERN_E_INVALID, f.path);
    assert_null(open_single("", 3).snapshot);
    assert_int_equal(open_single(f.path, -1).err.code, TERN_E_RANGE);
    tern_rng_free(rng);
    tern_snapshot_free(s2.snapshot);
    tern_snapshot_free(snap);
    close_folder(&f);
}

static tern_object *silent_save(void *ctx, tern_error *err)
{
    return *(bool *)ctx ? NULL : tern_object_none(err);
}

static int silent_load(const tern_object *state, void *ctx, tern_error *err)
{
    (void)state, (void)ctx, (void)err;
    return TERN_E_FORMAT;
}

static void functions_that_fail_in_silence(void **state)
{
    (void)state;
    folder f = open_folder();
    single s = open_single(f.path, 3);
    bool fails = true;
    tern_snapshot_add(s.snapshot, "part", silent_save, silent_load, &fails, &s.err);
    assert_ok(s.err);
    expect_error(tern_snapshot_save(s.snapshot, 1, &s.err), &s.err, TERN_E_INVALID,
                 "\"part\": its save function returned NULL without setting *err");
    fails = false;
    assert_int_equal(tern_snapshot_save(s.snapshot, 1, &s.err), TERN_OK);
    expect_error(tern_snapshot_load(s.snapshot, NULL, &s.err), &s.err, TERN_E_FORMAT,
                 "\"part\": its load function returned -6 without setting *err");
    tern_snapshot_free(s.snapshot);
    close_folder(&f);
}

/* Lets each allocation fail in turn: the older snapshot stays. */
static void out_of_memory_is_told(void **state)
{
    (void)state;
    folder f = open_folder();
    trainee t;
    trainee_opts opts = in_folder(&f);
    trainee_open(&t, NULL, &opts);
    trainee_run(&t, 1);
    trainee_save(&t);
    assert_ok(t.err);
    for (int saving = 0; saving < 2; saving++)
        for (int at = 1, done = 0; !done; at++) {
            tern_error err = {0};
            ledger books = {.refuse_at = at};
            tern__allocator_replace(&(tern_allocator){ledger_alloc, ledger_free, &books});
            int status =
                saving ? tern_snapshot_save(t.snapshot, 1, &err) : tern_snapshot_load(t.snapshot, NULL, &err);
            tern__allocator_replace(NULL);
            done = status >= 0;
            if (!done) assert_int_equal(status, TERN_E_MEMORY);
            assert_in_range(at, 1, 3000);
        }
    assert_int_equal(folder_count(f.path, ".tmp"), 0);
    assert_int_equal(trainee_load(&t, NULL), 1);
    assert_ok(t.err);
    trainee_close(&t);
    close_folder(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_disk_is_the_same_error_everywhere),
        cmocka_unit_test(whatever_fails_on_the_disk_is_the_same_error_everywhere),
        cmocka_unit_test(the_writer_may_be_lost),
        cmocka_unit_test(what_fails_on_one_rank_fails_on_all),
        cmocka_unit_test(what_cannot_be_read_is_said_once),
        cmocka_unit_test(ranks_pass_over_the_same),
        cmocka_unit_test(other_ranks_go_on),
        cmocka_unit_test(what_cannot_be),
        cmocka_unit_test(functions_that_fail_in_silence),
        cmocka_unit_test(out_of_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
