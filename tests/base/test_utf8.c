/* Every code point, encoded by hand, and what is no UTF-8. */
#include "base/utf8.h"
#include "check.h"

#include <string.h>

static size_t encode(uint32_t code, uint8_t out[4])
{
    if (code < 0x80) return out[0] = (uint8_t)code, 1;
    size_t bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = bytes - 1; i > 0; i--, code >>= 6) out[i] = (uint8_t)(0x80 | (code & 0x3f));
    out[0] = (uint8_t)(0xf00u >> bytes | code);
    return bytes;
}

static void every_code_point(void **state)
{
    (void)state;
    uint8_t text[5] = "";
    for (uint32_t code = 0; code < 0x120000; code++) {
        size_t bytes = encode(code, text);
        bool is_character = code <= 0x10ffff && (code < 0xd800 || code >= 0xe000);
        assert_int_equal(tern__utf8_is_valid(text, bytes), is_character);
        if (bytes > 1) assert_false(tern__utf8_is_valid(text, bytes - 1));
        text[bytes] = 0x80;
        assert_false(tern__utf8_is_valid(text, bytes + 1));
    }
}

static void text(void **state)
{
    (void)state;
    static const char *const good[] = {"", "loss", "\xc3\xa9t\xc3\xa9",
                                       "\xe6\x8d\x9f\xe5\xa4\xb1 \xf0\x9f\x8c\x8a"};
    static const char *const bad[] = {"\x80",
                                      "\xc0\xaf",
                                      "\xc1\xbf",
                                      "\xe0\x80\x80",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf8\x88\x80\x80\x80",
                                      "\xff",
                                      "a\xe9",
                                      "\xc3(",
                                      "\xe6\x8d x"};
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        assert_true(tern__utf8_is_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        assert_false(tern__utf8_is_valid(bad[i], strlen(bad[i])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_code_point), cmocka_unit_test(text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
