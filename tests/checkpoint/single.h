/* single.h - a run that consists of one number, damaged files, and the log's warnings about them. */
#ifndef TERN_TESTS_CHECKPOINT_SINGLE_H
#define TERN_TESTS_CHECKPOINT_SINGLE_H

#include "checkpoint/trainee.h"

#include <fcntl.h>

static char warning[1024];

static inline void note_warning(tern_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == TERN_LOG_WARN) snprintf(warning, sizeof(warning), "%s", text);
}

/* The snapshot of a run that consists of one number. */
typedef struct single {
    int64_t value;
    tern_snapshot *snapshot;
    tern_error err;
} single;

static inline single open_single(const char *dir, int keep_last)
{
    single s = {0};
    tern_snapshot_opts opts = tern_snapshot_defaults();
    opts.keep_last = keep_last;
    s.snapshot = tern_snapshot_new(dir, NULL, &opts, &s.err);
    return s;
}

static inline void save_single(single *s, int64_t step)
{
    s->value = 10 * step;
    tern_snapshot_save(s->snapshot, step, &s->err);
    assert_ok(s->err);
}

static inline void expect_latest(const char *dir, int64_t step)
{
    single s = open_single(dir, 3);
    tern_snapshot_add_int(s.snapshot, "value", &s.value, &s.err);
    assert_int_equal(tern_snapshot_load(s.snapshot, NULL, &s.err), step < 0 ? 0 : 1);
    assert_ok(s.err);
    assert_int_equal(tern_snapshot_step(s.snapshot), step);
    if (step >= 0) assert_int_equal(s.value, 10 * step);
    tern_snapshot_free(s.snapshot);
}

enum { IN_THE_PICKLE = 136 }; /* which starts at 128 */

/* Truncates the file by that many bytes, or flips a bit. */
static inline void damage(const char *dir, int64_t step, off_t cut)
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

static inline void expect_error(int got, tern_error *err, int code, const char *text)
{
    if (got != code || !strstr(err->text, text))
        fail_msg("expected %s with \"%s\", got %s: %s", tern_status_name(code), text, tern_status_name(got),
                 err->text);
    *err = (tern_error){0};
}

#endif
