/* trainer.c - the training loop of the training programs. */
#include "trainer.h"
#include "banner.h"
#include "figure.h"
#include "loaders.h"
#include "run_dir.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE         1024 /* bytes of an evaluation's line */
#define BOARD_STEPS  50   /* steps between points of the step/loss curve */
#define WAIT_SECONDS 0.2  /* for data, before the ranks ask each other whether to stop */

__attribute__((format(printf, 2, 3))) static void say(const trainer *t, const char *format, ...)
{
    if (!t->first) return;
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    fflush(stdout);
}

__attribute__((format(printf, 2, 3))) static void add_text(char line[LINE], const char *format, ...)
{
    size_t used = strlen(line);
    va_list list;
    va_start(list, format);
    vsnprintf(line + used, LINE - used, format, list);
    va_end(list);
}

/* Prints a line above the bar, if there is one. */
static void print_line(const trainer *t, const char *line)
{
    if (t->bar)
        tern_progress_print(t->bar, line);
    else
        say(t, "%s\n", line);
}

__attribute__((format(printf, 3, 4))) static void fail(tern_error *err, int code, const char *format, ...)
{
    if (err->code) return;
    va_list list;
    va_start(list, format);
    vsnprintf(err->text, sizeof(err->text), format, list);
    va_end(list);
    err->code = code;
    err->func = "train";
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
        fail(err, TERN_E_PEER, "another rank could not start");
    for (int r = 0; all && r < ranks; r++) {
        const char *text = all + (size_t)r * sizeof(mine);
        if (*text) fail(err, TERN_E_PEER, "rank %d could not start: %s", r, text);
        alone &= r >= rank || strcmp(text, mine);
    }
    free(all);
    return has_error && alone;
}

/* Makes all ranks agree on whether there is an error. They wait for each other before they exit, since a
 * launcher ends the others as soon as one exits. */
static void agree(trainer *t, tern_error *err)
{
    if (!t->world) return;
    if (must_print(t, err)) tern_error_print(err);
    if (err->code) error_file_write(err->text);
    t->told = err->code != TERN_OK;
    tern_barrier(t->world, NULL);
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
    t->ddp = tern_ddp_new(t->task->net, t->world, NULL, err);
    t->optim = err->code ? NULL : t->task->optim ? t->task->optim(t, err) : new_sgd(t, err);
    if (f->shard) tern_optim_shard(t->optim, t->world, err);
}

/* Batches that do not fill a step are left out. */
static int64_t steps_per_epoch(const trainer *t)
{
    return tern_loader_length(t->train) / t->flags->accumulate;
}

static void open_schedule(trainer *t, tern_error *err)
{
    const flags *f = t->flags;
    int64_t steps = llround(f->warm_up * (double)steps_per_epoch(t)), total = f->epochs * steps_per_epoch(t);
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

static void step_schedules(trainer *t)
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
        for (int64_t i = 0; i < steps_per_epoch(t); i++, t->step++) step_schedules(t);
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
        say(t, "resuming at epoch %lld, step %lld of %s\n", (long long)t->epoch, (long long)t->step,
            latest ? t->dir : from);
    else
        say(t, "no checkpoint in %s yet: starting from scratch\n", t->dir);
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
    if (*note) say(t, "%s\n", note);
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

static void open_all(trainer *t, tern_error *err)
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

static void close_all(trainer *t)
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

/* ---- where the run stands ---- */

/* Returns how many samples of the epoch all ranks have completed. It counts samples, since the steps of a
 * checkpoint may be from another number of ranks or another batch size. */
static int64_t find_place(const trainer *t)
{
    if (!t->history.loss_count) return 0;
    tern_object *state = tern_loader_state_dict(t->train, NULL);
    int64_t position = 0;
    tern_object_to_int(tern_object_get(state, "position"), &position, NULL);
    tern_object_free(state);
    return position;
}

static bool is_at_last_step(const trainer *t)
{
    return t->flags->max_steps && t->step >= t->flags->max_steps;
}

/* Has the epoch enough samples for another step? */
static bool has_step_left(const trainer *t)
{
    return tern_sampler_length(t->train_order) - find_place(t) / tern_group_size(t->world) >=
           t->flags->batch * t->flags->accumulate;
}

/* Does --max-steps end the run within an epoch? At an epoch's end it ends as every epoch does. */
static bool ends_midway(const trainer *t)
{
    return is_at_last_step(t) && find_place(t) && has_step_left(t);
}

bool trainer_has_ended(const trainer *t)
{
    if (t->epoch >= t->flags->epochs) return true;
    return is_at_last_step(t) && (!t->history.loss_count || ends_midway(t));
}

static bool is_save_due(const trainer *t)
{
    return t->flags->save_every && t->step % t->flags->save_every == 0;
}

/* At an epoch's end there is an evaluation anyway. */
static bool is_evaluation_due(const trainer *t)
{
    int64_t every = t->flags->evaluate_every;
    return every && t->step % every == 0 && t->history.row_loss_count && has_step_left(t);
}

/* ---- numbers and images ---- */

void trainer_number(trainer *t, const char *name, double value)
{
    if (t->stopped) return; /* of a part of the samples */
    history_set(&t->history, name, value);
}

void trainer_text(trainer *t, const char *name, const char *text)
{
    print_line(t, text);
    tern_board_text(t->board, name, text, t->step, NULL);
}

/* Adds a part of "  loss 1.3119, test 1.2133  top1 0.9110". */
static void add_number(char line[LINE], const char *name, double value)
{
    if (isnan(value)) value = NAN; /* drops the sign, which means nothing */
    if (!strcmp(name, "loss/train"))
        add_text(line, "  loss %.4f", value);
    else if (!strncmp(name, "loss/", 5))
        add_text(line, ", %s %.4f", name + 5, value);
    else
        add_text(line, "  %s %.4f", history_short_name(name), value);
}

static const char *task_unit(const trainer *t)
{
    return t->task->unit ? t->task->unit : "samples";
}

static int64_t task_units(const trainer *t)
{
    return t->task->units ? t->task->units : 1;
}

/* Prints the line of an evaluation, at the end of an epoch or within it. */
static void print_row(const trainer *t, bool is_end, double seconds, double rate)
{
    const history *h = &t->history;
    char line[LINE] = "";
    add_text(line, "epoch %lld/%lld", (long long)t->epoch + 1, (long long)t->flags->epochs);
    if (!is_end || ends_midway(t))
        add_text(line, " %s step %lld", is_end ? "until" : "at", (long long)t->step);
    for (int i = 0; i < h->count; i++)
        if (!history_is_of_class(h, h->series[i].name) || history_classes(h) <= HISTORY_PRINTED)
            add_number(line, h->series[i].name, h->series[i].values[h->rows]);
    add_text(line, "  %.*f %s/s  %.1f s, data %.1f %%", rate > 0 && rate < 1 ? 2 : 1, rate, task_unit(t),
             seconds, 100 * t->waiting);
    print_line(t, line);
}

/* Tells whether this rank has been asked to stop, which the others may not know yet. */
static bool is_asked(const trainer *t)
{
    struct pollfd asked = {.fd = tern_preempt_fd(t->preempt), .events = POLLIN};
    return poll(&asked, 1, 0) == 1;
}

/* Runs on rank 0 only, in a scope without a group. */
static void show(trainer *t, tern_error *err)
{
    if (!t->first || !t->task->show || err->code || is_asked(t)) return;
    t->shown = true;
    tern_scope *s = tern_scope_new(t->device, NULL, err);
    gallery_free(&t->gallery);
    tern_eval(t->task->net);
    if (s) tern_grad_enabled_set(s, false);
    if (s) t->task->show(t, s, &t->gallery, err);
    tern_train(t->task->net);
    tern_scope_free(s);
    gallery_log(&t->gallery, t->board, t->dir, t->step);
}

/* ---- an epoch ---- */

/* Adds the gradients of a batch, one of `parts` of a step; the ranks exchange them with the last. */
static void train_part(trainer *t, const tern_batch *b, int64_t part, int64_t parts)
{
    tern_amp_backward_opts opts = tern_amp_backward_defaults();
    bool is_last = part == parts - 1;
    opts.delay_unscale = !is_last;
    tern_tensor *output = t->task->forward ? t->task->forward(t, b) : tern_forward(t->task->net, t->s, b->x);
    tern_tensor *loss = t->task->loss(t, output, b);
    if (parts > 1) loss = tern_affine(t->s, loss, 1.0 / (double)parts, 0);
    tern_ddp_sync_set(t->ddp, is_last);
    tern_amp_backward(t->amp, t->s, loss, &opts);
}

/* Makes a step with the gradients of all its parts. The loss of a step is that of its last part. */
static void train_step(trainer *t, int64_t parts, tern_error *err)
{
    if (t->flags->clip > 0) tern_clip_grad_norm(t->s, t->task->net, t->flags->clip, 2);
    tern_optim_step(t->optim, t->s);
    step_schedules(t);
    if (tern_scope_end(t->s, err)) return;
    double loss = tern_ddp_loss_mean(t->ddp) * (double)parts;
    t->step++;
    if (isnan(loss) && !(t->flags->opt_level && t->flags->half)) /* f16 leaves such steps out */
        fail(err, TERN_E_RANGE, "the loss of step %lld is NaN: lower --lr, or --clip", (long long)t->step);
    history_loss_add(&t->history, loss);
    tern_progress_postfix(t->bar, "loss", loss);
    tern_progress_postfix(t->bar, "lr", tern_optim_lr_get(t->optim, 0));
    if (t->step % BOARD_STEPS == 0) tern_board_scalar(t->board, "step/loss", loss, t->step, NULL);
}

/* Waits until all ranks have their next batch (with NULL, this rank needs none). A rank inside a step waits
 * for the others' gradients and cannot leave, so no rank begins a step before all can. Meanwhile they ask
 * each other whether to stop. Returns false then, and after an error; a group's time-out counts here too. */
static bool await_batches(trainer *t, tern_loader *loader, bool *stopped, tern_error *err)
{
    const double timeout_s = tern_group_defaults().timeout_s;
    uint8_t lacking = 1;
    for (double waited = 0; lacking && !*stopped && !err->code; waited += WAIT_SECONDS) {
        if (waited >= timeout_s)
            fail(err, TERN_E_TIMEOUT, "%s: no batch came for %g s", t->task->data, waited);
        lacking = loader && tern_loader_wait(loader, WAIT_SECONDS, err) == 0;
        tern_all_reduce(t->world, &lacking, 1, TERN_U8, TERN_MAX, err);
        if (lacking && !err->code) *stopped = tern_preempt_pending(t->preempt, err) > 0;
    }
    return !lacking && !err->code;
}

/* All ranks ask the same number of times whether to stop, also those that have fewer batches. */
bool trainer_test_next(trainer *t, tern_batch *b, tern_error *err)
{
    bool has_more = true;
    while (!err->code && !t->stopped && t->asked < t->test_steps) {
        t->asked++;
        t->stopped = tern_preempt_pending(t->preempt, err) > 0;
        if (!t->stopped && !err->code) await_batches(t, has_more ? t->test : NULL, &t->stopped, err);
        if (!t->stopped && !err->code && has_more) has_more = tern_loader_next(t->test, t->s, b);
        bool is_one = !t->stopped && !err->code && has_more;
        if (is_one) tern_progress_update(t->test_bar, b->count * task_units(t));
        if (is_one) return true;
    }
    if (!err->code && !t->stopped && has_more) tern_loader_next(t->test, t->s, b); /* ends the pass */
    return false;
}

/* Opens the progress bar of the epoch's training ("epoch") or, below it, an evaluation ("test"). */
static tern_progress *open_bar(const trainer *t, const char *part, int64_t samples, int64_t initial,
                               tern_error *err)
{
    char title[64], unit_text[32];
    snprintf(title, sizeof(title), "%s %lld/%lld", part, (long long)t->epoch + 1,
             (long long)t->flags->epochs);
    snprintf(unit_text, sizeof(unit_text), " %s", task_unit(t));
    tern_progress_opts opts = tern_progress_defaults();
    opts.leave = false;
    opts.unit = unit_text;
    opts.line_seconds = 5;
    opts.initial = initial * task_units(t);
    opts.parent = t->bar;
    return tern_progress_new(title, samples * task_units(t), t->world, &opts, err);
}

static void evaluate(trainer *t, tern_error *err)
{
    if (t->update) t->stopped = tern_preempt_pending(t->preempt, err) > 0;
    if (t->update && !t->stopped && !err->code) {
        tern_sampler_epoch_set(t->update_order, t->epoch); /* the same samples, whether resumed or not */
        tern_update_bn(t->task->net, t->s, t->update, err);
    }
    t->asked = 0;
    t->test_steps = t->test ? tern_loader_length(t->test) : 0;
    tern_all_reduce(t->world, &t->test_steps, 1, TERN_I64, TERN_MAX, err);
    tern_eval(t->task->net);
    bool was = tern_grad_enabled_set(t->s, false);
    int64_t ranks = tern_group_size(t->world);
    if (t->test && !err->code)
        t->test_bar = open_bar(t, "test", (t->test_set->length + ranks - 1) / ranks, 0, err);
    t->task->evaluate(t, err);
    tern_progress_free(t->test_bar);
    t->test_bar = NULL;
    tern_grad_enabled_set(t->s, was);
    tern_train(t->task->net);
}

/* Saves only the weights, for torch.load and load_state_dict, or as the task does. */
static void save_weights(trainer *t, const char *name, tern_error *err)
{
    char path[600];
    if (!t->first || err->code) return;
    if (t->task->save) {
        t->task->save(t, name, err);
        return;
    }
    snprintf(path, sizeof(path), "%s/%s.pth", t->dir, name);
    tern_object *weights = tern_module_state_dict(t->task->net, err);
    tern_save(path, weights, err);
    tern_object_free(weights);
}

/* Saves, evaluates and reports, at the end of an epoch, where --max-steps ends it, or within it. `speed` is
 * in units per second; 0: it was trained before this run. Returns whether a row of numbers is complete. */
static bool evaluate_row(trainer *t, bool is_end, double seconds, double speed, tern_error *err)
{
    const history *h = &t->history;
    tern_snapshot_save(t->snapshot, t->step, err); /* the evaluation may be ended by force */
    if (err->code) return false;
    trainer_number(t, "loss/train", h->row_loss_sum / h->row_loss_count);
    evaluate(t, err);
    if (err->code || t->stopped) return false;
    history_log(h, t->board, t->step);
    tern_board_scalar(t->board, "lr", tern_optim_lr_get(t->optim, 0), t->step, NULL);
    tern_board_parameters(t->board, t->task->net, t->step, NULL);
    if (speed > 0) {
        char tag[64];
        snprintf(tag, sizeof(tag), "speed/%s", task_unit(t));
        tern_board_scalar(t->board, tag, speed, t->step, NULL);
        tern_board_scalar(t->board, "speed/waiting", t->waiting, t->step, NULL);
    }
    print_row(t, is_end, seconds, speed);
    if (ends_midway(t)) return false;
    bool is_best = t->task->best && history_is_best(h, t->task->best, t->task->best_is_least);
    if (is_best) save_weights(t, "best", err);
    return !err->code;
}

/* Returns the seconds of this epoch's training, without its evaluations. */
static double trained_seconds(const trainer *t)
{
    return tern_progress_seconds(t->bar) - t->evaluated;
}

static double trained_speed(const trainer *t)
{
    double all = tern_progress_seconds(t->bar);
    return all > t->evaluated ? tern_progress_rate(t->bar) * all / (all - t->evaluated) : 0;
}

static void evaluate_midway(trainer *t, tern_error *err)
{
    double began = tern_progress_seconds(t->bar);
    double all = (double)tern_sampler_length(t->train_order) * tern_group_size(t->world);
    bool is_complete = evaluate_row(t, false, trained_seconds(t), trained_speed(t), err);
    if (is_complete) history_row_end(&t->history, (double)t->epoch + (double)find_place(t) / all);
    if (is_complete) show(t, err);
    t->evaluated += tern_progress_seconds(t->bar) - began;
}

static void end_epoch(trainer *t, double seconds, double speed, tern_error *err)
{
    history *h = &t->history;
    if (!evaluate_row(t, true, seconds, speed, err)) return;
    tern_schedule_epoch(t->schedule);
    h->loss_sum = h->loss_count = 0;
    history_row_end(h, (double)++t->epoch);
    tern_snapshot_save(t->snapshot, t->step, err);
    show(t, err); /* last, since it may be ended by force, too */
}

/* Gives the batches of a step that could not be made back to the loader, so that a resumed run begins with
 * them. */
static void return_parts(trainer *t, int64_t parts, tern_error *err)
{
    int64_t position = 0;
    tern_object *state = tern_loader_state_dict(t->train, err);
    tern_object_to_int(tern_object_get(state, "position"), &position, err);
    position -= parts * t->flags->batch * tern_group_size(t->world);
    tern_object_set(state, "position", tern_object_int(position, err), err);
    if (!err->code) tern_loader_state_dict_load(t->train, state, err);
    tern_object_free(state);
}

/* Trains to the end of the epoch. Returns true if asked to stop before. */
static bool train_steps(trainer *t, tern_error *err)
{
    const int64_t parts = t->flags->accumulate;
    tern_batch b;
    bool stopped = false;
    double waited = 0, before = trained_seconds(t);
    int64_t part = 0;
    while (!stopped && !t->stopped && !err->code && !ends_midway(t)) {
        if (!part && is_evaluation_due(t)) {
            evaluate_midway(t, err);
            continue;
        }
        bool is_rest = !part && parts > 1 && !has_step_left(t);
        if (!await_batches(t, t->train, &stopped, err) || !tern_loader_next(t->train, t->s, &b)) break;
        waited += trained_seconds(t) - before;
        if (!is_rest) train_part(t, &b, part++, parts);
        if (part == parts)
            train_step(t, parts, err);
        else
            tern_scope_end(t->s, err);
        t->waiting = waited / trained_seconds(t);
        tern_progress_postfix(t->bar, "data %", 100 * t->waiting);
        tern_progress_update(t->bar, b.count * task_units(t));
        if (part == parts) {
            part = 0;
            stopped = !err->code && tern_preempt_pending(t->preempt, err) > 0;
            if (is_save_due(t) && !stopped && !err->code) tern_snapshot_save(t->snapshot, t->step, err);
        }
        before = trained_seconds(t);
    }
    if (part && stopped) return_parts(t, part, err);
    return stopped;
}

/* Runs an epoch. Returns true if asked to stop before its end. */
static bool run_epoch(trainer *t, tern_error *err)
{
    int64_t total = tern_loader_length(t->train) * t->flags->batch, place = find_place(t);
    /* A run that was stopped in an evaluation has the epoch's losses, and its loader begins the next. */
    bool is_trained = t->history.loss_count > 0 && place == 0;
    int64_t done = is_trained ? total : place / tern_group_size(t->world);
    t->evaluated = 0;
    t->bar = open_bar(t, "epoch", total, done, err);
    bool stopped = !is_trained && train_steps(t, err);
    double seconds = trained_seconds(t), speed = trained_speed(t);
    tern_progress_free(t->bar);
    t->bar = NULL;
    if (!stopped && !t->stopped && !err->code) end_epoch(t, seconds, speed, err);
    return stopped || t->stopped;
}

/* ---- the run ---- */

/* Draws the figure; a missing plug-in does not fail the run. */
static void save_figure(trainer *t)
{
    char path[600], title[128];
    tern_error err = {0};
    if (!t->first || (!t->history.rows && !t->gallery.count)) return; /* there is nothing to draw */
    snprintf(path, sizeof(path), "%s/%s.png", t->dir, t->flags->program);
    snprintf(title, sizeof(title), "%s on %s", t->task->model, t->task->data);
    figure_save(path, title, &t->history, &t->gallery, &err);
    if (!tern_error_print(&err)) say(t, "wrote %s\n", path);
}

static void run_epochs(trainer *t, tern_error *err)
{
    bool stopped = false;
    tern_train(t->task->net);
    while (!trainer_has_ended(t) && !stopped && !err->code) stopped = run_epoch(t, err);
    if (stopped && !t->stopped) tern_snapshot_save(t->snapshot, t->step, err);
    if (stopped && !err->code)
        say(t, "stop requested: saved at step %lld; continue with --resume latest --log-dir %s\n",
            (long long)t->step, t->dir);
    t->ends_early = stopped || err->code;
    if (t->ends_early) return;
    save_weights(t, "last", err);
    if (!t->shown) show(t, err); /* all epochs were completed in an earlier run */
    save_figure(t);
}

void trainer_run(trainer *t, const task *k, tern_error *err)
{
    t->task = k;
    t->history.class_group = k->class_group;
    open_all(t, err);
    if (!err->code) {
        if (t->first) banner_print(t, steps_per_epoch(t));
        run_epochs(t, err);
    }
    close_all(t);
    if (!t->ends_early) return;
    int status = trainer_close(t, err);
    fflush(NULL);
    _exit(status);
}

int trainer_close(trainer *t, tern_error *err)
{
    int status = t->told ? 1 : tern_error_print(err);
    tern_rng_free(t->rng);
    tern_device_close(t->device);
    tern_group_close(t->world);
    return status;
}
