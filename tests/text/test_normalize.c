/* test_normalize.c - normalizers: characters whose normal forms and lower cases are known, what Unicode
 * says about forms of any text, and texts that are normalized in parts.
 * tests/torch/test_tokenizer_newest.py compares with `tokenizers`. */
#include "text_files.h"

#define BPE "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"

/* Returns what a normalizer makes of a text, for the caller to free. */
static tern_text normalized(const char *normalizer, const char *text, size_t bytes)
{
    char json[1024];
    tern_error err = {0};
    tern_text out = {0};
    snprintf(json, sizeof(json), "{\"normalizer\":%s," BPE, normalizer);
    tern_tokenizer *t = tokenizer_of(json);
    tern__encoding *e = tern__encoding_open(t, "test", &err);
    assert_non_null(e);
    assert_int_equal(tern__normalize(e, &text, &bytes), TERN_OK);
    assert_int_equal(tern__text_add(&out, text, bytes, "test", &err), TERN_OK);
    tern__encoding_close(e);
    tern_tokenizer_free(t);
    return out;
}

#define TYPE(name)   "{\"type\":\"" name "\"}"
#define BERT(fields) "{\"type\":\"BertNormalizer\"," fields "}"

static void known_characters(void **state)
{
    static const struct {
        const char *normalizer, *text, *want;
    } all[] = {
        {TYPE("NFC"), "ae\xcc\x81 \xe2\x84\xab \xef\xac\x81", "a\xc3\xa9 \xc3\x85 \xef\xac\x81"},
        {TYPE("NFD"), "\xc3\xa9x\xea\xb0\x81", "e\xcc\x81x\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8"},
        {TYPE("NFKC"), "\xef\xac\x81\xe2\x91\xa0\xef\xbc\xa1", "fi1A"},
        {TYPE("NFKD"), "\xc2\xbd\xc3\xa9",
         "1\xe2\x81\x84"
         "2e\xcc\x81"},
        {TYPE("NFD"), "a\xcc\x81\xcc\xa3", "a\xcc\xa3\xcc\x81"}, /* marks in their order */
        {TYPE("Lowercase"), "A\xc4\xb0\xc3\x84\xce\xa3Z", "ai\xcc\x87\xc3\xa4\xcf\x83z"},
        {TYPE("StripAccents"), "e\xcc\x81\xcc\xa3x\xe0\xa4\x83", "ex"},
        {TYPE("Nmt"),
         "a\x01\tb\xe2\x80\x8b"
         "c\xef\xbf\xbd",
         "a b c "},
        {TYPE("Strip"), " \t\xe3\x80\x80 a b\xc2\xa0\n", "a b"},
        {"{\"type\":\"Strip\",\"strip_left\":false}", " a ", " a"},
        {"{\"type\":\"Strip\",\"strip_right\":false}", " a ", "a "},
        {TYPE("Strip"), " \n ", ""},
        {BERT("\"lowercase\":true"), "\xc3\x81\x07\xe4\xb8\xad\tZ\xef\xbf\xbd", "a \xe4\xb8\xad  z"},
        {BERT("\"lowercase\":false"), "\xc3\x81Z", "\xc3\x81Z"},
        {BERT("\"lowercase\":false,\"strip_accents\":true"), "\xc3\x81Z", "AZ"},
        {BERT("\"strip_accents\":false"), "\xc3\x81Z", "\xc3\xa1z"},
        {BERT("\"clean_text\":false,\"handle_chinese_chars\":false"), "\x07\xe4\xb8\xad\t",
         "\x07\xe4\xb8\xad\t"},
    };
    (void)state;
    need_part("unicode");
    for (size_t i = 0; i < TERN__COUNT(all); i++) {
        tern_text got = normalized(all[i].normalizer, all[i].text, strlen(all[i].text));
        if (strcmp(got.text, all[i].want)) fail_msg("%s of %zu: \"%s\"", all[i].normalizer, i, got.text);
        tern_text_free(&got);
    }
}

/* A form of a form is that form; composing what was decomposed is composing. */
static void forms_of_any_text(void **state)
{
    enum { ROOM = 500 };
    static const char *const twice[][3] = {{TYPE("NFC"), TYPE("NFC"), TYPE("NFC")},
                                           {TYPE("NFD"), TYPE("NFC"), TYPE("NFC")},
                                           {TYPE("NFC"), TYPE("NFD"), TYPE("NFD")},
                                           {TYPE("NFKD"), TYPE("NFC"), TYPE("NFKC")},
                                           {TYPE("NFC"), TYPE("NFKD"), TYPE("NFKD")}};
    char text[ROOM];
    (void)state;
    need_part("unicode");
    tern_rng *rng = rng_new(1);
    for (int round = 0; round < 200; round++) {
        const char *const *names = twice[round % TERN__COUNT(twice)];
        size_t bytes = planes_write(rng, text, 20 + below(rng, ROOM - 20));
        tern_text first = normalized(names[0], text, bytes);
        tern_text second = normalized(names[1], first.text, first.bytes),
                  want = normalized(names[2], text, bytes);
        assert_int_equal(second.bytes, want.bytes);
        assert_memory_equal(second.text, want.text, want.bytes);
        assert_int_equal(tern__utf8_check(want.text, want.bytes), -1);
        tern_text_free(&first);
        tern_text_free(&second);
        tern_text_free(&want);
    }
    tern_rng_free(rng);
}

static void without_the_plug_in(void **state)
{
    (void)state;
    if (has_part("unicode")) return; /* it may be loaded already */
    tern_error err = {0};
    assert_null(tokenizer_try("{\"normalizer\":" TYPE("NFC") "," BPE, &err));
    assert_int_equal(err.code, TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "libutf8proc-dev"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_characters),
                                       cmocka_unit_test(forms_of_any_text),
                                       cmocka_unit_test(without_the_plug_in)};
    return choose_plugins() ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
