/* trainer_open.c - opens what a training needs, in the right order, and frees it. */
#include "loaders.h"
#include "run_dir.h"
#include "trainer_inner.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void trainer_print(const trainer *t, const char *format, ...)
{
    if (!t->first) return;
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    fflush(stdout);
}

void trainer_open(trainer *t, const flags *f, tern_error *err)
{
    tern_group_opts group = tern_group_defaults();
    if (f->backend) group.backend = f->backend;
    *t = (trainer){.flags = f};
    setvbuf(stdout, NULL, _IOLBF, 0);
    t->world = tern_group_open(&group, err);
    t->first = tern_group_rank(t->world) == 0;
    t->device = tern_device_open(f->device, err);
    tern_device_conv_opts conv = tern_device_conv_defaults();
    conv.exact = f->exact_conv;
    conv.deterministic = f->deterministic;
    if (t->device) tern_device_conv_set(t->device, &conv, err);
    if (f->threads) tern_device_threads_set(t->device, (int)f->threads, err);
    t->rng = tern_rng_new((uint64_t)f->seed, err);
}

/* ---- errors before the first step; an error that all ranks share is printed once ---- */

/* Exchanges errors. Returns whether this rank must print its own error, as the first rank with that text; if
 * only another rank has an error, sets one here. */
static bool must_print(trainer *t, tern_error *err)
{
    int ranks = tern_group_size(t->world), rank = tern_group_rank(t->world);
    char mine[TERN_ERROR_TEXT] = "", *all = calloc((size_t)ranks, sizeof(mine));
    bool alone = true, has_error = err->code;
    if (has_error) memcpy(mine, err->text, sizeof(mine));
    if (!all || tern_all_gather(t->world, mine, all, sizeof(mine), TERN_U8, NULL))
        tern_error_set(err, "train", TERN_E_PEER, "another rank could not start");
    for (int r = 0; all && r < ranks; r++) {
        const char *text = all + (size_t)r * sizeof(mine);
        if (*text) tern_error_set(err, "train", TERN_E_PEER, "rank %d could not start: %s", r, text);
        alone &= r >= rank || strcmp(text, mine);
    }
    free(all);
    return has_error && alone;
}

/* Makes all ranks agree on whether there is an error. They wait for each other before they exit, since a
 * launcher ends the others as soon as one exits. It learns from the group whose error it is. */
static void agree(trainer *t, tern_error *err)
{
    bool is_own = err->code && err->code != TERN_E_PEER;
    if (!t->world) return;
    if (must_print(t, err)) tern_error_print(err);
    if (is_own) error_file_write(err->text);
    t->told = err->code != TERN_OK;
    tern_barrier(t->world, NULL);
    if (is_own) tern_group_abort(t->world, err->code, err->text);
    if (t->told) tern_barrier(t->world, NULL); /* fails */
}

/* ---- opening everything; the order matters ---- */

static tern_optim *new_sgd(trainer *t, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = t->flags->lr;
    opts.momentum = t->flags->momentum;
    opts.weight_decay = t->flags->weight_decay;
    return tern_sgd_new(t->task->net, &opts, err);
}

/* Required order: device, synchronised batch norm, mixed precision, ddp, optimizer. */
static void open_model(trainer *t, tern_error *err)
{
    const flags *f = t->flags;
    tern_amp_opts amp = tern_amp_defaults((tern_opt_level)f->opt_level);
    amp.half_type = f->half ? TERN_F16 : TERN_BF16;
    tern_module_to(t->task->net, t->device, err);
    if (f->sync_bn) tern_sync_batch_norm_convert(t->task->net, t->world, err);
    t->amp = tern_amp_new(t->task->net, &amp, err);
    tern_ddp_opts ddp = tern_ddp_defaults();
    if (f->microbatches) ddp.microbatches = (int)t->parts;
    t->ddp = tern_ddp_new(t->task->net, t->world, &ddp, err);
    t->optim = err->code ? NULL : t->task->optim ? t->task->optim(t, err) : new_sgd(t, err);
    if (f->shard) tern_optim_shard(t->optim, t->world, err);
}

int64_t trainer_steps_per_epoch(const trainer *t)
{
    return tern_loader_length(t->train) / t->parts;
}

static void open_schedule(trainer *t, tern_error *err)
{
    const flags *f = t->flags;
    int64_t steps = llround(f->warm_up * (double)trainer_steps_per_epoch(t)),
            total = f->epochs * trainer_steps_per_epoch(t);
    if (f->max_steps && f->max_steps < total) total = f->max_steps;
    if (f->schedule == FLAGS_COSINE) {
        t->schedule =
            tern_cosine_schedule_new(t->optim, TERN_UNIT_STEPS, steps < total ? steps : total, total, err);
        if (t->schedule) tern_cosine_schedule_min_set(t->schedule, f->min_lr, err);
        return;
    }
    if (steps)
        t->warm_up =
            tern_linear_schedule_new(t->optim, TERN_UNIT_STEPS, 1.0 / (double)(steps + 1), 1, steps, err);
    if (f->milestones.count)
        t->schedule = tern_multi_step_schedule_new(t->optim, TERN_UNIT_EPOCHS, f->milestones.count,
                                                   f->milestones.items, f->gamma, err);
}

void trainer_schedules_step(trainer *t)
{
    tern_schedule_step(t->warm_up);
    tern_schedule_step(t->schedule);
}

/* Ctrl-C asks to stop, as SIGTERM does; the second one ends the process. */
static void open_preempt(trainer *t, tern_error *err)
{
    tern_preempt_opts opts = tern_preempt_defaults();
    opts.interrupt = SIGINT;
    t->preempt = tern_preempt_new(t->world, &opts, err);
}

/* A snapshot holds everything that the next step depends on, and the curves so far. */
static void open_snapshot(trainer *t, tern_error *err)
{
    tern_snapshot_opts opts = tern_snapshot_defaults();
    opts.keep_last = 2;
    t->snapshot = tern_snapshot_new(t->dir, t->world, &opts, err);
    tern_snapshot_add_module(t->snapshot, "model", t->task->net, err);
    tern_snapshot_add_optim(t->snapshot, "optimizer", t->optim, err);
    tern_snapshot_add_amp(t->snapshot, "amp", t->amp, err);
    if (t->warm_up) tern_snapshot_add_schedule(t->snapshot, "warm_up", t->warm_up, err);
    if (t->schedule) tern_snapshot_add_schedule(t->snapshot, "scheduler", t->schedule, err);
    tern_snapshot_add_loader(t->snapshot, "loader", t->train, err);
    tern_snapshot_add_scope(t->snapshot, "scope", t->s, err);
    tern_snapshot_add_int(t->snapshot, "epoch", &t->epoch, err);
    tern_snapshot_add(t->snapshot, "history", history_save, history_load, &t->history, err);
}

/* Sets the state as if --start-epoch epochs were completed. */
static void skip_epochs(trainer *t)
{
    while (t->epoch < t->flags->start_epoch) {
        for (int64_t i = 0; i < trainer_steps_per_epoch(t); i++, t->step++) trainer_schedules_step(t);
        tern_schedule_epoch(t->schedule);
        history_row_end(&t->history, (double)++t->epoch);
    }
    tern_sampler_epoch_set(t->train_order, t->epoch);
    tern_scope_seed(t->s, (uint64_t)t->flags->seed, (uint64_t)t->step);
}

static void resume(trainer *t, tern_error *err)
{
    const char *from = t->flags->resume;
    bool latest = !strcmp(from, "latest");
    int found = tern_snapshot_load(t->snapshot, latest ? NULL : from, err);
    if (found < 0) return;
    if (found) t->step = tern_snapshot_step(t->snapshot);
    if (found)
        trainer_print(t, "resuming at epoch %lld, step %lld of %s\n", (long long)t->epoch, (long long)t->step,
                      latest ? t->dir : from);
    else
        trainer_print(t, "no checkpoint in %s yet: starting from scratch\n", t->dir);
}

static tern_board *new_board(const trainer *t, const char *dir, tern_error *err)
{
    char tag[64];
    tern_board_opts opts = tern_board_defaults();
    snprintf(tag, sizeof(tag), "_%s", t->flags->program);
    opts.tag = tag;
    opts.csv = true;
    opts.flush_seconds = 10;
    if (t->step) opts.purge_step = t->step + 1;
    return tern_board_new(dir, NULL, &opts, err);
}

/* Finds or makes the run's folder. Runs after the steps that may fail, so that a failed start leaves no
 * folder. A new folder is made by the board, which names it by date, host and program. */
static void open_dir(trainer *t, tern_error *err)
{
    char note[RUN_NOTE] = "";
    if (t->first) run_dir_find(t->flags, t->dir, sizeof(t->dir), note, err);
    if (*note) trainer_print(t, "%s\n", note);
    if (t->first && !*t->dir) t->board = new_board(t, NULL, err);
    if (t->board) snprintf(t->dir, sizeof(t->dir), "%s", tern_board_dir(t->board));
    agree(t, err);
    if (!err->code) tern_broadcast(t->world, t->dir, sizeof(t->dir), TERN_U8, 0, err);
}

/* Has a checkpoint of this folder been resumed? */
static bool resumes_here(const trainer *t)
{
    const char *from = t->flags->resume, *slash = from ? strrchr(from, '/') : NULL;
    struct stat there, here;
    char dir[FLAGS_DIR];
    if (!from || !t->step) return false;
    if (!strcmp(from, "latest")) return true;
    snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - from) + 1 : 1, slash ? from : ".");
    return stat(dir, &there) == 0 && stat(t->dir, &here) == 0 && there.st_dev == here.st_dev &&
           there.st_ino == here.st_ino;
}

/* Opens the board in an existing folder; its curves continue after the step that was resumed. Records the
 * start, and the first time also in TensorBoard's table of runs, with the numbers that it shows. */
static void open_board(trainer *t, tern_error *err)
{
    if (!t->first) return;
    if (!t->board) t->board = new_board(t, t->dir, err);
    const run_start start = {.ranks = tern_group_size(t->world),
                             .threads = tern_device_threads_get(t->device),
                             .backend = tern_group_backend(t->world),
                             .device = tern_device_name(t->device),
                             .step = t->step};
    if (err->code || !run_dir_record(t->dir, t->flags, &start, resumes_here(t), err)) return;
    char best[64];
    snprintf(best, sizeof(best), HISTORY_EVALUATION "%s", t->task->best ? t->task->best : "");
    tern_object *hparams = run_dir_hparams(t->flags, &start, err);
    tern_board_hparams(t->board, hparams, t->task->best ? 3 : 2,
                       (const char *[]){"loss/train", "loss/test", best}, NULL);
    tern_object_free(hparams);
}

void trainer_open_all(trainer *t, tern_error *err)
{
    agree(t, err);
    if (err->code) return;
    loaders_open(t, err);
    agree(t, err);
    if (!err->code) open_model(t, err);
    open_schedule(t, err);
    t->s = tern_scope_new(t->device, t->world, err);
    open_preempt(t, err);
    if (err->code) return;
    open_dir(t, err);
    if (err->code) return;
    open_snapshot(t, err);
    skip_epochs(t);
    if (t->flags->resume) resume(t, err);
    if (t->first && !t->flags->resume && run_dir_has(t->dir, "latest")) run_dir_clear(t->dir, err);
    open_board(t, err);
    agree(t, err);
}

void trainer_close_all(trainer *t)
{
    gallery_free(&t->gallery);
    history_free(&t->history);
    tern_board_free(t->board);
    tern_preempt_free(t->preempt);
    tern_snapshot_free(t->snapshot);
    tern_schedule_free(t->schedule);
    tern_schedule_free(t->warm_up);
    tern_scope_free(t->s);
    tern_optim_free(t->optim);
    tern_ddp_free(t->ddp);
    tern_amp_free(t->amp);
    if (t->ends_early) return;
    loaders_close(t);
}

void trainer_name_package(tern_error *err, const char *package)
{
    size_t used = strlen(err->text);
    if (err->native == ENOENT)
        snprintf(err->text + used, sizeof(err->text) - used, "; apt install %s brings it", package);
}

int trainer_close(trainer *t, tern_error *err)
{
    int status = t->told ? 1 : tern_error_print(err);
    tern_rng_free(t->rng);
    tern_device_close(t->device);
    tern_group_close(t->world);
    return status;
}
