/* test_nccl_collectives.c - every collective of the NCCL back end, with every dtype and operation that it
 * has, on 2 to 4 ranks of an emulation, compared with the host's back end on the same numbers. */
#include "check.h"

#include "comm/ranks.h"

#include "comm/move/nccl/nccl.h"
#include "device/device.h"
#include "tensor/view.h"

enum { COUNT = 37, PARTS = 4, BYTES = COUNT * PARTS * 8 };

typedef struct bench {
    tern_group *group;
    tern_device *device;
    int rank, world;
    tern_dtype dtype;
    char *away[2];       /* in device memory: in, out */
    char here[2][BYTES]; /* the same in host memory */
} bench;

/* Small integers: exact in every dtype, as are their sums, products and means over 2 and 4. */
static void fill(bench *b, tern_error *err)
{
    int64_t shape = COUNT * PARTS, most = b->dtype == TERN_BF16 ? 2 : 4;
    tern__view view = tern__view_make(b->dtype, TERN__PLAIN, 1, &shape);
    memset(b->here, 0, sizeof(b->here));
    for (int which = 0; which < 2; which++) {
        view.data = b->here[which];
        for (int64_t i = 0; i < shape; i++) {
            bool flag = (i + b->rank) % 3 == 0;
            double number = (double)((i * 7 + b->rank) % most + 1 + which);
            tern__view_set(&view, i, b->dtype == TERN_BOOL ? flag : number);
        }
        tern__memory_copy(b->away[which], b->here[which], BYTES, err);
    }
}

static bool is_same(bench *b, const char *what, tern_error *err)
{
    static char came[BYTES];
    for (int which = 0; which < 2; which++) {
        tern__memory_copy(came, b->away[which], BYTES, err);
        if (!memcmp(came, b->here[which], BYTES)) continue;
        fprintf(stderr, "rank %d of %d: %s of %s, %s differs\n", b->rank, b->world, what,
                tern_dtype_name(b->dtype), which ? "out" : "in");
        return false;
    }
    return !err->code;
}

typedef void (*run_fn)(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err);

static void all_reduce(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    (void)out;
    tern_all_reduce(b->group, in, COUNT, b->dtype, op, err);
}
static void reduce(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    (void)out;
    tern_reduce(b->group, in, COUNT, b->dtype, op, b->world - 1, err);
}
static void reduce_scatter(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    tern_reduce_scatter(b->group, in, out, COUNT, b->dtype, op, err);
}
static void coalesced(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    const tern_span spans[] = {{in, 5}, {out, COUNT}};
    tern_all_reduce_coalesced(b->group, spans, 2, b->dtype, op, err);
}
static void broadcast(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    (void)out;
    (void)op;
    tern_broadcast(b->group, in, COUNT, b->dtype, 1, err);
}
static void all_gather(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    (void)op;
    tern_all_gather(b->group, in, out, COUNT, b->dtype, err);
}
static void gather(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    (void)op;
    tern_gather(b->group, in, out, COUNT, b->dtype, 1, err);
}
static void scatter(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    (void)op;
    tern_scatter(b->group, in, out, COUNT, b->dtype, 1, err);
}
static void all_to_all(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    (void)op;
    tern_all_to_all(b->group, in, out, COUNT, b->dtype, err);
}
static void all_to_all_v(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    size_t gives[PARTS], takes[PARTS];
    (void)op;
    for (int r = 0; r < b->world; r++) {
        gives[r] = (size_t)(b->rank + 2 * r + 1);
        takes[r] = (size_t)(r + 2 * b->rank + 1);
    }
    tern_all_to_all_v(b->group, in, gives, out, takes, b->dtype, err);
}
/* Rank 1's memory is on the host, so everything goes through the host. */
static void mixed(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    static char host[2][BYTES];
    bool is_apart = b->rank == 1 && tern__memory_device(in);
    if (is_apart) tern__memory_copy(host[0], in, BYTES, err);
    if (is_apart) tern__memory_copy(host[1], out, BYTES, err);
    all_to_all_v(b, is_apart ? host[0] : in, is_apart ? host[1] : out, op, err);
    if (is_apart) tern__memory_copy(out, host[1], BYTES, err);
}
/* Rank 0 contributes nothing. */
static void all_gather_v(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    tern_span outs[PARTS];
    size_t at = 0, size = tern_dtype_bytes(b->dtype);
    (void)op;
    for (int r = 0; r < b->world; r++) {
        outs[r] = (tern_span){out + at * size, (size_t)(7 * r)};
        at += outs[r].count;
    }
    tern_all_gather_v(b->group, in, outs[b->rank].count, outs, b->dtype, err);
}
static void nothing(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    const size_t none[PARTS] = {0};
    (void)op;
    tern_all_to_all_v(b->group, in, none, out, none, b->dtype, err);
}
static void gathered_list(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    size_t size = tern_dtype_bytes(b->dtype);
    const tern_span ins[] = {{in, 5}, {in + 5 * size, 0}, {in + 9 * size, 11}};
    void *const outs[] = {out, NULL, out + COUNT * size};
    (void)op;
    tern_all_gather_coalesced(b->group, ins, outs, 3, b->dtype, err);
}
static void scattered_list(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    size_t size = tern_dtype_bytes(b->dtype);
    const void *const ins[] = {in, NULL, in + COUNT * size};
    const tern_span outs[] = {{out + 3 * size, 5}, {out, 0}, {out + 9 * size, 11}};
    tern_reduce_scatter_coalesced(b->group, ins, outs, 3, b->dtype, op, err);
}
static void posted(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    tern_work *one = tern_all_reduce_post(b->group, in, COUNT, b->dtype, op, err),
              *other = tern_all_gather_post(b->group, in + COUNT * 8, out, COUNT, b->dtype, err);
    tern_work_wait(other, err);
    tern_work_wait(one, err);
}
static void messages(bench *b, char *in, char *out, tern_reduce_op op, tern_error *err)
{
    int next = (b->rank + 1) % b->world, before = (b->rank + b->world - 1) % b->world;
    (void)op;
    tern_work *sent = tern_isend(b->group, in, COUNT, b->dtype, next, 3, err);
    tern_recv(b->group, out, COUNT, b->dtype, before, 3, NULL, err);
    tern_work_wait(sent, err);
}

static const struct {
    const char *name;
    run_fn run;
    bool reduces, is_host; /* it goes through the host, if anywhere */
} calls[] = {{"all_reduce", all_reduce, true, false},
             {"reduce", reduce, true, false},
             {"reduce_scatter", reduce_scatter, true, false},
             {"all_reduce_coalesced", coalesced, true, false},
             {"two that are posted", posted, true, false},
             {"broadcast", broadcast, false, false},
             {"all_gather", all_gather, false, false},
             {"gather", gather, false, false},
             {"scatter", scatter, false, false},
             {"all_to_all", all_to_all, false, false},
             {"all_to_all_v", all_to_all_v, false, false},
             {"all_gather_v", all_gather_v, false, false},
             {"all_gather_coalesced", gathered_list, false, false},
             {"reduce_scatter_coalesced", scattered_list, true, false},
             {"all_to_all_v of nothing", nothing, false, true},
             {"all_to_all_v of two memories", mixed, false, true},
             {"messages", messages, false, true}};

/* Whether NCCL runs it: it has no bitwise operations on integers, and no i16; of two works posted one is no
 * reduction. */
static bool is_launched(const bench *b, size_t c, tern_reduce_op op)
{
    bool is_reduced = (op < TERN_BAND || op > TERN_BXOR) && b->dtype != TERN_I16;
    return !calls[c].is_host && (!calls[c].reduces || is_reduced || calls[c].run == posted);
}

static uint64_t launched(const bench *b)
{
    const tern__nccl *nccl = b->group->state;
    return nccl->devices ? nccl->devices->comms->launched : 0;
}

/* Whether all results are exact: a third is not exact in any dtype. */
static bool is_allowed(const bench *b, tern_reduce_op op)
{
    bool is_float =
        b->dtype == TERN_F32 || b->dtype == TERN_F64 || b->dtype == TERN_F16 || b->dtype == TERN_BF16;
    if (op == TERN_AVG) return is_float && b->world != 3;
    return is_float ? op <= TERN_MAX : true;
}

static int run_all(bench *b)
{
    static const tern_reduce_op ops[] = {TERN_SUM, TERN_AVG,  TERN_PRODUCT, TERN_MIN,
                                         TERN_MAX, TERN_BAND, TERN_BOR,     TERN_BXOR};
    tern_error err = {0};
    for (size_t c = 0; c < TERN__COUNT(calls); c++) {
        for (size_t o = 0; o < (calls[c].reduces ? TERN__COUNT(ops) : 1); o++) {
            if (calls[c].reduces && !is_allowed(b, ops[o])) continue;
            fill(b, &err);
            uint64_t before = launched(b);
            calls[c].run(b, b->away[0], b->away[1], ops[o], &err);
            RANK_CHECK(b->rank, (launched(b) > before) == is_launched(b, c, ops[o]));
            calls[c].run(b, b->here[0], b->here[1], ops[o], &err);
            RANK_CHECK_OK(b->rank, err);
            RANK_CHECK(b->rank, is_same(b, calls[c].name, &err));
        }
    }
    return 0;
}

static void bench_open(bench *b, const tern__bootstrap *boot, int rank, tern_error *err)
{
    char name[16];
    tern_group_opts opts = tern_group_defaults();
    opts.backend = "nccl";
    opts.timeout_s = RANKS_TIMEOUT_S;
    snprintf(name, sizeof(name), "cuda:%d", rank);
    b->group = tern__group_open_boot(boot, &opts, err);
    b->device = tern_device_open(name, err);
    b->rank = rank;
    b->world = boot->world;
    for (int i = 0; i < 2 && !err->code; i++) b->away[i] = tern__memory_new(b->device, BYTES, __func__, err);
}

static void bench_close(bench *b)
{
    for (int i = 0; i < 2; i++) tern__memory_free(b->away[i]);
    tern_device_close(b->device);
    tern_group_close(b->group);
}

static int body(int rank, const tern__bootstrap *boot, void *arg)
{
    static bench b;
    tern_error err = {0};
    (void)arg;
    bench_open(&b, boot, rank, &err);
    RANK_CHECK_OK(rank, err);
    int status = 0;
    for (int dtype = 0; dtype < TERN_DTYPE_COUNT && !status; dtype++) {
        b.dtype = (tern_dtype)dtype;
        status = run_all(&b);
    }
    bench_close(&b);
    return status;
}

static void devices_have_what_hosts_have(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, body, NULL));
}

/* ---- means in 16 bits ---- */

/* Each rank's values are 3. The divisor of three ranks is 2, so the result is scaled: only where it is. */
static int mean_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static bench b;
    static uint16_t threes[COUNT], came[COUNT];
    tern_error err = {0};
    (void)arg;
    for (int i = 0; i < COUNT; i++) threes[i] = 0x4040; /* in bf16 */
    bench_open(&b, boot, rank, &err);
    RANK_CHECK_OK(rank, err);
    tern__memory_copy(b.away[0], threes, sizeof(threes), &err);
    for (int root = 0; root < boot->world; root++)
        tern_reduce(b.group, b.away[0], COUNT, TERN_BF16, TERN_AVG, root, &err);
    tern__memory_copy(came, b.away[0], sizeof(came), &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !memcmp(came, threes, sizeof(came)));
    bench_close(&b);
    return 0;
}

static void a_mean_is_scaled_on_its_root_alone(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, mean_body, NULL));
}

/* ---- two groups ---- */

enum { ROUNDS = 200 };

/* Two means; after the first round all values equal the mean. */
static void round_of(tern_group *const groups[2], const bench *b, int first, tern_error *err)
{
    tern_work *works[2];
    for (int k = 0; k < 2; k++) {
        int which = k ? 1 - first : first;
        works[k] = tern_all_reduce_post(groups[which], b->away[which], COUNT, TERN_F32, TERN_AVG, err);
    }
    for (int k = 0; k < 2; k++) tern_work_wait(works[k], err);
}

/* NCCL enqueues each work at a time of its own. The first round opens, in one order, what the groups
 * share. */
static int groups_body(int rank, const tern__bootstrap *boot, void *crosses)
{
    static bench b;
    tern_error err = {0};
    bench_open(&b, boot, rank, &err);
    RANK_CHECK_OK(rank, err);
    tern_group *const groups[] = {b.group, tern_group_split(b.group, 0, rank, NULL, &err)};
    b.dtype = TERN_F32;
    fill(&b, &err);
    for (int i = 0; i < ROUNDS; i++) {
        round_of(groups, &b, crosses && i && rank, &err);
        RANK_CHECK_OK(rank, err);
    }
    for (int which = 0; which < 2; which++) {
        float came = 0;
        tern__memory_copy(&came, b.away[which], sizeof(came), &err);
        RANK_CHECK(rank, came == 1.5f + (float)which);
    }
    bench_close(&b);
    return 0;
}

static void groups_do_not_wait_for_each_other(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, groups_body, NULL));
}

static void groups_may_be_asked_in_different_order(void **state)
{
    (void)state;
    static int crosses;
    assert_ranks_ok(ranks_run(2, groups_body, &crosses));
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    setenv("TERN_EMULATED_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_have_what_hosts_have),
        cmocka_unit_test(a_mean_is_scaled_on_its_root_alone),
        cmocka_unit_test(groups_do_not_wait_for_each_other),
        cmocka_unit_test(groups_may_be_asked_in_different_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
