/* test_opts.c - every options struct of the headers, with every size. An older caller's shorter struct keeps
 * the defaults of the fields it does not know; a newer caller's longer struct is refused, and so is one that
 * no _defaults function made. tests/install/test_headers.py checks that each struct has a row here. */
#include "base/base.h"
#include "base/opts.h"
#include "check.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what the calls need as arguments ---- */

static tern_device *device;
static tern_scope *scope;
static tern_rng *rng;
static tern_dataset *samples;
static char images[] = "/tmp/tern-opts-XXXXXX", labels[] = "/tmp/tern-opts-XXXXXX";
static char folder[] = "/tmp/tern-opts-XXXXXX";

static char state_path[64];

/* An IDX file of one sample: magic, sizes, zeros. */
static int write_idx(char *path, const unsigned char *head, size_t bytes)
{
    int file = mkstemp(path);
    if (file < 0) return -1;
    ssize_t written = write(file, head, bytes);
    close(file);
    return written == (ssize_t)bytes ? 0 : -1;
}

static int open_all(void **state)
{
    (void)state;
    static const unsigned char image[17] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1};
    static const unsigned char label[9] = {0, 0, 8, 1, 0, 0, 0, 1};
    tern_error err = {0};
    unsetenv("WORLD_SIZE");
    device = tern_device_open("cpu:reference", &err);
    scope = tern_scope_new(device, NULL, &err);
    rng = tern_rng_new(0, &err);
    snprintf(state_path, sizeof(state_path), "/tmp/tern-opts-%d.pt", (int)getpid());
    tern_object *none = tern_object_none(&err);
    tern_save(state_path, none, &err);
    tern_object_free(none);
    if (write_idx(images, image, sizeof(image)) || write_idx(labels, label, sizeof(label))) return -1;
    samples = tern_idx_open(images, labels, NULL, &err);
    return mkdtemp(folder) && !choose_plugins() ? err.code : -1;
}

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *walk)
{
    (void)info;
    (void)flag;
    (void)walk;
    return remove(path);
}

static int close_all(void **state)
{
    (void)state;
    tern_dataset_free(samples);
    unlink(images);
    unlink(labels);
    unlink(state_path);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    tern_rng_free(rng);
    tern_scope_free(scope);
    tern_device_close(device);
    return 0;
}

/* ---- all functions that read options; what they make is freed ---- */

#define MODULE(name, made)                                                                                   \
    static void name(const void *opts, tern_error *err)                                                      \
    {                                                                                                        \
        tern_module_free(made);                                                                              \
    }
MODULE(linear_new, tern_linear_new(2, 3, opts, rng, err))
MODULE(embedding_new, tern_embedding_new(2, 3, opts, rng, err))
MODULE(conv2d_new, tern_conv2d_new(2, 2, 1, 1, opts, rng, err))
MODULE(conv1d_new, tern_conv1d_new(2, 2, 1, opts, rng, err))
MODULE(conv3d_new, tern_conv3d_new(2, 2, 1, 1, 1, opts, rng, err))
MODULE(conv_transpose1d_new, tern_conv_transpose1d_new(2, 2, 1, opts, rng, err))
MODULE(conv_transpose2d_new, tern_conv_transpose2d_new(2, 2, 1, 1, opts, rng, err))
MODULE(conv_transpose3d_new, tern_conv_transpose3d_new(2, 2, 1, 1, 1, opts, rng, err))
MODULE(batch_norm1d_new, tern_batch_norm1d_new(2, opts, err))
MODULE(batch_norm2d_new, tern_batch_norm2d_new(2, opts, err))
MODULE(batch_norm3d_new, tern_batch_norm3d_new(2, opts, err))
MODULE(layer_norm_new, tern_layer_norm_new(1, (int64_t[]){2}, opts, err))
MODULE(rms_norm_new, tern_rms_norm_new(1, (int64_t[]){2}, opts, err))
MODULE(group_norm_new, tern_group_norm_new(1, 2, opts, err))
MODULE(max_pool2d_new, tern_max_pool2d_new(2, 2, opts, err))
MODULE(avg_pool2d_new, tern_avg_pool2d_new(2, 2, opts, err))
MODULE(max_pool3d_new, tern_max_pool3d_new(2, 2, 2, opts, err))
MODULE(avg_pool3d_new, tern_avg_pool3d_new(2, 2, 2, opts, err))
MODULE(upsample_new, tern_upsample_new(opts, err))
MODULE(resnet_new, tern_resnet_new(opts, rng, err))
MODULE(deeplabv3_new, tern_deeplabv3_new(opts, rng, err))
MODULE(unet3d_new, tern_unet3d_new(opts, rng, err))
MODULE(multihead_attention_new, tern_multihead_attention_new(4, 2, opts, rng, err))
MODULE(encoder_layer_new, tern_transformer_encoder_layer_new(4, 2, opts, rng, err))
MODULE(decoder_layer_new, tern_transformer_decoder_layer_new(4, 2, opts, rng, err))
MODULE(encoder_new, tern_transformer_encoder_new(1, 4, 2, opts, NULL, rng, err))
MODULE(decoder_new, tern_transformer_decoder_new(1, 4, 2, opts, NULL, rng, err))

static void *small_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    return bytes > 1 << 20 ? NULL : aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void small_free(void *block, void *ctx)
{
    (void)ctx;
    free(block);
}

/* The default models are large. They get no memory, and that is after their options were read. */
#define LARGE_MODULE(name, made)                                                                             \
    static void name(const void *opts, tern_error *err)                                                      \
    {                                                                                                        \
        tern__allocator_replace(&(tern_allocator){small_alloc, small_free, NULL});                           \
        tern_module_free(made);                                                                              \
        tern__allocator_replace(NULL);                                                                       \
        if (err->code == TERN_E_MEMORY) *err = (tern_error){0};                                              \
    }
LARGE_MODULE(vit_new, tern_vit_new(opts, rng, err))
LARGE_MODULE(bert_new, tern_bert_new(opts, rng, err))
LARGE_MODULE(gpt2_new, tern_gpt2_new(opts, NULL, err))
LARGE_MODULE(llama_new, tern_llama_new(opts, NULL, err))

static tern_tensor *zeros(int ndim)
{
    return tern_tensor_from(scope, NULL, TERN_F32, ndim, (int64_t[]){2, 2, 2, 2, 2});
}

static tern_tensor *labels_of_two(void)
{
    return tern_tensor_from(scope, NULL, TERN_I64, 1, (int64_t[]){2});
}

static void load(const void *opts, tern_error *err)
{
    tern_object_free(tern_load(state_path, opts, err));
}

#define OP(name, made)                                                                                       \
    static void name(const void *opts, tern_error *err)                                                      \
    {                                                                                                        \
        made;                                                                                                \
        tern_scope_end(scope, err);                                                                          \
    }
OP(embedding, tern_embedding(scope, labels_of_two(), zeros(2), opts))
OP(attention, tern_scaled_dot_product_attention(scope, zeros(4), zeros(4), zeros(4), NULL, opts))

/* A call of a module, that `made` makes, on the options. */
#define CALL(name, made, call)                                                                               \
    static void name(const void *opts, tern_error *err)                                                      \
    {                                                                                                        \
        tern_module *net = made;                                                                             \
        call;                                                                                                \
        tern_scope_end(scope, err);                                                                          \
        tern_module_free(net);                                                                               \
    }
CALL(multihead_attention_call, tern_multihead_attention_new(2, 1, NULL, rng, err),
     tern_multihead_attention_forward(net, scope, zeros(3), zeros(3), zeros(3), opts))
CALL(encoder_layer_call, tern_transformer_encoder_layer_new(2, 1, NULL, rng, err),
     tern_transformer_encoder_layer_forward(net, scope, zeros(3), opts))
CALL(encoder_call, tern_transformer_encoder_new(1, 2, 1, NULL, NULL, rng, err),
     tern_transformer_encoder_forward(net, scope, zeros(3), opts))
CALL(decoder_layer_call, tern_transformer_decoder_layer_new(2, 1, NULL, rng, err),
     tern_transformer_decoder_layer_forward(net, scope, zeros(3), zeros(3), opts))
CALL(decoder_call, tern_transformer_decoder_new(1, 2, 1, NULL, NULL, rng, err),
     tern_transformer_decoder_forward(net, scope, zeros(3), zeros(3), opts))

static tern_module *small_bert(tern_error *err)
{
    tern_bert_opts opts = tern_bert_defaults();
    opts.vocab_size = opts.hidden_size = opts.intermediate_size = opts.max_position_embeddings = 4;
    opts.num_hidden_layers = 1;
    opts.num_attention_heads = 2;
    return tern_bert_new(&opts, rng, err);
}
CALL(bert_call, small_bert(err),
     tern_bert_forward(net, scope, tern_tensor_from(scope, NULL, TERN_I64, 2, (int64_t[]){2, 3}), opts))
OP(conv2d, tern_conv2d(scope, zeros(4), zeros(4), NULL, opts))
OP(conv1d, tern_conv1d(scope, zeros(3), zeros(3), NULL, opts))
OP(conv3d, tern_conv3d(scope, zeros(5), zeros(5), NULL, opts))
OP(conv_transpose1d, tern_conv_transpose1d(scope, zeros(3), zeros(3), NULL, opts))
OP(conv_transpose2d, tern_conv_transpose2d(scope, zeros(4), zeros(4), NULL, opts))
OP(conv_transpose3d, tern_conv_transpose3d(scope, zeros(5), zeros(5), NULL, opts))
OP(batch_norm_act, tern_batch_norm_act(scope, zeros(4), zeros(1), zeros(1), zeros(1), zeros(1), NULL, opts))
OP(layer_norm, tern_layer_norm(scope, zeros(4), zeros(1), zeros(1), opts))
OP(rms_norm, tern_rms_norm(scope, zeros(4), zeros(1), opts))
static void rotary_table_fill(const void *opts, tern_error *err)
{
    tern_rotary_table_fill(zeros(2), zeros(2), NULL, opts, err);
    tern_scope_end(scope, NULL);
}
OP(cross_entropy, tern_cross_entropy(scope, zeros(2), labels_of_two(), opts))
OP(focal_loss, tern_focal_loss(scope, zeros(2), zeros(2), opts))
OP(linear_cross_entropy, tern_linear_cross_entropy(scope, zeros(2), zeros(2), NULL, labels_of_two(), opts))
OP(dice_loss, tern_dice_loss(scope, zeros(2), zeros(2), opts))
OP(bce_dice_loss, tern_bce_dice_loss(scope, zeros(2), zeros(2), 1, 1, opts))
OP(nll_loss, tern_nll_loss(scope, zeros(2), labels_of_two(), opts))
OP(max_pool2d, tern_max_pool2d(scope, zeros(4), 2, 2, opts))
OP(max_pool3d, tern_max_pool3d(scope, zeros(5), 2, 2, 2, opts))
OP(avg_pool3d, tern_avg_pool3d(scope, zeros(5), 2, 2, 2, opts))
OP(interpolate, tern_interpolate(scope, zeros(4), opts))
OP(avg_pool2d, tern_avg_pool2d(scope, zeros(4), 2, 2, opts))

#define OPTIM(name, made)                                                                                    \
    static void name(const void *opts, tern_error *err)                                                      \
    {                                                                                                        \
        tern_module *net = tern_linear_new(2, 2, NULL, rng, err);                                            \
        tern_optim *optim = made;                                                                            \
        tern_optim_free(optim);                                                                              \
        tern_module_free(net);                                                                               \
    }
OPTIM(sgd_new, tern_sgd_new(net, opts, err))
OPTIM(adam_new, tern_adam_new(net, opts, err))
OPTIM(adamw_new, tern_adamw_new(net, opts, err))
OPTIM(rmsprop_new, tern_rmsprop_new(net, opts, err))
OPTIM(adagrad_new, tern_adagrad_new(net, opts, err))
OPTIM(lamb_new, tern_lamb_new(net, opts, err))
OPTIM(optim_larc, tern_sgd_new(net, NULL, err); tern_optim_larc(optim, opts, err))

static tern_module *small_gpt2(tern_error *err)
{
    tern_gpt2_opts opts = tern_gpt2_defaults();
    opts.vocab_size = opts.n_positions = opts.n_embd = opts.n_head = opts.n_layer = 1;
    return tern_gpt2_new(&opts, NULL, err);
}

#define GPT2(name, call)                                                                                     \
    static void name(const void *opts, tern_error *err)                                                      \
    {                                                                                                        \
        tern_module *model = small_gpt2(err);                                                                \
        tern_tensor *tokens = tern_tensor_from(scope, NULL, TERN_I64, 2, (int64_t[]){1, 1});                 \
        tern_token_ids ids = {tern__alloc(sizeof(*ids.ids), __func__, err), 1, 1};                           \
        (void)tokens;                                                                                        \
        call;                                                                                                \
        tern_scope_end(scope, err);                                                                          \
        tern_token_ids_free(&ids);                                                                           \
        tern_module_free(model);                                                                             \
    }
GPT2(language_model_call, tern_language_model_forward(model, scope, tokens, opts))
GPT2(language_model_loss, tern_language_model_loss(model, scope, tokens, NULL, opts))
GPT2(lora_add, tern_lora_add(model, opts, NULL, err))
GPT2(pretrained_save, tern_pretrained_save(model, folder, opts, err))
GPT2(generate, tern_scope_end(scope, err); tern_generate(model, scope, &ids, opts, err))

static void generate_choose(const void *opts, tern_error *err)
{
    int32_t id;
    tern_generate_choose((float[]){1, 2}, 2, NULL, 0, opts, &id, err);
}

static void pretrained_open(const void *opts, tern_error *err)
{
    pretrained_save(NULL, err);
    tern_module_free(tern_pretrained_open(folder, opts, err));
}

/* The defaults of a level. */
#define tern_amp_defaults() tern_amp_defaults(TERN_O1)

static void amp_new(const void *opts, tern_error *err)
{
    tern_module *net = tern_linear_new(2, 2, NULL, rng, err);
    tern_amp_free(tern_amp_new(net, opts, err));
    tern_module_free(net);
}

static void amp_backward(const void *opts, tern_error *err)
{
    tern_module *net = tern_linear_new(2, 2, NULL, rng, err);
    tern_amp *amp = tern_amp_new(net, NULL, err);
    tern_amp_backward(amp, scope, tern_sum(scope, tern_state_get(net, 0).tensor), opts);
    tern_scope_end(scope, err);
    tern_amp_free(amp);
    tern_module_free(net);
}

static void scaler_new(const void *opts, tern_error *err)
{
    tern_scaler_free(tern_scaler_new(opts, err));
}

static bool all(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)name;
    (void)ctx;
    return parameter != NULL;
}
OPTIM(sgd_group_add, tern_sgd_new(net, NULL, err); tern_sgd_group_add(optim, all, NULL, opts, err))
OPTIM(adam_group_add, tern_adam_new(net, NULL, err); tern_adam_group_add(optim, all, NULL, opts, err))
OPTIM(rmsprop_group_add, tern_rmsprop_new(net, NULL, err);
      tern_rmsprop_group_add(optim, all, NULL, opts, err))
OPTIM(adagrad_group_add, tern_adagrad_new(net, NULL, err);
      tern_adagrad_group_add(optim, all, NULL, opts, err))

static void module_state_dict_load(const void *opts, tern_error *err)
{
    tern_module *net = tern_linear_new(2, 2, NULL, rng, err);
    tern_object *state = tern_module_state_dict(net, err);
    tern_module_state_dict_load(net, state, opts, NULL, err);
    tern_object_free(state);
    tern_module_free(net);
}

#define SCHEDULE(name, made)                                                                                 \
    static void name(const void *opts, tern_error *err)                                                      \
    {                                                                                                        \
        tern_module *net = tern_linear_new(2, 2, NULL, rng, err);                                            \
        tern_optim *optim = tern_adam_new(net, NULL, err);                                                   \
        tern_schedule_free(made);                                                                            \
        tern_optim_free(optim);                                                                              \
        tern_module_free(net);                                                                               \
    }
SCHEDULE(one_cycle_new, tern_one_cycle_schedule_new(optim, TERN_UNIT_STEPS, 9, opts, err))
SCHEDULE(plateau_new, tern_plateau_schedule_new(optim, opts, err))

static void snapshot_new(const void *opts, tern_error *err)
{
    char dir[] = "/tmp/tern-opts-XXXXXX";
    tern_snapshot_free(tern_snapshot_new(mkdtemp(dir), NULL, opts, err));
    rmdir(dir);
}

static void preempt_new(const void *opts, tern_error *err)
{
    tern_preempt_free(tern_preempt_new(NULL, opts, err));
}

OPTIM(lamb_group_add, tern_lamb_new(net, NULL, err); tern_lamb_group_add(optim, all, NULL, opts, err))

static void group_open(const void *opts, tern_error *err)
{
    tern_group_close(tern_group_open(opts, err));
}

static int do_nothing(int rank, void *arg)
{
    (void)arg;
    return rank;
}

static void spawn(const void *opts, tern_error *err)
{
    tern_spawn(do_nothing, 1, NULL, opts, err);
}

/* Uses its own group: a failing constructor aborts it. */
static void ddp_new(const void *opts, tern_error *err)
{
    tern_group *world = tern_group_open(NULL, err);
    tern_module *net = tern_linear_new(2, 2, NULL, rng, err);
    tern_ddp_free(tern_ddp_new(net, world, opts, err));
    tern_module_free(net);
    tern_group_close(world);
}

static void device_conv_set(const void *opts, tern_error *err)
{
    tern_device_conv_set(device, opts, err);
}

static void ddp_join(const void *opts, tern_error *err)
{
    tern_group *world = tern_group_open(NULL, err);
    tern_module *net = tern_linear_new(2, 2, NULL, rng, err);
    tern_ddp *ddp = tern_ddp_new(net, world, NULL, err);
    tern_ddp_join(ddp, opts, err);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_group_close(world);
}

static void data_parallel_new(const void *opts, tern_error *err)
{
    tern_module *net = tern_linear_new(2, 2, NULL, rng, err);
    tern_data_parallel_free(tern_data_parallel_new(net, opts, err));
    tern_module_free(net);
}

static void idx_open(const void *opts, tern_error *err)
{
    tern_dataset_free(tern_idx_open(images, labels, opts, err));
}

static void token_dataset_new(const void *opts, tern_error *err)
{
    int32_t ids[1025] = {0};
    tern_dataset_free(tern_token_dataset_new(ids, TERN__COUNT(ids), opts, err));
}

static void gguf_save(const void *opts, tern_error *err)
{
    char path[64];
    pretrained_save(NULL, err);
    snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    FILE *file = fopen(path, "w");
    fputs("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, "
          "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}}",
          file);
    assert_int_equal(fclose(file), 0);
    snprintf(path, sizeof(path), "%s/out.gguf", folder);
    tern_gguf_save(folder, path, opts, err);
    if (!has_part("regex") && strstr(err->text, "plug-in")) *err = (tern_error){0};
}

static void tokenizer_train(const void *opts, tern_error *err)
{
    tern_tokenizer_free(tern_tokenizer_train(opts, err));
    if (!has_part("regex") && strstr(err->text, "plug-in")) *err = (tern_error){0};
}

/* A tokenizer that needs no plug-in. */
static tern_tokenizer *plain_tokenizer(void)
{
    char path[64];
    tern_error err = {0};
    snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", file);
    fclose(file);
    tern_tokenizer *tokenizer = tern_tokenizer_open(folder, &err);
    assert_ok(err);
    return tokenizer;
}

static void tokenizer_encode(const void *opts, tern_error *err)
{
    tern_token_ids ids = {0};
    tern_tokenizer *tokenizer = plain_tokenizer();
    tern_tokenizer_encode(tokenizer, "", 0, opts, &ids, err);
    tern_token_ids_free(&ids);
    tern_tokenizer_free(tokenizer);
}

static void tokenizer_decode(const void *opts, tern_error *err)
{
    tern_text text = {0};
    tern_tokenizer *tokenizer = plain_tokenizer();
    tern_tokenizer_decode(tokenizer, NULL, 0, opts, &text, err);
    tern_text_free(&text);
    tern_tokenizer_free(tokenizer);
}

static void augment_new(const void *opts, tern_error *err)
{
    tern_dataset_free(tern_augment_new(samples, opts, err));
}

static void patches_new(const void *opts, tern_error *err)
{
    tern_volume *volume = tern_volume_new((int64_t[]){1, 32, 64, 64}, err);
    const tern_volume *const volumes[] = {volume};
    tern_dataset_free(tern_patches_new(volumes, volumes, 1, opts, err));
    tern_volume_free(volume);
}

static void sliding_window(const void *opts, tern_error *err)
{
    tern_volume *volume = tern_volume_new((int64_t[]){1, 1, 1, 1}, err);
    tern_module *net = tern_relu_new(err);
    tern_volume_free(tern_sliding_window(net, scope, volume, 1, opts, err));
    tern_module_free(net);
    tern_volume_free(volume);
}

static void distributed_sampler_new(const void *opts, tern_error *err)
{
    tern_sampler_free(tern_distributed_sampler_new(8, 2, 1, opts, err));
}

static void loader_new(const void *opts, tern_error *err)
{
    tern_loader_free(tern_loader_new(samples, opts, err));
}

static void progress_new(const void *opts, tern_error *err)
{
    tern_progress_free(tern_progress_new("", 1, NULL, opts, err));
}

static void board_new(const void *opts, tern_error *err)
{
    tern_board_free(tern_board_new(folder, NULL, opts, err));
}

/* Succeeds if the plug-in was built; if not, the options are read before that is found out. */
static void board_image(const void *opts, tern_error *err)
{
    tern_board *board = tern_board_new(folder, NULL, NULL, err);
    tern_tensor *image = tern_tensor_from(scope, NULL, TERN_U8, 2, (int64_t[]){2, 2});
    tern_board_image(board, "image", image, 0, opts, err);
    if (err->code == TERN_E_UNSUPPORTED && !has_part("png")) *err = (tern_error){0};
    tern_scope_end(scope, err);
    tern_board_free(board);
}

/* There is no such file, but the options are read before that is found out. */
static void image_load(const void *opts, tern_error *err)
{
    tern_image image = {0};
    tern_image_load("/nowhere", opts, &image, err);
    if (err->code == TERN_E_IO) *err = (tern_error){0};
}

static void image_folder_open(const void *opts, tern_error *err)
{
    tern_dataset_free(tern_image_folder_open("/nowhere", opts, err));
    if (err->code == TERN_E_IO) *err = (tern_error){0};
}

static void cityscapes_open(const void *opts, tern_error *err)
{
    tern_dataset_free(tern_cityscapes_open("/nowhere", "train", opts, err));
    if (err->code == TERN_E_IO) *err = (tern_error){0};
}

static void cifar_open(const void *opts, tern_error *err)
{
    tern_dataset_free(tern_cifar_open("/nowhere", opts, err));
    if (err->code == TERN_E_IO) *err = (tern_error){0};
}

static void image_save(const void *opts, tern_error *err)
{
    tern_image image = {0};
    tern_image_save("/nowhere", &image, opts, err);
    if (err->code == TERN_E_INVALID && strstr(err->text, "data is NULL")) *err = (tern_error){0};
}

/* A client needs a port, but the options are read before that is found missing. */
static void store_tcp_open(const void *opts, tern_error *err)
{
    tern_store_close(tern_store_tcp_open("localhost", 0, opts, err));
    if (err->code == TERN_E_INVALID && strstr(err->text, "expected a port")) *err = (tern_error){0};
}

/* The _defaults function, and the function that reads the options. */
#define READERS(X)                                                                                           \
    X(store_tcp, store_tcp_open)                                                                             \
    X(group, group_open)                                                                                     \
    X(spawn, spawn)                                                                                          \
    X(module_load, module_state_dict_load)                                                                   \
    X(preempt, preempt_new)                                                                                  \
    X(snapshot, snapshot_new)                                                                                \
    X(linear, linear_new)                                                                                    \
    X(embedding, embedding_new)                                                                              \
    X(attention, attention)                                                                                  \
    X(embedding, embedding)                                                                                  \
    X(conv2d, conv2d_new)                                                                                    \
    X(conv2d, conv2d)                                                                                        \
    X(conv1d, conv1d_new)                                                                                    \
    X(conv1d, conv1d)                                                                                        \
    X(conv3d, conv3d_new)                                                                                    \
    X(conv3d, conv3d)                                                                                        \
    X(conv_transpose1d, conv_transpose1d_new)                                                                \
    X(conv_transpose1d, conv_transpose1d)                                                                    \
    X(conv_transpose2d, conv_transpose2d_new)                                                                \
    X(conv_transpose2d, conv_transpose2d)                                                                    \
    X(conv_transpose3d, conv_transpose3d_new)                                                                \
    X(conv_transpose3d, conv_transpose3d)                                                                    \
    X(batch_norm, batch_norm1d_new)                                                                          \
    X(batch_norm, batch_norm2d_new)                                                                          \
    X(batch_norm, batch_norm3d_new)                                                                          \
    X(batch_norm_act, batch_norm_act)                                                                        \
    X(norm, layer_norm_new)                                                                                  \
    X(norm, group_norm_new)                                                                                  \
    X(layer_norm, layer_norm)                                                                                \
    X(rms_norm, rms_norm_new)                                                                                \
    X(rms_norm, rms_norm)                                                                                    \
    X(rotary_table, rotary_table_fill)                                                                       \
    X(cross_entropy, cross_entropy)                                                                          \
    X(cross_entropy, linear_cross_entropy)                                                                   \
    X(focal, focal_loss)                                                                                     \
    X(dice, dice_loss)                                                                                       \
    X(dice, bce_dice_loss)                                                                                   \
    X(cross_entropy, nll_loss)                                                                               \
    X(pool2d, max_pool2d_new)                                                                                \
    X(pool2d, avg_pool2d_new)                                                                                \
    X(pool2d, max_pool2d)                                                                                    \
    X(pool2d, avg_pool2d)                                                                                    \
    X(pool3d, max_pool3d_new)                                                                                \
    X(pool3d, avg_pool3d_new)                                                                                \
    X(pool3d, max_pool3d)                                                                                    \
    X(pool3d, avg_pool3d)                                                                                    \
    X(interpolate, upsample_new)                                                                             \
    X(interpolate, interpolate)                                                                              \
    X(resnet, resnet_new)                                                                                    \
    X(deeplabv3, deeplabv3_new)                                                                              \
    X(unet3d, unet3d_new)                                                                                    \
    X(multihead_attention, multihead_attention_new)                                                          \
    X(multihead_attention_call, multihead_attention_call)                                                    \
    X(transformer_layer, encoder_layer_new)                                                                  \
    X(transformer_layer, decoder_layer_new)                                                                  \
    X(transformer_layer, encoder_new)                                                                        \
    X(transformer_layer, decoder_new)                                                                        \
    X(transformer_encoder_call, encoder_layer_call)                                                          \
    X(transformer_encoder_call, encoder_call)                                                                \
    X(transformer_decoder_call, decoder_layer_call)                                                          \
    X(transformer_decoder_call, decoder_call)                                                                \
    X(vit, vit_new)                                                                                          \
    X(bert, bert_new)                                                                                        \
    X(bert_call, bert_call)                                                                                  \
    X(gpt2, gpt2_new)                                                                                        \
    X(llama, llama_new)                                                                                      \
    X(language_model_call, language_model_call)                                                              \
    X(language_model_loss, language_model_loss)                                                              \
    X(lora, lora_add)                                                                                        \
    X(generate, generate)                                                                                    \
    X(generate, generate_choose)                                                                             \
    X(pretrained, pretrained_open)                                                                           \
    X(pretrained_save, pretrained_save)                                                                      \
    X(sgd, sgd_new)                                                                                          \
    X(sgd, sgd_group_add)                                                                                    \
    X(adam, adam_new)                                                                                        \
    X(adam, adam_group_add)                                                                                  \
    X(amp, amp_new)                                                                                          \
    X(amp_backward, amp_backward)                                                                            \
    X(scaler, scaler_new)                                                                                    \
    X(adamw, adamw_new)                                                                                      \
    X(rmsprop, rmsprop_new)                                                                                  \
    X(rmsprop, rmsprop_group_add)                                                                            \
    X(adagrad, adagrad_new)                                                                                  \
    X(adagrad, adagrad_group_add)                                                                            \
    X(lamb, lamb_new)                                                                                        \
    X(lamb, lamb_group_add)                                                                                  \
    X(larc, optim_larc)                                                                                      \
    X(one_cycle, one_cycle_new)                                                                              \
    X(plateau, plateau_new)                                                                                  \
    X(ddp, ddp_new)                                                                                          \
    X(device_conv, device_conv_set)                                                                          \
    X(join, ddp_join)                                                                                        \
    X(data_parallel, data_parallel_new)                                                                      \
    X(idx, idx_open)                                                                                         \
    X(token_dataset, token_dataset_new)                                                                      \
    X(gguf, gguf_save)                                                                                       \
    X(tokenizer_train, tokenizer_train)                                                                      \
    X(encode, tokenizer_encode)                                                                              \
    X(decode, tokenizer_decode)                                                                              \
    X(augment, augment_new)                                                                                  \
    X(patches, patches_new)                                                                                  \
    X(window, sliding_window)                                                                                \
    X(distributed, distributed_sampler_new)                                                                  \
    X(loader, loader_new)                                                                                    \
    X(image, image_load)                                                                                     \
    X(cityscapes, cityscapes_open)                                                                           \
    X(cifar, cifar_open)                                                                                     \
    X(image_folder, image_folder_open)                                                                       \
    X(image_save, image_save)                                                                                \
    X(board, board_new)                                                                                      \
    X(board_image, board_image)                                                                              \
    X(load, load)                                                                                            \
    X(progress, progress_new)

#define ROOM 512 /* larger than any of the structs */

/* Everything is garbage except the options themselves. */
#define X(noun, reader)                                                                                      \
    static size_t noun##_for_##reader(unsigned char opts[ROOM])                                              \
    {                                                                                                        \
        __typeof__(tern_##noun##_defaults()) made = tern_##noun##_defaults();                                \
        memset(opts, 0xa5, ROOM);                                                                            \
        memcpy(opts, &made, sizeof(made));                                                                   \
        return sizeof(made);                                                                                 \
    }
READERS(X)
#undef X

typedef struct row {
    const char *name;
    size_t (*defaults)(unsigned char opts[ROOM]);
    void (*read)(const void *opts, tern_error *err);
} row;

static const row rows[] = {
#define X(noun, reader) {#reader, noun##_for_##reader, reader},
    READERS(X)
#undef X
};

/* Makes the row's call with `size` in the struct, and garbage beyond that. */
static tern_error read_sized(const row *r, size_t size)
{
    _Alignas(16) unsigned char opts[ROOM], garbage[ROOM];
    tern_error err = {0};
    r->defaults(opts);
    memset(garbage, 0xa5, ROOM);
    memcpy(garbage, opts, TERN__MIN(TERN__MAX(size, sizeof(size)), ROOM));
    memcpy(garbage, &size, sizeof(size));
    r->read(garbage, &err);
    return err;
}

static void expect(const row *r, tern_error err, int code, const char *text)
{
    if (err.code != code)
        fail_msg("%s: expected %s, got %s: %s", r->name, tern_status_name(code), tern_status_name(err.code),
                 err.text);
    if (text && strcmp(err.text, text)) fail_msg("%s: expected \"%s\", got \"%s\"", r->name, text, err.text);
    if (code && strncmp(err.func, "tern_", 5)) fail_msg("%s: of \"%s\"", r->name, err.func);
}

static void defaults_know_their_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        unsigned char opts[ROOM];
        size_t size, own = rows[i].defaults(opts);
        memcpy(&size, opts, sizeof(size));
        assert_int_equal(size, own);
        assert_in_range(size, 2 * sizeof(size), ROOM / 2);
    }
}

static void shorter_structs_keep_the_defaults(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        unsigned char opts[ROOM];
        size_t own = rows[i].defaults(opts);
        tern_error err = {0};
        rows[i].read(NULL, &err);
        expect(&rows[i], err, TERN_OK, NULL);
        const size_t sizes[] = {sizeof(size_t), own - sizeof(size_t), own};
        for (int k = 0; k < 3; k++) expect(&rows[i], read_sized(&rows[i], sizes[k]), TERN_OK, NULL);
    }
}

static void longer_structs_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        unsigned char opts[ROOM];
        char text[128];
        size_t own = rows[i].defaults(opts);
        snprintf(text, sizeof(text), "options: size is %zu, this version of the library knows %zu bytes",
                 own + sizeof(size_t), own);
        expect(&rows[i], read_sized(&rows[i], own + sizeof(size_t)), TERN_E_UNSUPPORTED, text);
        expect(&rows[i], read_sized(&rows[i], SIZE_MAX), TERN_E_UNSUPPORTED, NULL);
    }
}

static void structs_without_size_are_refused(void **state)
{
    (void)state;
    const char *text = "options: size is 0; start from what the _defaults function returns";
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        expect(&rows[i], read_sized(&rows[i], 0), TERN_E_INVALID, text);
        expect(&rows[i], read_sized(&rows[i], sizeof(size_t) - 1), TERN_E_INVALID, NULL);
    }
}

typedef struct options {
    size_t size;
    double a, b;
} options;

static void fields_are_taken_up_to_the_size(void **state)
{
    (void)state;
    options own = {sizeof(own), 1, 2}, user = {offsetof(options, b), 10, 20};
    assert_int_equal(tern__opts_read(&own, sizeof(own), &user, "f", NULL), TERN_OK);
    assert_true(own.size == sizeof(own) && own.a == 10 && own.b == 2);
    user.size = sizeof(user);
    assert_int_equal(tern__opts_read(&own, sizeof(own), &user, "f", NULL), TERN_OK);
    assert_true(own.b == 20);
    user = (options){sizeof(user) + 1, 100, 200};
    assert_int_equal(tern__opts_read(&own, sizeof(own), &user, "f", NULL), TERN_E_UNSUPPORTED);
    assert_true(own.a == 10 && own.b == 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_know_their_size),
        cmocka_unit_test(shorter_structs_keep_the_defaults),
        cmocka_unit_test(longer_structs_are_refused),
        cmocka_unit_test(structs_without_size_are_refused),
        cmocka_unit_test(fields_are_taken_up_to_the_size),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
