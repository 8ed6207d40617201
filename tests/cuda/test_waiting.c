/* test_waiting.c - gradients in device memory that wait for their step while another model's backward
 * runs: through the host and with NCCL they are left unchanged, and are contributed when another rank
 * needs them. */
#include "nets.h"

#include "comm/ranks.h"

#include "comm/move/backend.h"
#include "nn/nn.h"

#include <math.h>

enum { WIDTH = 3, COUNT = WIDTH * WIDTH };

typedef struct job {
    const char *backend; /* NULL: through the host */
    tern_normaliser normaliser;
    tern_dtype reduce_dtype;
} job;

typedef struct setting {
    tern_group *group;
    tern_device *device;
    tern_module *nets[2];
    tern_ddp *ddps[2];
    tern_scope *scope;
} setting;

static void open_setting(setting *s, const tern__bootstrap *boot, const job *j, tern_error *err)
{
    char name[16];
    tern_group_opts group_opts = tern_group_defaults();
    tern_ddp_opts opts = tern_ddp_defaults();
    group_opts.backend = j->backend;
    opts.normaliser = j->normaliser;
    opts.reduce_dtype = j->reduce_dtype;
    snprintf(name, sizeof(name), "cuda:%d", boot->rank);
    *s = (setting){.group = tern__group_open_boot(boot, &group_opts, err),
                   .device = tern_device_open(name, err)};
    tern_rng *rng = tern_rng_new(5, err);
    for (int i = 0; i < 2; i++) {
        s->nets[i] = tern_linear_new(WIDTH, WIDTH, NULL, rng, err);
        tern_module_to(s->nets[i], s->device, err);
        s->ddps[i] = tern_ddp_new(s->nets[i], s->group, i ? NULL : &opts, err);
    }
    s->scope = tern_scope_new(s->device, s->group, err);
    tern_rng_free(rng);
}

static void close_setting(setting *s)
{
    tern_scope_free(s->scope);
    for (int i = 0; i < 2; i++) {
        tern_ddp_free(s->ddps[i]);
        tern_module_free(s->nets[i]);
    }
    tern_device_close(s->device);
    tern_group_close(s->group);
}

/* A sum whose gradient with respect to the weight is `value` everywhere. */
static tern_tensor *sum_of(setting *s, int which, float value)
{
    tern_tensor *x = tern_full(s->scope, TERN_F32, 2, (int64_t[]){1, WIDTH}, value);
    return tern_sum(s->scope, tern_forward(s->nets[which], s->scope, x));
}

static void back(setting *s, const job *j, tern_tensor *loss, bool is_counted)
{
    if (is_counted && j->normaliser == TERN_NORMALISER_LOSS) tern_ddp_normaliser_set(s->ddps[0], 1, NULL);
    tern_backward(s->scope, loss);
}

static tern_tensor *grad_of(const setting *s, int which)
{
    return tern_grad_get(tern_state_find(s->nets[which], "weight"));
}

static bool read_is(const setting *s, int which, float value, tern_error *err)
{
    float got[COUNT];
    if (!grad_of(s, which) || tern_tensor_read(grad_of(s, which), got, sizeof(got), err)) return false;
    bool is = true;
    for (int i = 0; i < COUNT; i++) is &= got[i] == value;
    if (!is) fprintf(stderr, "%.9g instead of %.9g\n", got[0], value);
    return is;
}

static int body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    tern_error err = {0};
    setting s;
    float values[COUNT], own = 1e-9f * (float)(1 + rank);
    open_setting(&s, boot, j, &err);
    RANK_CHECK_OK(rank, err);
    back(&s, j, sum_of(&s, 0, 4), true);
    RANK_CHECK(rank, read_is(&s, 0, 4, &err));
    for (int i = 0; i < COUNT; i++) values[i] = own; /* different on each rank, and not exact in 16 bits */
    tern_tensor_write(grad_of(&s, 0), values, sizeof(values), &err);
    back(&s, j, sum_of(&s, 1, 2), false);
    RANK_CHECK(rank, read_is(&s, 1, 2, &err) && read_is(&s, 0, own, &err));
    for (int i = 0; i < COUNT; i++) values[i] = 8;
    tern_tensor_write(grad_of(&s, 0), values, sizeof(values), &err);
    tern_tensor *loss = sum_of(&s, 1, 2);
    back(&s, j, rank ? loss : tern_add(s.scope, loss, sum_of(&s, 0, 2)), true);
    RANK_CHECK(rank, read_is(&s, 0, 8 + 2 / (float)boot->world, &err));
    tern_scope_end(s.scope, &err);
    RANK_CHECK_OK(rank, err);
    close_setting(&s);
    return 0;
}

static void run_all(const char *backend)
{
    static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16, TERN_F16};
    if (!is_emulated() && gpu_count() < 2) skip_test("needs two GPUs");
    for (int world = 1; world <= 2; world++)
        for (int i = 0; i < 6; i++) {
            job j = {backend, i % 2 ? TERN_NORMALISER_LOSS : TERN_NORMALISER_RANK, dtypes[i / 2]};
            assert_ranks_ok(ranks_run(world, body, &j));
        }
}

static void by_way_of_the_host(void **state)
{
    (void)state;
    run_all(NULL);
}

static void over_nccl(void **state)
{
    (void)state;
    run_all("nccl");
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    setenv("TERN_EMULATED_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_way_of_the_host),
        cmocka_unit_test(over_nccl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
