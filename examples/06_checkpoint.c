/* 06_checkpoint.c - rank 0 saves the model and all ranks load it: trains five steps, saves a checkpoint,
 * trains five steps, loads the checkpoint, and trains the same five steps again.
 *
 *     build/examples/06_checkpoint 4              starts 4 ranks with tern_spawn
 *     tern run -n 4 build/examples/06_checkpoint  tern run starts the 4 ranks
 *
 * Prints the mean loss over the ranks of each step; the last five losses equal the five before. Any number of
 * ranks runs on any number of cores. The file "checkpoint" is written to the current folder and removed at
 * the end. */
#include "demo.h"

#include <unistd.h>

#define BATCH 20
#define STEPS 5

/* ---- the file holds the tensors of the state dict, in their order ---- */

static size_t bytes_of(const tern_tensor *tensor)
{
    return (size_t)tern_tensor_count(tensor) * tern_dtype_bytes(tern_tensor_dtype(tensor));
}

/* Writes a temporary file and renames it, so that a reader never sees an incomplete checkpoint. */
static bool save(const tern_module *net)
{
    FILE *file = fopen("checkpoint.new", "wb");
    bool fine = file;
    for (int i = 0; i < tern_state_count(net) && fine; i++) {
        tern_tensor *tensor = tern_state_get(net, i).tensor;
        fine = fwrite(tern_tensor_data(tensor), bytes_of(tensor), 1, file) == 1;
    }
    if (file && fclose(file)) fine = false;
    return fine && !rename("checkpoint.new", "checkpoint");
}

static bool load(const tern_module *net)
{
    FILE *file = fopen("checkpoint", "rb");
    bool fine = file;
    for (int i = 0; i < tern_state_count(net) && fine; i++) {
        tern_tensor *tensor = tern_state_get(net, i).tensor;
        fine = fread(tern_tensor_data(tensor), bytes_of(tensor), 1, file) == 1;
    }
    if (file) fclose(file);
    return fine;
}

/* All ranks have the same parameters, so one rank saves them. The barrier keeps the others from loading
 * before that. A rank that fails aborts the group. */
static void checkpoint(const tern_module *net, tern_group *world, tern_error *err)
{
    if (tern_group_rank(world) == 0 && !save(net))
        tern_group_abort(world, TERN_E_IO, "cannot write the file \"checkpoint\"");
    tern_barrier(world, err);
}

static void restore(const tern_module *net, tern_group *world)
{
    if (!load(net)) tern_group_abort(world, TERN_E_IO, "cannot read the file \"checkpoint\"");
}

/* ---- the demo ---- */

typedef struct training {
    tern_module *net;
    tern_ddp *ddp;
    tern_optim *opt;
    tern_scope *s;
    float x[BATCH * 10], labels[BATCH * 5];
} training;

static void train(training *t, int rank, int from, tern_error *err)
{
    for (int step = from; step < from + STEPS && !err->code; step++) {
        tern_tensor *x = tern_tensor_from(t->s, t->x, TERN_F32, 2, (int64_t[]){BATCH, 10});
        tern_tensor *labels = tern_tensor_from(t->s, t->labels, TERN_F32, 2, (int64_t[]){BATCH, 5});
        tern_backward(t->s, tern_mse_loss(t->s, tern_forward(t->net, t->s, x), labels, TERN_LOSS_MEAN));
        tern_optim_step(t->opt, t->s);
        if (!tern_scope_end(t->s, err) && rank == 0)
            printf("step %d  loss %.6f\n", step, tern_ddp_loss_mean(t->ddp));
    }
}

static void run(training *t, tern_group *world, int rank, tern_error *err)
{
    train(t, rank, 0, err);
    checkpoint(t->net, world, err);
    train(t, rank, STEPS, err);
    if (!err->code) restore(t->net, world);
    train(t, rank, STEPS, err);
    /* The last backward needed the gradients of every rank, so all ranks have loaded the file by now. */
    if (rank == 0) unlink("checkpoint");
}

static int demo_checkpoint(int rank, void *arg)
{
    (void)arg;
    training t = {0};
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    tern_device *dev = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    t.net = tern_mlp_new((int64_t[]){10, 10, 5}, 3, rng, &err);
    t.ddp = tern_ddp_new(t.net, world, NULL, &err);
    t.opt = tern_sgd_new(t.net, NULL, &err);
    t.s = tern_scope_new(dev, world, &err);
    if (!err.code) {
        tern_optim_lr_set(t.opt, 0, 0.1);
        tern_rng_seed(rng, (uint64_t)rank);
        tern_rng_normal(rng, t.x, BATCH * 10, 0, 1);
        tern_rng_normal(rng, t.labels, BATCH * 5, 0, 1);
        run(&t, world, rank, &err);
    }
    tern_scope_free(t.s);
    tern_optim_free(t.opt);
    tern_ddp_free(t.ddp);
    tern_module_free(t.net);
    tern_rng_free(rng);
    tern_device_close(dev);
    tern_group_close(world);
    return tern_error_print(&err);
}

int main(int argc, char **argv)
{
    return run_demo(demo_checkpoint, argc, argv,
                    "Saves a checkpoint, loads it, and trains the same steps again. Without a launcher it "
                    "starts the ranks\nitself (default 2).");
}
