/* test_tokenizer.c - tokenizers: trained ones encode as a plain search for the next merge does, and what
 * they encode is decoded to itself, also token by token; byte_fallback; added tokens; files that are damaged
 * or have parts that tern does not have. tests/torch/test_tokenizer_newest.py compares with `tokenizers`. */
#include "check.h"
#include "ledger.h"
#include "text_files.h"

#include <unistd.h>

static ledger books;
static char folder[] = "/tmp/tern_tokenizer_XXXXXX";

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void file_write(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* Writes a text of words that return, blanks, digits and characters of all planes; at most `room` bytes. */
static size_t random_text(tern_rng *rng, char *text, size_t room)
{
    static const char *const words[] = {"the ",      "tern",    " sea", "'ll",     "\n\n",
                                        "   ",       "1234567", "\t",   "<|end|>", "\xe6\xb5\xb7",
                                        "e\xcc\x81", " ing",    "\r\n"};
    size_t bytes = 0, wanted = below(rng, (uint32_t)room - 16);
    while (bytes < wanted) {
        uint32_t code = below(rng, 0x110000);
        if (below(rng, 8) || code >> 11 == 0x1b) {
            const char *word = words[below(rng, TERN__COUNT(words))];
            bytes += (size_t)sprintf(text + bytes, "%s", word);
        } else
            bytes += (size_t)tern__utf8_write(code, text + bytes);
    }
    return bytes;
}

static tern_tokenizer *train(tern_rng *rng, int64_t vocab_size)
{
    enum { TEXTS = 40, ROOM = 2000 };
    static char memory[TEXTS][ROOM];
    const char *texts[TEXTS], *special = "<|end|>";
    size_t bytes[TEXTS];
    tern_error err = {0};
    for (int i = 0; i < TEXTS; i++) {
        texts[i] = memory[i];
        bytes[i] = random_text(rng, memory[i], ROOM);
    }
    tern_tokenizer_train_opts opts = tern_tokenizer_train_defaults();
    opts.texts = texts;
    opts.text_bytes = bytes;
    opts.text_count = TEXTS;
    opts.vocab_size = vocab_size;
    opts.special_tokens = &special;
    opts.special_count = 1;
    tern_tokenizer *made = tern_tokenizer_train(&opts, &err);
    assert_ok(err);
    return made;
}

/* What is encoded is decoded to itself, as a whole and token by token. */
static void texts_come_back(void **state)
{
    enum { ROOM = 4000 };
    char text[ROOM];
    tern_token_ids ids = {0};
    tern_text whole = {0}, piece = {0}, all = {0};
    tern_error err = {0};
    (void)state;
    need_part("regex");
    tern_rng *rng = rng_new(1);
    tern_tokenizer *t = train(rng, 700);
    tern_decode_opts keep = tern_decode_defaults();
    keep.skip_special_tokens = false;
    tern_decode_stream *stream = tern_decode_stream_new(t, &keep, &err);
    assert_ok(err);
    tern_tokenizer_decode(t, NULL, 0, &keep, &whole, &err);
    assert_string_equal(whole.text, "");
    for (int i = 0; i < 100; i++) {
        size_t bytes = random_text(rng, text, ROOM);
        encode(t, text, bytes, &ids);
        tern_tokenizer_decode(t, ids.ids, ids.count, &keep, &whole, &err);
        assert_ok(err);
        assert_int_equal(whole.bytes, bytes);
        assert_memory_equal(whole.text, text, bytes);
        all.bytes = 0;
        for (int64_t k = 0; k <= ids.count; k++) {
            int status = k < ids.count ? tern_decode_stream_step(stream, ids.ids[k], &piece, &err)
                                       : tern_decode_stream_end(stream, &piece, &err);
            assert_int_equal(status, TERN_OK);
            assert_int_equal(tern__utf8_check(piece.text, piece.bytes), -1);
            assert_int_equal(tern__text_add(&all, piece.text, piece.bytes, "test", &err), TERN_OK);
        }
        assert_int_equal(all.bytes, bytes);
        assert_memory_equal(all.text, text, bytes);
    }
    tern_decode_stream_free(stream);
    tern_token_ids_free(&ids);
    tern_text_free(&whole);
    tern_text_free(&piece);
    tern_text_free(&all);
    tern_tokenizer_free(t);
    tern_rng_free(rng);
}

/* Of a word of letters every pair is looked at before each merge. The rank of a merge is that of its token,
 * since training gives ids in the order of merges. */
static void merges_are_in_the_order_of_training(void **state)
{
    enum { LETTERS = 300 };
    tern_token_ids ids = {0};
    (void)state;
    need_part("regex");
    tern_rng *rng = rng_new(2);
    tern_tokenizer *t = train(rng, 400);
    for (int round = 0; round < 200; round++) {
        char word[LETTERS + 1];
        char parts[LETTERS][32];
        int count = 1 + (int)below(rng, round % 2 ? 12 : LETTERS);
        for (int i = 0; i < count; i++) sprintf(parts[i], "%c", word[i] = "thernsaig"[below(rng, 9)]);
        encode(t, word, (size_t)count, &ids);
        for (;;) {
            int best = -1;
            int32_t lowest = INT32_MAX;
            for (int i = 0; i + 1 < count; i++) {
                char pair[64];
                snprintf(pair, sizeof(pair), "%s%s", parts[i], parts[i + 1]);
                int32_t id = tern_tokenizer_id(t, pair);
                if (id >= 0 && id < lowest) lowest = id, best = i;
            }
            if (best < 0) break;
            char joined[64];
            snprintf(joined, sizeof(joined), "%s%s", parts[best], parts[best + 1]);
            snprintf(parts[best], sizeof(parts[best]), "%.31s", joined);
            for (int i = best + 1; i + 1 < count; i++) strcpy(parts[i], parts[i + 1]);
            count--;
        }
        assert_int_equal(ids.count, count);
        for (int i = 0; i < count; i++) assert_string_equal(tern_tokenizer_token(t, ids.ids[i]), parts[i]);
    }
    tern_token_ids_free(&ids);
    tern_tokenizer_free(t);
    tern_rng_free(rng);
}

/* Saved and opened again, and on several threads: the same ids. A call that has seen such a text allocates
 * nothing. */
static void files_and_threads(void **state)
{
    enum { TEXTS = 60, ROOM = 3000 };
    static char memory[TEXTS][ROOM];
    const char *texts[TEXTS];
    size_t bytes[TEXTS];
    tern_token_ids ids = {0}, all[TEXTS] = {{0}};
    tern_error err = {0};
    (void)state;
    need_part("regex");
    tern_rng *rng = rng_new(3);
    tern_tokenizer *made = train(rng, 600);
    tern_tokenizer_save(made, path_of("tokenizer.json"), &err);
    tern_tokenizer *t = tern_tokenizer_open(folder, &err);
    assert_ok(err);
    assert_int_equal(tern_tokenizer_size(t), 600);
    assert_int_equal(tern_tokenizer_id(t, "<|end|>"), 0);
    assert_int_equal(tern_tokenizer_special(t, TERN_TOKEN_EOS), -1);
    for (int i = 0; i < TEXTS; i++) {
        texts[i] = memory[i];
        bytes[i] = random_text(rng, memory[i], ROOM);
    }
    tern_encode_opts opts = tern_encode_defaults();
    opts.threads = 3;
    tern_tokenizer_encode_batch(t, texts, bytes, TEXTS, &opts, all, &err);
    assert_ok(err);
    for (int i = 0; i < TEXTS; i++) {
        encode(made, texts[i], bytes[i], &ids);
        assert_int_equal(ids.count, all[i].count);
        assert_memory_equal(ids.ids, all[i].ids, (size_t)ids.count * sizeof(*ids.ids));
        int before = atomic_load(&books.requests);
        encode(made, texts[i], bytes[i], &ids);
        assert_int_equal(atomic_load(&books.requests), before);
        tern_token_ids_free(&all[i]);
    }
    unlink(path_of("tokenizer.json"));
    tern_token_ids_free(&ids);
    tern_tokenizer_free(t);
    tern_tokenizer_free(made);
    tern_rng_free(rng);
}

/* The example of the Unicode standard, section 3.9, table 3-8, and what is cut off at the end. */
static void broken_bytes(void **state)
{
    static const char broken[] = "a\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64\xed\xa0\x80\xf0\x9f\x98";
    static const char mended[] =
        "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x62\xef\xbf\xbd\x63\xef\xbf\xbd\xef\xbf\xbd\x64"
        "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd";
    tern_token_ids ids = {0};
    tern_text text = {0};
    tern_error err = {0};
    (void)state;
    need_part("regex");
    tern_rng *rng = rng_new(4);
    tern_tokenizer *t = train(rng, 300);
    encode(t, broken, sizeof(broken) - 1, &ids);
    tern_tokenizer_decode(t, ids.ids, ids.count, NULL, &text, &err);
    assert_ok(err);
    assert_string_equal(text.text, mended);
    tern_token_ids_free(&ids);
    tern_text_free(&text);
    tern_tokenizer_free(t);
    tern_rng_free(rng);
}

/* A file as Llama 2's, which needs no regular expression: characters without a token are written as bytes. */
static void byte_fallback(void **state)
{
    enum { ROOM = 1 << 15 };
    char json[ROOM], byte[8];
    (void)state;
    int at =
        snprintf(json, ROOM,
                 "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true,\"normalized\":false}],"
                 "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                 "\"\xe2\x96\x81\"},"
                 "{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
                 "\"},\"content\":\"\xe2\x96\x81\"}]},\"pre_tokenizer\":null,"
                 "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                 "\"<s>\",\"type_id\":0}},"
                 "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\","
                 "\"ids\":[1],\"tokens\":[\"<s>\"]}}},"
                 "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
                 "\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},"
                 "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
                 "\",\"start\":1,\"stop\":0}]},"
                 "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"fuse_unk\":"
                 "true,\"merges\":[[\"a\",\"b\"],\"\xe2\x96\x81 ab\"],"
                 "\"vocab\":{\"<unk>\":0,\"<s>\":1,\"\xe2\x96\x81\":2,\"a\":3,\"b\":4,\"ab\":5,\"\xe2\x96\x81"
                 "ab\":6");
    for (int b = 0; b < 256; b++) at += snprintf(json + at, ROOM - (size_t)at, ",\"<0x%02X>\":%d", b, 7 + b);
    snprintf(json + at, ROOM - (size_t)at, "}}}");
    file_write("llama.json", json);
    tern_error err = {0};
    tern_tokenizer *t = tern_tokenizer_open(path_of("llama.json"), &err);
    assert_ok(err);
    tern_token_ids ids = {0};
    tern_text text = {0};
    static const int32_t want[] = {1, 6, 2, 3, 7 + 0xe6, 7 + 0xb5, 7 + 0xb7, 5};
    encode(t,
           "ab a\xe6\xb5\xb7"
           "ab",
           9, &ids);
    assert_int_equal(ids.count, TERN__COUNT(want));
    assert_memory_equal(ids.ids, want, sizeof(want));
    tern_tokenizer_decode(t, ids.ids, ids.count, NULL, &text, &err);
    assert_string_equal(text.text, "ab a\xe6\xb5\xb7"
                                   "ab");
    tern_tokenizer_decode(t, NULL, 0, NULL, &text, &err);
    assert_string_equal(text.text, "");
    tern_tokenizer_decode(t, want + 4, 2, NULL, &text, &err); /* bytes of which no character comes */
    assert_string_equal(text.text, "\xef\xbf\xbd\xef\xbf\xbd");
    snprintf(byte, sizeof(byte), "<0x%02X>", 0xe6);
    assert_int_equal(tern_tokenizer_id(t, byte), 7 + 0xe6);
    assert_int_equal(tern_tokenizer_special(t, TERN_TOKEN_UNK), 0);
    assert_null(tern_tokenizer_token(t, 999));
    tern_token_ids_free(&ids);
    tern_text_free(&text);
    tern_tokenizer_free(t);
    unlink(path_of("llama.json"));
}

#define FILE_OF(parts)                                                                                       \
    "{" parts "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}"

/* Damaged files, and parts that tern does not have: the error names them. */
static void refused_files(void **state)
{
    static const struct {
        const char *json, *text;
    } files[] = {
        {"", "is not JSON"},
        {"[]", "is not a JSON object"},
        {"{}", "model without a type"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}", "model WordLevel: tern does not have it"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "\"vocab\" is not a list"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1],[\"b\"]]}}", "token 1 has no score"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1],7]}}", "token 1 has no score"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]],\"vocab\":[[\"a\",-1],[\"b\",-2]]}}",
         "there are two vocabularies"},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",-1]]}}",
         "an unk_id that is not in the vocabulary"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false},"
         "\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}",
         "model WordPiece: tern does not have it after ByteLevel"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":[]}}", "\"vocab\" is not an object"},
        {"{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"x\",\"vocab\":{\"a\":0}}}",
         "an unk_token that is not in the vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", "\"vocab\" is not an object"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "\"merges\" is not a list"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}", "expected an integer from 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "expected an integer from 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
         "token \"b\" has id 0, which another token has"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}",
         "merge 0 is not two tokens"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]}}", "expected a string"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a a\"],"
         "\"merges\":[\"a a\",\"a a\",\"a a\",\"a a\",\"a a\",\"a a\",\"a a\",\"a a\"]}}",
         "there are two lists of merges"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
         "merge 0: token \"b\" is not in the vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"],"
         "\"continuing_subword_prefix\":\"##\"}}",
         "merge 0 is not two tokens"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"x\"}}",
         "an unk_token that is not in the vocabulary"},
        {FILE_OF("\"normalizer\":{\"type\":\"Precompiled\"},"),
         "normalizer Precompiled: tern does not have this precompiled_charsmap"},
        {FILE_OF("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAA=\"},"),
         "normalizer Precompiled: tern does not have this precompiled_charsmap"},
        {FILE_OF("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"ByteLevel\"}]},"),
         "normalizer ByteLevel: tern does not have it"},
        {FILE_OF("\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},"), "pre_tokenizer UnicodeScripts"},
        {FILE_OF("\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\"},"), "no delimiter"},
        {FILE_OF("\"decoder\":{\"type\":\"CTC\"},"), "decoder CTC"},
        {FILE_OF("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},"
                 "{\"type\":\"WordPiece\",\"prefix\":\"##\"}]},"),
         "decoder WordPiece: tern does not have this form of it"},
        {FILE_OF("\"post_processor\":{\"type\":\"X\\u001b\"},"), "post_processor X\\x1b"},
        {FILE_OF("\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",7],\"sep\":[\"b\",1]},"),
         "no token has id 7"},
        {FILE_OF("\"added_tokens\":[{\"content\":\"x\"}],"), "an added token has no id or no content"},
        {FILE_OF("\"added_tokens\":[{\"id\":1,\"content\":\"x\"}],"),
         "token \"x\" has id 1, which another token has"},
        {FILE_OF("\"added_tokens\":[{\"id\":2000000000,\"content\":\"x\"}],"),
         "token \"x\" has id 2000000000"},
    };
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(files); i++) {
        tern_error err = {0};
        file_write("refused.json", files[i].json);
        assert_null(tern_tokenizer_open(path_of("refused.json"), &err));
        if (err.code != TERN_E_FORMAT || !strstr(err.text, files[i].text))
            fail_msg("%s: %d, %s", files[i].json, err.code, err.text);
    }
    unlink(path_of("refused.json"));
    tern_error err = {0};
    assert_null(tern_tokenizer_open(path_of("nothing.json"), &err));
    assert_int_equal(err.code, TERN_E_IO);
    err = (tern_error){0};
    assert_null(tern_tokenizer_open(folder, &err));
    assert_int_equal(err.code, TERN_E_IO);
    assert_non_null(strstr(err.text, "has no tokenizer.json"));
}

/* A text passes through them by recursion, so a file must not have any number of them. */
static void many_pre_tokenizers(void **state)
{
    (void)state;
    for (int count = 256; count <= 257; count++) {
        tern_error err = {0};
        tern_token_ids ids = {0};
        FILE *file = fopen(path_of("many.json"), "w");
        assert_non_null(file);
        fputs("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[", file);
        for (int i = 0; i < count; i++)
            fprintf(file, "%s{\"type\":\"Metaspace\",\"replacement\":\"a\",\"split\":false}", i ? "," : "");
        fprintf(file, "]},%s", &FILE_OF("")[1]);
        assert_int_equal(fclose(file), 0);
        tern_tokenizer *t = tern_tokenizer_open(path_of("many.json"), &err);
        assert_int_equal(err.code, count == 256 ? TERN_OK : TERN_E_FORMAT);
        if (t) encode(t, " b", 2, &ids);
        if (t) assert_true(ids.count == 1 && ids.ids[0] == 2);
        if (!t) assert_non_null(strstr(err.text, "many.json has more than 256 pre_tokenizers"));
        tern_token_ids_free(&ids);
        tern_tokenizer_free(t);
    }
    unlink(path_of("many.json"));
}

static void refused_special_tokens(void **state)
{
    static const struct {
        const char *token, *text;
    } all[] = {{"", "special token 1 is empty"}, {"<\xff>", "special token 1 is not UTF-8"}};
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(all); i++) {
        const char *tokens[] = {"<s>", all[i].token};
        tern_error err = {0};
        tern_tokenizer_train_opts opts = tern_tokenizer_train_defaults();
        opts.special_tokens = tokens;
        opts.special_count = 2;
        assert_null(tern_tokenizer_train(&opts, &err));
        assert_int_equal(err.code, TERN_E_INVALID);
        assert_non_null(strstr(err.text, all[i].text));
    }
}

/* Expressions that mean something else in PCRE2. */
static void refused_expressions(void **state)
{
    static const struct {
        const char *expression, *text;
        int code;
    } all[] = {{"[a[bc]]", "a class in a class", TERN_E_UNSUPPORTED},
               {"[a&&b]", "an intersection of classes", TERN_E_UNSUPPORTED},
               {"a{1,3}+", "a repeat of a counted repeat", TERN_E_UNSUPPORTED},
               {"[\\\\W]", "in a class", TERN_E_UNSUPPORTED},
               {"(a", "parenthesis", TERN_E_FORMAT}};
    (void)state;
    need_part("regex");
    for (size_t i = 0; i < TERN__COUNT(all); i++) {
        char json[512];
        tern_error err = {0};
        snprintf(json, sizeof(json),
                 FILE_OF("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":"
                         "\"Isolated\"},"),
                 all[i].expression);
        file_write("regex.json", json);
        assert_null(tern_tokenizer_open(path_of("regex.json"), &err));
        if (err.code != all[i].code || !strstr(err.text, all[i].text))
            fail_msg("%s: %d, %s", json, err.code, err.text);
    }
    unlink(path_of("regex.json"));
}

/* Without the plug-in the error says what is missing, and files without expressions are read. */
static void without_the_plug_in(void **state)
{
    char before[512];
    tern_error err = {0};
    (void)state;
    if (!has_part("regex")) {
        tern_tokenizer_train_opts opts = tern_tokenizer_train_defaults();
        const char *text = "a";
        opts.texts = &text;
        opts.text_count = 1;
        assert_null(tern_tokenizer_train(&opts, &err));
        assert_int_equal(err.code, TERN_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "libpcre2-dev"));
    }
    snprintf(before, sizeof(before), "%s", getenv("TERN_PLUGIN_PATH"));
    setenv("TERN_PLUGIN_PATH", "/nowhere", 1);
    file_write("plain.json", FILE_OF("\"pre_tokenizer\":null,"));
    err = (tern_error){0};
    tern_tokenizer *t = tern_tokenizer_open(path_of("plain.json"), &err);
    assert_ok(err);
    tern_tokenizer_free(t);
    setenv("TERN_PLUGIN_PATH", before, 1);
    unlink(path_of("plain.json"));
}

static void refused_options(void **state)
{
    static const char *const text = "a";
    static const struct {
        tern_tokenizer_train_opts opts;
        int code;
    } all[] = {{{.texts = &text, .text_count = 1, .vocab_size = 255}, TERN_E_RANGE},
               {{.texts = &text, .text_count = -1, .vocab_size = 300}, TERN_E_RANGE},
               {{.text_count = 1, .vocab_size = 300}, TERN_E_INVALID},
               {{.texts = &text, .text_count = 1, .vocab_size = 300, .special_count = 1}, TERN_E_INVALID}};
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(all); i++) {
        tern_error err = {0};
        tern_tokenizer_train_opts opts = all[i].opts;
        opts.size = sizeof(opts);
        assert_null(tern_tokenizer_train(&opts, &err));
        assert_int_equal(err.code, all[i].code);
    }
}

static int set_up(void **state)
{
    tern_allocator allocator = {ledger_alloc, ledger_free, &books};
    (void)state;
    if (tern_allocator_set(&allocator, NULL) || !mkdtemp(folder)) return -1;
    return choose_plugins();
}

static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(atomic_load(&books.live), 0);
    return rmdir(folder);
}

/* ---- texts that are cut ---- */

/* Opens a trained tokenizer with other parts, which replace those of its file. */
static tern_tokenizer *open_with(const tern_tokenizer *trained, const char *parts)
{
    tern_error err = {0};
    cJSON *file = cJSON_Parse(trained->json), *others = cJSON_Parse(parts);
    assert_non_null(others);
    while (others->child) {
        cJSON *part = cJSON_DetachItemViaPointer(others, others->child);
        if (!strcmp(part->string, "added")) {
            cJSON_AddItemToArray(cJSON_GetObjectItem(file, "added_tokens"), part);
        } else {
            cJSON_DeleteItemFromObject(file, part->string);
            cJSON_AddItemToObject(file, part->string, part);
        }
    }
    char *text = cJSON_PrintUnformatted(file);
    file_write("cut.json", text);
    cJSON_free(text);
    cJSON_Delete(others);
    cJSON_Delete(file);
    tern_tokenizer *made = tern_tokenizer_open(path_of("cut.json"), &err);
    assert_ok(err);
    unlink(path_of("cut.json"));
    return made;
}

#define BYTES "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define SEQUENCE(list)                                                                                       \
    "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" list ", " BYTES "]}}"
#define SPLIT(text)                                                                                          \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" text "\"}, \"behavior\": \"Isolated\"}"
#define WORDS(digits)                                                                                        \
    SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}" digits             \
          "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")
#define DEEPSEEK                                                                                             \
    SPLIT("\\\\p{N}{1,3}")                                                                                   \
    ", " SPLIT("[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+") ", " SPLIT( \
        "[!\\\"#$%&'()*+,\\\\-./"                                                                            \
        ":;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}"         \
        "\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")
#define METASPACE(more)   "{\"type\": \"Metaspace\", \"replacement\": \"" more "}"
#define ADDED(text, more) "{\"added\": {\"id\": 900, \"content\": \"" text "\"" more "}}"

/* Cut at every place where it may be cut, a text has the same ids. */
static void parts_have_the_ids_of_the_text(void **state)
{
    static const char *const parts[] = {
        "{}",
        SEQUENCE(WORDS("{1,3}")),
        SEQUENCE(WORDS("")),
        SEQUENCE(DEEPSEEK),
        SEQUENCE("{\"type\": \"Digits\", \"individual_digits\": true}, " WORDS("{1,3}")),
        SEQUENCE("{\"type\": \"Punctuation\", \"behavior\": \"MergedWithPrevious\"}, {\"type\": "
                 "\"Digits\"}, " WORDS("")),
        SEQUENCE("{\"type\": \"Whitespace\"}"),
        SEQUENCE("{\"type\": \"WhitespaceSplit\"}"),
        SEQUENCE("{\"type\": \"BertPreTokenizer\"}"),
        SEQUENCE(METASPACE("\xe2\x96\x81\"")),
        SEQUENCE(METASPACE("e\", \"prepend_scheme\": \"first\"")),
        SEQUENCE(METASPACE("_\", \"prepend_scheme\": \"never\"")),
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true}}",
        ADDED("<s>", ", \"lstrip\": true, \"special\": true"),
        ADDED("  ", ""),
        "{\"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 97], \"sep\": [\"b\", 98]}}",
    };
    enum { ROOM = 4000 };
    char text[ROOM];
    tern_token_ids want = {0}, got[2] = {{0}};
    tern_error err = {0};
    (void)state;
    need_part("regex");
    tern_rng *rng = rng_new(6);
    tern_tokenizer *trained = train(rng, 700);
    for (size_t k = 0; k < TERN__COUNT(parts); k++) {
        tern_tokenizer *t = open_with(trained, parts[k]);
        if (t->part_bytes == SIZE_MAX) fail_msg("%s: texts are not cut", parts[k]);
        for (int i = 0; i < 60; i++) {
            size_t bytes = random_text(rng, text, ROOM), places = 0;
            if (i % 3 == 0 && bytes) text[below(rng, (uint32_t)bytes)] = (char)0xe6; /* not UTF-8 */
            for (size_t at = 0; (at = tern__split_place(text, bytes, at)) < bytes; at++) places++;
            t->part_bytes = 1 + below(rng, 40);
            encode(t, text, bytes, &want);
            assert_true(bytes < 200 || places > 0);
            tern_tokenizer_encode_batch(t, (const char *[]){text, text}, (size_t[]){bytes, bytes / 2}, 2,
                                        NULL, got, &err);
            assert_ok(err);
            if (got[0].count != want.count ||
                (want.count && memcmp(got[0].ids, want.ids, (size_t)want.count * 4)))
                fail_msg("%s: other ids for \"%.*s\"", parts[k], (int)bytes, text);
            encode(t, text, bytes / 2, &want);
            assert_int_equal(got[1].count, want.count);
            if (want.count) assert_memory_equal(got[1].ids, want.ids, (size_t)want.count * 4);
        }
        tern_tokenizer_free(t);
    }
    tern_token_ids_free(&want);
    tern_token_ids_free(&got[0]);
    tern_token_ids_free(&got[1]);
    tern_tokenizer_free(trained);
    tern_rng_free(rng);
}

/* Memory that runs out at every place. */
static void parts_without_memory(void **state)
{
    enum { ROOM = 600 };
    char text[ROOM];
    tern_encode_opts opts = tern_encode_defaults();
    (void)state;
    need_part("regex");
    tern_rng *rng = rng_new(8);
    bool whole = false;
    size_t bytes = random_text(rng, text, ROOM);
    opts.threads = 2;
    tern_tokenizer *t = train(rng, 300);
    t->part_bytes = 20;
    for (int at = 1; !whole; at++) {
        tern_error err = {0};
        tern_token_ids ids = {0};
        int live = atomic_load(&books.live);
        books.refuse_at = atomic_load(&books.requests) + at;
        tern_tokenizer_encode_batch(t, (const char *[]){text}, &bytes, 1, &opts, &ids, &err);
        whole = atomic_load(&books.requests) < books.refuse_at;
        books.refuse_at = 0;
        if (err.code) assert_int_equal(err.code, TERN_E_MEMORY);
        if (whole) assert_ok(err);
        tern_token_ids_free(&ids);
        assert_in_range(atomic_load(&books.live), live, live + 20); /* what calls use stays in the pool */
    }
    tern_tokenizer_free(t);
    tern_rng_free(rng);
}

/* Where it is not sure that a word ends. */
static void texts_that_are_not_cut(void **state)
{
    static const char *const parts[] = {
        "{\"pre_tokenizer\": " BYTES "}",
        SEQUENCE(SPLIT("x+")),
        SEQUENCE("{\"type\": \"Digits\"}"),
        SEQUENCE(METASPACE("_\", \"split\": false")),
        SEQUENCE(METASPACE("ab\"")),
        "{\"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"_\"}}",
        ADDED("the tern", ""),
        ADDED("<s>", ", \"rstrip\": true"),
        ADDED("tern", ", \"single_word\": true"),
    };
    (void)state;
    need_part("regex");
    tern_rng *rng = rng_new(7);
    tern_tokenizer *trained = train(rng, 300);
    for (size_t k = 0; k < TERN__COUNT(parts); k++) {
        tern_tokenizer *t = open_with(trained, parts[k]);
        if (t->part_bytes != SIZE_MAX) fail_msg("%s: texts are cut", parts[k]);
        tern_tokenizer_free(t);
    }
    tern_tokenizer_free(trained);
    tern_rng_free(rng);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_come_back),        cmocka_unit_test(merges_are_in_the_order_of_training),
        cmocka_unit_test(files_and_threads),      cmocka_unit_test(broken_bytes),
        cmocka_unit_test(byte_fallback),          cmocka_unit_test(refused_files),
        cmocka_unit_test(refused_expressions),    cmocka_unit_test(without_the_plug_in),
        cmocka_unit_test(refused_options),        cmocka_unit_test(many_pre_tokenizers),
        cmocka_unit_test(refused_special_tokens), cmocka_unit_test(parts_have_the_ids_of_the_text),
        cmocka_unit_test(parts_without_memory),   cmocka_unit_test(texts_that_are_not_cut),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
