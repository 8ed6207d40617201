/* loaders.c - opens the samples of a training. */
#include "loaders.h"
#include "trainer_inner.h"

#include <stdlib.h>

static tern_loader *new_loader(trainer *t, tern_dataset *set, tern_sampler *order, bool train,
                               tern_error *err)
{
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = t->flags->batch;
    opts.workers = (int)t->flags->workers;
    opts.sampler = order;
    opts.drop_last = train;
    return err->code ? NULL : tern_loader_new(set, &opts, err);
}

static tern_sampler *new_order(trainer *t, const tern_dataset *set, bool train, tern_error *err)
{
    tern_distributed_opts opts = tern_distributed_defaults();
    opts.seed = (uint64_t)t->flags->seed;
    opts.shuffle = opts.pad = train; /* each test sample once over all ranks */
    if (train && t->flags->microbatches) opts.block = t->flags->batch * t->parts, opts.drop_last = true;
    return err->code ? NULL
                     : tern_distributed_sampler_new(set->length, tern_group_size(t->world),
                                                    tern_group_rank(t->world), &opts, err);
}

/* With --skip-bad, returns the readable samples of a dataset, the same on all ranks. */
static tern_dataset *readable(trainer *t, tern_dataset *set, tern_error *err)
{
    if (err->code || !set || !t->flags->skip_bad) return set;
    tern_dataset *rest = tern_readable_new(set, t->world, err);
    if (rest && rest->length < set->length)
        trainer_print(t, "skipped %lld of %lld samples that cannot be read\n",
                      (long long)(set->length - rest->length), (long long)set->length);
    return rest;
}

/* Finds how many batches of a step are this rank's. */
static void share_batches(trainer *t, tern_error *err)
{
    int64_t ranks = tern_group_size(t->world), all = t->flags->microbatches;
    t->parts = all ? all / ranks : t->flags->accumulate;
    if (all && (all % ranks || t->parts & (t->parts - 1)))
        tern_error_set(
            err, "train", TERN_E_RANGE,
            "--microbatches: %lld ranks cannot share %lld batches: each has to get 1, 2, 4, 8 .. of them",
            (long long)ranks, (long long)all);
}

static void check_length(trainer *t, tern_error *err)
{
    int ranks = tern_group_size(t->world);
    long long samples = err->code ? 0 : t->train_set->length, batch = t->flags->batch * t->parts;
    if (samples < ranks)
        tern_error_set(err, "train", TERN_E_RANGE, "%s: %lld training samples are fewer than %d ranks",
                       t->task->data, samples, ranks);
    if ((samples + ranks - 1) / ranks < batch)
        tern_error_set(err, "train", TERN_E_RANGE,
                       "%s: %lld training samples are too few for a batch of %lld on each of %d ranks",
                       t->task->data, samples, batch, ranks);
}

/* Samples at equal distances, for --update-bn batches on each rank. */
static void open_update(trainer *t, tern_error *err)
{
    int64_t length = t->train_set ? t->train_set->length : 0;
    int64_t most = t->flags->update_bn * t->flags->batch * tern_group_size(t->world);
    int64_t count = most < length ? most : length, *indices = malloc((size_t)count * sizeof(*indices) + 1);
    if (!indices)
        tern_error_set(err, "train", TERN_E_MEMORY, "no memory for the numbers of %lld samples",
                       (long long)count);
    for (int64_t i = 0; indices && i < count; i++) indices[i] = i * length / count;
    t->update_set = err->code ? NULL : tern_subset_new(t->train_set, indices, count, err);
    t->update_order = new_order(t, t->update_set, true, err);
    t->update = new_loader(t, t->update_set, t->update_order, true, err);
    free(indices);
}

void loaders_open(trainer *t, tern_error *err)
{
    t->train_set = readable(t, t->task->train, err);
    t->test_set = readable(t, t->task->test, err);
    share_batches(t, err);
    check_length(t, err);
    t->train_order = new_order(t, t->train_set, true, err);
    t->train = new_loader(t, t->train_set, t->train_order, true, err);
    if (t->flags->update_bn) open_update(t, err);
    if (!t->test_set) return;
    t->test_order = new_order(t, t->test_set, false, err);
    t->test = new_loader(t, t->test_set, t->test_order, false, err);
}

void loaders_close(trainer *t)
{
    tern_loader_free(t->update);
    tern_loader_free(t->test);
    tern_loader_free(t->train);
    tern_sampler_free(t->update_order);
    tern_sampler_free(t->test_order);
    tern_sampler_free(t->train_order);
    tern_dataset_free(t->update_set);
    if (t->test_set != t->task->test) tern_dataset_free(t->test_set);
    if (t->train_set != t->task->train) tern_dataset_free(t->train_set);
}
