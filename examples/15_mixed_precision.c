/* 15_mixed_precision.c - compares the time, memory and accuracy of apex's opt levels.
 *
 *     tern run -n 2 build/examples/15_mixed_precision [O0|O1|O2|O3] [bf16|f16] [epochs] [./folder]
 *
 * Trains the small ResNet of the demo on Fashion-MNIST (default: O1 in bf16 for 2 epochs), or on a folder
 * with files like its own, whose images may be smaller or fewer, and prints the accuracy, the time, the bytes
 * of gradients that each rank sends per step, and rank 0's peak memory. */
#include "fashion.h"

#include <sys/resource.h>

#define BATCH 64

typedef struct wanted {
    tern_opt_level level;
    tern_dtype half;
    int epochs;
    const char *folder; /* NULL: Debian's */
} wanted;

typedef struct training {
    fashion_data data;
    tern_module *net;
    tern_amp *amp;
    tern_ddp *ddp;
    tern_optim *opt;
    tern_schedule *schedule;
    tern_scope *s;
} training;

static _Noreturn void refuse(const char *program, const char *word)
{
    fprintf(stderr,
            "%s: expected O0, O1, O2 or O3, bf16 or f16, a number of epochs, or a folder with a /, "
            "got \"%s\"\n",
            program, word);
    exit(2);
}

static wanted read_arguments(int argc, char **argv)
{
    wanted w = {TERN_O1, TERN_BF16, 2, NULL};
    usage_read(argc, argv, "[O0|O1|O2|O3] [bf16|f16] [epochs] [./folder]",
               "Trains a small ResNet on Fashion-MNIST in mixed precision (default O1, bf16, 2 epochs), on "
               "the ranks of a\n"
               "launcher. A word with a / is a folder with files like Fashion-MNIST's.");
    for (int i = 1; i < argc; i++) {
        bool is_level = argv[i][0] == 'O' && argv[i][1] >= '0' && argv[i][1] <= '3' && !argv[i][2];
        if (is_level)
            w.level = (tern_opt_level)(argv[i][1] - '0');
        else if (!strcmp(argv[i], "bf16"))
            w.half = TERN_BF16;
        else if (!strcmp(argv[i], "f16"))
            w.half = TERN_F16;
        else if (strchr(argv[i], '/'))
            w.folder = argv[i];
        else if (argv[i][0] >= '0' && argv[i][0] <= '9')
            w.epochs = fashion_epochs(argc, argv, i, 2);
        else
            refuse(argv[0], argv[i]);
    }
    return w;
}

/* The order matters: amp casts the model before ddp and the optimizer lay out its memory. */
static void open_model(training *t, const wanted *w, tern_error *err)
{
    tern_amp_opts amp = tern_amp_defaults(w->level);
    tern_sgd_opts sgd = tern_sgd_defaults();
    amp.half_type = w->half;
    sgd.lr = 0.1;
    sgd.momentum = 0.9;
    sgd.weight_decay = 5e-4;
    t->net = fashion_resnet_new(0, err);
    t->amp = tern_amp_new(t->net, &amp, err);
    t->ddp = tern_ddp_new(t->net, t->data.world, NULL, err);
    t->opt = tern_sgd_new(t->net, &sgd, err);
    int64_t steps = w->epochs * tern_loader_length(t->data.train);
    t->schedule = tern_cosine_schedule_new(t->opt, TERN_UNIT_STEPS, steps / 20, steps, err);
    t->s = tern_scope_new(t->data.dev, t->data.world, err);
}

static void close_training(training *t)
{
    tern_scope_free(t->s);
    tern_schedule_free(t->schedule);
    tern_optim_free(t->opt);
    tern_ddp_free(t->ddp);
    tern_amp_free(t->amp);
    tern_module_free(t->net);
    fashion_data_close(&t->data);
}

static void train_epoch(training *t, int epoch, tern_error *err)
{
    char title[32];
    tern_batch b;
    snprintf(title, sizeof(title), "epoch %d", epoch);
    tern_progress_opts opts = tern_progress_defaults();
    opts.unit = "img";
    tern_progress *bar =
        tern_progress_new(title, tern_loader_length(t->data.train) * BATCH, t->data.world, &opts, err);
    while (!err->code && tern_loader_next(t->data.train, t->s, &b)) {
        tern_tensor *scores = tern_forward(t->net, t->s, b.x);
        tern_amp_backward(t->amp, t->s, tern_cross_entropy(t->s, scores, b.y, NULL), NULL);
        tern_optim_step(t->opt, t->s);
        tern_schedule_step(t->schedule);
        tern_progress_postfix(bar, "loss", tern_ddp_loss_mean(t->ddp));
        tern_progress_postfix(bar, "scale", tern_amp_loss_scale_get(t->amp, 0));
        tern_progress_update(bar, b.count);
        if (tern_scope_end(t->s, err)) break;
    }
    tern_progress_free(bar);
}

static void report(const training *t, const wanted *w, double seconds, double accuracy)
{
    struct rusage usage;
    size_t sent = 0;
    for (int i = 0; i < tern_ddp_bucket_count(t->ddp); i++) sent += tern_ddp_bucket_bytes(t->ddp, i);
    getrusage(RUSAGE_SELF, &usage);
    printf("O%d %s  test accuracy %.2f %%  %.1f s per epoch  %.1f KB of gradients per step  %.1f MB\n",
           w->level, w->level ? tern_dtype_name(w->half) : "f32", 100 * accuracy, seconds / w->epochs,
           (double)sent / 1e3, (double)usage.ru_maxrss / 1024);
}

int main(int argc, char **argv)
{
    wanted w = read_arguments(argc, argv);
    training t = {0};
    tern_error err = {0};
    fashion_data_open(&t.data, w.folder, BATCH, &err);
    open_model(&t, &w, &err);
    double started = fashion_now();
    for (int epoch = 1; epoch <= w.epochs && !err.code; epoch++) train_epoch(&t, epoch, &err);
    double seconds = fashion_now() - started;
    double accuracy = err.code ? 0 : fashion_data_accuracy(&t.data, t.net, t.s, &err);
    if (!err.code && tern_group_rank(t.data.world) == 0) report(&t, &w, seconds, accuracy);
    close_training(&t);
    return tern_error_print(&err);
}
