/* test_signature.c - models that differ between ranks are refused, and the error names the first difference,
 * whichever rank is the odd one. Comparing equal models costs one small work. */
#include "comm/ranks.h"

#include "parallel/ddp.h"

/* ---- one model, and its possible differences ---- */

typedef enum odd {
    SAME,
    KIND,
    STRIDE,
    GROUPS,
    EPS,
    SLOPE,
    ORDER,
    NAME,
    COUNT,
    SHAPE,
    DTYPE,
    FROZEN,
    LAYOUT,
    SHARED,
    BUFFER,
    BUCKETS,
    CHECKSUMS,
    LATE,
    LOCAL,
    LOSSES,
    SHRINKS,
    HALF,
    PREDIVIDED,
    IGNORED,
    DEVICE,
    ISA,
    MIXED,
    ODDS
} odd;

static tern_module *conv(odd what, tern_rng *rng, tern_error *err)
{
    tern_conv2d_opts opts = tern_conv2d_defaults();
    if (what == STRIDE) opts.stride[1] = 2;
    if (what == GROUPS) opts.groups = 2; /* with twice the channels: the same weight shape */
    return tern_conv2d_new(what == GROUPS ? 8 : 4, 8, 3, 3, &opts, rng, err);
}

static tern_module *norm(odd what, tern_error *err)
{
    tern_batch_norm_opts opts = tern_batch_norm_defaults();
    if (what == EPS) opts.eps = 1e-3;
    return tern_batch_norm2d_new(8, &opts, err);
}

static void add_members(tern_module *model, odd what, tern_error *err)
{
    const int64_t shape[] = {16, what == SHAPE ? 15 : 16};
    tern_tensor *table =
        tern_parameter_add(model, "table", what == DTYPE ? TERN_F64 : TERN_F32, 2, shape, err);
    tern_tensor *twin = what == SHARED
                            ? tern_parameter_share(model, "twin", table, err)
                            : tern_parameter_add(model, "twin", tern_tensor_dtype(table), 2, shape, err);
    tern_buffer_add(model, "seen", what == BUFFER ? TERN_I32 : TERN_I64, 0, NULL, err);
    tern_requires_grad_set(twin, what != FROZEN, err);
    if (what == LAYOUT) table->view.layout = TERN__BLOCKED16;
}

static tern_module *new_model(odd what, tern_rng *rng, tern_error *err)
{
    tern_module *model = tern_sequential_new(err);
    tern_module *act =
        what == KIND ? tern_relu_new(err) : tern_leaky_relu_new(what == SLOPE ? 0.2 : 0.1, err);
    tern_module *bn = norm(what, err);
    bool turned = what == ORDER;
    tern_module *parts[] = {conv(what, rng, err), turned ? act : bn, turned ? bn : act,
                            tern_linear_new(8, 4, NULL, rng, err),
                            what == COUNT ? tern_softmax_new(1, err) : NULL};
    const char *names[] = {"conv", turned ? "act" : "norm", turned ? "norm" : "act",
                           what == NAME ? "tail" : "head", "more"};
    for (int i = 0; i < 5; i++)
        if (parts[i]) tern_module_add(model, names[i], parts[i], err);
    add_members(model, what, err);
    return model;
}

#define KERNELS "; mixed_kernels allows others"

/* The lines of the odd rank, and of the others. */
static const struct {
    const char *mine, *theirs;
} expected[ODDS] = {
    [KIND] = {"module \"act\" relu", "module \"act\" leaky_relu slope 0.1"},
    [STRIDE] = {"module \"conv\" conv2d stride 1x2 padding 0x0 dilation 1x1 groups 1",
                "module \"conv\" conv2d stride 1x1 padding 0x0 dilation 1x1 groups 1"},
    [GROUPS] = {"module \"conv\" conv2d stride 1x1 padding 0x0 dilation 1x1 groups 2",
                "module \"conv\" conv2d stride 1x1 padding 0x0 dilation 1x1 groups 1"},
    [EPS] = {"module \"norm\" batch_norm2d eps 0.001 momentum 0.1",
             "module \"norm\" batch_norm2d eps 1e-05 momentum 0.1"},
    [SLOPE] = {"module \"act\" leaky_relu slope 0.2", "module \"act\" leaky_relu slope 0.1"},
    [ORDER] = {"module \"act\" leaky_relu slope 0.1", "module \"norm\" batch_norm2d eps 1e-05 momentum 0.1"},
    [NAME] = {"module \"tail\" linear", "module \"head\" linear"},
    [COUNT] = {"module \"more\" softmax dim 1", "parameter \"table\" (16, 16) f32"},
    [SHAPE] = {"parameter \"table\" (16, 15) f32", "parameter \"table\" (16, 16) f32"},
    [DTYPE] = {"parameter \"table\" (16, 16) f64", "parameter \"table\" (16, 16) f32"},
    [FROZEN] = {"parameter \"twin\" (16, 16) f32 without gradient", "parameter \"twin\" (16, 16) f32"},
    [LAYOUT] = {"parameter \"table\" (16, 16) f32 blocked", "parameter \"table\" (16, 16) f32"},
    [SHARED] = {"parameter \"twin\", which is \"table\"", "parameter \"twin\" (16, 16) f32"},
    [BUFFER] = {"buffer \"seen\" () i32", "buffer \"seen\" () i64"},
    [BUCKETS] = {"buckets of 1048576 and 4096 bytes,", "buckets of 1048576 and 2097152 bytes,"},
    [CHECKSUMS] = {"divided by 1 before the sum, checksums every 5", "divided by 1 before the sum"},
    [LATE] = {"2097152 bytes after backward, buffers", "2097152 bytes, buffers"},
    [LOCAL] = {"buffers local, gradients by rank", "buffers broadcast, gradients by rank"},
    [LOSSES] = {"gradients by the losses' normalisers divided", "gradients by rank divided"},
    [SHRINKS] = {"gradients by rank (those not in a join) divided", "gradients by rank divided"},
    [HALF] = {"gradients by rank in bf16 divided", "gradients by rank divided"},
    [PREDIVIDED] = {"divided by 2 before the sum", "divided by 1 before the sum"},
    [IGNORED] = {"ignored parameter \"table\" (16, 16) f32", "parameter \"table\" (16, 16) f32"},
    [DEVICE] = {"kernels: cpu:reference" KERNELS, "kernels: oneDNN "},
    [ISA] = {"for isa 0x1" KERNELS, "for isa 0x"},
    [MIXED] = {"mixed_kernels", "kernels: oneDNN "},
};

static tern_ddp_opts opts_of(odd what)
{
    static const char *const table = "table";
    tern_ddp_opts opts = tern_ddp_defaults();
    if (what == BUCKETS) opts.bucket_bytes = 4096;
    if (what == CHECKSUMS) opts.checksum_every = 5;
    if (what == LATE) opts.delay_all_reduce = true;
    if (what == LOCAL) opts.broadcast_buffers = false;
    if (what == LOSSES) opts.normaliser = TERN_NORMALISER_LOSS;
    if (what == SHRINKS) opts.divide_by_initial_world_size = false;
    if (what == HALF) opts.reduce_dtype = TERN_BF16;
    if (what == PREDIVIDED) opts.gradient_predivide_factor = 2;
    opts.ignore = &table;
    opts.ignore_count = what == IGNORED;
    opts.mixed_kernels = what == MIXED;
    return opts;
}

/* Set in the process, which chooses its kernels by it. */
static void set_environment(odd what)
{
    if (what == DEVICE) setenv("TERN_DEVICE", "cpu:reference", 1);
    if (what == ISA) setenv("DNNL_MAX_CPU_ISA", "SSE41", 1);
}

typedef struct test_case {
    odd what;
    int rank; /* the odd one */
    bool mixed;
} test_case;

/* True if the text has "... rank 0 has (its line), rank 2 has (its line)". */
static bool tells(const char *text, const test_case *c)
{
    char other[32];
    bool first = c->rank == 0;
    const char *mine = expected[c->what].mine, *theirs = expected[c->what].theirs;
    snprintf(other, sizeof(other), ", rank %d has ", first ? 1 : c->rank);
    const char *comma = strstr(text, other);
    const char *at = strstr(text, first ? mine : theirs);
    return !strncmp(text, "the models differ: rank 0 has ", 30) && comma && at && at < comma &&
           strstr(comma, first ? theirs : mine);
}

static int odd_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const test_case *c = arg;
    tern_error err = {0};
    odd what = rank == c->rank ? c->what : SAME;
    set_environment(what);
    tern_ddp_opts opts = opts_of(what);
    opts.mixed_kernels |= c->mixed;
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_rng *rng = tern_rng_new((uint64_t)rank, &err);
    tern_module *model = new_model(what, rng, &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp *ddp = tern_ddp_new(model, world, &opts, &err);
    bool is_refused = c->what != SAME && !c->mixed;
    RANK_CHECK(rank, err.code == (is_refused ? TERN_E_MISMATCH : TERN_OK) && !ddp == is_refused);
    if (is_refused && !tells(err.text, c)) {
        fprintf(stderr, "rank %d, odd rank %d: %s\n", rank, c->rank, err.text);
        return 1;
    }
    tern_ddp_free(ddp);
    tern_module_free(model);
    tern_rng_free(rng);
    tern_group_close(world);
    return 0;
}

static void run(odd what, bool mixed)
{
    for (int world = 2; world <= 4; world++) {
        test_case c = {what, ((int)what + world) % world, mixed};
        assert_ranks_ok(ranks_run(world, odd_body, &c));
    }
}

static void every_difference_is_named(void **state)
{
    (void)state;
    for (int what = KIND; what < DEVICE; what++) run((odd)what, false);
}

static void other_kernels_are_refused(void **state)
{
    (void)state;
    run(DEVICE, false);
    run(MIXED, false);
#ifdef __x86_64__
    run(ISA, false);
#endif
}

static void unless_they_may_be_mixed(void **state)
{
    (void)state;
    run(DEVICE, true);
    run(ISA, true);
}

/* ---- the cost for equal models ---- */

static const tern__comm_backend *real;
static int posts;
static uint64_t largest; /* the most elements of a post */

static int count_post(void *channel, const tern__post *post, uint64_t *seq, tern_error *err)
{
    posts++;
    for (int i = 0; i < post->extent_count; i++) largest = TERN__MAX(largest, post->extents[i].count);
    return real->post(channel, post, seq, err);
}

static int cost_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_rng *rng = tern_rng_new((uint64_t)rank, &err);
    tern_module *model = new_model(SAME, rng, &err);
    tern_ddp *ddp = tern_ddp_new(model, world, NULL, &err);
    RANK_CHECK_OK(rank, err);
    real = world->backend;
    tern__comm_backend counting = *real;
    counting.post = count_post;
    posts = 0;
    world->backend = &counting;
    int status = tern__signature_check(ddp, &err);
    world->backend = real;
    RANK_CHECK(rank, status == TERN_OK && posts == 1 && largest <= 4 * 32);
    tern_ddp_free(ddp);
    tern_module_free(model);
    tern_rng_free(rng);
    tern_group_close(world);
    return 0;
}

static void equal_models_cost_one_small_work(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        test_case same = {SAME, 0, false};
        assert_ranks_ok(ranks_run(world, odd_body, &same));
        assert_ranks_ok(ranks_run(world, cost_body, NULL));
    }
}

/* ---- descriptions ---- */

static void expect_options(const char *want, tern_module *module)
{
    assert_string_equal(module->tree->options, want);
    tern_module_free(module);
}

/* Every layer that has options describes them. */
static void layers_say_what_they_compute(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(0, &err);
    tern_conv_transpose1d_opts up = tern_conv_transpose1d_defaults();
    up.stride = 3;
    up.output_padding = 2;
    tern_pool2d_opts pool = tern_pool2d_defaults();
    pool.padding[0] = 1;
    pool.ceil_mode = true;
    pool.count_include_pad = false;
    tern_embedding_opts rows = tern_embedding_defaults();
    rows.padding_idx = 3;
    expect_options(" stride 1 padding 0 dilation 1 groups 1", tern_conv1d_new(2, 2, 3, NULL, rng, &err));
    tern_conv2d_opts same = tern_conv2d_defaults();
    same.padding[1] = TERN_PADDING_SAME;
    same.padding_mode = TERN_PADDING_REPLICATE;
    expect_options(" stride 1x1 padding 0x-1 dilation 1x1 groups 1 replicate",
                   tern_conv2d_new(2, 2, 3, 3, &same, rng, &err));
    expect_options(" stride 3 padding 0 output_padding 2 dilation 1 groups 1",
                   tern_conv_transpose1d_new(2, 2, 3, &up, rng, &err));
    expect_options(" stride 1x1 padding 0x0 output_padding 0x0 dilation 1x1 groups 1",
                   tern_conv_transpose2d_new(2, 2, 3, 3, NULL, rng, &err));
    tern_conv3d_opts deep = tern_conv3d_defaults();
    deep.stride[0] = 2;
    deep.padding[2] = 1;
    expect_options(" stride 2x1x1 padding 0x0x1 dilation 1x1x1 groups 1",
                   tern_conv3d_new(2, 2, 3, 3, 3, &deep, rng, &err));
    expect_options(" stride 1x1x1 padding 0x0x0 output_padding 0x0x0 dilation 1x1x1 groups 1",
                   tern_conv_transpose3d_new(2, 2, 3, 3, 3, NULL, rng, &err));
    expect_options(" kernel 3x2 stride 0x0 padding 1x0 dilation 1x1 ceil_mode without pad",
                   tern_avg_pool2d_new(3, 2, &pool, &err));
    tern_pool3d_opts volume = tern_pool3d_defaults();
    volume.stride[0] = 1;
    expect_options(" kernel 3x2x2 stride 1x0x0 padding 0x0x0 dilation 1x1x1",
                   tern_max_pool3d_new(3, 2, 2, &volume, &err));
    expect_options(" to 3x2", tern_adaptive_avg_pool2d_new(3, 2, &err));
    tern_interpolate_opts resized = tern_interpolate_defaults();
    expect_options(" nearest scale 2", tern_upsample_new(&resized, &err));
    resized.mode = TERN_INTERPOLATE_LINEAR;
    resized.align_corners = true;
    resized.shape[0] = resized.shape[1] = 7;
    expect_options(" linear align_corners to 7x7x0", tern_upsample_new(&resized, &err));
    expect_options(" padding_idx 3", tern_embedding_new(5, 2, &rows, rng, &err));
    expect_options(" p 0.25", tern_dropout_new(0.25, &err));
    expect_options(" dim -1", tern_log_softmax_new(-1, &err));
    expect_options(" approximate", tern_gelu_new(true, &err));
    expect_options("", tern_gelu_new(false, &err));
    expect_options(" eps 1e-05 shape 3x2", tern_layer_norm_new(2, (int64_t[]){3, 2}, NULL, &err));
    expect_options(" eps 1e-05 shape 6 groups 3", tern_group_norm_new(3, 6, NULL, &err));
    assert_ok(err);
    tern_rng_free(rng);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_difference_is_named),    cmocka_unit_test(other_kernels_are_refused),
        cmocka_unit_test(unless_they_may_be_mixed),     cmocka_unit_test(equal_models_cost_one_small_work),
        cmocka_unit_test(layers_say_what_they_compute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
