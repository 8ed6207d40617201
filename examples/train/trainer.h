/* trainer.h - the training loop that the training programs share: it opens the ranks, mixed precision and
 * schedules in the right order, runs the epochs with progress bar, evaluation and curves, and saves and
 * resumes checkpoints.
 *
 *     flags f = flags_defaults("train_something", "Trains something.");
 *     flags_read(&f, NULL, argc, argv);
 *     trainer_open(&t, &f, &err);
 *     ... open datasets and net ...
 *     trainer_run(&t, &task, &err);
 *     ... free them ...
 *     return trainer_close(&t, &err);
 */
#ifndef TERN_EXAMPLES_TRAINER_H
#define TERN_EXAMPLES_TRAINER_H

#include "flags.h"
#include "gallery.h"
#include "history.h"

typedef struct trainer trainer;

/* What is specific to a program. */
typedef struct task {
    const char *model, *data; /* for the banner: "ResNet-18", "Fashion-MNIST" */
    tern_module *net;
    tern_dataset *train, *test; /* test may be NULL if `evaluate` does not need it                      */
    const char *class_group;    /* "iou/": its numbers are those of classes, with a chart; or NULL       */
    const char *best;           /* best.pth is saved when this number, set by `evaluate`, is the largest */
    bool best_is_least;         /* .. or the smallest                                                   */
    const char *unit;           /* what bars and lines count: "tokens"; NULL: "samples"                 */
    int64_t units;              /* so many of them are a sample; 0: 1                                   */
    void *self;                 /* the program's own data, as t->task->self                             */
    /* Makes the optimizer; NULL: SGD with the values of the flags. */
    tern_optim *(*optim)(trainer *t, tern_error *err);
    /* Computes the output of a training batch; NULL: tern_forward. */
    tern_tensor *(*forward)(trainer *t, const tern_batch *b);
    /* Computes the loss of that output. */
    tern_tensor *(*loss)(trainer *t, tern_tensor *output, const tern_batch *b);
    /* Runs after each epoch, and every --evaluate-every steps, on all ranks, in evaluation mode without
     * gradients: reads t->test with trainer_test_next (each sample once over all ranks) and reports its
     * results with trainer_number. */
    void (*evaluate)(trainer *t, tern_error *err);
    /* Adds images of a few samples, or shows something else (trainer_text); runs on rank 0 only, with a scope
     * of its own; may be NULL. */
    void (*show)(trainer *t, tern_scope *s, gallery *g, tern_error *err);
    /* Saves the net as `name`, "best" or "last", in the folder t->dir; runs on rank 0 only; NULL: the state
     * dict as NAME.pth. */
    void (*save)(trainer *t, const char *name, tern_error *err);
} task;

struct trainer {
    const flags *flags;
    const task *task;
    tern_group *world;
    tern_device *device;
    tern_rng *rng; /* seeded: for the net's weights */
    tern_scope *s;
    tern_dataset *train_set, *test_set; /* the task's, or their readable samples */
    tern_sampler *train_order, *test_order;
    tern_loader *train, *test;
    tern_dataset *update_set; /* with --update-bn: for the statistics of batch norms */
    tern_sampler *update_order;
    tern_loader *update;
    tern_amp *amp;
    tern_ddp *ddp;
    tern_optim *optim;
    tern_schedule *warm_up, *schedule;
    tern_snapshot *snapshot;
    tern_preempt *preempt;
    tern_board *board;
    history history;
    gallery gallery;
    char dir[FLAGS_DIR]; /* the folder of this run */
    int64_t epoch, step; /* completed              */
    int64_t parts;       /* batches of a step on this rank */
    double waiting;      /* share of the epoch's time in which a rank's data was awaited */
    double evaluated;    /* seconds of evaluations within the epoch                      */
    int64_t test_steps;  /* of an evaluation, on the rank with the most batches      */
    int64_t asked;       /* so many of them have asked whether to stop                */
    bool stopped;        /* the run was asked to stop during an evaluation            */
    bool ends_early;     /* asked to stop, or an error. A loader's worker may be in a dataset that hangs:
                            the process exits without freeing them                    */
    tern_progress *bar, *test_bar; /* of an epoch, of an evaluation, or NULL */
    bool shown;                    /* `show` has been called */
    bool first;                    /* this is rank 0                             */
    bool told;                     /* the error has been printed, for all ranks */
};

/* Opens the group, the device and the random number generator. */
void trainer_open(trainer *t, const flags *f, tern_error *err);
/* Trains. It also prints an error that is set already, such as missing data: only once if all ranks have the
 * same one. Exits the process if the training ends early. */
void trainer_run(trainer *t, const task *k, tern_error *err);
/* Names in the error of a missing file the package of Debian and Ubuntu that has it. */
void trainer_name_package(tern_error *err, const char *package);
/* Prints the error unless it has been printed. Returns the exit code. */
int trainer_close(trainer *t, tern_error *err);

/* Gives `evaluate` the next batch of t->test. Returns false at the end, after an error, or when the run is
 * asked to stop: then the numbers are dropped, and the resumed run evaluates again. Collective. */
bool trainer_test_next(trainer *t, tern_batch *b, tern_error *err);

/* Are all epochs or --max-steps completed? Then `show` is called for the last time. */
bool trainer_has_ended(const trainer *t);

/* Prints a text on a line of its own, and adds it to TensorBoard. */
void trainer_text(trainer *t, const char *name, const char *text);

/* Sets a number of this evaluation, which must be the same on all ranks: "top1", "loss/test", "iou/lake". All
 * numbers go to TensorBoard (losses as they are, others as "Evaluation/iou/lake") and into checkpoints; the
 * main ones (history.h) also into the epoch's line and the figure. */
void trainer_number(trainer *t, const char *name, double value);

#endif
