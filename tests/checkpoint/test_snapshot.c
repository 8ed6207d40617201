/* What is in a snapshot's directory, whatever happens while it is written: killed at any system call, out of
 * room, damaged afterwards; and all ranks hear the same. Resuming is test_resume.c. */
#include "checkpoint/trainee.h"

#include "autograd/autograd.h"
#include "ledger.h"

#include <tern/checkpoint.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>

static char warning[1024];

static void note_warning(tern_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == TERN_LOG_WARN) snprintf(warning, sizeof(warning), "%s", text);
}

/* Of a run that is one number only. */
typedef struct single {
    int64_t value;
    tern_snapshot *snapshot;
    tern_error err;
} single;

static single open_single(const char *dir, int keep_last)
{
    single s = {0};
    tern_snapshot_opts opts = tern_snapshot_defaults();
    opts.keep_last = keep_last;
    s.snapshot = tern_snapshot_new(dir, NULL, &opts, &s.err);
    return s;
}

static void save_single(single *s, int64_t step)
{
    s->value = 10 * step;
    tern_snapshot_save(s->snapshot, step, &s->err);
    assert_ok(s->err);
}

static void expect_latest(const char *dir, int64_t step)
{
    single s = open_single(dir, 3);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    assert_int_equal(tern_snapshot_load(s.snapshot, NULL, &s.err), step < 0 ? 0 : 1);
    assert_ok(s.err);
    assert_int_equal(tern_snapshot_step(s.snapshot), step);
    if (step >= 0) assert_int_equal(s.value, 10 * step);
    tern_snapshot_free(s.snapshot);
}

/* ---- which files there are ---- */

static void the_last_ones_are_kept(void **state)
{
    (void)state;
    folder f = open_folder();
    single s = open_single(f.path, 3);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    expect_latest(f.path, -1);
    assert_int_equal(tern_snapshot_step(s.snapshot), -1);
    for (int64_t step = 1; step <= 12; step++) save_single(&s, step);
    assert_int_equal(folder_count(f.path, ""), 4);
    for (int i = 10; i <= 12; i++) {
        char name[TERN__SNAPSHOT_NAME];
        tern__snapshot_name(i, name);
        assert_true(folder_has(f.path, name));
    }
    expect_latest(f.path, 12);
    save_single(&s, 2); /* a run that went back: what it has not reached again stays, but is not the latest */
    expect_latest(f.path, 2);
    assert_int_equal(folder_count(f.path, "step-"), 4);
    save_single(&s, 2);
    save_single(&s, 11);
    assert_int_equal(folder_count(f.path, "step-"), 4); /* 2, 10, 11 and 12 */
    expect_latest(f.path, 11);
    tern_snapshot_free(s.snapshot);
    close_folder(&f);
}

static void all_are_kept_if_asked(void **state)
{
    (void)state;
    folder f = open_folder();
    single s = open_single(f.path, 0);
    for (int64_t step = 0; step < 9; step++) save_single(&s, step);
    assert_int_equal(folder_count(f.path, "step-"), 9);
    tern_snapshot_free(s.snapshot);
    close_folder(&f);
}

static void make_file(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
}

/* What the dead have left goes, what the living write stays, and so does what is somebody else's. */
static void it_tidies_up(void **state)
{
    (void)state;
    folder f = open_folder();
    char dead[2][64], alive[64], other[64];
    pid_t pid = fork();
    if (!pid) _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    snprintf(dead[0], sizeof(dead[0]), "step-7.pt.%d.tmp", (int)pid);
    snprintf(dead[1], sizeof(dead[1]), "latest.%d.tmp", (int)pid);
    snprintf(alive, sizeof(alive), "step-7.pt.%d.tmp", (int)getppid());
    snprintf(other, sizeof(other), "notes.%d.tmp", (int)pid);
    const char *all[] = {dead[0], dead[1], alive, other, "step-7.pt.tmp", "step-7.pt.x.tmp", "step-07.pt"};
    for (size_t i = 0; i < TERN__COUNT(all); i++) make_file(f.path, all[i]);
    single s = open_single(f.path, 1);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    for (size_t i = 0; i < TERN__COUNT(all); i++) assert_int_equal(folder_has(f.path, all[i]), i >= 2);
    save_single(&s, 1);
    save_single(&s, 2);
    assert_int_equal(folder_count(f.path, ""), 7);
    tern_snapshot_free(s.snapshot);
    expect_latest(f.path, 2);
    close_folder(&f);
}

static void directories_are_made(void **state)
{
    (void)state;
    folder f = open_folder();
    char deep[128], file[128];
    snprintf(deep, sizeof(deep), "%s/a/b", f.path);
    single s = open_single(deep, 3);
    save_single(&s, 1);
    tern_snapshot_free(s.snapshot);
    empty_folder(deep);
    assert_int_equal(rmdir(deep), 0);
    *strrchr(deep, '/') = '\0';
    assert_int_equal(rmdir(deep), 0);
    make_file(f.path, "file");
    snprintf(file, sizeof(file), "%s/file/a", f.path);
    s = open_single(file, 3);
    assert_null(s.snapshot);
    assert_int_equal(s.err.code, TERN_E_IO);
    assert_non_null(strstr(s.err.text, "/file"));
    close_folder(&f);
}

/* ---- damage ---- */

enum { IN_THE_PICKLE = 136 }; /* which begins at 128 */

/* Cuts off so many bytes, or flips a bit. */
static void damage(const char *dir, int64_t step, off_t cut)
{
    char path[512], name[TERN__SNAPSHOT_NAME];
    tern__snapshot_name(step, name);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    struct stat stat_;
    assert_int_equal(stat(path, &stat_), 0);
    if (cut) {
        assert_int_equal(truncate(path, stat_.st_size - cut), 0);
        return;
    }
    int fd = open(path, O_RDWR);
    char c;
    assert_int_equal(pread(fd, &c, 1, IN_THE_PICKLE), 1);
    c ^= 4;
    assert_int_equal(pwrite(fd, &c, 1, IN_THE_PICKLE), 1);
    close(fd);
}

static void a_damaged_one_is_passed_over(void **state)
{
    (void)state;
    folder f = open_folder();
    single s = open_single(f.path, 3);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    for (int64_t step = 1; step <= 3; step++) save_single(&s, step);
    tern_log_set(note_warning, NULL);
    damage(f.path, 3, 0);
    expect_latest(f.path, 2);
    assert_non_null(strstr(warning, "step-3.pt is damaged"));
    damage(f.path, 2, 1);
    expect_latest(f.path, 1);
    assert_non_null(strstr(warning, "step-2.pt is damaged"));
    char path[128];
    snprintf(path, sizeof(path), "%s/step-3.pt", f.path);
    assert_int_equal(tern_snapshot_load(s.snapshot, path, &s.err), TERN_E_FORMAT);
    assert_non_null(strstr(s.err.text, "step-3.pt"));
    s.err = (tern_error){0};
    damage(f.path, 1, 30);
    assert_int_equal(tern_snapshot_load(s.snapshot, NULL, &s.err), TERN_E_FORMAT);
    assert_non_null(strstr(s.err.text, "step-3.pt")); /* of the newest */
    assert_int_equal(s.value, 30);
    s.err = (tern_error){0};
    assert_int_equal(tern_snapshot_load(s.snapshot, "nowhere.pt", &s.err), TERN_E_IO);
    tern_log_set(NULL, NULL);
    tern_snapshot_free(s.snapshot);
    close_folder(&f);
}

/* A link that names nothing is as none: the highest step is taken. */
static void a_lost_link_is_made_good(void **state)
{
    (void)state;
    folder f = open_folder();
    char latest[128];
    single s = open_single(f.path, 3);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    for (int64_t step = 1; step <= 3; step++) save_single(&s, step);
    snprintf(latest, sizeof(latest), "%s/latest", f.path);
    unlink(latest);
    expect_latest(f.path, 3);
    assert_int_equal(symlink("step-77.pt", latest), 0);
    expect_latest(f.path, 3);
    unlink(latest);
    assert_int_equal(symlink("step-2.pt", latest), 0);
    expect_latest(f.path, 2);
    tern_snapshot_free(s.snapshot);
    close_folder(&f);
}

/* ---- killed at the k-th system call ---- */

enum { SHAPE = 1000 };

/* A module whose values tell the step. */
static tern_module *numbered(int64_t step, tern_error *err)
{
    tern_module *net = tern_sequential_new(err);
    tern_tensor *weight = tern_parameter_add(net, "weight", TERN_F32, 1, (int64_t[]){SHAPE}, err);
    float *values = tern_tensor_data(weight);
    for (int i = 0; values && i < SHAPE; i++) values[i] = (float)(step * 10000 + i);
    return net;
}

static int save_numbered(const char *dir, int64_t step)
{
    tern_error err = {0};
    tern_module *net = numbered(step, &err);
    tern_snapshot_opts opts = tern_snapshot_defaults();
    opts.keep_last = 1;
    tern_snapshot *snapshot = tern_snapshot_new(dir, NULL, &opts, &err);
    tern_snapshot_add_module(snapshot, "model", net, &err);
    tern_snapshot_save(snapshot, step, &err);
    tern_snapshot_free(snapshot);
    tern_module_free(net);
    return tern_error_print(&err);
}

/* The step that is loaded, whole; -1 if there is none. */
static int64_t load_numbered(const char *dir)
{
    tern_error err = {0};
    tern_module *net = numbered(0, &err);
    tern_snapshot *snapshot = tern_snapshot_new(dir, NULL, NULL, &err);
    tern_snapshot_add_module(snapshot, "model", net, &err);
    tern_snapshot_load(snapshot, NULL, &err);
    assert_ok(err);
    int64_t step = tern_snapshot_step(snapshot);
    const float *values = tern_tensor_data(tern_state_get(net, 0).tensor);
    for (int i = 0; step >= 0 && i < SHAPE; i++) assert_true(values[i] == (float)(step * 10000 + i));
    tern_snapshot_free(snapshot);
    tern_module_free(net);
    return step;
}

/* Saves step `step` in a child that is killed as it enters or leaves a system call, the `at`-th of these
 * moments. False: it had come to its end before. */
static bool save_and_kill(const char *dir, int64_t step, int at)
{
    int status;
    pid_t pid = fork();
    if (!pid) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(save_numbered(dir, step));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSTOPPED(status));
    ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD);
    for (int i = 0; i < at; i++) {
        assert_int_equal(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFSTOPPED(status)) {
            assert_int_equal(status, 0);
            return false;
        }
    }
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return true;
}

/* From the first snapshot on `latest` names a file that is there. */
static void expect_link(const char *dir, bool is_wanted)
{
    char path[128];
    struct stat stat_;
    snprintf(path, sizeof(path), "%s/latest", dir);
    assert_int_equal(folder_has(dir, "latest") || is_wanted, stat(path, &stat_) == 0);
}

/* Over an older snapshot (first = 1), and where there is none. */
static void expect_old_or_new(int64_t first)
{
    folder f = open_folder();
    int64_t old = first ? first : -1, got = old;
    int moments = 1;
    for (bool killed = true; killed; moments++) {
        empty_folder(f.path);
        if (first) assert_int_equal(save_numbered(f.path, first), 0);
        killed = save_and_kill(f.path, 2, moments);
        expect_link(f.path, first);
        got = load_numbered(f.path);
        assert_true(got == old || got == 2);
        assert_true(moments > 1 || got == old);
        assert_int_equal(folder_count(f.path, ".tmp"), 0);
        assert_in_range(folder_count(f.path, "step-"), 0, 2);
    }
    assert_int_equal(got, 2);
    assert_in_range(moments, 40, 2000);
    print_message("killed at %d moments\n", moments - 2);
    close_folder(&f);
}

static void killed_at_any_system_call_it_is_the_old_or_the_new(void **state)
{
    (void)state;
    expect_old_or_new(1);
    expect_old_or_new(0);
}

/* ---- all ranks ---- */

static trainee_opts in_folder(const folder *f)
{
    return (trainee_opts){.dir = f->path, .batch_size = 3};
}

/* A file may have no more than so many bytes: as on a full disk. */
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

/* Rank 0 dies in the middle of the file: of SIGXFSZ. */
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

/* One that fails on one rank only. */
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

static int moody_load(void *ctx, const tern_object *state, tern_error *err)
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
    RANK_CHECK(rank, !strcmp(t.err.text, "rank 2: \"mood\": not so"));
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
    int64_t seen[4]; /* samples that each rank has been handed in this epoch */
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

/* Three ranks have seen 36 of 54 samples; the others see those that are left. */
static void other_ranks_go_on(void **state)
{
    (void)state;
    folder f = open_folder();
    numbers *n = mmap(NULL, sizeof(*n), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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

/* ---- what cannot be ---- */

static void expect_error(int got, tern_error *err, int code, const char *text)
{
    if (got != code || !strstr(err->text, text))
        fail_msg("expected %s with \"%s\", got %s: %s", tern_status_name(code), text, tern_status_name(got),
                 err->text);
    *err = (tern_error){0};
}

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
    expect_error(tern_snapshot_add_int(snap, "value", &other, e), e, TERN_E_INVALID, "a \"value\" already");
    expect_error(tern_snapshot_add_int(snap, "step", &other, e), e, TERN_E_INVALID, "\"step\"");
    expect_error(tern_snapshot_add_int(snap, "world_size", &other, e), e, TERN_E_INVALID, "\"world_size\"");
    expect_error(tern_snapshot_add_int(snap, "", &other, e), e, TERN_E_INVALID, "empty");
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
    assert_null(open_single("", 3).snapshot);
    assert_int_equal(open_single(f.path, -1).err.code, TERN_E_RANGE);
    tern_rng_free(rng);
    tern_snapshot_free(s2.snapshot);
    tern_snapshot_free(snap);
    close_folder(&f);
}

/* With every allocation refused in turn the older one stays. */
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
            tern_allocator_set(&(tern_allocator){ledger_alloc, ledger_free, &books});
            int status =
                saving ? tern_snapshot_save(t.snapshot, 1, &err) : tern_snapshot_load(t.snapshot, NULL, &err);
            tern_allocator_set(NULL);
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
        cmocka_unit_test(the_last_ones_are_kept),
        cmocka_unit_test(all_are_kept_if_asked),
        cmocka_unit_test(it_tidies_up),
        cmocka_unit_test(directories_are_made),
        cmocka_unit_test(a_damaged_one_is_passed_over),
        cmocka_unit_test(a_lost_link_is_made_good),
        cmocka_unit_test(killed_at_any_system_call_it_is_the_old_or_the_new),
        cmocka_unit_test(a_full_disk_is_the_same_error_everywhere),
        cmocka_unit_test(the_writer_may_be_lost),
        cmocka_unit_test(what_fails_on_one_rank_fails_on_all),
        cmocka_unit_test(ranks_pass_over_the_same),
        cmocka_unit_test(other_ranks_go_on),
        cmocka_unit_test(what_cannot_be),
        cmocka_unit_test(out_of_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
