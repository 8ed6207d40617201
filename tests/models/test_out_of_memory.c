/* Memory runs out at every place in turn, from the device to the end of a training step: each time the run
 * ends with E_MEMORY or, where the library could help itself, with exactly the right weights; nothing is
 * leaked, nothing crashes. */
#include "base/base.h"
#include "ledger.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLASSES = 3, BATCH = 2, SIDE = 8, WEIGHTS = 1 << 15 };

typedef struct recipe {
    tern_module *(*make)(tern_rng *rng, tern_error *err);
    int ndim;
    int64_t shape[4];
    tern_dtype region; /* of autocast; F32: none */
    const char *device;
} recipe;

static tern_module *make_mlp(tern_rng *rng, tern_error *err)
{
    return tern_mlp_new((int64_t[]){SIDE, 16, CLASSES}, 3, rng, err);
}

static tern_module *make_resnet(tern_rng *rng, tern_error *err)
{
    tern_resnet_opts opts = tern_resnet_defaults();
    opts.in_channels = 1;
    opts.classes = CLASSES;
    opts.stages = 2;
    opts.blocks[0] = opts.blocks[1] = 1;
    opts.channels[0] = 16;
    opts.channels[1] = 32;
    opts.small_stem = true;
    return tern_resnet_new(&opts, rng, err);
}

static tern_module *make_bottlenecks(tern_rng *rng, tern_error *err)
{
    tern_resnet_opts opts = tern_resnet_preset(50);
    opts.classes = CLASSES;
    for (int i = 0; i < TERN_RESNET_STAGES; i++) opts.blocks[i] = 1, opts.channels[i] = 2;
    return tern_resnet_new(&opts, rng, err);
}

static tern_module *make_deeplab(tern_rng *rng, tern_error *err)
{
    tern_deeplabv3_opts opts = tern_deeplabv3_defaults();
    opts.depth = 18;
    opts.classes = CLASSES;
    for (int i = 0; i < TERN_RESNET_STAGES; i++) opts.channels[i] = 4;
    opts.head_channels = 4;
    opts.aux = true;
    return tern_deeplabv3_new(&opts, rng, err);
}

static tern_module *make_unet(tern_rng *rng, tern_error *err)
{
    tern_unet3d_opts opts = tern_unet3d_defaults();
    opts.width = 2;
    opts.levels = 3;
    opts.norm = TERN_UNET_GROUP;
    opts.groups = 2;
    return tern_unet3d_new(&opts, rng, err);
}

static tern_module *make_vit(tern_rng *rng, tern_error *err)
{
    tern_vit_opts opts = tern_vit_preset("vit_tiny");
    opts.in_channels = 1;
    opts.classes = CLASSES;
    opts.image_size = SIDE;
    opts.patch_size = 4;
    opts.layers = 1;
    opts.heads = 2;
    opts.hidden_dim = opts.mlp_dim = 4;
    opts.dropout = opts.attention_dropout = 0.1;
    opts.representation_size = 2;
    return tern_vit_new(&opts, rng, err);
}

static tern_module *make_bert(tern_rng *rng, tern_error *err)
{
    tern_bert_opts opts = tern_bert_defaults();
    opts.vocab_size = opts.hidden_size = opts.intermediate_size = opts.max_position_embeddings = 4;
    opts.num_hidden_layers = opts.num_attention_heads = 2;
    return tern_bert_new(&opts, rng, err);
}

static tern_module *make_encoder(tern_rng *rng, tern_error *err)
{
    tern_transformer_layer_opts opts = tern_transformer_layer_defaults();
    opts.feedforward = 4;
    opts.bias = false;
    return tern_transformer_encoder_new(2, 4, 2, &opts, NULL, rng, err);
}

static tern_module *make_decoder(tern_rng *rng, tern_error *err)
{
    tern_transformer_layer_opts opts = tern_transformer_layer_defaults();
    opts.feedforward = 4;
    return tern_transformer_decoder_new(2, 4, 2, &opts, NULL, rng, err);
}

static tern_module *make_attention(tern_rng *rng, tern_error *err)
{
    tern_multihead_attention_opts opts = tern_multihead_attention_defaults();
    opts.kdim = opts.vdim = 3;
    return tern_multihead_attention_new(4, 2, &opts, rng, err);
}

/* Linear over weights that are computed themselves: their gradients are no parameters'. */
static tern_tensor *computed_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    tern_tensor *weight = tern_state_find(module, "weight"), *bias = tern_state_find(module, "bias");
    tern_tensor *twice = tern_add(s, weight, weight);
    return tern_linear(s, tern_linear(s, x, twice, tern_mul(s, bias, bias)), tern_mul(s, twice, weight),
                       NULL);
}

static tern_module *make_computed(tern_rng *rng, tern_error *err)
{
    float values[SIDE * SIDE];
    tern_module *net = tern_sequential_new(err); /* for its memory; the forward is ours */
    if (net) net->forward = computed_forward;
    tern_tensor *weight = tern_parameter_add(net, "weight", TERN_F32, 2, (int64_t[]){SIDE, SIDE}, err);
    tern_tensor *bias = tern_parameter_add(net, "bias", TERN_F32, 1, (int64_t[]){SIDE}, err);
    tern_rng_normal(rng, values, SIDE * SIDE, 0, 1);
    if (weight) tern_tensor_write(weight, values, sizeof(values), err);
    if (bias) tern_tensor_write(bias, values, SIDE * sizeof(*values), err);
    if (bias && tern_state_count(net) == 2) return net;
    tern__error_set(err, "make_computed", TERN_E_MEMORY, "out of memory");
    tern_module_free(net);
    return NULL;
}

static const recipe computed = {make_computed, 2, {BATCH, SIDE}, TERN_F32, NULL};
static const recipe mlp = {make_mlp, 2, {BATCH, SIDE}, TERN_F32, NULL};
static const recipe resnet = {make_resnet, 4, {BATCH, 1, SIDE, SIDE}, TERN_F32, NULL};
static const recipe vit = {make_vit, 4, {BATCH, 1, SIDE, SIDE}, TERN_F32, NULL};
static const recipe cast = {make_mlp, 2, {BATCH, SIDE}, TERN_BF16, NULL};

/* Everything that one step needs. */
typedef struct training {
    tern_device *device;
    tern_rng *rng;
    tern_module *net;
    tern_optim *optim;
    tern_scope *scope;
} training;

static void open_training(training *t, const recipe *r, tern_error *err)
{
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.momentum = 0.9;
    *t = (training){.device = tern_device_open(r->device ? r->device : "cpu", err)};
    t->rng = tern_rng_new(1, err);
    t->net = t->rng ? r->make(t->rng, err) : NULL;
    t->optim = tern_sgd_new(t->net, &sgd, err);
    t->scope = tern_scope_new(t->device, NULL, err);
}

static void close_training(training *t)
{
    tern_scope_free(t->scope);
    tern_optim_free(t->optim);
    tern_module_free(t->net);
    tern_rng_free(t->rng);
    tern_device_close(t->device);
}

static void step(training *t, const recipe *r, tern_error *err)
{
    static const int64_t labels[BATCH] = {2, 0};
    float values[BATCH * SIDE * SIDE];
    tern_rng_normal(t->rng, values, BATCH * SIDE * SIDE, 0, 1);
    tern_tensor *x = tern_tensor_from(t->scope, values, TERN_F32, r->ndim, r->shape);
    tern_tensor *y = tern_tensor_from(t->scope, labels, TERN_I64, 1, (int64_t[]){BATCH});
    tern_autocast_set(t->scope, r->region);
    tern_tensor *loss = tern_cross_entropy(t->scope, tern_forward(t->net, t->scope, x), y, NULL);
    tern_autocast_set(t->scope, TERN_F32);
    int status = tern_backward(t->scope, loss);
    assert_int_equal(status, tern_scope_error(t->scope)->code);
    tern_optim_step(t->optim, t->scope);
    tern_scope_end(t->scope, err);
}

/* All weights and buffers one after another; the books are closed for this. */
static size_t read_state(const tern_module *net, char *out, ledger *books)
{
    books->refuse_at = 0;
    size_t used = 0;
    for (int i = 0; i < tern_state_count(net); i++) {
        const tern_tensor *tensor = tern_state_get(net, i).tensor;
        size_t bytes = (size_t)tern_tensor_count(tensor) * tern_dtype_bytes(tern_tensor_dtype(tensor));
        assert_true(used + bytes <= 4 * WEIGHTS);
        assert_int_equal(tern_tensor_read(tensor, out + used, bytes, NULL), TERN_OK);
        used += bytes;
    }
    return used;
}

/* One run; false if memory ran out. Otherwise the state is in out[0..*bytes). */
static bool run(const recipe *r, ledger *books, char *out, size_t *bytes)
{
    tern_error err = {0};
    training t;
    ledger_open(books);
    open_training(&t, r, &err);
    if (!err.code) step(&t, r, &err);
    bool whole = !err.code;
    if (whole) *bytes = read_state(t.net, out, books);
    if (!whole) assert_int_equal(err.code, TERN_E_MEMORY);
    if (!whole) assert_non_null(strstr(err.text, "out of memory"));
    close_training(&t);
    ledger_close(books);
    return whole;
}

/* From the first request to the last: how many runs failed. */
static int sweep(const recipe *r, bool refuse_all)
{
    static char want[4 * WEIGHTS], got[4 * WEIGHTS];
    size_t want_bytes, got_bytes;
    ledger books = {0};
    assert_true(run(r, &books, want, &want_bytes));
    int failures = 0;
    for (int at = 1;; at++) {
        books = (ledger){.refuse_at = at, .refuse_all = refuse_all};
        if (!run(r, &books, got, &got_bytes)) {
            failures++;
            continue;
        }
        assert_int_equal(got_bytes, want_bytes);
        assert_memory_equal(got, want, want_bytes);
        if (atomic_load(&books.requests) < at) return failures;
        assert_false(refuse_all);
    }
}

static void an_mlp(void **state)
{
    (void)state;
    assert_in_range(sweep(&mlp, true), 50, 1000);
    assert_in_range(sweep(&mlp, false), 30, 1000);
}

static void a_resnet(void **state)
{
    (void)state;
    assert_in_range(sweep(&resnet, true), 200, 3000);
    assert_in_range(sweep(&resnet, false), 150, 3000);
}

static void a_vit(void **state)
{
    (void)state;
    assert_in_range(sweep(&vit, true), 100, 3000);
    assert_in_range(sweep(&vit, false), 100, 3000);
}

static void computed_weights(void **state)
{
    (void)state;
    assert_in_range(sweep(&computed, true), 30, 1000);
    assert_in_range(sweep(&computed, false), 20, 1000);
}

static void under_autocast(void **state)
{
    (void)state;
    assert_in_range(sweep(&cast, true), 50, 1000);
    assert_in_range(sweep(&cast, false), 30, 1000);
}

/* One request after the other is refused: a caller gets a whole net or none. */
static void make_again_and_again(tern_module *(*make)(tern_rng *, tern_error *), tern_rng *rng,
                                 tern_error *err)
{
    tern_module *net = make(rng, NULL);
    int count = tern_state_count(net), at = 0;
    tern_module_free(net);
    for (bool whole = false; !whole;) {
        ledger books = {.refuse_at = ++at};
        if (err) *err = (tern_error){0};
        ledger_open(&books);
        net = make(rng, err);
        whole = atomic_load(&books.requests) < at;
        books.refuse_at = 0;
        assert_true(whole == (net != NULL));
        if (err) assert_int_equal(err->code, whole ? TERN_OK : TERN_E_MEMORY);
        if (net) assert_int_equal(tern_state_count(net), count);
        tern_module_free(net);
        ledger_close(&books);
    }
}

/* With an error and without. */
static void nets_that_are_not_made(void **state)
{
    (void)state;
    static tern_module *(*const makers[])(tern_rng *, tern_error *) = {
        make_mlp, make_resnet, make_bottlenecks, make_deeplab, make_unet,
        make_vit, make_bert,   make_encoder,     make_decoder, make_attention};
    tern_rng *rng = tern_rng_new(1, NULL);
    for (size_t i = 0; i < sizeof(makers) / sizeof(*makers); i++) {
        tern_error err;
        make_again_and_again(makers[i], rng, NULL);
        make_again_and_again(makers[i], rng, &err);
    }
    tern_rng_free(rng);
}

/* A decoder over BERT's states, with masks of both kinds. */
static void transformer_step(tern_module *bert, tern_module *decoder, tern_scope *s)
{
    static const int64_t there[] = {1, 1, 0, 1, 0, 0};
    static const bool hidden[] = {false, true, false, false, true, false};
    tern_bert_call_opts of_bert = tern_bert_call_defaults();
    tern_transformer_decoder_call_opts of_decoder = tern_transformer_decoder_call_defaults();
    of_bert.attention_mask = tern_tensor_from(s, there, TERN_I64, 2, (int64_t[]){2, 3});
    tern_tensor *ids = tern_tensor_from(s, NULL, TERN_I64, 2, (int64_t[]){2, 3});
    tern_tensor *states = tern_bert_forward(bert, s, ids, &of_bert);
    of_decoder.tgt_is_causal = true;
    of_decoder.tgt_key_padding_mask = tern_tensor_from(s, hidden, TERN_BOOL, 2, (int64_t[]){3, 2});
    of_decoder.memory_mask = tern_tensor_from(s, NULL, TERN_F32, 2, (int64_t[]){2, 2});
    of_decoder.memory_key_padding_mask = of_decoder.tgt_key_padding_mask;
    tern_tensor *y = tern_transformer_decoder_forward(decoder, s, states, states, &of_decoder);
    tern_backward(s, tern_mean(s, tern_mul(s, y, y)));
    tern_zero_grad(bert);
    tern_zero_grad(decoder);
    assert_int_equal(tern_scope_end(s, NULL), TERN_OK);
}

static void a_warm_step_of_transformers_allocates_nothing(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    tern_device *device = tern_device_open("cpu", NULL);
    tern_rng *rng = tern_rng_new(1, NULL);
    tern_module *bert = make_bert(rng, NULL), *decoder = make_decoder(rng, NULL);
    tern_scope *scope = tern_scope_new(device, NULL, NULL);
    for (int i = 0, warm = 0; i < 8; i++) {
        if (i == 3) warm = atomic_load(&books.requests);
        transformer_step(bert, decoder, scope);
        if (i >= 3) assert_int_equal(atomic_load(&books.requests), warm);
    }
    tern_scope_free(scope);
    tern_module_free(decoder);
    tern_module_free(bert);
    tern_rng_free(rng);
    tern_device_close(device);
    ledger_close(&books);
}

/* ---- the C library's memory, on the reference device: oneDNN 2.6 itself crashes where it gets none ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)

static bool counts;
static atomic_int asked;
static int refused; /* the number of the request that fails, and of all later ones with `all` */
static bool all;

static bool is_refused(void)
{
    if (!counts) return false;
    int number = atomic_fetch_add(&asked, 1) + 1;
    if (number != refused && !(all && number > refused)) return false;
    errno = ENOMEM;
    return true;
}

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

#define OURS __attribute__((visibility("default")))

OURS void *malloc(size_t bytes)
{
    return is_refused() ? NULL : __libc_malloc(bytes);
}

OURS void *calloc(size_t count, size_t bytes)
{
    return is_refused() ? NULL : __libc_calloc(count, bytes);
}

OURS void *realloc(void *block, size_t bytes)
{
    return is_refused() ? NULL : __libc_realloc(block, bytes);
}

OURS void *aligned_alloc(size_t align, size_t bytes)
{
    return is_refused() ? NULL : __libc_memalign(align, bytes);
}

OURS void *memalign(size_t align, size_t bytes)
{
    return is_refused() ? NULL : __libc_memalign(align, bytes);
}

OURS int posix_memalign(void **block, size_t align, size_t bytes)
{
    *block = is_refused() ? NULL : __libc_memalign(align, bytes);
    return *block ? 0 : ENOMEM;
}

enum { FINE, TOLD, SILENT };

/* Makes a step in a process of its own, in which a request is refused. Sets *requests to their number.
 * Returns the process's status. */
static int step_in_a_child(const recipe *r, int at, bool refuse_all, int *requests)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        tern_error err = {0};
        training t;
        for (int number = 1; number < 32; number++) signal(number, SIG_DFL); /* cmocka's handlers */
        alarm(20);
        refused = at, all = refuse_all, counts = true;
        open_training(&t, r, &err);
        if (!err.code) step(&t, r, &err);
        close_training(&t);
        counts = false;
        *requests = atomic_load(&asked);
        _exit(!err.code ? FINE : *err.text && *err.func ? TOLD : SILENT);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void refuse_in_children(const recipe *r, bool refuse_all)
{
    int *requests = share_memory(sizeof(*requests));
    int ends[3] = {0}, every;
    assert_int_equal(step_in_a_child(r, 0, false, requests), 0);
    every = *requests / 400 + 1;
    for (int at = 1, last = *requests; at <= last; at += every) {
        int status = step_in_a_child(r, at, refuse_all, requests);
        if (!WIFEXITED(status) || WEXITSTATUS(status) > TOLD)
            fail_msg("request %d of %d: status %x", at, last, status);
        ends[WEXITSTATUS(status)]++;
    }
    print_message("%d fine, %d told\n", ends[FINE], ends[TOLD]);
    assert_true(ends[TOLD] > 0);
    munmap(requests, sizeof(*requests));
}

static void of_the_c_library(void **state)
{
    (void)state;
    recipe recipes[] = {mlp, cast};
    for (size_t i = 0; i < TERN__COUNT(recipes); i++)
        for (int refuse_all = 0; refuse_all <= 1; refuse_all++) {
            recipes[i].device = "cpu:reference";
            refuse_in_children(&recipes[i], refuse_all);
        }
}

#else

static void of_the_c_library(void **state)
{
    (void)state;
    skip_test("a sanitizer has a malloc of its own");
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_mlp),
        cmocka_unit_test(a_resnet),
        cmocka_unit_test(a_vit),
        cmocka_unit_test(computed_weights),
        cmocka_unit_test(under_autocast),
        cmocka_unit_test(nets_that_are_not_made),
        cmocka_unit_test(a_warm_step_of_transformers_allocates_nothing),
        cmocka_unit_test(of_the_c_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
