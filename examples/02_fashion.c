/* 02_fashion.c - the demo: a small ResNet on Fashion-MNIST, 4 epochs on the ranks of `tern run -n 2`.
 *
 *     tern run -n 2 build/examples/02_fashion [epochs] [folder]
 *
 * Prints a banner, a progress bar and one line per epoch, and writes curves, histograms and test images for
 * TensorBoard. At the end it measures the speed of 1 rank x 1 thread, 1 rank x 2 threads and all ranks x 1
 * thread, writes predictions.png, and prints the hash of the weights on all ranks and the test accuracy. A
 * folder has files like Fashion-MNIST's, with images of the same size.
 */
#include "fashion.h"

#define BATCH       64
#define PEAK_LR     0.2
#define WARM_UP     0.05 /* share of all steps */
#define CURVE_STEPS 50

static tern_optim *new_optim(tern_module *net, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = PEAK_LR;
    opts.momentum = 0.9;
    opts.nesterov = true;
    opts.weight_decay = 5e-4;
    return tern_sgd_new(net, &opts, err);
}

/* ---- the objects of a run ---- */

typedef struct run {
    fashion_data data;
    tern_module *net;
    tern_ddp *ddp;
    tern_optim *opt;
    tern_schedule *schedule;
    tern_metrics *metrics;
    tern_board *board;
    tern_scope *s;
    double loss_sum; /* over the steps since the last point of the curve */
    int64_t steps;
} run;

static void open_run(run *r, int epochs, const char *folder, tern_error *err)
{
    fashion_data_open(&r->data, folder, BATCH, err);
    r->net = fashion_resnet_new(0, err);
    r->ddp = tern_ddp_new(r->net, r->data.world, NULL, err);
    r->opt = new_optim(r->net, err);
    int64_t steps = epochs * tern_loader_length(r->data.train);
    r->schedule = tern_cosine_schedule_new(r->opt, TERN_UNIT_STEPS, (int64_t)(WARM_UP * (double)steps + 0.5),
                                           steps, err);
    r->metrics = tern_metrics_new(r->data.world, err);
    tern_board_opts opts = tern_board_defaults();
    opts.tag = "_fashion";
    opts.csv = true;
    r->board = tern_board_new(NULL, r->data.world, &opts, err);
    r->s = tern_scope_new(r->data.dev, r->data.world, err);
}

static void close_run(run *r)
{
    tern_scope_free(r->s);
    tern_board_free(r->board);
    tern_metrics_free(r->metrics);
    tern_schedule_free(r->schedule);
    tern_optim_free(r->opt);
    tern_ddp_free(r->ddp);
    tern_module_free(r->net);
    fashion_data_close(&r->data);
}

static void print_banner(const run *r, int epochs)
{
    int ranks = tern_group_size(r->data.world);
    printf("tern %s\n", tern_version());
    printf("  model     ResNet, stages of 16, 32 and 64 channels, %lld parameters\n",
           (long long)tern_module_element_count(r->net));
    printf("  data      Fashion-MNIST, %lld + %lld images, %d epoch%s\n",
           (long long)r->data.train_set->length, (long long)r->data.test_set->length, epochs,
           epochs == 1 ? "" : "s");
    printf("  batch     %d x %d = %d\n", BATCH, ranks, BATCH * ranks);
    printf("  device    %s, %d thread%s a rank\n", tern_device_name(r->data.dev),
           tern_device_threads_get(r->data.dev), tern_device_threads_get(r->data.dev) == 1 ? "" : "s");
    printf("  back end  %s, %d rank%s\n", tern_group_backend(r->data.world), ranks, ranks == 1 ? "" : "s");
    printf("  curves    tensorboard --logdir %s\n", tern_board_dir(r->board));
    puts("  start     the first step takes seconds longer: it measures and keeps the fastest convolutions");
    fashion_say_ranks(r->data.world, "build/examples/02_fashion");
    fflush(stdout);
}

/* ---- training ---- */

/* Adds a point to the curve: the mean loss over CURVE_STEPS steps and all ranks. */
static void log_step(run *r)
{
    r->loss_sum += tern_ddp_loss_mean(r->ddp);
    if (++r->steps % CURVE_STEPS) return;
    tern_board_scalar(r->board, "loss/step", r->loss_sum / CURVE_STEPS, r->steps, NULL);
    r->loss_sum = 0;
}

/* Trains for an epoch and puts loss and accuracy over all ranks into the metrics. Returns the images per
 * second. */
static double train_epoch(run *r, int epoch, tern_error *err)
{
    char title[32];
    tern_batch b;
    snprintf(title, sizeof(title), "epoch %d", epoch);
    tern_progress_opts opts = tern_progress_defaults();
    opts.unit = "img";
    opts.leave = false;
    opts.line_seconds = 5;
    tern_progress *bar =
        tern_progress_new(title, tern_loader_length(r->data.train) * BATCH, r->data.world, &opts, err);
    while (!err->code && tern_loader_next(r->data.train, r->s, &b)) {
        tern_tensor *scores = tern_forward(r->net, r->s, b.x);
        tern_tensor *loss = tern_cross_entropy(r->s, scores, b.y, NULL);
        tern_backward(r->s, loss);
        tern_optim_step(r->opt, r->s);
        tern_schedule_step(r->schedule);
        tern_metrics_mean(r->metrics, "loss", tern_item(loss), (double)b.count);
        tern_metrics_mean(r->metrics, "right", (double)fashion_right(r->s, scores, b.y) / (double)b.count,
                          (double)b.count);
        log_step(r);
        tern_progress_postfix(bar, "loss", tern_ddp_loss_mean(r->ddp));
        tern_progress_update(bar, b.count);
        if (tern_scope_end(r->s, err)) break;
    }
    double rate = tern_progress_rate(bar);
    tern_progress_free(bar);
    tern_metrics_reduce(r->metrics, err);
    return rate;
}

/* Writes curves and histograms for TensorBoard. A failed write is only a warning. */
static void log_epoch(run *r, int epoch, double train, double test)
{
    static const char *const names[] = {"train", "test"};
    tern_board_scalar(r->board, "loss", tern_metrics_get(r->metrics, "loss"), epoch, NULL);
    tern_board_scalars(r->board, "accuracy", 2, names, (double[]){train, test}, epoch, NULL);
    tern_board_scalar(r->board, "learning rate", tern_optim_lr_get(r->opt, 0), epoch, NULL);
    tern_board_parameters(r->board, r->net, epoch, NULL);
    tern_board_flush(r->board, NULL);
}

static void run_epoch(run *r, int epoch, tern_error *err)
{
    double started = fashion_now(), rate = train_epoch(r, epoch, err), seconds = fashion_now() - started;
    double test = fashion_data_accuracy(&r->data, r->net, r->s, err);
    double train = tern_metrics_get(r->metrics, "right");
    if (err->code || tern_group_rank(r->data.world)) return;
    log_epoch(r, epoch, train, test);
    printf("epoch %d  loss %.4f  train %.2f %%  test %.2f %%  %.*f images/s  %.1f s\n", epoch,
           tern_metrics_get(r->metrics, "loss"), 100 * train, 100 * test, rate < 10 ? 2 : 0, rate, seconds);
    fflush(stdout);
}

/* ---- speed: short measured runs on fresh weights ---- */

#define SPEED_STEPS   60
#define SPEED_WARM    10
#define SPEED_SECONDS 2.0

typedef struct trial {
    tern_group *world; /* NULL: this rank alone */
    tern_loader *loader;
    tern_module *net;
    tern_optim *opt;
    tern_scope *s;
    tern_progress *bar;
} trial;

/* Returns the steps per second over `most` steps, or until `limit` seconds have passed on rank 0's clock. */
static double steps_a_second(trial *t, int most, double limit, tern_error *err)
{
    double started = fashion_now(), seconds = 0;
    int64_t steps = 0, over = 0;
    tern_batch b;
    while (steps < most && !over && !err->code && tern_loader_next(t->loader, t->s, &b)) {
        tern_backward(t->s, tern_cross_entropy(t->s, tern_forward(t->net, t->s, b.x), b.y, NULL));
        tern_optim_step(t->opt, t->s);
        tern_scope_end(t->s, err);
        tern_progress_update(t->bar, b.count);
        steps++;
        seconds = fashion_now() - started;
        over = seconds > limit;
        if (t->world) tern_broadcast(t->world, &over, 1, TERN_I64, 0, err);
    }
    return (double)steps / seconds;
}

static tern_progress *new_speed_bar(tern_group *world, int threads, tern_error *err)
{
    char title[64];
    int ranks = world ? tern_group_size(world) : 1;
    snprintf(title, sizeof(title), "%d rank%s x %d thread%s", ranks, ranks == 1 ? "" : "s", threads,
             threads == 1 ? "" : "s");
    tern_progress_opts opts = tern_progress_defaults();
    opts.unit = "img";
    opts.leave = false;
    opts.line_seconds = 5;
    return tern_progress_new(title, (SPEED_WARM + SPEED_STEPS) * BATCH, world, &opts, err);
}

/* Returns the images per second of this rank alone or, with `world`, of all ranks; 0 after an error. */
static double measure(run *r, tern_group *world, int threads, tern_error *err)
{
    int before = tern_device_threads_get(r->data.dev);
    tern_device_threads_set(r->data.dev, threads, err);
    trial t = {.world = world,
               .loader = fashion_loader(r->data.train_set, NULL, BATCH, true, err),
               .net = fashion_resnet_new(1, err)};
    tern_ddp *ddp = world ? tern_ddp_new(t.net, world, NULL, err) : NULL;
    t.opt = new_optim(t.net, err);
    t.s = tern_scope_new(r->data.dev, world, err);
    t.bar = new_speed_bar(world, threads, err);
    steps_a_second(&t, SPEED_WARM, SPEED_SECONDS / 2, err);
    double rate = steps_a_second(&t, SPEED_STEPS, SPEED_SECONDS, err);
    tern_progress_free(t.bar);
    tern_scope_free(t.s);
    tern_optim_free(t.opt);
    tern_ddp_free(ddp);
    tern_module_free(t.net);
    tern_loader_free(t.loader);
    tern_device_threads_set(r->data.dev, before, err);
    return err->code ? 0 : rate * BATCH * (world ? tern_group_size(world) : 1);
}

/* Threads that take turns on too few cores say little about a machine with enough of them. */
static void say_oversubscribed(int ranks)
{
    int sharers, cores = tern_device_cores(&sharers), threads = sharers > 2 ? sharers : 2;
    if (sharers <= cores && 2 <= cores) return;
    printf("  oversubscribed: up to %d threads took turns on %d core%s", threads, cores,
           cores == 1 ? "" : "s");
    printf(sharers < ranks ? " of this host\n" : "\n");
}

/* Rank 0 runs alone first, while the other ranks sleep in the barrier. */
static void compare_speed(run *r, tern_error *err)
{
    double alone[2] = {0};
    int ranks = tern_group_size(r->data.world);
    if (tern_group_rank(r->data.world) == 0) {
        puts("measuring speed ..");
        fflush(stdout);
        for (int threads = 1; threads <= 2; threads++) alone[threads - 1] = measure(r, NULL, threads, err);
    }
    tern_barrier(r->data.world, err);
    double together = measure(r, r->data.world, 1, err);
    if (err->code || tern_group_rank(r->data.world)) return;
    printf("images/s  1 rank x 1 thread: %.0f   1 rank x 2 threads: %.0f   %d rank%s x 1 thread: %.0f\n",
           alone[0], alone[1], ranks, ranks == 1 ? "" : "s", together);
    say_oversubscribed(ranks);
}

/* ---- predictions.png ---- */

#define SHOWN  40
#define ACROSS 8
#define SIDE   28

typedef struct shown {
    uint8_t pixels[SHOWN][SIDE * SIDE];
    char captions[SHOWN][48];
    tern_picture pictures[SHOWN];
} shown;

static void fill_pictures(shown *p, const float *x, const int64_t *guess, const int64_t *truth)
{
    for (int i = 0; i < SHOWN; i++) {
        for (int k = 0; k < SIDE * SIDE; k++)
            p->pixels[i][k] = (uint8_t)((x[i * SIDE * SIDE + k] * FASHION_STD + FASHION_MEAN) * 255 + 0.5f);
        bool right = guess[i] == truth[i];
        snprintf(p->captions[i], sizeof(p->captions[i]), right ? "%s" : "%s (is %s)", fashion_names[guess[i]],
                 fashion_names[truth[i]]);
        p->pictures[i] = (tern_picture){p->pixels[i], SIDE, SIDE, 1, p->captions[i], !right};
    }
}

static void log_pictures(run *r, shown *p)
{
    tern_tensor *pixels =
        tern_tensor_wrap(p->pixels, TERN_U8, 4, (int64_t[]){SHOWN, 1, SIDE, SIDE}, NULL, NULL, NULL);
    tern_board_image(r->board, "test images", pixels, 0, NULL, NULL);
    tern_tensor_free(pixels);
}

/* Runs on rank 0 alone, in a scope without a group, so that the other ranks need not take part. */
static void save_predictions(run *r, const char *path, tern_error *err)
{
    tern_scope *s = tern_scope_new(r->data.dev, NULL, err);
    tern_loader *loader = fashion_loader(r->data.test_set, NULL, SHOWN, true, err);
    float x[SHOWN * SIDE * SIDE];
    int64_t guess[SHOWN], truth[SHOWN];
    shown *pictures = calloc(1, sizeof(*pictures));
    tern_batch b;
    if (!err->code && pictures && tern_loader_next(loader, s, &b)) {
        tern_eval(r->net);
        tern_grad_enabled_set(s, false);
        tern_tensor *best = tern_argmax(s, tern_forward(r->net, s, b.x), 1, false);
        if (best && !tern_tensor_read(b.x, x, sizeof(x), err) &&
            !tern_tensor_read(best, guess, sizeof(guess), err) &&
            !tern_tensor_read(b.y, truth, sizeof(truth), err)) {
            fill_pictures(pictures, x, guess, truth);
            log_pictures(r, pictures);
            tern_picture_grid_save(path, "Test images: predicted class (true class where it differs)",
                                   pictures->pictures, SHOWN, ACROSS, err);
        }
        tern_train(r->net);
        tern_scope_end(s, err);
    }
    free(pictures);
    tern_loader_free(loader);
    tern_scope_free(s);
    if (!err->code) printf("wrote %s\n", path);
}

int main(int argc, char **argv)
{
    usage_read(argc, argv, "[epochs] [folder]",
               "Trains a small ResNet on Fashion-MNIST (default 4 epochs), on the ranks of a launcher, and "
               "measures the\n"
               "speed. Writes curves to runs/ and predictions.png. A folder has files like Fashion-MNIST's.");
    int epochs = fashion_epochs(argc, argv, 1, 4);
    tern_error err = {0};
    run r = {0};
    bool same = false;
    open_run(&r, epochs, argc > 2 ? argv[2] : NULL, &err);
    bool first = !err.code && tern_group_rank(r.data.world) == 0;
    if (first) print_banner(&r, epochs);
    for (int epoch = 1; epoch <= epochs && !err.code; epoch++) run_epoch(&r, epoch, &err);
    if (!err.code) compare_speed(&r, &err);
    if (!err.code && first) {
        tern_error figure = {0}; /* a missing plug-in does not fail the run */
        save_predictions(&r, "predictions.png", &figure);
        tern_error_print(&figure);
    }
    if (!err.code) same = fashion_compare_weights(r.net, r.data.world, &err);
    double test = err.code ? 0 : fashion_data_accuracy(&r.data, r.net, r.s, &err);
    if (!err.code && first) printf("test accuracy %.2f %%\n", 100 * test);
    close_run(&r);
    return tern_error_print(&err) || !same;
}
