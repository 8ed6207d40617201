/* model.c - the networks of `tern bench step`. */
#include "bench/model.h"
#include "cli.h"

#include <stdio.h>
#include <string.h>

#define WHO        "tern bench step"
#define SIZE_LIMIT 4096

/* ---- networks ---- */

static tern_module *make_mlp(const tern__bench_model *model, tern_rng *rng, tern_error *err)
{
    return tern_mlp_new((int64_t[]){model->channels, 1024, 1024, model->classes}, 4, rng, err);
}

/* The net of examples/02_fashion.c. */
static tern_module *make_fashion(const tern__bench_model *model, tern_rng *rng, tern_error *err)
{
    tern_resnet_opts opts = tern_resnet_defaults();
    opts.in_channels = model->channels;
    opts.classes = model->classes;
    opts.stages = 3;
    for (int i = 0; i < opts.stages; i++) {
        opts.blocks[i] = 1;
        opts.channels[i] = 16 << i;
    }
    opts.small_stem = true;
    opts.kaiming = false;
    return tern_resnet_new(&opts, rng, err);
}

static tern_module *make_resnet18(const tern__bench_model *model, tern_rng *rng, tern_error *err)
{
    tern_resnet_opts opts = tern_resnet_defaults();
    opts.classes = model->classes;
    opts.small_stem = true;
    return tern_resnet_new(&opts, rng, err);
}

static tern_module *make_resnet50(const tern__bench_model *model, tern_rng *rng, tern_error *err)
{
    tern_resnet_opts opts = tern_resnet_preset(50);
    opts.classes = model->classes;
    return tern_resnet_new(&opts, rng, err);
}

/* Without dropout: tern draws other random numbers than PyTorch, so the losses could not be compared. */
static tern_module *make_deeplabv3(const tern__bench_model *model, tern_rng *rng, tern_error *err)
{
    tern_deeplabv3_opts opts = tern_deeplabv3_defaults();
    opts.classes = model->classes;
    opts.dropout = 0;
    return tern_deeplabv3_new(&opts, rng, err);
}

static tern_module *make_unet3d(const tern__bench_model *model, tern_rng *rng, tern_error *err)
{
    tern_unet3d_opts opts = tern_unet3d_defaults();
    opts.classes = model->classes;
    opts.width = 16;
    return tern_unet3d_new(&opts, rng, err);
}

/* Without dropout, as deeplabv3. */
static tern_module *make_gpt2(const tern__bench_model *model, tern_rng *rng, tern_error *err)
{
    tern_gpt2_opts opts = tern_gpt2_defaults();
    opts.vocab_size = model->classes;
    opts.n_positions = model->size[0];
    opts.n_embd = model->width;
    opts.n_layer = (int)model->layers;
    opts.n_head = model->heads;
    opts.resid_pdrop = opts.embd_pdrop = opts.attn_pdrop = 0;
    return tern_gpt2_new(&opts, rng, err);
}

/* Its MLP has 8 / 3 of the width, a multiple of 32, so that it has about as many weights as GPT-2's. */
static tern_module *make_llama(const tern__bench_model *model, tern_rng *rng, tern_error *err)
{
    tern_llama_opts opts = tern_llama_defaults();
    opts.vocab_size = model->classes;
    opts.max_position_embeddings = model->size[0];
    opts.hidden_size = model->width;
    opts.intermediate_size = (model->width * 8 / 3 + 31) / 32 * 32;
    opts.num_hidden_layers = (int)model->layers;
    opts.num_attention_heads = model->heads;
    return tern_llama_new(&opts, rng, err);
}

/* The weights of the scores are drawn as DeiT's: with torchvision's, which are 0, any net has the same first
 * loss. */
static tern_module *make_vit(const tern__bench_model *model, tern_rng *rng, tern_error *err)
{
    tern_vit_opts opts = tern_vit_defaults();
    opts.classes = model->classes;
    opts.image_size = model->size[0];
    opts.patch_size = model->patch;
    opts.layers = (int)model->layers;
    opts.heads = model->heads;
    opts.hidden_dim = model->width;
    opts.mlp_dim = 4 * model->width;
    tern_module *net = tern_vit_new(&opts, rng, err);
    if (!net || !tern_init_trunc_normal(tern_state_find(net, "heads.head.weight"), 0, 0.02, -2, 2, rng, err))
        return net;
    tern_module_free(net);
    return NULL;
}

/* ---- losses ---- */

static tern_tensor *cross_entropy(tern_scope *scope, tern_tensor *scores, tern_tensor *labels)
{
    return tern_cross_entropy(scope, scores, labels, NULL);
}

/* The class dimension of the scores has size 1. */
static tern_tensor *bce_dice(tern_scope *scope, tern_tensor *scores, tern_tensor *labels)
{
    return tern_bce_dice_loss(scope, scores, labels, 1, 1, NULL);
}

/* Of logits (N, T, classes), where replicas have computed them: a model's own loss makes none. */
static tern_tensor *token_cross_entropy(tern_scope *scope, tern_tensor *logits, tern_tensor *labels)
{
    int64_t classes = tern_tensor_shape(logits)[2];
    logits = tern_reshape(scope, logits, 2, (int64_t[]){-1, classes});
    return tern_cross_entropy(scope, logits, tern_reshape(scope, labels, 1, (int64_t[]){-1}), NULL);
}

/* ---- the table ---- */

static const tern__bench_model models[] = {
    {"mlp", 64, 784, 0, {0}, 10, false, make_mlp, cross_entropy, 0, 0, 0, 0},
    {"fashion", 64, 1, 2, {28, 28}, 10, false, make_fashion, cross_entropy, 0, 0, 0, 0},
    {"resnet18", 32, 3, 2, {32, 32}, 10, false, make_resnet18, cross_entropy, 0, 0, 0, 0},
    {"resnet50", 4, 3, 2, {257, 257}, 1000, false, make_resnet50, cross_entropy, 0, 0, 0, 0},
    {"deeplabv3", 4, 3, 2, {257, 257}, 21, true, make_deeplabv3, cross_entropy, 0, 0, 0, 0},
    {"unet3d", 1, 1, 3, {32, 64, 64}, 1, true, make_unet3d, bce_dice, 0, 0, 0, 0},
    {"vit", 8, 3, 2, {224, 224}, 1000, false, make_vit, cross_entropy, 12, 192, 3, 16},
    {"gpt2", 8, 0, 1, {128}, 256, true, make_gpt2, token_cross_entropy, 4, 256, 4, 0},
    {"llama", 8, 0, 1, {128}, 256, true, make_llama, token_cross_entropy, 4, 256, 4, 0},
};

const tern__bench_model *tern__bench_model_find(const char *name)
{
    for (size_t i = 0; i < TERN__COUNT(models); i++)
        if (!strcmp(name, models[i].name)) return &models[i];
    return NULL;
}

/* Reads numbers separated by 'x'. Returns how many, 0 if `text` is wrong. */
static int read_numbers(const char *text, int64_t numbers[3])
{
    for (int count = 0; count < 3; count++) {
        int used = 0;
        long long number;
        if (*text < '0' || *text > '9' || sscanf(text, "%5lld%n", &number, &used) != 1) return 0;
        if (number < 1 || number > SIZE_LIMIT) return 0;
        numbers[count] = number;
        text += used;
        if (!*text) return count + 1;
        if (*text++ != 'x') return 0;
    }
    return 0;
}

bool tern__bench_model_size(const tern__bench_model *model, const char *text, int64_t *size)
{
    static const char *const examples[] = {NULL, "128", "257x257", "32x160x160"};
    int64_t numbers[3];
    int count = read_numbers(text, numbers);
    if (count > 0 && (count == 1 || count == model->spatial) && model->spatial > 0) {
        for (int d = 0; d < model->spatial; d++) size[d] = numbers[count == 1 ? 0 : d];
        return true;
    }
    if (model->spatial == 1)
        tern__cli_complain(WHO, "--size: expected one number up to %d, as in %s, got \"%s\"", SIZE_LIMIT,
                           examples[1], text);
    else if (model->spatial)
        tern__cli_complain(WHO, "--size: expected %d numbers up to %d, as in %s, or one for all, got \"%s\"",
                           model->spatial, SIZE_LIMIT, examples[model->spatial], text);
    else
        tern__cli_complain(WHO, "--size: %s has a fixed size", model->name);
    return false;
}
