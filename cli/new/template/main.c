/* main.c - trains a net on data.csv, on one rank or several.
 *
 *     tern run -n 2 build/@NAME@ [EPOCHS]
 *
 * Everything goes into the folder run/: curves for TensorBoard, the best weights as best.pth (torch.load
 * opens it), and snapshots. Ctrl-C saves; the same command again goes on where it was. */
#include "data.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define RUN    "run"
#define BATCH  16 /* rows of a rank's batch */
#define HIDDEN 32

typedef struct training {
    tern_group *world; /* the ranks of this job */
    tern_device *dev;
    data data;
    tern_sampler *train_order, *test_order;
    tern_loader *train, *test;
    tern_module *net;
    tern_ddp *ddp;
    tern_optim *opt;
    tern_scope *s; /* has the memory of a step */
    tern_metrics *metrics;
    tern_board *board;
    tern_preempt *preempt;
    tern_snapshot *snapshot;
    int64_t epoch, step, most_right; /* they are saved, too */
} training;

/* (N, features) -> (N, classes). Change this to have another net. */
static tern_module *net_new(const data *d, tern_error *err)
{
    tern_rng *rng = tern_rng_new(0, err);
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_linear_new(d->features, HIDDEN, NULL, rng, err), err);
    tern_sequential_add(net, tern_relu_new(err), err);
    tern_sequential_add(net, tern_linear_new(HIDDEN, d->classes, NULL, rng, err), err);
    tern_rng_free(rng);
    return net;
}

/* Each rank gets its share of the rows: in training in a new order every epoch, in the test each row once. */
static tern_loader *loader_new(training *t, tern_dataset *set, tern_sampler **order, bool is_train,
                               tern_error *err)
{
    tern_distributed_opts share = tern_distributed_defaults();
    tern_loader_opts opts = tern_loader_defaults();
    if (err->code) return NULL;
    share.shuffle = share.pad = is_train;
    *order = tern_distributed_sampler_new(set->length, tern_group_size(t->world), tern_group_rank(t->world),
                                          &share, err);
    opts.sampler = *order;
    opts.batch_size = BATCH;
    return tern_loader_new(set, &opts, err);
}

/* Finds what an earlier run has saved, and goes on from there. */
static void snapshot_open(training *t, tern_error *err)
{
    t->snapshot = tern_snapshot_new(RUN, t->world, NULL, err);
    tern_snapshot_add_module(t->snapshot, "model", t->net, err);
    tern_snapshot_add_optim(t->snapshot, "optimizer", t->opt, err);
    tern_snapshot_add_loader(t->snapshot, "loader", t->train, err);
    tern_snapshot_add_int(t->snapshot, "epoch", &t->epoch, err);
    tern_snapshot_add_int(t->snapshot, "most_right", &t->most_right, err);
    if (err->code) return;
    int found = tern_snapshot_load(t->snapshot, NULL, err);
    if (found < 0 && tern_group_rank(t->world) == 0)
        fprintf(stderr, "after a change of the net or of the data, remove the folder %s/\n", RUN);
    if (found != 1) return;
    t->step = tern_snapshot_step(t->snapshot);
    if (tern_group_rank(t->world) == 0) printf("goes on after epoch %lld\n", (long long)t->epoch);
}

/* After the first error each call does nothing, so one check at the end is enough. */
static void training_open(training *t, tern_error *err)
{
    tern_adam_opts adam = tern_adam_defaults();
    tern_preempt_opts stop = tern_preempt_defaults();
    adam.lr = 0.01;
    stop.interrupt = SIGINT; /* Ctrl-C asks to stop; a second one ends the process */
    t->world = tern_group_open(NULL, err);
    t->dev = tern_device_open(NULL, err);
    data_open(&t->data, "data.csv", err);
    t->train = loader_new(t, t->data.train, &t->train_order, true, err);
    t->test = loader_new(t, t->data.test, &t->test_order, false, err);
    t->net = net_new(&t->data, err);
    t->ddp = tern_ddp_new(t->net, t->world, NULL, err); /* averages gradients over the ranks */
    t->opt = tern_adam_new(t->net, &adam, err);
    t->s = tern_scope_new(t->dev, t->world, err);
    t->metrics = tern_metrics_new(t->world, err);
    t->board = tern_board_new(RUN, t->world, NULL, err);
    t->preempt = tern_preempt_new(t->world, &stop, err);
    snapshot_open(t, err);
}

static void training_close(training *t)
{
    tern_snapshot_free(t->snapshot);
    tern_preempt_free(t->preempt);
    tern_board_free(t->board);
    tern_metrics_free(t->metrics);
    tern_scope_free(t->s);
    tern_optim_free(t->opt);
    tern_ddp_free(t->ddp);
    tern_module_free(t->net);
    tern_loader_free(t->test);
    tern_loader_free(t->train);
    tern_sampler_free(t->test_order);
    tern_sampler_free(t->train_order);
    data_close(&t->data);
    tern_device_close(t->dev);
    tern_group_close(t->world);
}

/* Counts the right answers on rows that training has not seen, over all ranks. */
static void evaluate(training *t, tern_error *err)
{
    tern_batch b;
    tern_eval(t->net);
    tern_grad_enabled_set(t->s, false);
    while (tern_loader_next(t->test, t->s, &b)) {
        int64_t right = 0;
        tern_tensor *scores = tern_forward(t->net, t->s, b.x);
        tern_topk_correct(t->s, scores, b.y, -100, 1, (int64_t[]){1}, &right);
        tern_metrics_sum(t->metrics, "right", (double)right);
        tern_metrics_sum(t->metrics, "rows", (double)b.count);
        if (tern_scope_end(t->s, err)) break;
    }
    tern_grad_enabled_set(t->s, true);
    tern_train(t->net);
}

/* Returns true if the run was asked to stop, by Ctrl-C, kill or a batch system. */
static bool epoch_train(training *t, tern_error *err)
{
    tern_batch b;
    while (tern_loader_next(t->train, t->s, &b)) {
        tern_tensor *loss = tern_cross_entropy(t->s, tern_forward(t->net, t->s, b.x), b.y, NULL);
        tern_backward(t->s, loss);
        tern_optim_step(t->opt, t->s);
        tern_metrics_mean(t->metrics, "loss", tern_item(loss), (double)b.count);
        if (tern_scope_end(t->s, err)) break;
        t->step++;
        if (tern_preempt_pending(t->preempt, err)) return true;
    }
    return false;
}

/* What is needed to classify a new sample: {"model": weights} and what data_describe adds. */
static tern_object *best_object(const training *t, tern_error *err)
{
    tern_object *best = tern_object_dict(err);
    tern_object_set(best, "model", tern_module_state_dict(t->net, err), err);
    data_describe(&t->data, best, err);
    return best;
}

/* Prints and records an epoch's results; rank 0 saves the weights if they are the best so far. */
static void epoch_report(training *t, tern_error *err)
{
    tern_metrics_reduce(t->metrics, err);
    double loss = tern_metrics_get(t->metrics, "loss"), rows = tern_metrics_get(t->metrics, "rows");
    int64_t right = (int64_t)tern_metrics_get(t->metrics, "right");
    bool is_best = right > t->most_right;
    if (is_best) t->most_right = right;
    if (err->code || tern_group_rank(t->world)) return;
    printf("epoch %lld  loss %.4f  test accuracy %.2f %%\n", (long long)t->epoch, loss,
           100 * (double)right / rows);
    tern_board_scalar(t->board, "loss/train", loss, t->epoch, NULL);
    tern_board_scalar(t->board, "accuracy/test", (double)right / rows, t->epoch, NULL);
    if (!is_best) return;
    tern_object *best = best_object(t, err);
    tern_save(RUN "/best.pth", best, err);
    tern_object_free(best);
}

int main(int argc, char **argv)
{
    char *end = "";
    int64_t epochs = argc > 1 ? strtol(argv[1], &end, 10) : 40;
    training t = {0};
    tern_error err = {0};
    bool asked = false;
    if (argc > 2 || *end || epochs < 1) {
        fprintf(stderr, "usage: %s [EPOCHS]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    training_open(&t, &err);
    if (!err.code && tern_group_rank(t.world) == 0) data_print(&t.data);
    if (!err.code && t.epoch >= epochs && tern_group_rank(t.world) == 0)
        printf("nothing is left to do; to go on: %s %lld\n", argv[0], (long long)t.epoch * 2);
    while (!err.code && t.epoch < epochs && !asked) {
        asked = epoch_train(&t, &err);
        if (!asked) {
            evaluate(&t, &err);
            t.epoch++;
            epoch_report(&t, &err);
        }
        if (asked || t.epoch == epochs || t.epoch % 5 == 0) tern_snapshot_save(t.snapshot, t.step, &err);
    }
    if (asked && !err.code && tern_group_rank(t.world) == 0) printf("saved; the same command goes on\n");
    training_close(&t);
    return tern_error_print(&err);
}
