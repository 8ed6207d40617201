/* trainer.c - the training loop of the training programs. */
#include "banner.h"
#include "figure.h"
#include "run_dir.h"
#include "trainer_inner.h"

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
        trainer_print(t, "%s\n", line);
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
           t->flags->batch * t->parts;
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

/* Adds the gradients of a batch, one of t->parts of a step; the ranks exchange them with the last. */
static void train_part(trainer *t, const tern_batch *b, int64_t part)
{
    tern_amp_backward_opts opts = tern_amp_backward_defaults();
    bool is_last = part == t->parts - 1;
    if (t->flags->microbatches) { /* draws the random numbers that do not depend on the ranks */
        tern_scope_seed(t->s, (uint64_t)t->flags->seed, (uint64_t)t->step);
        tern_scope_seed_rank_set(t->s, (uint64_t)(tern_group_rank(t->world) * t->parts + part));
    }
    opts.delay_unscale = !is_last;
    tern_tensor *output = t->task->forward ? t->task->forward(t, b) : tern_forward(t->task->net, t->s, b->x);
    tern_tensor *loss = t->task->loss(t, output, b);
    if (t->parts > 1) loss = tern_affine(t->s, loss, 1.0 / (double)t->parts, 0);
    tern_ddp_sync_set(t->ddp, is_last);
    tern_amp_backward(t->amp, t->s, loss, &opts);
}

/* Makes a step with the gradients of all its parts. The loss of a step is that of its last part, or with
 * --microbatches the mean of all. */
static void train_step(trainer *t, tern_error *err)
{
    if (t->flags->clip > 0) tern_clip_grad_norm(t->s, t->task->net, t->flags->clip, 2);
    tern_optim_step(t->optim, t->s);
    trainer_schedules_step(t);
    if (tern_scope_end(t->s, err)) return;
    double loss = tern_ddp_loss_mean(t->ddp) * (t->flags->microbatches ? 1 : (double)t->parts);
    t->step++;
    if (isnan(loss) && !(t->flags->opt_level && t->flags->half)) /* f16 leaves such steps out */
        tern_error_set(err, "train", TERN_E_RANGE, "the loss of step %lld is NaN: lower --lr, or --clip",
                       (long long)t->step);
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
            tern_error_set(err, "train", TERN_E_TIMEOUT, "%s: no batch came for %g s", t->task->data, waited);
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
    const int64_t parts = t->parts;
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
        if (!is_rest) train_part(t, &b, part++);
        if (part == parts)
            train_step(t, err);
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
    if (!tern_error_print(&err)) trainer_print(t, "wrote %s\n", path);
}

static void run_epochs(trainer *t, tern_error *err)
{
    bool stopped = false;
    tern_train(t->task->net);
    while (!trainer_has_ended(t) && !stopped && !err->code) stopped = run_epoch(t, err);
    if (stopped && !t->stopped) tern_snapshot_save(t->snapshot, t->step, err);
    if (stopped && !err->code)
        trainer_print(t, "stop requested: saved at step %lld; continue with --resume latest --log-dir %s\n",
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
    trainer_open_all(t, err);
    if (!err->code) {
        if (t->first) banner_print(t, trainer_steps_per_epoch(t));
        run_epochs(t, err);
    }
    trainer_close_all(t);
    if (!t->ends_early) return;
    int status = trainer_close(t, err);
    fflush(NULL);
    _exit(status);
}
