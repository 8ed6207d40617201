/* trainee.h - a rank with all parts of a run: augmented images in a shuffled order, dropout, batch norm, the
 * rank's own noise, momentum or Adam, a schedule, a scaler, and a snapshot of everything in a folder. */
#ifndef TERN_TESTS_CHECKPOINT_TRAINEE_H
#define TERN_TESTS_CHECKPOINT_TRAINEE_H

#include "comm/ranks.h"

#include "checkpoint/snapshot.h"
#include "comm/move/backend.h"
#include "tensor/tensor.h"

#include <dirent.h>
#include <sys/stat.h>

enum { IMAGES = 54, SIDE = 6, BATCH = 4, LABELS = 3 };

/* Image i is computed from i. */
static inline int image_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                            tern_error *err)
{
    (void)base;
    (void)epoch;
    (void)err;
    uint32_t state = (uint32_t)index * 2654435761u + 1;
    for (int k = 0; k < SIDE * SIDE; k++) {
        state = state * 1664525u + 1013904223u;
        x[k] = (float)(int32_t)state / 2147483648.0f;
    }
    *(int64_t *)y = index % LABELS;
    return TERN_OK;
}

typedef struct trainee_opts {
    const char *dir;
    bool adam, shard;
    bool cycle; /* a one-cycle schedule, which changes the momentum, too */
    bool conv;  /* a net of convolutions, whose algorithms may be chosen by measuring */
    bool amp;   /* level O2 with dynamic scaling, instead of the scaler */
    int64_t batch_size;
} trainee_opts;

typedef struct trainee {
    int rank, size;
    tern_group *world;
    tern_device *device;
    tern_rng *init, *rng; /* `rng`: the rank's own */
    tern_module *net;
    tern_amp *amp; /* may be NULL */
    tern_ddp *ddp;
    tern_optim *optim;
    tern_schedule *schedule;
    tern_scaler *scaler;
    tern_dataset images, *augmented;
    tern_sampler *sampler;
    tern_loader *loader;
    tern_scope *scope;
    int64_t step, epoch;
    tern_snapshot *snapshot;
    tern_error err;
} trainee;

static inline void trainee_open_net(trainee *t)
{
    tern_error *err = &t->err;
    tern_module *made[] = {tern_flatten_new(err),
                           tern_linear_new(SIDE * SIDE, 16, NULL, t->init, err),
                           tern_batch_norm1d_new(16, NULL, err),
                           tern_relu_new(err),
                           tern_dropout_new(0.3, err),
                           tern_linear_new(16, LABELS, NULL, t->init, err)};
    t->net = tern_sequential_new(err);
    for (size_t i = 0; i < TERN__COUNT(made); i++) tern_sequential_add(t->net, made[i], err);
}

static inline void trainee_open_conv_net(trainee *t)
{
    tern_error *err = &t->err;
    tern_conv2d_opts conv = tern_conv2d_defaults();
    conv.padding[0] = conv.padding[1] = 1;
    tern_module *made[] = {tern_conv2d_new(1, 32, 3, 3, &conv, t->init, err),
                           tern_conv2d_new(32, 32, 3, 3, &conv, t->init, err),
                           tern_relu_new(err),
                           tern_global_avg_pool_new(err),
                           tern_dropout_new(0.3, err),
                           tern_linear_new(32, LABELS, NULL, t->init, err)};
    t->net = tern_sequential_new(err);
    for (size_t i = 0; i < TERN__COUNT(made); i++) tern_sequential_add(t->net, made[i], err);
    tern_device_conv_opts rules = tern_device_conv_defaults();
    rules.exact = rules.deterministic = false;
    tern_device_conv_set(t->device, &rules, err);
}

static inline void trainee_open_optim(trainee *t, const trainee_opts *opts)
{
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = 0.05;
    sgd.momentum = 0.9;
    t->optim = opts->adam ? tern_adam_new(t->net, NULL, &t->err) : tern_sgd_new(t->net, &sgd, &t->err);
    if (opts->shard) tern_optim_shard(t->optim, t->world, &t->err);
    t->schedule = opts->cycle ? tern_one_cycle_schedule_new(t->optim, TERN_UNIT_STEPS, 50, NULL, &t->err)
                              : tern_exponential_schedule_new(t->optim, TERN_UNIT_STEPS, 0.97, &t->err);
    tern_scaler_opts scaler = tern_scaler_defaults();
    scaler.growth_factor = 1.3; /* not a power of two, so that the scale affects the bits */
    scaler.growth_interval = 5;
    t->scaler = tern_scaler_new(&scaler, &t->err);
}

static inline void trainee_open_data(trainee *t, const trainee_opts *opts)
{
    t->images = (tern_dataset){
        .length = IMAGES, .ndim = 3, .shape = {1, SIDE, SIDE}, .classes = LABELS, .get = image_get};
    tern_augment_opts augment = tern_augment_defaults();
    augment.padding[0] = augment.padding[1] = 1;
    augment.crop[0] = augment.crop[1] = SIDE;
    augment.flip = 0.5;
    t->augmented = tern_augment_new(&t->images, &augment, &t->err);
    t->sampler = tern_distributed_sampler_new(IMAGES, t->size, t->rank, NULL, &t->err);
    tern_loader_opts loader = tern_loader_defaults();
    loader.batch_size = opts->batch_size ? opts->batch_size : BATCH;
    loader.sampler = t->sampler;
    loader.workers = 2;
    t->loader = tern_loader_new(t->augmented, &loader, &t->err);
}

static inline void trainee_open_snapshot(trainee *t, const trainee_opts *opts)
{
    tern_error *err = &t->err;
    tern_snapshot *s = t->snapshot = tern_snapshot_new(opts->dir, t->world, NULL, err);
    tern_snapshot_add_module(s, "model", t->net, err);
    tern_snapshot_add_optim(s, "optimizer", t->optim, err);
    tern_snapshot_add_schedule(s, "scheduler", t->schedule, err);
    if (t->amp) tern_snapshot_add_amp(s, "amp", t->amp, err);
    tern_snapshot_add_scaler(s, "scaler", t->scaler, err);
    tern_snapshot_add_loader(s, "loader", t->loader, err);
    tern_snapshot_add_rng(s, "rng", t->rng, err);
    tern_snapshot_add_scope(s, "scope", t->scope, err);
    tern_snapshot_add_int(s, "epoch", &t->epoch, err);
}

/* `boot` NULL: alone, without a group. */
static inline void trainee_open(trainee *t, const tern__bootstrap *boot, const trainee_opts *opts)
{
    *t = (trainee){.rank = boot ? boot->rank : 0, .size = boot ? boot->world : 1};
    tern_error *err = &t->err;
    t->world = boot ? tern__group_open_boot(boot, NULL, err) : NULL;
    t->device = tern_device_open("cpu", err);
    tern_device_threads_set(t->device, 1, err);
    t->init = tern_rng_new(7, err);
    t->rng = tern_rng_new(100 + (uint64_t)t->rank, err);
    if (opts->conv)
        trainee_open_conv_net(t);
    else
        trainee_open_net(t);
    tern_amp_opts amp = tern_amp_defaults(TERN_O2);
    if (opts->amp) t->amp = tern_amp_new(t->net, &amp, err);
    if (t->world) t->ddp = tern_ddp_new(t->net, t->world, NULL, err);
    trainee_open_optim(t, opts);
    trainee_open_data(t, opts);
    t->scope = tern_scope_new(t->device, t->world, err);
    if (!err->code) tern_scope_seed(t->scope, 5, 0);
    trainee_open_snapshot(t, opts);
}

static inline int trainee_close(trainee *t)
{
    tern_snapshot_free(t->snapshot);
    tern_scope_free(t->scope);
    tern_loader_free(t->loader);
    tern_sampler_free(t->sampler);
    tern_dataset_free(t->augmented);
    tern_scaler_free(t->scaler);
    tern_schedule_free(t->schedule);
    tern_optim_free(t->optim);
    tern_ddp_free(t->ddp);
    tern_amp_free(t->amp);
    tern_module_free(t->net);
    tern_rng_free(t->rng);
    tern_rng_free(t->init);
    tern_device_close(t->device);
    tern_group_close(t->world);
    return 0;
}

static inline void trainee_learn(trainee *t, const tern_batch *batch)
{
    tern_tensor *noise = tern_randn(t->scope, t->rng, 2, (int64_t[]){batch->count, LABELS});
    tern_tensor *scores = tern_add(t->scope, tern_forward(t->net, t->scope, batch->x), noise);
    tern_tensor *loss = tern_cross_entropy(t->scope, scores, batch->y, NULL);
    if (t->amp) {
        /* Sometimes makes the loss too large: the step is skipped and the scale reduced. */
        float factor = t->step % 11 == 3 ? 3e38f : 1;
        tern_tensor *by = tern_tensor_from(t->scope, &factor, TERN_F32, 0, NULL);
        tern_amp_backward(t->amp, t->scope, tern_mul(t->scope, loss, by), NULL);
        tern_optim_step(t->optim, t->scope);
    } else {
        tern_backward(t->scope, tern_scaler_scale(t->scaler, t->scope, loss));
        tern_scaler_step(t->scaler, t->scope, t->optim);
        tern_scaler_update(t->scaler, t->scope);
    }
    tern_schedule_step(t->schedule);
}

/* Runs the next step, in this epoch or the next. */
static inline void trainee_step(trainee *t)
{
    tern_batch batch;
    while (!tern_loader_next(t->loader, t->scope, &batch)) t->epoch++;
    trainee_learn(t, &batch);
    t->step++;
    tern_scope_end(t->scope, &t->err);
}

static inline void trainee_run(trainee *t, int64_t until)
{
    while (t->step < until && !t->err.code) trainee_step(t);
}

static inline int trainee_save(trainee *t)
{
    return tern_snapshot_save(t->snapshot, t->step, &t->err);
}

/* Loads the latest snapshot or `path`, as tern_snapshot_load. */
static inline int trainee_load(trainee *t, const char *path)
{
    int status = tern_snapshot_load(t->snapshot, path, &t->err);
    if (status == 1) t->step = tern_snapshot_step(t->snapshot);
    return status;
}

static inline uint64_t mix_bytes(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t k = 0; k < bytes; k++) hash = (hash ^ ((const unsigned char *)data)[k]) * 1099511628211u;
    return hash;
}

/* Powers of two, which do not affect the weights' bits. */
static inline uint64_t mix_amp(uint64_t hash, const trainee *t)
{
    double scale = 0, unskipped = 0;
    tern_object *state = tern_amp_state_dict(t->amp, NULL);
    const tern_object *first = tern_object_get(state, "loss_scaler0");
    tern_object_to_float(tern_object_get(first, "loss_scale"), &scale, NULL);
    tern_object_to_float(tern_object_get(first, "unskipped"), &unskipped, NULL);
    tern_object_free(state);
    return mix_bytes(mix_bytes(hash, &scale, sizeof(scale)), &unskipped, sizeof(unskipped));
}

/* Hashes the weights, the buffers, the loss scales, and the rank's next random numbers. */
static inline uint64_t trainee_hash(const trainee *t)
{
    char state[TERN_RNG_STATE_BYTES];
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < tern_state_count(t->net); i++) {
        const tern_tensor *tensor = tern_state_get(t->net, i).tensor;
        hash = mix_bytes(hash, tensor->view.data, tern__view_bytes(&tensor->view));
    }
    if (t->amp) hash = mix_amp(hash, t);
    tern_rng_state_get(t->rng, state);
    return mix_bytes(hash, state, sizeof(state));
}

/* ---- folders ---- */

typedef struct folder {
    char path[64];
} folder;

/* Uses a file system in memory if there is one, since there are many syncs. */
static inline folder open_folder(void)
{
    folder f;
    snprintf(f.path, sizeof(f.path), "%s/tern-snapshot-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    assert_non_null(mkdtemp(f.path));
    return f;
}

static inline int folder_count(const char *path, const char *part)
{
    int count = 0;
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.' && strstr(entry->d_name, part) != NULL;
    if (dir) closedir(dir);
    return count;
}

static inline bool folder_has(const char *path, const char *name)
{
    char full[512];
    struct stat stat_;
    snprintf(full, sizeof(full), "%s/%s", path, name);
    return lstat(full, &stat_) == 0;
}

static inline void empty_folder(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.') unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir) closedir(dir);
}

static inline void close_folder(folder *f)
{
    empty_folder(f->path);
    assert_int_equal(rmdir(f->path), 0);
}

#endif
