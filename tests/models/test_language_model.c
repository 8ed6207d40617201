/* test_language_model.c - a step of GPT-2 and of Llama, and calls with a cache: no allocation once warm, and
 * allocations that fail at every point, also while the models are made, written and opened. tests/torch
 * compares the values. */
#include "ledger.h"
#include "nn/nn.h"
#include "ops/world.h"

#include <ftw.h>

enum { WORDS = 11, WIDTH = 8, LENGTH = 5, HEADS = 2 };

static tern_module *make_gpt2(world *w)
{
    tern_gpt2_opts opts = tern_gpt2_defaults();
    opts.vocab_size = WORDS;
    opts.n_positions = LENGTH;
    opts.n_embd = WIDTH;
    opts.n_layer = 2;
    opts.n_head = HEADS;
    return tern_gpt2_new(&opts, w->rng, &w->err);
}

static tern_module *make_llama(world *w)
{
    tern_llama_opts opts = tern_llama_defaults();
    opts.vocab_size = WORDS;
    opts.hidden_size = WIDTH;
    opts.intermediate_size = WIDTH + 3;
    opts.num_hidden_layers = 2;
    opts.num_attention_heads = HEADS;
    opts.num_key_value_heads = 1;
    opts.max_position_embeddings = LENGTH;
    opts.tie_word_embeddings = true;
    opts.attention_bias = opts.mlp_bias = true;
    return tern_llama_new(&opts, w->rng, &w->err);
}

static tern_module *make_bert(world *w)
{
    tern_bert_opts opts = tern_bert_defaults();
    opts.vocab_size = WORDS;
    opts.hidden_size = WIDTH;
    opts.intermediate_size = WIDTH + 3;
    opts.num_hidden_layers = 2;
    opts.num_attention_heads = HEADS;
    opts.max_position_embeddings = LENGTH;
    return tern_bert_new(&opts, w->rng, &w->err);
}

static tern_module *make_vit(world *w)
{
    tern_vit_opts opts = tern_vit_defaults();
    opts.in_channels = opts.layers = 2;
    opts.classes = 3;
    opts.image_size = 8;
    opts.patch_size = 4;
    opts.heads = HEADS;
    opts.hidden_dim = opts.mlp_dim = WIDTH;
    return tern_vit_new(&opts, w->rng, &w->err);
}

static int run_step(world *w, tern_module *model)
{
    tern_tensor *tokens = tern_tensor_from(w->scope, NULL, TERN_I64, 2, (int64_t[]){2, LENGTH});
    return backward_and_end(w, tern_language_model_loss(model, w->scope, tokens, NULL, NULL));
}

/* ---- replaced forwards ---- */

static tern_tensor *return_input(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    (void)scope;
    return x;
}

static int replace_forwards(tern_module *module, const char *kind)
{
    int count = !strcmp(module->kind, kind);
    if (count) module->forward = return_input;
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        count += replace_forwards(child->module, kind);
    return count;
}

/* A part whose forward was replaced is called by it. It would not see a mask, so that is an error. */
static void a_replaced_forward_is_called(void **state)
{
    static const char *const kinds[] = {"gpt2_attention", "gpt2_block", "gpt2_body"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        world w = open_world();
        tern_module *model = make_gpt2(&w);
        assert_true(replace_forwards(model, kinds[i]) > 0);
        tern_tensor *tokens = tern_tensor_from(w.scope, NULL, TERN_I64, 2, (int64_t[]){2, LENGTH});
        tern_tensor *hidden = tern_language_model_hidden(model, w.scope, tokens);
        assert_non_null(hidden);
        if (i == 2) assert_ptr_equal(hidden, tokens);
        tern_language_model_call_opts call = tern_language_model_call_defaults();
        call.attention_mask = tokens;
        assert_null(tern_language_model_forward(model, w.scope, tokens, &call));
        assert_int_equal(tern_scope_error(w.scope)->code, TERN_E_INVALID);
        assert_non_null(strstr(tern_scope_error(w.scope)->text, "with its own forward"));
        tern_module_free(model);
        close_world(&w);
    }
}

/* ---- generation ---- */

/* Two tokens of padding and one, and then one token after the other, as far as the cache goes. Returns the
 * first error's code. */
static int generate(world *w, tern_module *model, tern_kv_cache *cache)
{
    static const int64_t masks[2][LENGTH] = {{0, 0, 1, 1, 1}, {1, 1, 1, 1, 1}};
    int code = TERN_OK;
    tern_language_model_call_opts call = tern_language_model_call_defaults();
    call.cache = cache;
    call.logits_to_keep = 1;
    tern_grad_enabled_set(w->scope, false);
    for (int64_t past = 0, tokens = 3; past < LENGTH && !code; past += tokens, tokens = 1) {
        tern_tensor *mask = tern_tensor_from(w->scope, masks, TERN_I64, 2, (int64_t[]){2, LENGTH});
        tern_tensor *x = tern_tensor_from(w->scope, NULL, TERN_I64, 2, (int64_t[]){2, tokens});
        call.attention_mask = tern_slice(w->scope, mask, 1, 0, past + tokens, 1);
        tern_tensor *logits = tern_language_model_forward(model, w->scope, x, &call);
        tern_error err = {0};
        int64_t length = tern_kv_cache_length(cache);
        code = tern_scope_end(w->scope, &err);
        assert_int_equal(code == TERN_OK, logits != NULL);
        assert_int_equal(length, logits ? past + tokens : past);
    }
    tern_grad_enabled_set(w->scope, true);
    return code;
}

static void a_warm_call_with_a_cache_allocates_nothing(void **state)
{
    counter count = {0};
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &count});
    world w = open_world();
    tern_module *model = ((const whole_step *)*state)->make(&w);
    tern_kv_cache *cache = tern_kv_cache_new(model, 2, LENGTH, &w.err);
    assert_ok(w.err);
    int warm = 0;
    for (int i = 0; i < 4; i++) {
        tern_kv_cache_reset(cache);
        assert_int_equal(generate(&w, model, cache), TERN_OK);
        if (i == 1) warm = count.calls;
    }
    assert_int_equal(count.calls, warm);
    tern_kv_cache_free(cache);
    tern_module_free(model);
    close_world(&w);
    tern__allocator_replace(NULL);
}

static int generate_once(world *w, tern_module *model)
{
    tern_error err = {0};
    tern_kv_cache *cache = tern_kv_cache_new(model, 2, LENGTH, &err);
    int code = cache ? generate(w, model, cache) : err.code;
    tern_kv_cache_free(cache);
    return code;
}

static void a_call_with_a_cache_tells_out_of_memory(void **state)
{
    assert_true(expect_out_of_memory_to_be_told(((const whole_step *)*state)->make, generate_once) > 10);
}

/* ---- folders ---- */

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about;
    (void)kind;
    (void)place;
    return remove(path);
}

/* Writes a model in shards and opens it. Returns the first error's code. */
static int write_and_open(make_fn make, const char *folder, int shards)
{
    tern_error err = {0};
    world w = {.rng = tern_rng_new(1, &err)};
    tern_pretrained_save_opts opts = tern_pretrained_save_defaults();
    if (shards) opts.max_shard_bytes = 700;
    tern_module *made = w.rng ? make(&w) : NULL, *opened = NULL;
    if (made && !tern_pretrained_save(made, folder, &opts, &err))
        opened = tern_pretrained_open(folder, NULL, &err);
    int code = w.err.code ? w.err.code : err.code;
    assert_true(opened || code);
    tern_module_free(opened);
    tern_module_free(made);
    tern_rng_free(w.rng);
    return code;
}

static void folders_tell_out_of_memory(void **state)
{
    make_fn make = *state;
    char folder[] = "/tmp/tern-language-XXXXXX";
    assert_non_null(mkdtemp(folder));
    for (int shards = 0; shards < 2; shards++) {
        int code = TERN_E_MEMORY, failures = 0;
        for (int at = 1; code == TERN_E_MEMORY; at += 13, failures++) { /* each time a folder is written */
            ledger books = {.refuse_at = at, .refuse_all = true};
            ledger_open(&books);
            code = write_and_open(make, folder, shards);
            ledger_close(&books);
        }
        assert_int_equal(code, TERN_OK);
        assert_true(failures > 10);
    }
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static whole_step gpt2 = {make_gpt2, run_step, 20}, llama = {make_llama, run_step, 20};

/* A process that fills more than there is would be killed. */
static void more_than_the_machine_has_is_an_error(void **state)
{
    (void)state;
    tern_error err = {0}, other = {0}, third = {0}, fourth = {0}, fifth = {0};
    tern_gpt2_opts wide = tern_gpt2_defaults();
    tern_llama_opts deep = tern_llama_defaults(), far = tern_llama_defaults();
    tern_bert_opts long_one = tern_bert_defaults();
    tern_vit_opts thick = tern_vit_defaults();
    wide.vocab_size = (int64_t)1 << 40;
    deep.num_hidden_layers = 1000000;
    long_one.max_position_embeddings = (int64_t)1 << 40;
    thick.mlp_dim = (int64_t)1 << 40;
    far.max_position_embeddings = (int64_t)1 << 40;
    assert_null(tern_gpt2_new(&wide, NULL, &err));
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_non_null(strstr(err.text, "of memory"));
    assert_null(tern_llama_new(&deep, NULL, &other));
    assert_int_equal(other.code, TERN_E_MEMORY);
    assert_non_null(strstr(other.text, "of memory"));
    assert_null(tern_bert_new(&long_one, NULL, &third));
    assert_int_equal(third.code, TERN_E_MEMORY);
    assert_non_null(strstr(third.text, "of memory"));
    assert_null(tern_vit_new(&thick, NULL, &fourth));
    assert_int_equal(fourth.code, TERN_E_MEMORY);
    assert_non_null(strstr(fourth.text, "and the machine has"));
    assert_null(tern_llama_new(&far, NULL, &fifth));
    assert_int_equal(fifth.code, TERN_E_MEMORY);
    assert_non_null(strstr(fifth.text, "and the machine has"));
}

/* Another model may be where one was that is gone. */
static void a_cache_knows_its_model(void **state)
{
    (void)state;
    world w = open_world();
    tern_grad_enabled_set(w.scope, false);
    for (int i = 0; i < 20; i++) {
        const int64_t tokens[] = {1, 2};
        tern_language_model_call_opts call = tern_language_model_call_defaults();
        tern_gpt2_opts opts = tern_gpt2_defaults();
        opts.vocab_size = WORDS, opts.n_positions = LENGTH, opts.n_embd = WIDTH, opts.n_head = HEADS;
        opts.n_layer = 1;
        tern_module *model = tern_gpt2_new(&opts, w.rng, &w.err);
        call.cache = tern_kv_cache_new(model, 1, LENGTH, &w.err);
        tern_module_free(model);
        opts.n_layer = 3;
        model = tern_gpt2_new(&opts, w.rng, &w.err);
        assert_ok(w.err);
        tern_tensor *x = tern_tensor_from(w.scope, tokens, TERN_I64, 2, (int64_t[]){1, 2});
        assert_null(tern_language_model_forward(model, w.scope, x, &call));
        assert_int_equal(tern_scope_end(w.scope, NULL), TERN_E_INVALID);
        tern_kv_cache_free(call.cache);
        tern_module_free(model);
    }
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &gpt2),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &gpt2),
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &llama),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &llama),
        cmocka_unit_test_prestate(a_warm_call_with_a_cache_allocates_nothing, &gpt2),
        cmocka_unit_test_prestate(a_call_with_a_cache_tells_out_of_memory, &gpt2),
        cmocka_unit_test_prestate(a_warm_call_with_a_cache_allocates_nothing, &llama),
        cmocka_unit_test_prestate(a_call_with_a_cache_tells_out_of_memory, &llama),
        cmocka_unit_test(a_replaced_forward_is_called),
        cmocka_unit_test_prestate(folders_tell_out_of_memory, make_llama),
        cmocka_unit_test_prestate(folders_tell_out_of_memory, make_bert),
        cmocka_unit_test_prestate(folders_tell_out_of_memory, make_vit),
        cmocka_unit_test(more_than_the_machine_has_is_an_error),
        cmocka_unit_test(a_cache_knows_its_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
