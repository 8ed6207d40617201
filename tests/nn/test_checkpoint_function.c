/* test_checkpoint_function.c - checkpoints of calls with several inputs and results, and of the layers
 * that models call themselves: the bits of a plain call with less memory, and gradients that are announced
 * once. */
#include "nn/nn.h"
#include "ops/world.h"

#include "device/device.h"

#include <string.h>

/* ---- calls with several inputs and results ---- */

enum { EMBED = 8, HEADS = 2, TOKENS = 6, MEMORY = 9, SEQUENCES = 3, VALUES_MAX = 1 << 15 };

/* The gradients of a step, and its loss. */
typedef struct values {
    float value[VALUES_MAX];
    int64_t count;
    int completed, leaves; /* gradients that were announced as complete, and parameters that have one */
    tern__watch watch;
} values;

static void values_add(values *to, const tern_tensor *x)
{
    tern_error err = {0};
    int64_t count = tern_tensor_count(x);
    if (!x) return;
    assert_true(to->count + count < VALUES_MAX);
    assert_int_equal(tern_tensor_read(x, to->value + to->count, (size_t)count * sizeof(float), &err),
                     TERN_OK);
    to->count += count;
}

static void values_add_gradients(values *to, const tern_module *module)
{
    for (int i = 0; i < tern_state_count(module); i++) {
        const tern_tensor *dw = tern_grad_get(tern_state_get(module, i).tensor);
        values_add(to, dw);
        to->leaves += dw && !tern__state_repeats(module, i);
    }
}

static int values_count_complete(tern__watch *watch, tern_scope *scope, const tern__leaf *leaf)
{
    (void)scope, (void)leaf;
    ((values *)((char *)watch - offsetof(values, watch)))->completed++;
    return TERN_OK;
}

static void values_backward(values *to, tern_scope *s, tern_tensor *loss)
{
    to->watch.ready = values_count_complete;
    s->watch = &to->watch;
    values_add(to, loss);
    assert_int_equal(tern_backward(s, loss), TERN_OK);
}

/* A call of one of the modules, whose attribute is a pointer to it. */
typedef struct several {
    const char *name;
    tern_checkpoint_fn call;
    int x_count, y_count;
    const char
        *x; /* for each input: t (of the target's shape), m (of the memory's), T (a mask of scores, tokens x
                    * tokens), p (a padding mask, sequences x memory), i (indices), = (the input before it),
                    * w (the module's first parameter), - (NULL) */
} several;

static tern_module *module_of(const void *attr)
{
    return *(tern_module *const *)attr;
}

static void call_decoder_layer(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_transformer_decoder_call_opts o = tern_transformer_decoder_call_defaults();
    o.tgt_mask = x[2];
    o.memory_key_padding_mask = x[3];
    y[0] = tern_transformer_decoder_layer_forward(module_of(attr), s, x[0], x[1], &o);
}

static void call_attention(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_multihead_attention_call_opts o = tern_multihead_attention_call_defaults();
    o.key_padding_mask = x[3];
    y[0] = tern_multihead_attention_forward(module_of(attr), s, x[0], x[1], x[2], &o);
}

/* Results of every kind: made of inputs, an input itself, a parameter, twice the same, of integers, and
 * none. */
static void call_many(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_tensor *bias = tern_state_get(module_of(attr), 1).tensor;
    y[0] = tern_dropout(s, tern_forward(module_of(attr), s, x[0]), 0.5);
    y[1] = x[1];
    y[2] = bias;
    y[3] = y[0];
    y[4] = tern_argmax(s, x[1], 2, false);
    y[6] = tern_mul(s, x[1], x[2]);
}

static void call_nested(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_tensor *inner;
    tern_module *layer = module_of(attr);
    tern_checkpoint_function(s, call_decoder_layer, 4, x, 1, &inner, &layer, sizeof(layer));
    tern_checkpoint_function(s, call_decoder_layer, 4, (tern_tensor *[]){inner, x[1], NULL, x[3]}, 1, y,
                             &layer, sizeof(layer));
}

static void call_parameter(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    y[0] = tern_matmul(s, tern_forward(module_of(attr), s, x[0]), x[1]);
}

static tern_tensor *several_input(tern_scope *s, tern_rng *rng, tern_module *module, char what)
{
    static const uint8_t padding[SEQUENCES][MEMORY] = {{[MEMORY - 1] = 1}, {0}, {[MEMORY - 2] = 1, 1}};
    static const int64_t indices[TOKENS];
    int64_t shape[] = {what == 'm' ? MEMORY : TOKENS, SEQUENCES, EMBED};
    if (what == '-') return NULL;
    if (what == 'w') return tern_state_get(module, 0).tensor;
    if (what == 'i') return tern_tensor_from(s, indices, TERN_I64, 1, (int64_t[]){TOKENS});
    if (what == 'p') return tern_tensor_from(s, padding, TERN_BOOL, 2, (int64_t[]){SEQUENCES, MEMORY});
    tern_tensor *x =
        what == 'T' ? tern_randn(s, rng, 2, (int64_t[]){TOKENS, TOKENS}) : tern_randn(s, rng, 3, shape);
    assert_int_equal(tern_requires_grad_set(x, true, NULL), TERN_OK);
    return x;
}

/* Two backwards through a call, directly or as a checkpoint, and what they give. */
static void several_run(const several *of, tern_module *module, bool is_checkpoint, values *out)
{
    tern_error err = {0};
    world w = open_world();
    *out = (values){0};
    tern_rng *rng = tern_rng_new(8, &err);
    tern_scope_seed(w.scope, 5, 2);
    for (int step = 0; step < 2; step++) {
        tern_tensor *x[8], *y[8] = {0}, *loss = tern_full(w.scope, TERN_F32, 0, NULL, 0);
        for (int i = 0; i < of->x_count; i++)
            x[i] = of->x[i] == '=' ? x[i - 1] : several_input(w.scope, rng, module, of->x[i]);
        if (is_checkpoint)
            tern_checkpoint_function(w.scope, of->call, of->x_count, x, of->y_count, y, &module,
                                     sizeof(module));
        else
            of->call(&module, w.scope, x, y);
        for (int i = 0; i < of->y_count; i++) {
            if (y[i] &&
                tern_tensor_dtype(y[i]) == TERN_F32) /* of two that are the same, the second counts twice */
                loss = tern_add(w.scope, loss,
                                tern_sum(w.scope, tern_affine(w.scope, tern_tanh(w.scope, y[i]), i + 1, 0)));
        }
        values_backward(out, w.scope, loss);
        for (int i = 0; i < of->x_count; i++)
            if (of->x[i] != '=' && of->x[i] != 'w') values_add(out, tern_grad_get(x[i]));
        out->leaves = 0;
        values_add_gradients(out, module);
        tern_zero_grad(module);
        assert_int_equal(tern_scope_end(w.scope, &err), TERN_OK);
    }
    tern_rng_free(rng);
    close_world(&w);
    assert_ok(err);
}

static void several_compare(const several *of, tern_module *module)
{
    static values plain, other;
    several_run(of, module, false, &plain);
    several_run(of, module, true, &other);
    print_message("%s: %lld values\n", of->name, (long long)plain.count);
    assert_true(plain.leaves > 0 && other.leaves == plain.leaves);
    assert_true(plain.completed == 2 * plain.leaves && other.completed == plain.completed);
    assert_int_equal(other.count, plain.count);
    assert_memory_equal(other.value, plain.value, (size_t)plain.count * sizeof(float));
}

static void several_inputs_and_results(void **state)
{
    (void)state;
    static const several of_decoder[] = {
        {"decoder layer", call_decoder_layer, 4, 1, "tmTp"},
        {"decoder layer without masks", call_decoder_layer, 4, 1, "tm--"},
        {"decoder layer, of one tensor", call_decoder_layer, 4, 1, "m=-p"},
        {"nested decoder layers", call_nested, 4, 1, "tmTp"},
    };
    static const several of_attention[] = {
        {"attention of a sequence to itself", call_attention, 4, 1, "m==p"},
        {"attention to a memory", call_attention, 4, 1, "tm=p"},
        {"attention of three", call_attention, 4, 1, "tmmp"},
    };
    static const several of_linear[] = {
        {"results of many kinds", call_many, 4, 7, "tmmi"},
        {"a parameter goes in", call_parameter, 2, 1, "tw"},
    };
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(4, &err);
    tern_transformer_layer_opts layer = tern_transformer_layer_defaults();
    tern_multihead_attention_opts attention = tern_multihead_attention_defaults();
    layer.feedforward = 12;
    layer.dropout = attention.dropout = 0.25;
    tern_module *decoder = tern_transformer_decoder_layer_new(EMBED, HEADS, &layer, rng, &err);
    tern_module *multihead = tern_multihead_attention_new(EMBED, HEADS, &attention, rng, &err);
    tern_module *linear = tern_linear_new(EMBED, EMBED, NULL, rng, &err);
    assert_ok(err);
    for (size_t i = 0; i < TERN__COUNT(of_decoder); i++) several_compare(&of_decoder[i], decoder);
    for (size_t i = 0; i < TERN__COUNT(of_attention); i++) several_compare(&of_attention[i], multihead);
    for (size_t i = 0; i < TERN__COUNT(of_linear); i++) several_compare(&of_linear[i], linear);
    tern_module_free(decoder);
    tern_module_free(multihead);
    tern_module_free(linear);
    tern_rng_free(rng);
}

/* A result that is another one the second time. */
static void call_growing(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    int *calls = *(int *const *)attr;
    y[0] = ++*calls == 1 ? tern_mul(s, x[0], x[0])
           : *calls == 2 ? tern_cat(s, 2, (tern_tensor *[]){x[0], x[0]}, 0)
                         : NULL;
}

/* Uses its input, too, so that there is something to compute again. */
static void call_captured(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_mul(s, x[0], x[0]);
    y[0] = *(tern_tensor *const *)attr;
}

static void call_squares(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    (void)attr;
    for (int i = 0; i < 2; i++) y[i] = tern_mul(s, x[i], x[i]);
}

/* The list of the inputs may be that of the results. */
static void results_replace_inputs(void **state)
{
    (void)state;
    world w = open_world();
    for (int recorded = 0; recorded < 2; recorded++) {
        tern_tensor *x[2], *list[2];
        for (int i = 0; i < 2; i++) {
            list[i] = x[i] = tern_full(w.scope, TERN_F32, 0, NULL, 2 + i);
            assert_int_equal(tern_requires_grad_set(x[i], true, NULL), TERN_OK);
        }
        tern_grad_enabled_set(w.scope, recorded);
        assert_int_equal(tern_checkpoint_function(w.scope, call_squares, 2, list, 2, list, NULL, 0), TERN_OK);
        tern_grad_enabled_set(w.scope, true);
        assert_true(tern_item(list[0]) == 4 && tern_item(list[1]) == 9);
        if (!recorded) continue;
        assert_int_equal(tern_backward(w.scope, tern_mul(w.scope, list[0], list[1])), TERN_OK);
        assert_true(tern_item(tern_grad_get(x[0])) == 36 && tern_item(tern_grad_get(x[1])) == 24);
    }
    close_world(&w);
}

static void call_without_gradients(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    (void)attr;
    tern_grad_enabled_set(s, false);
    y[0] = tern_mul(s, x[0], x[0]);
}

/* A call that leaves gradients off has none itself, and other calls have theirs. */
static void gradients_are_on_again(void **state)
{
    (void)state;
    static const tern_checkpoint_fn calls[] = {call_squares, call_without_gradients, call_squares};
    world w = open_world();
    for (int i = 0; i < 3; i++) {
        tern_tensor *y[2], *x = tern_full(w.scope, TERN_F32, 0, NULL, 3);
        assert_int_equal(tern_requires_grad_set(x, true, NULL), TERN_OK);
        assert_int_equal(
            tern_checkpoint_function(w.scope, calls[i], 2, (tern_tensor *[]){x, x}, 2, y, NULL, 0), TERN_OK);
        assert_int_equal(tern_backward(w.scope, y[0]), TERN_OK);
        assert_true(tern_item(tern_grad_get(x)) == (i == 1 ? 0 : 6));
    }
    close_world(&w);
}

static void calls_that_are_refused(void **state)
{
    (void)state;
    world w = open_world();
    tern_error err = {0};
    tern_module *layer = tern_linear_new(1, 1, NULL, w.rng, &err);
    tern_tensor *scale = tern_state_get(layer, 0).tensor;
    int calls = 0, *number = &calls;
    for (int time = 0; time < 2; time++) {
        tern_tensor *y = NULL, *x = tern_full(w.scope, TERN_F32, 1, (int64_t[]){2}, 3);
        tern_requires_grad_set(x, true, &err);
        assert_int_equal(
            tern_checkpoint_function(w.scope, call_growing, 1, &x, 1, &y, &number, sizeof(number)), 0);
        calls += time;
        assert_int_equal(tern_backward(w.scope, tern_sum(w.scope, y)), TERN_E_STATE);
        expect_error(&w, NULL, "tern_checkpoint", TERN_E_STATE,
                     time ? "checkpoint: result 0 was (2) of f32, but NULL when it was computed again"
                          : "checkpoint: result 0 was (2) of f32, but (4) of f32 when it was computed again");
        calls = 0;
    }
    /* A tensor of the outer tape that comes in by the attribute. */
    tern_tensor *outer = tern_mul(w.scope, scale, scale), *back = NULL;
    tern_tensor *in = scale;
    tern_checkpoint_function(w.scope, call_captured, 1, &in, 1, &back, &outer, sizeof(outer));
    assert_int_equal(tern_backward(w.scope, back), TERN_E_UNSUPPORTED);
    assert_int_equal(tern_scope_end(w.scope, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "result 0 is from outside and wants a gradient"));
    err = (tern_error){0};
    tern_tensor *y = scale;
    assert_int_equal(tern_checkpoint_function(w.scope, NULL, 0, NULL, 1, &y, NULL, 0), TERN_E_INVALID);
    assert_null(y);
    assert_int_equal(tern_scope_end(w.scope, &err), TERN_E_INVALID);
    assert_int_equal(tern_checkpoint_function(NULL, call_growing, 0, NULL, 0, NULL, NULL, 0), TERN_E_INVALID);
    tern_module_free(layer);
    close_world(&w);
}

/* ---- layers of models that call them themselves ---- */

enum { LAYERS = 8, CONTEXT = 48, WIDTH = 8, VOCABULARY = 11 };

typedef tern_module *(*model_new_fn)(tern_rng *rng, tern_error *err);
typedef tern_tensor *(*model_call_fn)(tern_module *model, tern_scope *s);

typedef struct model_case {
    const char *kind; /* of its layers, or of another part */
    model_new_fn make;
    model_call_fn call;
    int count; /* of these parts */
} model_case;

static tern_tensor *model_tokens(tern_scope *s, bool is_mask)
{
    int64_t ids[2][CONTEXT];
    for (int i = 0; i < 2 * CONTEXT; i++)
        ids[i / CONTEXT][i % CONTEXT] = is_mask ? i % CONTEXT < 40 || i < CONTEXT : 1 + i * i % 10;
    return tern_tensor_from(s, ids, TERN_I64, 2, (int64_t[]){2, CONTEXT});
}

static tern_tensor *model_states(tern_scope *s)
{
    int64_t shape[] = {CONTEXT, 2, WIDTH};
    tern_tensor *x = tern_tensor_from(s, NULL, TERN_F32, 3, shape);
    float *value = tern_tensor_data(x);
    for (int i = 0; i < 2 * CONTEXT * WIDTH; i++) value[i] = (float)(i * i % 31) / 16 - 1;
    return x;
}

static tern_transformer_layer_opts model_layer_opts(void)
{
    tern_transformer_layer_opts o = tern_transformer_layer_defaults();
    o.feedforward = 4 * WIDTH;
    return o;
}

static tern_module *new_encoder(tern_rng *rng, tern_error *err)
{
    tern_transformer_layer_opts o = model_layer_opts();
    return tern_transformer_encoder_new(LAYERS, WIDTH, HEADS, &o, NULL, rng, err);
}

static tern_module *new_decoder(tern_rng *rng, tern_error *err)
{
    tern_transformer_layer_opts o = model_layer_opts();
    return tern_transformer_decoder_new(LAYERS, WIDTH, HEADS, &o, NULL, rng, err);
}

static tern_module *new_bert(tern_rng *rng, tern_error *err)
{
    tern_bert_opts o = tern_bert_defaults();
    o.vocab_size = VOCABULARY;
    o.hidden_size = WIDTH;
    o.num_hidden_layers = LAYERS;
    o.num_attention_heads = HEADS;
    o.intermediate_size = 4 * WIDTH;
    o.max_position_embeddings = CONTEXT;
    return tern_bert_new(&o, rng, err);
}

static tern_module *new_gpt2(tern_rng *rng, tern_error *err)
{
    tern_gpt2_opts o = tern_gpt2_defaults();
    o.vocab_size = VOCABULARY;
    o.n_positions = CONTEXT;
    o.n_embd = WIDTH;
    o.n_layer = LAYERS;
    o.n_head = HEADS;
    return tern_gpt2_new(&o, rng, err);
}

static tern_module *new_llama(tern_rng *rng, tern_error *err)
{
    tern_llama_opts o = tern_llama_defaults();
    o.vocab_size = VOCABULARY;
    o.hidden_size = WIDTH;
    o.intermediate_size = 3 * WIDTH;
    o.num_hidden_layers = LAYERS;
    o.num_attention_heads = HEADS;
    o.max_position_embeddings = CONTEXT;
    o.attention_dropout = 0.1;
    return tern_llama_new(&o, rng, err);
}

static tern_tensor *call_encoder(tern_module *model, tern_scope *s)
{
    return tern_forward(model, s, model_states(s));
}

static tern_tensor *call_encoder_causal(tern_module *model, tern_scope *s)
{
    tern_transformer_encoder_call_opts o = tern_transformer_encoder_call_defaults();
    o.is_causal = true;
    return tern_transformer_encoder_forward(model, s, model_states(s), &o);
}

static tern_tensor *call_decoder(tern_module *model, tern_scope *s)
{
    tern_transformer_decoder_call_opts o = tern_transformer_decoder_call_defaults();
    o.tgt_is_causal = true;
    tern_tensor *x = model_states(s);
    return tern_transformer_decoder_forward(model, s, x, tern_slice(s, x, 0, 0, 7, 1), &o);
}

static tern_tensor *call_bert(tern_module *model, tern_scope *s)
{
    tern_bert_call_opts o = tern_bert_call_defaults();
    o.attention_mask = model_tokens(s, true);
    return tern_bert_forward(model, s, model_tokens(s, false), &o);
}

static tern_tensor *call_language_model(tern_module *model, tern_scope *s)
{
    return tern_language_model_loss(model, s, model_tokens(s, false), NULL, NULL);
}

static tern_tensor *call_last_logits(tern_module *model, tern_scope *s)
{
    tern_language_model_call_opts o = tern_language_model_call_defaults();
    o.attention_mask = model_tokens(s, true);
    o.logits_to_keep = 3;
    return tern_language_model_forward(model, s, model_tokens(s, false), &o);
}

/* Two steps with microbatches; returns the device's bytes. */
static size_t model_run(const model_case *of, bool is_checkpointed, values *out)
{
    tern_error err = {0};
    *out = (values){0};
    tern_rng *rng = tern_rng_new(2, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_device_threads_set(device, 1, &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    tern_module *model = of->make(rng, &err);
    assert_ok(err);
    assert_int_equal(tern_module_checkpoint_set(model, of->kind, is_checkpointed), of->count);
    assert_int_equal(tern_module_checkpoint_set(model, "no kind", true), 0);
    for (int step = 0; step < 2; step++) {
        tern_tensor *y = of->call(model, s);
        values_backward(out, s, tern_sum(s, tern_mul(s, y, y)));
        assert_int_equal(tern_scope_end(s, &err), TERN_OK);
    }
    values_add_gradients(out, model);
    size_t bytes = tern__device_bytes(device);
    tern_module_free(model);
    tern_scope_free(s);
    tern_device_close(device);
    tern_rng_free(rng);
    return bytes;
}

/* Compares steps with and without checkpoints; returns the bytes with them, as a share. */
static double model_compare(const model_case *of)
{
    static values plain, other;
    size_t whole = model_run(of, false, &plain), less = model_run(of, true, &other);
    print_message("%s: %zu of %zu bytes\n", of->kind, less, whole);
    assert_true(plain.leaves > 0 && plain.completed == 2 * plain.leaves);
    assert_int_equal(other.completed, plain.completed);
    assert_int_equal(other.count, plain.count);
    assert_memory_equal(other.value, plain.value, (size_t)plain.count * sizeof(float));
    return (double)less / (double)whole;
}

static void layers_of_models(void **state)
{
    (void)state;
    static const model_case cases[] = {
        {"transformer_encoder_layer", new_encoder, call_encoder, LAYERS},
        {"transformer_encoder_layer", new_encoder, call_encoder_causal, LAYERS},
        {"transformer_decoder_layer", new_decoder, call_decoder, LAYERS},
        {"bert_layer", new_bert, call_bert, LAYERS},
        {"gpt2_block", new_gpt2, call_language_model, LAYERS},
        {"llama_layer", new_llama, call_language_model, LAYERS},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++) assert_true(model_compare(&cases[i]) < 0.6);
    assert_int_equal(tern_module_checkpoint_set(NULL, "gpt2_block", true), 0);
}

/* Whole models and their inner parts keep the options of their calls for backward. */
static void parts_of_models(void **state)
{
    (void)state;
    static const model_case cases[] = {
        {"transformer_encoder", new_encoder, call_encoder_causal, 1},
        {"transformer_decoder", new_decoder, call_decoder, 1},
        {"multihead_attention", new_decoder, call_decoder, 2 * LAYERS},
        {"bert", new_bert, call_bert, 1},
        {"gpt2", new_gpt2, call_language_model, 1},
        {"gpt2", new_gpt2, call_last_logits, 1},
        {"gpt2_body", new_gpt2, call_last_logits, 1},
        {"gpt2_block", new_gpt2, call_last_logits, LAYERS},
        {"gpt2_attention", new_gpt2, call_last_logits, LAYERS},
        {"llama", new_llama, call_language_model, 1},
        {"llama", new_llama, call_last_logits, 1},
        {"llama_body", new_llama, call_last_logits, 1},
        {"llama_layer", new_llama, call_last_logits, LAYERS},
        {"llama_attention", new_llama, call_last_logits, LAYERS},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++) model_compare(&cases[i]);
}

/* The memory of a step of GPT-2 with checkpointed blocks on a context of `tokens`. */
static size_t bytes_of_context(int64_t tokens)
{
    tern_error err = {0};
    tern_gpt2_opts o = tern_gpt2_defaults();
    static const int64_t ids[4096];
    o.vocab_size = VOCABULARY;
    o.n_positions = tokens;
    o.n_embd = WIDTH;
    o.n_layer = 2;
    o.n_head = 1;
    o.attn_pdrop = 0;
    tern_rng *rng = tern_rng_new(2, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_device_threads_set(device, 1, &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    tern_module *model = tern_gpt2_new(&o, rng, &err);
    assert_int_equal(tern_module_checkpoint_set(model, "gpt2_block", true), 2);
    tern_tensor *x = tern_tensor_from(s, ids, TERN_I64, 2, (int64_t[]){1, tokens});
    assert_int_equal(tern_backward(s, tern_language_model_loss(model, s, x, NULL, NULL)), TERN_OK);
    assert_int_equal(tern_scope_end(s, &err), TERN_OK);
    size_t bytes = tern__device_bytes(device);
    tern_module_free(model);
    tern_scope_free(s);
    tern_device_close(device);
    tern_rng_free(rng);
    assert_ok(err);
    return bytes;
}

/* Attention's scores, of which there are 16 times as many, are never in memory. */
static void memory_is_linear_in_the_context(void **state)
{
    (void)state;
    size_t few = bytes_of_context(1024), many = bytes_of_context(4096);
    print_message("%zu bytes for 1024 tokens, %zu for 4096\n", few, many);
    assert_true(many < 5 * few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_inputs_and_results),
        cmocka_unit_test(results_replace_inputs),
        cmocka_unit_test(gradients_are_on_again),
        cmocka_unit_test(calls_that_are_refused),
        cmocka_unit_test(layers_of_models),
        cmocka_unit_test(parts_of_models),
        cmocka_unit_test(memory_is_linear_in_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
