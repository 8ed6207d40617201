/* test_snapshot_folder.c - a snapshot's folder, when the program is killed at any system call, when files are
 * damaged or moved, and when they cannot be read. test_snapshot.c tests what ranks do together. */
#include "checkpoint/single.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

/* ---- simulated failures ---- */

static int names_until_eio = -1; /* readdir fails after so many; -1: never */
static const char *locked;       /* open fails for this file               */
static int open_error;

struct dirent *readdir(DIR *stream)
{
    static struct dirent *(*real)(DIR *);
    if (!real) real = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir");
    if (names_until_eio) return names_until_eio--, real(stream);
    errno = EIO;
    return NULL;
}

static void file_opened(const char *path, int flags);

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (!locked || !strstr(path, locked)) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
        if (fd >= 0) file_opened(path, flags);
        return fd;
    }
    errno = open_error;
    return -1;
}

static int lock_error; /* flock fails so; 0: not */

int flock(int fd, int operation)
{
    if (!lock_error) return (int)syscall(SYS_flock, fd, operation);
    errno = lock_error;
    return -1;
}

/* ---- the files ---- */

static void make_file(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
}

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
    save_single(&s, 2); /* a run that went back: later snapshots stay, but are not the latest */
    expect_latest(f.path, 2);
    assert_int_equal(folder_count(f.path, "step-"), 4);
    save_single(&s, 2);
    save_single(&s, 11);
    assert_int_equal(folder_count(f.path, "step-"), 4); /* 2, 10, 11 and 12 */
    expect_latest(f.path, 11);
    make_file(f.path, "step-11.pt.old"); /* a copy is none of the last three */
    save_single(&s, 12);
    assert_true(folder_has(f.path, "step-10.pt") && !folder_has(f.path, "step-2.pt"));
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

/* Removes the temporary files of dead processes, but not those of live ones, nor other files. */
static void it_tidies_up(void **state)
{
    (void)state;
    folder f = open_folder();
    char dead[5][64], alive[2][64], other[64], written[64];
    pid_t pid = fork();
    if (!pid) _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    snprintf(dead[0], sizeof(dead[0]), "step-7.pt.%d.tmp", (int)pid);
    snprintf(dead[1], sizeof(dead[1]), "latest.%d.tmp", (int)pid);
    snprintf(dead[2], sizeof(dead[2]), "best.pth.%d.tmp", (int)pid);
    snprintf(dead[3], sizeof(dead[3]), "ema.weights.safetensors.%d.tmp", (int)pid);
    snprintf(dead[4], sizeof(dead[4]), "best.pt.%d.tmp", (int)getpid()); /* of a process with our number */
    snprintf(alive[0], sizeof(alive[0]), "step-7.pt.%d.tmp", (int)getppid());
    snprintf(alive[1], sizeof(alive[1]), "best.pth.%d.tmp", (int)getppid());
    snprintf(written, sizeof(written), "last.pth.%d.tmp", (int)pid); /* as if on another host */
    snprintf(other, sizeof(other), "notes.%d.tmp", (int)pid);
    const char *all[] = {dead[0],           dead[1],        dead[2], dead[3],  dead[4],
                         alive[0],          alive[1],       written, other,    "step-7.pt.tmp",
                         "step-7.pt.x.tmp", "best.pth.tmp", ".tmp",  ".1.tmp", "step-07.pt"};
    for (size_t i = 0; i < TERN__COUNT(all); i++) make_file(f.path, all[i]);
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", f.path, written);
    int fd = open(path, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    single s = open_single(f.path, 1);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    for (size_t i = 0; i < TERN__COUNT(all); i++) assert_int_equal(folder_has(f.path, all[i]), i >= 5);
    save_single(&s, 1);
    save_single(&s, 2);
    assert_int_equal(folder_count(f.path, ""), 10);
    close(fd);
    unlinkat(AT_FDCWD, strcat(strcpy(path, f.path), "/.tmp"), 0);
    unlinkat(AT_FDCWD, strcat(strcpy(path, f.path), "/.1.tmp"), 0);
    tern_snapshot_free(s.snapshot);
    expect_latest(f.path, 2);
    close_folder(&f);
}

/* ---- two jobs ---- */

/* Starts a process that holds the folder, by the second of two snapshots, until it is killed. */
static pid_t start_job(const char *dir)
{
    int ends[2];
    char ready;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (!pid) {
        single first = open_single(dir, 3), second = open_single(dir, 3);
        tern_snapshot_free(first.snapshot);
        if (!second.snapshot || write(ends[1], "r", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &ready, 1), 1);
    close(ends[0]);
    return pid;
}

static void a_second_job_is_refused_and_told_of_the_first(void **state)
{
    (void)state;
    folder f = open_folder();
    char name[64];
    pid_t pid = start_job(f.path);
    snprintf(name, sizeof(name), "in use by another job: %s, process %d on ", program_invocation_short_name,
             (int)pid);
    for (int i = 0; i < 2; i++) {
        single s = open_single(f.path, 3);
        assert_null(s.snapshot);
        assert_int_equal(s.err.native, EBUSY);
        expect_error(s.err.code, &s.err, TERN_E_IO, name);
    }
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(folder_has(f.path, ".lock"));
    single s = open_single(f.path, 3); /* the dead job's file keeps nobody out */
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    save_single(&s, 1);
    pid = fork();
    if (!pid) { /* a forked process is the same job, and does not give up the lock */
        single other = open_single(f.path, 3);
        tern_snapshot_free(other.snapshot);
        tern_snapshot_free(s.snapshot);
        _exit(!other.snapshot || !folder_has(f.path, ".lock"));
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    tern_snapshot_free(s.snapshot);
    assert_false(folder_has(f.path, ".lock"));
    close_folder(&f);
}

/* A folder that can only be read, or whose file system has no locks, opens all the same. */
static void a_folder_that_cannot_be_locked_opens(void **state)
{
    (void)state;
    folder f = open_folder();
    single s = open_single(f.path, 3);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    save_single(&s, 1);
    tern_snapshot_free(s.snapshot);
    for (const int *native = (const int[]){EROFS, EACCES, EPERM, 0}; *native; native++) {
        locked = ".lock", open_error = *native;
        expect_latest(f.path, 1);
    }
    locked = NULL;
    for (const int *native = (const int[]){ENOLCK, EOPNOTSUPP, EINVAL, ENOSYS, 0}; *native; native++) {
        lock_error = *native;
        expect_latest(f.path, 1);
    }
    lock_error = 0;
    char path[512];
    snprintf(path, sizeof(path), "%s/.lock", f.path);
    unlink(path);
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

/* Flips a bit of the method of the first entry in the zip's directory, or flips it back: the file then seems
 * to be compressed, which is not supported. */
static void damage_method(const char *dir, int64_t step)
{
    char path[512], name[TERN__SNAPSHOT_NAME], bytes[4096];
    tern__snapshot_name(step, name);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_RDWR);
    ssize_t got = pread(fd, bytes, sizeof(bytes), 0);
    char *record = memmem(bytes, (size_t)TERN__MAX(got, 0), "PK\1\2", 4);
    assert_non_null(record);
    record[10] ^= 8;
    assert_int_equal(pwrite(fd, &record[10], 1, record + 10 - bytes), 1);
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
    damage_method(f.path, 3);
    expect_latest(f.path, 2);
    assert_non_null(strstr(warning, "step-3.pt is damaged"));
    damage_method(f.path, 3);
    expect_latest(f.path, 3);
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
    assert_non_null(strstr(s.err.text, "step-3.pt")); /* of the newest snapshot */
    assert_int_equal(s.value, 30);
    s.err = (tern_error){0};
    assert_int_equal(tern_snapshot_load(s.snapshot, "nowhere.pt", &s.err), TERN_E_IO);
    tern_log_set(NULL, NULL);
    tern_snapshot_free(s.snapshot);
    close_folder(&f);
}

/* ---- a folder or a file that cannot be read ---- */

static void a_folder_that_cannot_be_read_is_not_empty(void **state)
{
    (void)state;
    folder f = open_folder();
    single s = open_single(f.path, 2);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    save_single(&s, 1);
    save_single(&s, 2);
    for (int names = 0; names <= 4; names++) {
        names_until_eio = names;
        expect_error(tern_snapshot_load(s.snapshot, NULL, &s.err), &s.err, TERN_E_IO,
                     "cannot read the directory");
    }
    tern_log_set(note_warning, NULL);
    names_until_eio = 0;
    save_single(&s, 3);
    assert_non_null(strstr(warning, "old snapshots are not removed: cannot read the directory"));
    tern_log_set(NULL, NULL);
    names_until_eio = -1;
    expect_latest(f.path, 3);
    tern_snapshot_free(s.snapshot);
    close_folder(&f);
}

/* An older one would lose steps. */
static void a_file_that_cannot_be_opened_now_is_not_passed_over(void **state)
{
    (void)state;
    folder f = open_folder();
    single s = open_single(f.path, 3);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    save_single(&s, 1);
    save_single(&s, 2);
    for (const int *native = (const int[]){EACCES, EMFILE, ENFILE, ENOMEM, 0}; *native; native++) {
        locked = "step-2.pt", open_error = *native;
        expect_error(tern_snapshot_load(s.snapshot, NULL, &s.err), &s.err, TERN_E_IO, "step-2.pt");
    }
    tern_log_set(note_warning, NULL);
    open_error = EIO;
    expect_latest(f.path, 1);
    assert_non_null(strstr(warning, "step-2.pt is damaged"));
    tern_log_set(NULL, NULL);
    locked = NULL;
    expect_latest(f.path, 2);
    tern_snapshot_free(s.snapshot);
    close_folder(&f);
}

/* A dangling link counts as none: the highest step is loaded. */
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

/* A module whose values are the step. */
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

/* Loads the latest snapshot, checks it, and returns its step; -1 if there is none. */
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

/* Saves step `step` in a child that is killed when it enters or leaves a system call, the `at`-th time.
 * Returns false if the child ended before that. */
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

/* From the first snapshot on, `latest` always names an existing file. */
static void expect_link(const char *dir, bool is_wanted)
{
    char path[128];
    struct stat stat_;
    snprintf(path, sizeof(path), "%s/latest", dir);
    assert_int_equal(folder_has(dir, "latest") || is_wanted, stat(path, &stat_) == 0);
}

/* Saves over an older snapshot (first = 1), and to an empty folder. */
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

/* ---- the power fails ---- */

/* A disk on which nothing is sure to be that was not synced. A name (created, renamed, removed, linked) is there
 * once its folder was synced; until then any of the pending changes may have reached the disk. Of a file's
 * contents only what was there at its last fsync is sure; the rest is missing or half there. */
enum { FILES = 16, CHANGES = 12, FILE_ROOM = 1 << 14 };

typedef struct disk_file {
    char name[64]; /* under which it was created; its bytes are read from there */
    char link[64]; /* a symbolic link's target; "": a file */
    char synced[FILE_ROOM];
    ssize_t bytes; /* -1: never synced */
    char now[FILE_ROOM];
    ssize_t now_bytes;
} disk_file;

typedef struct disk_change {
    char from[64], to[64]; /* "": created, or removed */
    int file;              /* of a created name */
} disk_change;

typedef struct disk {
    const char *dir; /* NULL: nothing is recorded */
    disk_file files[FILES];
    disk_change pending[CHANGES];
    int file_count, pending_count;
    struct {
        char name[64];
        int file;
    } names[FILES]; /* that are sure to be there; "": unused */
    int64_t old, new;
    bool is_saved; /* tern_snapshot_save has returned */
    int crashes;
    const char *crashed; /* the folder in which a disk after a crash is made */
} disk;

static disk power;

/* Returns the name in the recorded folder, or NULL for paths elsewhere and the lock, which means nothing after
 * a crash. */
static const char *name_on_disk(const char *path)
{
    size_t bytes = power.dir ? strlen(power.dir) : 0;
    bool is_there = power.dir && !strncmp(path, power.dir, bytes) && path[bytes] == '/';
    return is_there && strcmp(path + bytes, "/.lock") != 0 ? path + bytes + 1 : NULL;
}

static void name_apply(disk *d, const disk_change *change)
{
    int file = change->file;
    for (int i = 0; i < FILES; i++)
        if (*d->names[i].name && !strcmp(d->names[i].name, change->from))
            *d->names[i].name = '\0', file = d->names[i].file;
    if (file < 0 || !*change->to) return;
    for (int i = 0; i < FILES; i++)
        if (!strcmp(d->names[i].name, change->to)) *d->names[i].name = '\0';
    int at = 0;
    while (*d->names[at].name) at++;
    strcpy(d->names[at].name, change->to);
    d->names[at].file = file;
}

/* Writes what the disk has after a crash; files that were not synced are empty, or half there. */
static void disk_write(const disk *d, bool half)
{
    char path[512];
    empty_folder(d->crashed);
    for (int i = 0; i < FILES; i++) {
        const disk_file *file = &d->files[d->names[i].file];
        if (!*d->names[i].name) continue;
        snprintf(path, sizeof(path), "%s/%s", d->crashed, d->names[i].name);
        if (*file->link) {
            assert_int_equal(symlink(file->link, path), 0);
            continue;
        }
        int fd = open(path, O_CREAT | O_WRONLY, 0600);
        const char *bytes = file->bytes >= 0 ? file->synced : file->now;
        size_t count = file->bytes >= 0 ? (size_t)file->bytes : half ? (size_t)file->now_bytes / 2 : 0;
        assert_int_equal(write(fd, bytes, count), (ssize_t)count);
        close(fd);
    }
}

/* Lets the power fail here, in every way, and loads. */
static void crash(void)
{
    static disk after;
    const char *dir = power.dir;
    power.dir = NULL;
    for (int subset = 0; subset < 1 << power.pending_count; subset++)
        for (int half = 0; half < 2; half++) {
            after = power;
            for (int i = 0; i < power.pending_count; i++)
                if (subset >> i & 1) name_apply(&after, &power.pending[i]);
            disk_write(&after, half);
            int64_t got = load_numbered(power.crashed);
            assert_true(got == power.new || (got == power.old && !power.is_saved));
            power.crashes++;
        }
    power.dir = dir;
}

static void change(const char *from, const char *to, int file)
{
    assert_true(power.pending_count < CHANGES);
    disk_change *change = &power.pending[power.pending_count++];
    change->file = file;
    snprintf(change->from, sizeof(change->from), "%s", from);
    snprintf(change->to, sizeof(change->to), "%s", to);
    crash();
}

static void create(const char *name, const char *link)
{
    assert_true(power.file_count < FILES);
    disk_file *file = &power.files[power.file_count];
    *file = (disk_file){.bytes = *link ? 0 : -1};
    snprintf(file->name, sizeof(file->name), "%s", name);
    snprintf(file->link, sizeof(file->link), "%s", link);
    change("", name, power.file_count++);
}

/* Returns the number of the file that was created last under that name; -1: none. */
static int file_created(const char *name)
{
    int i = power.file_count - 1;
    while (i >= 0 && strcmp(power.files[i].name, name) != 0) i--;
    return i;
}

static ssize_t bytes_of(int fd, char bytes[FILE_ROOM])
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0);
    ssize_t count = read(again, bytes, FILE_ROOM);
    assert_in_range(count, 0, FILE_ROOM - 1);
    syscall(SYS_close, again);
    return count;
}

/* Returns the recorded path of a descriptor: its name, "" for the folder itself, or NULL. */
static const char *name_of(int fd, char path[512])
{
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t bytes = power.dir ? readlink(link, path, 511) : -1;
    if (bytes < 0) return NULL;
    path[bytes] = '\0';
    return strcmp(path, power.dir) ? name_on_disk(path) : "";
}

int fsync(int fd)
{
    char path[512];
    const char *name = name_of(fd, path);
    if (name && *name) {
        int number = file_created(name);
        assert_in_range(number, 0, FILES - 1);
        disk_file *file = &power.files[number];
        file->bytes = bytes_of(fd, file->synced);
    } else if (name) {
        for (int i = 0; i < power.pending_count; i++) name_apply(&power, &power.pending[i]);
        power.pending_count = 0;
    }
    if (name) crash();
    return (int)syscall(SYS_fsync, fd);
}

int close(int fd)
{
    char path[512];
    const char *name = name_of(fd, path);
    int number = name && *name ? file_created(name) : -1;
    if (number >= 0) power.files[number].now_bytes = bytes_of(fd, power.files[number].now);
    return (int)syscall(SYS_close, fd);
}

int rename(const char *from, const char *to)
{
    int status = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    const char *name = name_on_disk(from);
    if (name && !status) change(name, name_on_disk(to), -1);
    return status;
}

int symlink(const char *target, const char *path)
{
    int status = (int)syscall(SYS_symlinkat, target, AT_FDCWD, path);
    if (name_on_disk(path) && !status) create(name_on_disk(path), target);
    return status;
}

int unlink(const char *path)
{
    int status = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (name_on_disk(path) && !status) change(name_on_disk(path), "", -1);
    return status;
}

static void file_opened(const char *path, int flags)
{
    const char *name = name_on_disk(path);
    if (name && flags & O_CREAT) create(name, "");
}

/* Three saves one after the other; each but the first removes an older one. */
static void a_power_failure_leaves_the_old_or_the_new(void **state)
{
    (void)state;
    folder f = open_folder(), crashed = open_folder();
    power = (disk){.dir = f.path, .crashed = crashed.path, .old = -1};
    for (int64_t step = 1; step <= 3; step++) {
        power.new = step;
        power.is_saved = false;
        assert_int_equal(save_numbered(f.path, step), 0);
        power.is_saved = true;
        crash();
        power.old = step;
    }
    power.dir = NULL;
    print_message("%d crashes\n", power.crashes);
    assert_in_range(power.crashes, 100, 100000);
    close_folder(&crashed);
    close_folder(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_ones_are_kept),
        cmocka_unit_test(all_are_kept_if_asked),
        cmocka_unit_test(it_tidies_up),
        cmocka_unit_test(a_second_job_is_refused_and_told_of_the_first),
        cmocka_unit_test(a_folder_that_cannot_be_locked_opens),
        cmocka_unit_test(directories_are_made),
        cmocka_unit_test(a_damaged_one_is_passed_over),
        cmocka_unit_test(a_folder_that_cannot_be_read_is_not_empty),
        cmocka_unit_test(a_file_that_cannot_be_opened_now_is_not_passed_over),
        cmocka_unit_test(a_lost_link_is_made_good),
        cmocka_unit_test(killed_at_any_system_call_it_is_the_old_or_the_new),
        cmocka_unit_test(a_power_failure_leaves_the_old_or_the_new),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
