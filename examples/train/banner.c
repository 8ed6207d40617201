/* banner.c - what a run says before its first step. */
#include "banner.h"

#include <stdio.h>
#include <string.h>

/* Returns the rate that the schedules multiply; after resuming, that of the checkpoint. */
static double base_rate(const trainer *t)
{
    const tern_schedule *schedule = t->schedule ? t->schedule : t->warm_up;
    double rate = tern_optim_lr_get(t->optim, 0);
    if (!schedule) return rate;
    tern_object *state = tern_schedule_state_dict(schedule, NULL);
    tern_object_to_float(tern_object_at(tern_object_get(state, "base_lrs"), 0), &rate, NULL);
    tern_object_free(state);
    return rate;
}

static void print_rate(const trainer *t)
{
    const flags *f = t->flags;
    double rate = base_rate(t);
    const char *after = f->milestones.count == 1 ? ", lowered after epoch " : ", lowered after epochs ";
    printf("  rate       %g", rate);
    if (flags_given(f, "lr") && f->lr != rate)
        printf(" (--lr %g ignored: the checkpoint has %g)", f->lr, rate);
    if (f->warm_up > 0) printf(", rising for %g epoch%s", f->warm_up, f->warm_up == 1 ? "" : "s");
    if (f->schedule == FLAGS_COSINE)
        printf(", falling to %g", f->min_lr);
    else
        for (int i = 0; i < f->milestones.count; i++)
            printf("%s%lld", i ? ", " : after, (long long)f->milestones.items[i]);
    printf("\n");
}

/* Ends the line of the ranks. */
static void print_oversubscribed(const trainer *t, int threads)
{
    int sharers, cores = tern_device_cores(&sharers);
    bool takes_turns = sharers * threads > cores && !strncmp(tern_device_name(t->device), "cpu", 3);
    if (takes_turns) printf("; oversubscribed: they take turns on %d core%s", cores, cores == 1 ? "" : "s");
    printf("\n");
}

static bool has_convolutions(const tern_module *net)
{
    for (int i = 0; i < tern_state_count(net); i++)
        if (tern_tensor_ndim(tern_state_get(net, i).tensor) > 2) return true;
    return false;
}

void banner_print(const trainer *t, int64_t steps_per_epoch)
{
    const flags *f = t->flags;
    const task *k = t->task;
    int ranks = tern_group_size(t->world), threads = tern_device_threads_get(t->device);
    printf("tern %s, %s\n", tern_version(), f->program);
    printf("  model      %s, %lld parameters\n", k->model, (long long)tern_module_element_count(k->net));
    printf("  data       %s, %lld + %lld samples\n", k->data, (long long)t->train_set->length,
           (long long)(t->test_set ? t->test_set->length : 0));
    printf("  ranks      %d x %d thread%s, %s, %s", ranks, threads, threads == 1 ? "" : "s",
           tern_group_backend(t->world), tern_device_name(t->device));
    print_oversubscribed(t, threads);
    printf("  batch      %lld x %d", (long long)f->batch, ranks);
    if (t->parts > 1) printf(" x %lld", (long long)t->parts);
    printf(" = %lld, %lld steps per epoch\n", (long long)(f->batch * ranks * t->parts),
           (long long)steps_per_epoch);
    print_rate(t);
    printf("  precision  O%d%s%s\n", f->opt_level, f->opt_level ? (f->half ? ", f16" : ", bf16") : "",
           f->sync_bn ? ", synchronised batch norm" : "");
    printf("  run        %s (tensorboard --logdir %s)\n", t->dir, t->dir);
    if (has_convolutions(k->net))
        printf("  start      the first step takes seconds longer: it measures and keeps the fastest "
               "convolutions\n");
    fflush(stdout);
}
