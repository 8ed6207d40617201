/* test_model.c - WordPiece and Unigram beside plain searches, on random vocabularies; texts in parts; memory
 * that runs out while a file is read, and while texts are encoded and decoded. */
#include "ledger.h"
#include "text_files.h"

#include <math.h>

enum { TOKENS_MOST = 64, TOKEN_ROOM = 8, WORD_ROOM = 40 };

/* A vocabulary of short words of a few letters; without the last letter, so that it is unknown. */
typedef struct lexicon {
    char tokens[TOKENS_MOST][TOKEN_ROOM];
    double scores[TOKENS_MOST];
    int count;
} lexicon;

static int lexicon_find(const lexicon *l, const char *text, size_t bytes)
{
    for (int i = 0; i < l->count; i++)
        if (strlen(l->tokens[i]) == bytes && !memcmp(l->tokens[i], text, bytes)) return i;
    return -1;
}

static void word_draw(tern_rng *rng, char *word, uint32_t letters, uint32_t most)
{
    uint32_t length = 1 + below(rng, most);
    for (uint32_t i = 0; i < length; i++) word[i] = (char)('a' + below(rng, letters));
    word[length] = '\0';
}

/* Token 0 is the unknown one. */
static lexicon lexicon_draw(tern_rng *rng, const char *prefix)
{
    lexicon l = {.tokens = {"?"}, .scores = {-1}, .count = 1};
    while (l.count < TOKENS_MOST) {
        char word[TOKEN_ROOM], *at = l.tokens[l.count];
        word_draw(rng, word, 3, 4);
        snprintf(at, TOKEN_ROOM, "%s%s", below(rng, 2) ? prefix : "", word);
        l.scores[l.count] = -(double)below(rng, 1000) / 128;
        if (lexicon_find(&l, at, strlen(at)) == l.count || lexicon_find(&l, at, strlen(at)) < 0) l.count++;
    }
    return l;
}

/* ---- WordPiece ---- */

static tern_tokenizer *wordpiece_of(const lexicon *l, const char *prefix, const char *before)
{
    char json[4096];
    int at =
        snprintf(json, sizeof(json),
                 "{%s\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"?\",\"continuing_subword_prefix\":"
                 "\"%s\",\"max_input_chars_per_word\":12,\"vocab\":{",
                 before, prefix);
    for (int i = 0; i < l->count; i++)
        at += snprintf(json + at, sizeof(json) - (size_t)at, "%s\"%s\":%d", i ? "," : "", l->tokens[i], i);
    snprintf(json + at, sizeof(json) - (size_t)at, "}}}");
    return tokenizer_of(json);
}

/* Tries all ends from the longest one down. Returns how many tokens there are. */
static int longest_first(const lexicon *l, const char *prefix, const char *word, int *ids)
{
    int count = 0;
    size_t bytes = strlen(word);
    for (size_t at = 0, end; at < bytes && bytes <= 12; at = end) {
        int found = -1;
        for (end = bytes; end > at; end--) {
            char piece[2 * WORD_ROOM];
            snprintf(piece, sizeof(piece), "%s%.*s", at ? prefix : "", (int)(end - at), word + at);
            if ((found = lexicon_find(l, piece, strlen(piece))) >= 0) break;
        }
        if (found < 0) bytes = SIZE_MAX;
        ids[count++] = found;
        if (found < 0) break;
    }
    if (bytes <= 12) return count;
    ids[0] = 0;
    return 1;
}

static void wordpiece_takes_the_longest(void **state)
{
    (void)state;
    tern_rng *rng = rng_new(1);
    int known = 0;
    for (int round = 0; round < 20; round++) {
        const char *prefix = round % 3 == 0 ? "##" : round % 3 == 1 ? "b" : "";
        lexicon l = lexicon_draw(rng, prefix);
        tern_tokenizer *t = wordpiece_of(&l, prefix, "");
        tern_token_ids ids = {0};
        for (int i = 0; i < 200; i++) {
            char word[WORD_ROOM];
            int want[WORD_ROOM];
            word_draw(rng, word, 3 + !below(rng, 8), 14);
            int count = longest_first(&l, prefix, word, want);
            encode(t, word, strlen(word), &ids);
            known += want[0] > 0;
            assert_int_equal(ids.count, count);
            for (int k = 0; k < count; k++) assert_int_equal(ids.ids[k], want[k]);
        }
        tern_token_ids_free(&ids);
        tern_tokenizer_free(t);
    }
    assert_in_range(known, 500, 3500);
    tern_rng_free(rng);
}

/* ---- Unigram ---- */

static tern_tokenizer *unigram_of(const lexicon *l, const char *before)
{
    char json[4096];
    int at =
        snprintf(json, sizeof(json), "{%s\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[", before);
    for (int i = 0; i < l->count; i++)
        at += snprintf(json + at, sizeof(json) - (size_t)at, "%s[\"%s\",%.17g]", i ? "," : "", l->tokens[i],
                       l->scores[i]);
    snprintf(json + at, sizeof(json) - (size_t)at, "]}}");
    return tokenizer_of(json);
}

/* Returns the best sum of all ways to cut the word; unknown letters count one by one. */
static double best_of(const lexicon *l, const char *word, double unknown)
{
    double best[WORD_ROOM] = {0};
    size_t bytes = strlen(word);
    for (size_t end = 1; end <= bytes; end++) {
        bool is_token = lexicon_find(l, word + end - 1, 1) >= 0;
        best[end] = is_token ? -(double)INFINITY : best[end - 1] + unknown;
        for (size_t at = 0; at < end; at++) {
            int found = lexicon_find(l, word + at, end - at);
            if (found >= 0) best[end] = fmax(best[end], best[at] + l->scores[found]);
        }
    }
    return best[bytes];
}

static void unigram_has_the_best_sum(void **state)
{
    (void)state;
    tern_rng *rng = rng_new(2);
    int unknown_runs = 0;
    for (int round = 0; round < 20; round++) {
        lexicon l = lexicon_draw(rng, "");
        tern_tokenizer *t = unigram_of(&l, "");
        tern_token_ids ids = {0};
        double unknown = 0;
        for (int i = 0; i < l.count; i++) unknown = fmin(unknown, l.scores[i]);
        unknown -= 10;
        for (int i = 0; i < 200; i++) {
            char word[WORD_ROOM];
            double sum = 0;
            size_t at = 0;
            word_draw(rng, word, 3 + below(rng, 3), 30);
            encode(t, word, strlen(word), &ids);
            for (int64_t k = 0; k < ids.count; k++) {
                const char *token = l.tokens[ids.ids[k]];
                size_t begin = at;
                if (ids.ids[k])
                    at += strlen(token);
                else /* of a run of unknown letters there is one id */
                    while (word[at] && lexicon_find(&l, word + at, 1) < 0 &&
                           (k + 1 == ids.count ||
                            strncmp(word + at, l.tokens[ids.ids[k + 1]], strlen(l.tokens[ids.ids[k + 1]]))))
                        at++;
                if (ids.ids[k]) assert_memory_equal(word + begin, token, at - begin);
                sum += ids.ids[k] ? l.scores[ids.ids[k]] : unknown * (double)(at - begin);
                unknown_runs += !ids.ids[k] && at > begin + 1;
                assert_true(at > begin);
            }
            assert_int_equal(at, strlen(word));
            assert_true(fabs(sum - best_of(&l, word, unknown)) < 1e-9);
        }
        tern_token_ids_free(&ids);
        tern_tokenizer_free(t);
    }
    assert_true(unknown_runs > 50);
    tern_rng_free(rng);
}

static void unknown_characters_without_unk(void **state)
{
    static const struct {
        const char *json, *text;
    } all[] = {{"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}",
                "a character has no token, and the model has no unk_id"},
               {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}",
                "a word has no tokens, and the model has no unk_token"}};
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(all); i++) {
        tern_tokenizer *t = tokenizer_of(all[i].json);
        tern_token_ids ids = {0};
        tern_error err = {0};
        encode(t, "a", 1, &ids);
        assert_int_equal(tern_tokenizer_encode(t, "ab", 2, NULL, &ids, &err), TERN_E_FORMAT);
        assert_string_equal(err.text, all[i].text);
        tern_token_ids_free(&ids);
        tern_tokenizer_free(t);
    }
}

/* ---- parts, memory ---- */

#define BERT                                                                                                 \
    "\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"        \
    "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},"
#define T5                                                                                                   \
    "\"normalizer\":{\"type\":\"NFKC\"},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},"   \
    "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},"

static void parts_have_the_ids_of_the_text(void **state)
{
    enum { ROOM = 4000 };
    char text[ROOM];
    (void)state;
    need_part("regex");
    need_part("unicode");
    tern_rng *rng = rng_new(3);
    for (int i = 0; i < 40; i++) {
        lexicon l = lexicon_draw(rng, i % 2 ? "" : "##");
        tern_tokenizer *t = i % 2 ? unigram_of(&l, T5) : wordpiece_of(&l, "##", BERT);
        tern_token_ids whole = {0}, parts = {0};
        tern_encode_opts opts = tern_encode_defaults();
        tern_error err = {0};
        size_t bytes = planes_write(rng, text, ROOM);
        assert_true(t->part_bytes < SIZE_MAX);
        t->part_bytes = 1 + below(rng, 60);
        opts.threads = 2;
        encode(t, text, bytes, &whole);
        tern_tokenizer_encode_batch(t, (const char *[]){text}, &bytes, 1, &opts, &parts, &err);
        assert_ok(err);
        assert_int_equal(parts.count, whole.count);
        assert_memory_equal(parts.ids, whole.ids, (size_t)whole.count * sizeof(*whole.ids));
        tern_token_ids_free(&whole);
        tern_token_ids_free(&parts);
        tern_tokenizer_free(t);
    }
    tern_rng_free(rng);
}

/* Opens a file, and encodes and decodes a text. */
static int round_trip(const char *json, const char *text, size_t bytes)
{
    tern_error err = {0};
    tern_token_ids ids = {0};
    tern_text back = {0};
    tern_tokenizer *t = tokenizer_try(json, &err);
    if (t) tern_tokenizer_encode(t, text, bytes, NULL, &ids, &err);
    if (!err.code) tern_tokenizer_decode(t, ids.ids, ids.count, NULL, &back, &err);
    tern_text_free(&back);
    tern_token_ids_free(&ids);
    tern_tokenizer_free(t);
    return err.code;
}

static void memory_runs_out(void **state)
{
    enum { ROOM = 200 };
    static const char *const files[] = {
        "{" BERT
        "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"the\":1,\"##a\":2}}}",
        "{" T5 "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"_\",-1],[\"a\",-2]]}}",
        "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAA=\"},\"decoder\":{"
        "\"type\":"
        "\"BPEDecoder\",\"suffix\":\"$\"},\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"$\",\"unk_"
        "token\":"
        "\"?\",\"vocab\":{\"?\":0,\"a\":1,\"a$\":2,\"aa$\":3},\"merges\":[\"a a$\"]}}",
    };
    char text[ROOM];
    ledger books = {0};
    (void)state;
    need_part("regex");
    need_part("unicode");
    tern_rng *rng = rng_new(4);
    size_t bytes = planes_write(rng, text, ROOM);
    ledger_open(&books);
    for (size_t i = 0; i < TERN__COUNT(files); i++) {
        bool whole = false;
        for (int at = 1; !whole; at++) {
            books.refuse_at = atomic_load(&books.requests) + at;
            int code = round_trip(files[i], text, bytes);
            whole = atomic_load(&books.requests) < books.refuse_at;
            books.refuse_at = 0;
            assert_int_equal(code, whole ? TERN_OK : TERN_E_MEMORY);
            assert_int_equal(atomic_load(&books.live), 0);
        }
    }
    ledger_close(&books);
    tern_rng_free(rng);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wordpiece_takes_the_longest),
        cmocka_unit_test(unigram_has_the_best_sum),
        cmocka_unit_test(unknown_characters_without_unk),
        cmocka_unit_test(parts_have_the_ids_of_the_text),
        cmocka_unit_test(memory_runs_out),
    };
    return choose_plugins() ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
