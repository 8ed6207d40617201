/* test_gguf.c - tern_gguf_save: memory that runs out at every place, and arguments. tests/cli/test_gguf.py
 * reads the files, and tests/torch/test_gguf_newest.py reads them by llama.cpp's own package. */
#include "ledger.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/tern_gguf_XXXXXX";
static char model[64], path[64];

/* A small Llama with a tokenizer that was trained on a few words. */
static int folder_make(void **state)
{
    const char *text = "a tern is a tern", *file = "tokenizer.json";
    tern_error err = {0};
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(model, sizeof(model), "%s/model", folder);
    snprintf(path, sizeof(path), "%s/out.gguf", folder);
    tern_llama_opts opts = tern_llama_defaults();
    opts.vocab_size = 270;
    opts.hidden_size = opts.intermediate_size = 32;
    opts.num_hidden_layers = 1;
    opts.num_attention_heads = 2;
    opts.max_position_embeddings = 8;
    opts.rope_scaling = TERN_ROPE_LLAMA3;
    tern_rng *rng = tern_rng_new(1, &err);
    tern_module *llama = tern_llama_new(&opts, rng, &err);
    tern_pretrained_save(llama, model, NULL, &err);
    tern_module_free(llama);
    tern_rng_free(rng);
    assert_ok(err);
    if (!has_part("regex")) return 0;
    tern_tokenizer_train_opts train = tern_tokenizer_train_defaults();
    train.texts = &text;
    train.text_count = 1;
    train.vocab_size = 265;
    tern_tokenizer *tokenizer = tern_tokenizer_train(&train, &err);
    char whole[128];
    snprintf(whole, sizeof(whole), "%s/%s", model, file);
    tern_tokenizer_save(tokenizer, whole, &err);
    tern_tokenizer_free(tokenizer);
    assert_ok(err);
    return 0;
}

static int folder_remove(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

/* The number of names in the folder, "." and ".." included. */
static int count_names(void)
{
    int count = 0;
    DIR *open = opendir(folder);
    assert_non_null(open);
    while (readdir(open)) count++;
    closedir(open);
    return count;
}

static void a_file_is_whole_or_there_is_none(void **state)
{
    int failures = 0;
    (void)state;
    need_part("regex");
    for (int all = 0; all <= 1; all++) {
        bool whole = false;
        for (int at = 1; !whole; at++) {
            ledger books = {.refuse_at = at, .refuse_all = all};
            tern_error err = {0};
            ledger_open(&books);
            int status = tern_gguf_save(model, path, NULL, at % 2 ? &err : NULL);
            whole = atomic_load(&books.requests) < at;
            books.refuse_at = 0;
            if (status) assert_int_equal(status, TERN_E_MEMORY);
            if (at % 2) assert_int_equal(err.code, status);
            if (all) assert_int_equal(!status, whole);
            assert_int_equal(count_names(), status ? 3 : 4);
            if (!status) assert_int_equal(unlink(path), 0);
            failures += status != TERN_OK;
            ledger_close(&books);
        }
    }
    assert_in_range(failures, 300, 20000);
}

static void is_refused(const char *from, const char *to, const tern_gguf_opts *opts, int code,
                       const char *text)
{
    tern_error err = {0};
    assert_int_equal(tern_gguf_save(from, to, opts, &err), code);
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_gguf_save");
    assert_non_null(strstr(err.text, text));
    assert_int_equal(tern_gguf_save(from, to, opts, NULL), code);
    assert_int_equal(count_names(), 3);
}

static void wrong_arguments(void **state)
{
    (void)state;
    tern_gguf_opts opts = tern_gguf_defaults();
    assert_int_equal(opts.type, TERN_GGUF_F16);
    is_refused(NULL, path, NULL, TERN_E_INVALID, "the folder is NULL");
    is_refused(model, NULL, NULL, TERN_E_INVALID, "the path is NULL");
    opts.type = (tern_gguf_type)3;
    is_refused(model, path, &opts, TERN_E_RANGE, "type is 3");
    opts = (tern_gguf_opts){0};
    is_refused(model, path, &opts, TERN_E_INVALID, "size");
    is_refused(folder, path, NULL, TERN_E_IO, "config.json");
}

static void an_error_that_is_set_stays(void **state)
{
    (void)state;
    tern_error err = {.code = TERN_E_IO, .text = "earlier"};
    assert_int_equal(tern_gguf_save(model, path, NULL, &err), TERN_E_IO);
    assert_string_equal(err.text, "earlier");
    assert_int_equal(count_names(), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_whole_or_there_is_none),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(an_error_that_is_set_stays),
    };
    if (choose_plugins()) return 1;
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
