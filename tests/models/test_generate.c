/* test_generate.c - texts beside a plain loop without a cache; the choice of a token beside sorted
 * probabilities, drawn often enough for a chi-square test; the end of texts, errors, memory;
 * generation_config.json. tests/torch compares with transformers. */
#include "ledger.h"
#include "nn/nn.h"
#include "ops/world.h"

#include <math.h>

/* ---- choosing ---- */

static tern_rng *new_rng(uint64_t seed)
{
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(seed, &err);
    assert_ok(err);
    return rng;
}

static int64_t below(tern_rng *rng, int64_t n)
{
    return (int64_t)(tern_rng_u64(rng) >> 1) % n;
}

static int32_t choose(const float *logits, int64_t n, const int32_t *history, int64_t count,
                      const tern_generate_opts *opts)
{
    tern_error err = {0};
    int32_t id = -1;
    float *copy = memcpy(malloc((size_t)n * sizeof(*copy)), logits, (size_t)n * sizeof(*copy));
    tern_generate_choose(copy, n, history, count, opts, &id, &err);
    assert_ok(err);
    free(copy);
    return id;
}

static void the_most_probable_is_chosen(void **state)
{
    (void)state;
    tern_rng *rng = new_rng(1);
    float logits[1003];
    for (int round = 0; round < 200; round++) {
        int64_t n = 1 + below(rng, 1003), best = 0;
        for (int64_t i = 0; i < n; i++) logits[i] = (float)(below(rng, 41) - 30) / 4; /* with equal ones */
        for (int64_t i = 0; i < n; i++) best = logits[i] > logits[best] ? i : best;
        assert_int_equal(choose(logits, n, NULL, 0, NULL), best);
    }
    assert_int_equal(choose((float[]){-INFINITY, -0.0f, 0.0f, -1}, 4, NULL, 0, NULL), 1);
    tern_rng_free(rng);
}

static void logits_that_are_not_finite_are_an_error(void **state)
{
    (void)state;
    const float bad[][3] = {{0, NAN, 1}, {0, -NAN, 1}, {1, INFINITY, 2}, {-INFINITY, -INFINITY, -INFINITY}};
    const char *const text[] = {"the logit of token 1 is ", "the logit of token 1 is ",
                                "the logit of token 1 is inf", "the logits of all tokens are -infinity"};
    tern_generate_opts opts = tern_generate_defaults();
    for (int i = 0; i < 8; i++) {
        tern_error err = {0};
        float logits[3];
        int32_t id = 7;
        memcpy(logits, bad[i / 2], sizeof(logits));
        opts.do_sample = i % 2;
        assert_int_equal(tern_generate_choose(logits, 3, NULL, 0, &opts, &id, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.text, text[i / 2]));
        assert_int_equal(id, 7);
    }
    tern_error err = {0};
    float large[] = {1e38f, 0};
    int32_t id;
    opts.temperature = 1e-3;
    assert_int_equal(tern_generate_choose(large, 2, NULL, 0, &opts, &id, &err), TERN_E_FORMAT);
    assert_string_equal(err.text, "the logits overflow at a temperature of 0.001");
}

/* ---- the distribution ---- */

typedef struct ranked {
    double logit;
    int64_t id;
} ranked;

/* Ascending, and equal ones from the last id on. */
static int compare_ranked(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? -1 : 1;
    return x->id > y->id ? -1 : 1;
}

/* Fills p with the probabilities of all tokens, by sorting. */
static void probabilities(const float *logits, int64_t n, const int32_t *history, int64_t count,
                          const tern_generate_opts *o, double *p)
{
    ranked *r = malloc((size_t)n * sizeof(*r));
    double sum = 0, kept = 0, below_it = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = logits[i];
        bool is_there = false;
        for (int64_t h = 0; h < count; h++) is_there |= history[h] == i;
        if (is_there) x = x < 0 ? x * (float)o->repetition_penalty : x / (float)o->repetition_penalty;
        r[i] = (ranked){(double)(x / (float)o->temperature), i};
    }
    qsort(r, (size_t)n, sizeof(*r), compare_ranked);
    double top = r[n - 1].logit, least = o->top_k && o->top_k < n ? r[n - o->top_k].logit : -(double)INFINITY;
    for (int64_t i = 0; i < n; i++) {
        p[r[i].id] = r[i].logit < least ? 0 : exp(r[i].logit - top);
        sum += p[r[i].id];
    }
    for (int64_t i = 0; i < n && o->top_p < 1; i++) {
        below_it += p[r[i].id] / sum;
        if (below_it <= 1 - o->top_p && i < n - 1) p[r[i].id] = 0;
    }
    for (int64_t i = 0; i < n; i++) kept += p[i];
    for (int64_t i = 0; i < n; i++) p[i] /= kept;
    free(r);
}

/* Draws and compares the counts. Tokens of less than 5 expected draws are counted together. The sum of
 * squares is chi-square distributed with the cells - 1 degrees of freedom; six standard deviations above its
 * mean it is in less than one of a million tests. */
static void check_draws(const float *logits, int64_t n, const int32_t *history, int64_t count,
                        const tern_generate_opts *opts, int64_t draws)
{
    double *p = malloc((size_t)n * sizeof(*p)), chi = 0, rest_p = 0, rest = 0;
    int64_t *counts = calloc((size_t)n, sizeof(*counts)), cells = 0;
    probabilities(logits, n, history, count, opts, p);
    for (int64_t d = 0; d < draws; d++) counts[choose(logits, n, history, count, opts)]++;
    for (int64_t i = 0; i < n; i++) {
        double expected = p[i] * (double)draws, off = (double)counts[i] - expected;
        if (p[i] == 0 && counts[i])
            fail_msg("token %lld was drawn, and is not to be: n %lld, temperature %g, top_k %lld, top_p %g, "
                     "penalty %g",
                     (long long)i, (long long)n, opts->temperature, (long long)opts->top_k, opts->top_p,
                     opts->repetition_penalty);
        if (expected >= 5) {
            chi += off * off / expected;
            cells++;
        } else {
            rest_p += expected;
            rest += (double)counts[i];
        }
    }
    if (rest_p >= 5) {
        chi += (rest - rest_p) * (rest - rest_p) / rest_p;
        cells++;
    }
    double freedom = (double)TERN__MAX(cells - 1, 0);
    if (chi > freedom + 6 * sqrt(2 * freedom) + 9)
        fail_msg("chi-square %g of %lld cells: n %lld, temperature %g, top_k %lld, top_p %g, penalty %g", chi,
                 (long long)cells, (long long)n, opts->temperature, (long long)opts->top_k, opts->top_p,
                 opts->repetition_penalty);
    free(counts);
    free(p);
}

static void draws_have_the_exact_probabilities(void **state)
{
    (void)state;
    static const double temperatures[] = {1, 0.7, 2.5}, top_ps[] = {1, 0.9, 0.5, 0.01},
                        penalties[] = {1, 1.3, 0.8};
    tern_rng *rng = new_rng(2);
    tern_generate_opts opts = tern_generate_defaults();
    opts.do_sample = true;
    opts.rng = rng;
    float logits[3000];
    int32_t history[40];
    for (int round = 0; round < 120; round++) {
        int64_t n = round % 10 ? 1 + below(rng, 60) : 2000 + below(rng, 1000), count = below(rng, 40);
        bool has_ties = round % 3 == 0;
        tern_rng_normal(rng, logits, (size_t)n, 0, 2);
        for (int64_t i = 0; i < n && has_ties; i++) logits[i] = roundf(logits[i]);
        for (int64_t i = 0; i < count; i++) history[i] = (int32_t)below(rng, n);
        opts.temperature = temperatures[below(rng, 3)];
        opts.top_k = below(rng, 2) ? 0 : 1 + below(rng, n + 3);
        opts.top_p = top_ps[below(rng, 4)];
        opts.repetition_penalty = penalties[below(rng, 3)];
        check_draws(logits, n, history, count, &opts, 2000);
    }
    tern_rng_free(rng);
}

/* Equal tokens, of which top_p keeps the first; tokens beyond a set of the penalty. */
static void many_tokens(void **state)
{
    (void)state;
    enum { N = 200000 };
    tern_rng *rng = new_rng(3);
    tern_generate_opts opts = tern_generate_defaults();
    float *logits = calloc(N, sizeof(*logits));
    opts.do_sample = true;
    opts.rng = rng;
    opts.top_k = 0;
    opts.top_p = 0.25;
    for (int i = 0; i < 50; i++) {
        int32_t id = choose(logits, N, NULL, 0, &opts);
        assert_true(id < N / 4);
        opts.top_k = i % 2 ? 0 : 17; /* equal ones are all among the top 17 */
    }
    opts = tern_generate_defaults();
    opts.repetition_penalty = 2;
    const int32_t history[] = {199999, 65536, 65535, 70000, 70000};
    for (int i = 0; i < N; i++) logits[i] = 1;
    for (int i = 0; i < 4; i++) logits[history[i]] = 1.5f + (float)i / 8;
    logits[5] = 1.1f;
    assert_int_equal(choose(logits, N, history, 4, &opts), 5);
    logits[70000] = 2.4f; /* halved once, though it is there twice */
    assert_int_equal(choose(logits, N, history, 5, &opts), 70000);
    free(logits);
    tern_rng_free(rng);
}

static void the_same_seed_draws_the_same(void **state)
{
    (void)state;
    float logits[] = {1, 2, 3, 2.5f, 1};
    tern_generate_opts opts = tern_generate_defaults();
    opts.do_sample = true;
    int32_t first = choose(logits, 5, NULL, 0, &opts); /* without a generator: that of seed 0 each time */
    opts.rng = new_rng(0);
    assert_int_equal(choose(logits, 5, NULL, 0, &opts), first);
    tern_rng_free(opts.rng);
}

/* ---- options ---- */

static void refuse(tern_generate_opts opts, int code, const char *text)
{
    tern_error err = {0};
    float logits[] = {1, 2};
    int32_t id;
    assert_int_equal(tern_generate_choose(logits, 2, NULL, 0, &opts, &id, &err), code);
    assert_string_equal(err.text, text);
}

static void options_are_checked(void **state)
{
    (void)state;
    tern_generate_opts opts = tern_generate_defaults(), o = opts;
    opts.do_sample = true;
    o = opts, o.temperature = 0;
    refuse(o, TERN_E_RANGE,
           "temperature is 0, expected more than 0 (do_sample = false takes the most probable token)");
    o = opts, o.temperature = NAN;
    refuse(o, TERN_E_RANGE, "temperature is nan, expected more than 0");
    o = opts, o.top_p = 2;
    refuse(o, TERN_E_RANGE, "top_p is 2, expected more than 0 and at most 1");
    o = opts, o.top_p = 0;
    refuse(o, TERN_E_RANGE, "top_p is 0, expected more than 0 and at most 1");
    o = opts, o.repetition_penalty = -1;
    refuse(o, TERN_E_RANGE, "repetition_penalty is -1, expected more than 0");
    o = opts, o.top_k = -1;
    refuse(o, TERN_E_RANGE,
           "max_new_tokens is 20, expected at least 1; max_length 0, top_k -1 and eos_count 0, expected at "
           "least 0");
    o = opts, o.eos_count = 1;
    refuse(o, TERN_E_INVALID, "the array of eos_ids is NULL");
    tern_error err = {0}, other = {0}, third = {0};
    float logits[] = {1, 2};
    int32_t id, far = 2;
    assert_int_equal(tern_generate_choose(logits, 2, &far, 1, NULL, &id, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "token 0 of the text is 2, and the model's vocabulary has 2 tokens");
    assert_int_equal(tern_generate_choose(NULL, 2, NULL, 0, NULL, &id, &other), TERN_E_INVALID);
    assert_int_equal(tern_generate_choose(logits, 0, NULL, 0, NULL, &id, &third), TERN_E_RANGE);
}

/* ---- texts ---- */

enum { WORDS = 211, LENGTH = 160 };

static tern_module *scattered(world *w, tern_module *model)
{
    for (int i = 0; i < tern_state_count(model); i++) {
        tern_tensor *tensor = tern_state_get(model, i).tensor;
        if (tensor->view.ndim == 2) tern_init_normal(tensor, 0, 0.2, w->rng, &w->err);
    }
    assert_ok(w->err);
    return model;
}

static tern_module *make_gpt2(world *w)
{
    tern_gpt2_opts opts = tern_gpt2_defaults();
    opts.vocab_size = WORDS, opts.n_positions = LENGTH, opts.n_embd = 36, opts.n_layer = 2, opts.n_head = 3;
    return tern_gpt2_new(&opts, w->rng, &w->err);
}

static tern_module *make_untied_gpt2(world *w)
{
    tern_gpt2_opts opts = tern_gpt2_defaults();
    opts.vocab_size = WORDS, opts.n_positions = LENGTH, opts.n_embd = 24, opts.n_layer = 3, opts.n_head = 2;
    opts.tie_word_embeddings = false;
    return tern_gpt2_new(&opts, w->rng, &w->err);
}

static tern_module *make_llama(world *w)
{
    tern_llama_opts opts = tern_llama_defaults();
    opts.vocab_size = WORDS, opts.hidden_size = 48, opts.intermediate_size = 40, opts.num_hidden_layers = 2;
    opts.num_attention_heads = 6, opts.num_key_value_heads = 2, opts.max_position_embeddings = LENGTH;
    return tern_llama_new(&opts, w->rng, &w->err);
}

static const make_fn makes[] = {make_gpt2, make_untied_gpt2, make_llama};

static tern_token_ids prompt_of(const int32_t *ids, int64_t count)
{
    tern_token_ids prompt = {0};
    tern_error err = {0};
    prompt.ids = tern__alloc((size_t)TERN__MAX(count, 1) * sizeof(*ids), "prompt", &err);
    assert_ok(err);
    memcpy(prompt.ids, ids, (size_t)count * sizeof(*ids));
    prompt.count = prompt.room = count;
    return prompt;
}

/* The logits of the whole text each time. */
static void plain_step(world *w, tern_module *model, int32_t *ids, int64_t count,
                       const tern_generate_opts *opts)
{
    float logits[WORDS];
    tern_language_model_call_opts call = tern_language_model_call_defaults();
    call.logits_to_keep = 1;
    tern_tensor *x = tern_tensor_from(w->scope, ids, TERN_I32, 2, (int64_t[]){1, count});
    tern_tensor *y = tern_language_model_forward(model, w->scope, x, &call);
    assert_int_equal(tern_tensor_read(y, logits, sizeof(logits), &w->err), TERN_OK);
    ids[count] = choose(logits, WORDS, ids, count, opts);
    assert_int_equal(tern_scope_end(w->scope, &w->err), TERN_OK);
}

static void texts_are_those_of_a_plain_loop(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        world w = open_world();
        tern_module *model = scattered(&w, makes[i % 3](&w));
        tern_eval(model);
        tern_generate_opts opts = tern_generate_defaults();
        int32_t plain[LENGTH + 2] = {3, 17, 5, 3, 100, 7, 201};
        int64_t count = 1 + 2 * (i / 3);
        opts.max_new_tokens = 110;
        opts.do_sample = i % 2;
        opts.repetition_penalty = i % 4 < 2 ? 1 : 1.2;
        tern_token_ids ids = prompt_of(plain, count);
        opts.rng = new_rng(5);
        assert_int_equal(tern_generate(model, w.scope, &ids, &opts, &w.err), TERN_OK);
        assert_ok(w.err);
        assert_int_equal(ids.count, count + 110);
        tern_rng_seed(opts.rng, 5);
        for (int64_t at = count; at < ids.count; at++) plain_step(&w, model, plain, at, &opts);
        assert_memory_equal(plain, ids.ids, (size_t)ids.count * sizeof(*plain));
        tern_rng_free(opts.rng);
        tern_token_ids_free(&ids);
        tern_module_free(model);
        close_world(&w);
    }
}

/* Turns of a chat: each prompt begins like the text before it, by some tokens or all, and goes on otherwise.
 * With a cache the texts are those without one. */
static void a_cache_goes_on_with_a_text(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        world w = open_world();
        tern_module *model = scattered(&w, makes[i % 3](&w));
        tern_generate_opts opts = tern_generate_defaults(), kept = opts;
        kept.cache = tern_kv_cache_new(model, 1, 1 + below(w.rng, 30), &w.err);
        tern_token_ids text = prompt_of((int32_t[]){3, 17, 5}, 3);
        for (int turn = 0; turn < 6; turn++) {
            int64_t known = turn ? below(w.rng, text.count + 1) : 0, count = TERN__MIN(known, LENGTH - 40);
            int32_t ids[LENGTH];
            memcpy(ids, text.ids, (size_t)count * sizeof(*ids));
            for (int64_t more = 1 + below(w.rng, 20); more--;) ids[count++] = (int32_t)below(w.rng, WORDS);
            tern_token_ids alone = prompt_of(ids, count), on = prompt_of(ids, count);
            opts.max_new_tokens = kept.max_new_tokens = 1 + below(w.rng, 15);
            int64_t common = 0, most = tern_kv_cache_length(kept.cache);
            while (common < TERN__MIN(most, count) && text.ids[common] == ids[common]) common++;
            assert_int_equal(tern_kv_cache_crop(kept.cache, common, &w.err), TERN_OK);
            assert_int_equal(tern_generate(model, w.scope, &alone, &opts, &w.err), TERN_OK);
            assert_int_equal(tern_generate(model, w.scope, &on, &kept, &w.err), TERN_OK);
            assert_int_equal(on.count, alone.count);
            assert_memory_equal(on.ids, alone.ids, (size_t)on.count * sizeof(*on.ids));
            assert_int_equal(tern_kv_cache_length(kept.cache), on.count - 1);
            tern_token_ids_free(&alone);
            tern_token_ids_free(&text);
            text = on;
        }
        text.count--; /* a prompt that the cache has as a whole */
        assert_int_equal(tern_generate(model, w.scope, &text, &kept, &w.err), TERN_OK);
        assert_ok(w.err);
        tern_token_ids_free(&text);
        tern_kv_cache_free(kept.cache);
        tern_module_free(model);
        close_world(&w);
    }
}

static void caches_are_refused(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = make_gpt2(&w), *other = make_gpt2(&w);
    tern_token_ids ids = prompt_of((int32_t[]){1, 2}, 2);
    tern_generate_opts opts = tern_generate_defaults();
    const struct {
        const tern_module *of;
        int64_t batch;
    } all[] = {{other, 1}, {model, 2}};
    for (int i = 0; i < 2; i++) {
        tern_error err = {0};
        opts.cache = tern_kv_cache_new(all[i].of, all[i].batch, 5, &err);
        assert_int_equal(tern_generate(model, w.scope, &ids, &opts, &err), TERN_E_INVALID);
        assert_string_equal(err.text, "kv_cache: it was made for another model, or for several sequences");
        tern_kv_cache_free(opts.cache);
    }
    tern_kv_cache *cache = tern_kv_cache_new(model, 1, 5, &w.err);
    tern_error err[4] = {0};
    assert_int_equal(tern_kv_cache_crop(cache, 1, &err[0]), TERN_E_RANGE);
    assert_string_equal(err[0].text, "kv_cache: expected 0 to its 0 tokens, got 1");
    assert_int_equal(tern_kv_cache_crop(cache, -1, NULL), TERN_E_RANGE);
    assert_int_equal(tern_kv_cache_crop(NULL, 0, &err[1]), TERN_E_INVALID);
    assert_int_equal(tern_kv_cache_reserve(cache, LENGTH + 1, &err[2]), TERN_E_RANGE);
    assert_string_equal(err[2].text,
                        "kv_cache: expected max_tokens up to the model's 160 positions, got 161");
    assert_int_equal(tern_kv_cache_reserve(NULL, 1, &err[3]), TERN_E_INVALID);
    assert_int_equal(tern_kv_cache_reserve(cache, LENGTH, &w.err), TERN_OK);
    tern_kv_cache_free(cache);
    tern_token_ids_free(&ids);
    tern_module_free(other);
    tern_module_free(model);
    close_world(&w);
}

typedef struct listener {
    const counter *count;
    int64_t tokens, most;
    int32_t last;
    int calls_at[LENGTH + 2];
} listener;

static bool on_token(void *context, int32_t id)
{
    listener *l = context;
    l->last = id;
    if (l->count) l->calls_at[l->tokens] = l->count->calls;
    return ++l->tokens != l->most;
}

static void texts_end(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = scattered(&w, make_gpt2(&w));
    const int32_t prompt[] = {3, 17, 5};
    tern_generate_opts opts = tern_generate_defaults();
    listener l = {.most = 7};
    opts.on_token = on_token, opts.context = &l, opts.max_new_tokens = 50;
    opts.do_sample = true, opts.top_k = 0;
    tern_token_ids ids = prompt_of(prompt, 3);
    assert_int_equal(tern_generate(model, w.scope, &ids, &opts, &w.err), TERN_OK); /* by the callback */
    assert_int_equal(ids.count, 10);
    assert_int_equal(ids.ids[9], l.last);
    int32_t eos[] = {WORDS - 1, ids.ids[6]};
    l.most = 0;
    opts.eos_ids = eos, opts.eos_count = 2;
    ids.count = 3;
    assert_int_equal(tern_generate(model, w.scope, &ids, &opts, &w.err), TERN_OK); /* by a token */
    assert_true(ids.count <= 7 && ids.ids[ids.count - 1] == eos[1]);
    opts.eos_count = 0, opts.max_length = 12;
    ids.count = 3;
    assert_int_equal(tern_generate(model, w.scope, &ids, &opts, &w.err), TERN_OK); /* by max_length */
    assert_int_equal(ids.count, 12);
    opts.max_length = 0, opts.max_new_tokens = INT64_MAX;
    ids.count = 3;
    assert_int_equal(tern_generate(model, w.scope, &ids, &opts, &w.err), TERN_OK); /* by the context */
    assert_int_equal(ids.count, LENGTH + 1);
    ids.count = LENGTH;
    assert_int_equal(tern_generate(model, w.scope, &ids, &opts, &w.err),
                     TERN_OK); /* a prompt that fills it */
    assert_int_equal(ids.count, LENGTH + 1);
    tern_token_ids_free(&ids);
    tern_module_free(model);
    close_world(&w);
}

static void expect_refused(world *w, tern_module *model, tern_token_ids *ids, const tern_generate_opts *opts,
                           int code, const char *text)
{
    tern_error err = {0};
    int64_t count = ids->count;
    assert_int_equal(tern_generate(model, w->scope, ids, opts, &err), code);
    assert_string_equal(err.text, text);
    assert_int_equal(ids->count, count);
    assert_int_equal(tern_generate(model, w->scope, ids, opts, NULL), code);
}

static void texts_are_refused(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = make_gpt2(&w), *mlp = tern_mlp_new((int64_t[]){4, 3}, 2, w.rng, &w.err);
    int32_t prompt[LENGTH + 1] = {3, WORDS, -1};
    tern_generate_opts opts = tern_generate_defaults();
    tern_token_ids ids = prompt_of(prompt, LENGTH + 1);
    assert_ok(w.err);
    ids.count = 2;
    expect_refused(&w, model, &ids, NULL, TERN_E_RANGE,
                   "token 1 of the text is 211, and the model's vocabulary has 211 tokens");
    ids.ids[1] = -1;
    expect_refused(&w, model, &ids, NULL, TERN_E_RANGE,
                   "token 1 of the text is -1, and the model's vocabulary has 211 tokens");
    ids.count = 0;
    expect_refused(&w, model, &ids, NULL, TERN_E_INVALID, "the prompt is empty, expected at least one token");
    memset(ids.ids, 0, sizeof(prompt));
    ids.count = LENGTH + 1;
    expect_refused(&w, model, &ids, NULL, TERN_E_RANGE,
                   "the prompt has 161 tokens, and the model's longest context is 160");
    ids.count = 5;
    opts.max_length = 5;
    expect_refused(&w, model, &ids, &opts, TERN_E_RANGE,
                   "the prompt has 5 tokens, and max_length is 5: give max_new_tokens");
    expect_refused(&w, mlp, &ids, NULL, TERN_E_INVALID, "expected a language model, got sequential");
    expect_refused(&w, NULL, &ids, NULL, TERN_E_INVALID, "expected a language model, got NULL");
    tern_tensor_from(w.scope, prompt, TERN_I32, 1, (int64_t[]){3});
    expect_refused(&w, model, &ids, NULL, TERN_E_STATE,
                   "the scope has work: end its step first (tern_scope_end)");
    tern_scope_end(w.scope, NULL);
    tern_error err = {0}, other = {0};
    assert_int_equal(tern_generate(model, NULL, &ids, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_generate(model, w.scope, NULL, NULL, &other), TERN_E_INVALID);
    tern_token_ids_free(&ids);
    tern_module_free(mlp);
    tern_module_free(model);
    close_world(&w);
}

/* A model whose weights have become NaN. */
static void a_broken_model_is_told(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = make_llama(&w);
    tern_error err = {0};
    tern_token_ids ids = prompt_of((int32_t[]){1, 2}, 2);
    tern_init_constant(tern_state_find(model, "lm_head.weight"), (double)NAN, &err);
    assert_ok(err);
    assert_int_equal(tern_generate(model, w.scope, &ids, NULL, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.text, "the logit of token 0 is "));
    assert_int_equal(ids.count, 2);
    tern_token_ids_free(&ids);
    tern_module_free(model);
    close_world(&w);
}

/* Some modules train and some do not, and gradients are recorded: so it is afterwards. */
static void the_mode_is_restored(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = make_gpt2(&w);
    tern_token_ids ids = prompt_of((int32_t[]){1, 2}, 2);
    tern_module *half = model->tree->children->module;
    tern_eval(half);
    tern_generate_opts opts = tern_generate_defaults();
    opts.max_new_tokens = 3;
    assert_int_equal(tern_generate(model, w.scope, &ids, &opts, &w.err), TERN_OK);
    assert_true(model->training);
    assert_false(half->training);
    assert_false(half->tree->children->module->training);
    assert_true(half->tree->next->module->training);
    assert_true(tern_grad_enabled_set(w.scope, true));
    tern_token_ids_free(&ids);
    tern_module_free(model);
    close_world(&w);
}

/* ---- memory ---- */

static void a_warm_token_allocates_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        counter count = {0};
        tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &count});
        world w = open_world();
        tern_module *model = makes[i](&w);
        listener l = {.count = &count};
        tern_generate_opts opts = tern_generate_defaults();
        opts.max_new_tokens = 100, opts.on_token = on_token, opts.context = &l;
        opts.do_sample = i > 0, opts.top_p = 0.9, opts.repetition_penalty = 1.1;
        tern_token_ids ids = prompt_of((int32_t[]){1, 2, 3}, 3);
        assert_int_equal(tern_generate(model, w.scope, &ids, &opts, &w.err), TERN_OK);
        assert_int_equal(l.tokens, 100);
        assert_int_equal(l.calls_at[99], l.calls_at[2]);
        tern_token_ids_free(&ids);
        tern_module_free(model);
        close_world(&w);
        tern__allocator_replace(NULL);
    }
}

static int generate_once(world *w, tern_module *model)
{
    tern_error err = {0};
    tern_generate_opts opts = tern_generate_defaults();
    tern_token_ids ids = {0};
    opts.do_sample = true, opts.max_new_tokens = 4;
    ids.ids = tern__alloc(2 * sizeof(*ids.ids), "prompt", &err);
    if (!ids.ids) return err.code;
    ids.count = ids.room = 2;
    int code = tern_generate(model, w->scope, &ids, &opts, &err);
    assert_int_equal(code, err.code);
    tern_token_ids_free(&ids);
    return code;
}

static void out_of_memory_is_told(void **state)
{
    (void)state;
    assert_true(expect_out_of_memory_to_be_told(make_gpt2, generate_once) > 10);
}

/* ---- generation_config.json ---- */

static char folder[] = "/tmp/tern-generate-XXXXXX";

static void file_write(const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (!text) {
        unlink(path);
        return;
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void a_config_is_read(void **state)
{
    (void)state;
    tern_generation_config c;
    tern_error err = {0};
    assert_non_null(mkdtemp(folder));
    assert_int_equal(tern_generation_config_open(folder, &c, &err), TERN_OK); /* there are no files */
    tern_generate_opts none = tern_generate_defaults();
    assert_memory_equal(&c.opts, &none, sizeof(none));
    file_write("config.json", "{\"eos_token_id\": 5, \"do_sample\": true}");
    assert_int_equal(tern_generation_config_open(folder, &c, &err), TERN_OK);
    assert_true(c.opts.eos_count == 1 && c.opts.eos_ids[0] == 5 && !c.opts.do_sample);
    tern_generation_config_free(&c);
    file_write(
        "generation_config.json",
        "{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 7, \"top_p\": 0.9, \"max_length\": 4096, "
        "\"repetition_penalty\": 1.1, \"eos_token_id\": [128001, 9], \"num_beams\": 1, \"min_p\": null, "
        "\"suppress_tokens\": [], \"transformers_version\": \"5.0\", \"use_cache\": true}");
    assert_int_equal(tern_generation_config_open(folder, &c, &err), TERN_OK);
    const tern_generate_opts *o = &c.opts;
    assert_true(o->do_sample && o->temperature == 0.6 && o->top_k == 7 && o->top_p == 0.9);
    assert_true(o->repetition_penalty == 1.1 && o->max_length == 4096 && o->max_new_tokens == 20);
    assert_true(o->eos_count == 2 && o->eos_ids[0] == 128001 && o->eos_ids[1] == 9);
    tern_generation_config_free(&c);
    file_write("generation_config.json", "{\"max_length\": 4096, \"max_new_tokens\": 30}");
    assert_int_equal(tern_generation_config_open(folder, &c, &err), TERN_OK);
    assert_true(c.opts.max_length == 0 && c.opts.max_new_tokens == 30 && c.opts.eos_ids[0] == 5);
    tern_generation_config_free(&c);
}

static void configs_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *said;
    } bad[] = {
        {"{\"num_beams\": 4}", TERN_E_UNSUPPORTED, "\"num_beams\" is 4, which tern does not have"},
        {"{\"do_sample\": true, \"min_p\": 0.1}", TERN_E_UNSUPPORTED, "\"min_p\" is 0.1, which"},
        {"{\"bad_words_ids\": [[3]]}", TERN_E_UNSUPPORTED, "\"bad_words_ids\" is [[3]], which"},
        {"{\"do_sample\": true, \"temperature\": 0}", TERN_E_RANGE, "temperature is 0, expected more than 0"},
        {"{\"do_sample\": true, \"top_p\": 2}", TERN_E_RANGE, "top_p is 2, expected"},
        {"{\"do_sample\": 1}", TERN_E_FORMAT, "\"do_sample\" is not true or false"},
        {"{\"top_k\": 1.5}", TERN_E_FORMAT, "\"top_k\" is not an integer"},
        {"{\"temperature\": \"hot\"}", TERN_E_FORMAT, "\"temperature\" is not a number"},
        {"{\"eos_token_id\": -1}", TERN_E_FORMAT, "\"eos_token_id\" is not a token's id or a list of them"},
        {"{\"eos_token_id\": [1, \"x\"]}", TERN_E_FORMAT, "\"eos_token_id\" is not a token's id"},
        {"{\"eos_token_id\": ", TERN_E_FORMAT, "is not JSON"},
        {"[]", TERN_E_FORMAT, "is not a JSON object"},
    };
    for (size_t i = 0; i < TERN__COUNT(bad); i++) {
        tern_generation_config c;
        tern_error err = {0};
        file_write("generation_config.json", bad[i].text);
        assert_int_equal(tern_generation_config_open(folder, &c, &err), bad[i].code);
        assert_non_null(strstr(err.text, bad[i].said));
        assert_non_null(strstr(err.text, "generation_config.json"));
        assert_null(c.eos_ids);
    }
    tern_generation_config c;
    tern_error err = {0};
    file_write("generation_config.json", "{\"min_p\": 0.1}"); /* it draws nothing */
    assert_int_equal(tern_generation_config_open(folder, &c, &err), TERN_OK);
    tern_generation_config_free(&c);
    file_write("generation_config.json", NULL);
    file_write("config.json", NULL);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_probable_is_chosen),
        cmocka_unit_test(logits_that_are_not_finite_are_an_error),
        cmocka_unit_test(draws_have_the_exact_probabilities),
        cmocka_unit_test(many_tokens),
        cmocka_unit_test(the_same_seed_draws_the_same),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(texts_are_those_of_a_plain_loop),
        cmocka_unit_test(a_cache_goes_on_with_a_text),
        cmocka_unit_test(caches_are_refused),
        cmocka_unit_test(texts_end),
        cmocka_unit_test(texts_are_refused),
        cmocka_unit_test(a_broken_model_is_told),
        cmocka_unit_test(the_mode_is_restored),
        cmocka_unit_test(a_warm_token_allocates_nothing),
        cmocka_unit_test(out_of_memory_is_told),
        cmocka_unit_test(a_config_is_read),
        cmocka_unit_test(configs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
