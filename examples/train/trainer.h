/* trainer.h - what the training programs share: the ranks, mixed precision and schedules in their order, the
 * epochs with progress, evaluation and curves, checkpoints and how they are taken up again.
 *
 *     flags f = flags_defaults("train_something", "Trains something.");
 *     flags_read(&f, NULL, argc, argv);
 *     trainer_open(&t, &f, &err);
 *     ... data sets and net ...
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

/* What makes a program this one and no other. */
typedef struct task {
    const char *model, *data; /* for the banner: "ResNet-18", "Fashion-MNIST" */
    tern_module *net;
    tern_dataset *train, *test; /* test NULL: `evaluate` needs none                                     */
    const char *best;           /* the number, told by `evaluate`, whose largest value makes best.pth    */
    void *self;                 /* the program's own, as t->task->self                                  */
    /* The optimizer; NULL: SGD as the flags say. */
    tern_optim *(*optim)(trainer *t, tern_error *err);
    /* Of a training batch; NULL: tern_forward. */
    tern_tensor *(*forward)(trainer *t, const tern_batch *b);
    /* Of what that returned. */
    tern_tensor *(*loss)(trainer *t, tern_tensor *output, const tern_batch *b);
    /* After each epoch, on all ranks, in evaluation mode without gradients: goes through t->test (each sample
     * once over all ranks) and tells what it found by trainer_number. */
    void (*evaluate)(trainer *t, tern_error *err);
    /* Pictures of a few samples, on rank 0 alone, with a scope of its own; may be NULL. */
    void (*show)(trainer *t, tern_scope *s, gallery *g, tern_error *err);
} task;

struct trainer {
    const flags *flags;
    const task *task;
    tern_group *world;
    tern_device *device;
    tern_rng *rng; /* seeded: for the net's weights */
    tern_scope *s;
    tern_dataset *train_set, *test_set; /* the task's, or what of them can be read */
    tern_sampler *train_order, *test_order;
    tern_loader *train, *test;
    tern_amp *amp;
    tern_ddp *ddp;
    tern_optim *optim;
    tern_schedule *warm_up, *schedule;
    tern_snapshot *snapshot;
    tern_preempt *preempt;
    tern_board *board;
    history history;
    gallery gallery;
    char dir[FLAGS_DIR]; /* of this run: curves and checkpoints */
    int64_t epoch, step; /* that are done                       */
    double waiting;      /* share of the epoch's time in which this rank waited for data */
    bool first;          /* this is rank 0                       */
    bool told;           /* an error, in the name of all ranks  */
};

/* The ranks, the device and the generator. */
void trainer_open(trainer *t, const flags *f, tern_error *err);
/* Trains. An error that is set already (data that is not there) is told here: once if all ranks have it. */
void trainer_run(trainer *t, const task *k, tern_error *err);
/* Tells an error that nobody has told. The exit code. */
int trainer_close(trainer *t, tern_error *err);

/* A number of this epoch, the same on all ranks: "top1", "loss/test", "iou/lake". All stand in TensorBoard
 * and in checkpoints; the main ones (history.h) also in the epoch's line and in the figure. */
void trainer_number(trainer *t, const char *name, double value);

#endif
