/* 14_resume.c - a training that can be stopped at any time and resumes where it was.
 *
 *     tern run -n 2 build/examples/14_resume runs/mlp 2
 *
 * Trains an MLP with dropout on Fashion-MNIST for 2 epochs. It saves its whole state in the folder runs/mlp
 * every 200 steps, and again when it is asked to stop (by `kill` of tern run; Ctrl-C stops at once). Run the
 * same command again to resume, even after `kill -9`: the weights at the end are the same as without the
 * interruption. */
#include "fashion.h"

#define BATCH 60 /* over all ranks */
#define EVERY 200

typedef struct training {
    tern_group *world;
    tern_device *dev;
    tern_rng *rng;
    tern_dataset *set;
    tern_sampler *order;
    tern_loader *loader;
    tern_module *net;
    tern_ddp *ddp;
    tern_optim *opt;
    tern_schedule *schedule;
    tern_scope *s;
    tern_preempt *preempt;
    tern_snapshot *snapshot;
    int64_t epoch, step;
} training;

static tern_module *net_new(tern_rng *rng, tern_error *err)
{
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_flatten_new(err), err);
    tern_sequential_add(net, tern_linear_new(784, 128, NULL, rng, err), err);
    tern_sequential_add(net, tern_relu_new(err), err);
    tern_sequential_add(net, tern_dropout_new(0.2, err), err);
    tern_sequential_add(net, tern_linear_new(128, FASHION_CLASSES, NULL, rng, err), err);
    return net;
}

static void open_training(training *t, tern_error *err)
{
    t->world = tern_group_open(NULL, err);
    t->dev = tern_device_open(NULL, err);
    t->rng = tern_rng_new(0, err);
    t->set = fashion_open("train", err);
    t->order = fashion_train_order(t->world, err);
    t->loader = fashion_loader(t->set, t->order, fashion_share(BATCH, t->world), true, err);
    t->net = net_new(t->rng, err);
    t->ddp = tern_ddp_new(t->net, t->world, NULL, err);
    t->opt = tern_adam_new(t->net, NULL, err);
    t->schedule = tern_exponential_schedule_new(t->opt, TERN_UNIT_EPOCHS, 0.7, err);
    t->s = tern_scope_new(t->dev, t->world, err);
    t->preempt = tern_preempt_new(t->world, NULL, err);
}

/* Everything that the next step depends on. */
static void open_snapshot(training *t, const char *dir, tern_error *err)
{
    t->snapshot = tern_snapshot_new(dir, t->world, NULL, err);
    tern_snapshot_add_module(t->snapshot, "model", t->net, err);
    tern_snapshot_add_optim(t->snapshot, "optimizer", t->opt, err);
    tern_snapshot_add_schedule(t->snapshot, "scheduler", t->schedule, err);
    tern_snapshot_add_loader(t->snapshot, "loader", t->loader, err);
    tern_snapshot_add_scope(t->snapshot, "scope", t->s, err);
    tern_snapshot_add_int(t->snapshot, "epoch", &t->epoch, err);
    if (tern_snapshot_load(t->snapshot, NULL, err) != 1) return;
    t->step = tern_snapshot_step(t->snapshot);
    if (tern_group_rank(t->world) == 0) printf("resuming at step %lld\n", (long long)t->step);
}

static void close_training(training *t)
{
    tern_snapshot_free(t->snapshot);
    tern_preempt_free(t->preempt);
    tern_scope_free(t->s);
    tern_schedule_free(t->schedule);
    tern_optim_free(t->opt);
    tern_ddp_free(t->ddp);
    tern_module_free(t->net);
    tern_loader_free(t->loader);
    tern_sampler_free(t->order);
    tern_dataset_free(t->set);
    tern_rng_free(t->rng);
    tern_device_close(t->dev);
    tern_group_close(t->world);
}

static void learn(training *t, const tern_batch *b, tern_error *err)
{
    tern_tensor *scores = tern_forward(t->net, t->s, b->x);
    tern_backward(t->s, tern_cross_entropy(t->s, scores, b->y, NULL));
    tern_optim_step(t->opt, t->s);
    tern_scope_end(t->s, err);
    t->step++;
    if (t->step % 100 == 0 && tern_group_rank(t->world) == 0)
        printf("step %lld  loss %.4f\n", (long long)t->step, tern_ddp_loss_mean(t->ddp));
}

/* Trains to the end of the epoch. Returns true if asked to stop before. */
static bool train_epoch(training *t, tern_error *err)
{
    tern_batch b;
    while (!err->code && tern_loader_next(t->loader, t->s, &b)) {
        learn(t, &b, err);
        if (tern_preempt_pending(t->preempt, err)) return true;
        if (t->step % EVERY == 0) tern_snapshot_save(t->snapshot, t->step, err);
    }
    tern_schedule_epoch(t->schedule);
    t->epoch++;
    return false;
}

static void train(training *t, int64_t epochs, tern_error *err)
{
    bool asked = false;
    while (t->epoch < epochs && !asked && !err->code) asked = train_epoch(t, err);
    if (!asked) return;
    tern_snapshot_save(t->snapshot, t->step, err);
    if (!err->code && tern_group_rank(t->world) == 0)
        printf("stop requested: saved at step %lld\n", (long long)t->step);
}

int main(int argc, char **argv)
{
    training t = {0};
    tern_error err = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    usage_read(argc, argv, "FOLDER [EPOCHS]",
               "Trains on Fashion-MNIST (default 1 epoch) and saves snapshots in FOLDER. Started again, it "
               "resumes from\n"
               "the last one.");
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER [EPOCHS]\n", argv[0]);
        return 2;
    }
    int epochs = fashion_epochs(argc, argv, 2, 1);
    open_training(&t, &err);
    open_snapshot(&t, argv[1], &err);
    if (!err.code) train(&t, epochs, &err);
    if (!err.code && t.epoch == epochs && !fashion_compare_weights(t.net, t.world, &err))
        err.code = TERN_E_MISMATCH;
    close_training(&t);
    return tern_error_print(&err);
}
