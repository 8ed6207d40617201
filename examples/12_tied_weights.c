/* 12_tied_weights.c - one parameter in two layers: a model that predicts the next letter, whose first and
 * last layer share their weight.
 *
 *     build/examples/12_tied_weights 2                  starts 2 ranks with tern_spawn
 *     tern run -n 2 build/examples/12_tied_weights      tern run starts the 2 ranks
 *
 * Prints the number of parameters and the mean loss over the ranks of every tenth step. Ranks may share
 * cores. */
#include "demo.h"

#include <string.h>

#define LETTERS 27 /* a to z, and one for all other characters */
#define SIZE    16
#define LENGTH  24 /* letters per rank and step */

static const char text[] = "how much wood would a woodchuck chuck if a woodchuck could chuck wood "
                           "as much wood as a woodchuck would if a woodchuck could chuck wood ";

static tern_module *new_model(tern_rng *rng, tern_error *err)
{
    tern_module *model = tern_sequential_new(err);
    tern_module *encoder = tern_embedding_new(LETTERS, SIZE, NULL, rng, err);
    tern_module *decoder = tern_linear_new(SIZE, LETTERS, NULL, rng, err);
    tern_module_add(model, "encoder", encoder, err);
    tern_module_add(model, "inner", tern_linear_new(SIZE, SIZE, NULL, rng, err), err);
    tern_module_add(model, "tanh", tern_tanh_new(err), err);
    tern_module_add(model, "decoder", decoder, err);
    if (err->code) return model;
    tern_parameter_share(decoder, "weight", tern_state_find(encoder, "weight"), err);
    return model;
}

static int64_t letter_at(int place)
{
    char c = text[(size_t)place % strlen(text)];
    return c >= 'a' && c <= 'z' ? c - 'a' : LETTERS - 1;
}

/* Returns the letters from `place` on, as the model's input or as its labels. */
static tern_tensor *letters_from(tern_scope *s, int place)
{
    int64_t letters[LENGTH];
    for (int i = 0; i < LENGTH; i++) letters[i] = letter_at(place + i);
    return tern_tensor_from(s, letters, TERN_I64, 1, (int64_t[]){LENGTH});
}

static int demo_tied_weights(int rank, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    tern_device *dev = tern_device_open(NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_module *model = new_model(rng, &err);
    tern_ddp *ddp = tern_ddp_new(model, world, NULL, &err);
    tern_optim *opt = tern_adam_new(model, NULL, &err);
    tern_scope *s = tern_scope_new(dev, world, &err);
    if (!err.code) tern_optim_lr_set(opt, 0, 0.02);
    if (!err.code && rank == 0)
        printf("%d parameters under %d names\n", tern_module_parameter_count(model), tern_state_count(model));
    for (int step = 0; step < 50 && !err.code; step++) {
        int place = (step * tern_group_size(world) + rank) * LENGTH;
        tern_tensor *scores = tern_forward(model, s, letters_from(s, place));
        tern_backward(s, tern_cross_entropy(s, scores, letters_from(s, place + 1), NULL));
        tern_optim_step(opt, s);
        if (rank == 0 && step % 10 == 9) printf("step %d  loss %.4f\n", step, tern_ddp_loss_mean(ddp));
        tern_scope_end(s, &err);
    }
    tern_scope_free(s);
    tern_optim_free(opt);
    tern_ddp_free(ddp);
    tern_module_free(model);
    tern_rng_free(rng);
    tern_device_close(dev);
    tern_group_close(world);
    return tern_error_print(&err);
}

int main(int argc, char **argv)
{
    return run_demo(demo_tied_weights, argc, argv,
                    "Trains a model with one parameter in two layers. Without a launcher it starts the ranks "
                    "itself (default 2).");
}
