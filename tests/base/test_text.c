/* test_text.c - untrusted text: every code point, every malformed sequence, and no control characters in
 * escaped text. */
#include "base/text.h"
#include "check.h"

#include <stdio.h>
#include <string.h>

static void every_code_point_is_read_as_it_was_written(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= 0x10ffff; code++) {
        if (code == 0xd800) code = 0xe000;
        char text[4];
        uint32_t read = 0;
        int length = tern__utf8_write(code, text);
        assert_int_equal(length, code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4);
        if (tern__utf8_next(text, (size_t)length, &read) != length || read != code) fail_msg("U+%04x", code);
        for (int cut = 1; cut < length; cut++) assert_int_equal(tern__utf8_next(text, (size_t)cut, &read), 0);
    }
}

/* Table 3-7 of the Unicode standard: both sides of every limit. */
static void what_is_not_utf8_is_found_where_it_is(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int at;
    } cases[] = {
        {"", -1},
        {"a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", -1},
        {"ab\x80", 2},   /* a continuation alone    */
        {"a\xc3", 1},    /* cut                     */
        {"a\xc3z", 1},   /* no continuation         */
        {"\xc0\x80", 0}, /* overlong                */
        {"\xc1\xbf", 0},
        {"\xe0\x9f\xbf", 0},
        {"\xf0\x8f\xbf\xbf", 0},
        {"\xed\xa0\x80", 0}, /* a surrogate             */
        {"\xed\xbf\xbf", 0},
        {"\xed\x9f\xbf", -1},
        {"\xee\x80\x80", -1},
        {"\xf4\x8f\xbf\xbf", -1},
        {"\xf4\x90\x80\x80", 0}, /* above U+10FFFF */
        {"\xf8\x88\x80\x80", 0},
        {"x\xff", 1},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++)
        if (tern__utf8_check(cases[i].text, strlen(cases[i].text)) != cases[i].at) fail_msg("case %zu", i);
}

static void a_terminal_sees_no_control(void **state)
{
    (void)state;
    char out[64];
    static const char text[] = "a\n\x1b[31m\0\x7f\\\xc2\x9b\xe2\x80\xae\xff\xc3\xa4";
    static const char shown[] = "a\\n\\x1b[31m\\x00\\x7f\\\\\\u009b\\u202e\\xff\xc3\xa4";
    assert_int_equal(tern__escape(text, sizeof(text) - 1, out, sizeof(out)), strlen(shown));
    assert_string_equal(out, shown);
    for (int byte = 0; byte < 256; byte++) {
        char one = (char)byte;
        tern__escape(&one, 1, out, sizeof(out));
        for (const char *c = out; *c; c++) assert_in_range((uint8_t)*c, 0x20, 0x7e);
    }
}

static void what_does_not_fit_is_cut_between_characters(void **state)
{
    (void)state;
    char out[16];
    for (size_t room = 1; room < 10; room++) {
        assert_int_equal(tern__escape("\xc3\xa4\n\xc3\xa4x", 6, out, room), 7);
        static const size_t fits[] = {0, 0, 2, 2, 4, 4, 6, 7, 7}; /* cut to room - 1 */
        assert_int_equal(strlen(out), fits[room - 1]);
    }
    assert_int_equal(tern__escape("abc", 3, NULL, 0), 3);
}

static void a_quote_says_that_it_is_cut(void **state)
{
    (void)state;
    char out[TERN__QUOTE_TEXT], text[300];
    assert_string_equal(tern__quote("w\n", 2, out), "\"w\\n\"");
    memset(text, 'x', sizeof(text));
    for (size_t bytes = 0; bytes <= sizeof(text); bytes++) {
        size_t length = strlen(tern__quote(text, bytes, out));
        assert_true(length < TERN__QUOTE_TEXT);
        assert_true(length == bytes + 2 || (bytes > 120 && strcmp(out + length - 5, "x...\"") == 0));
    }
    memset(text, '\n', sizeof(text));
    assert_true(strlen(tern__quote(text, 100, out)) < TERN__QUOTE_TEXT);
    for (size_t bytes = 100; bytes < 140; bytes++) { /* characters of four bytes, cut at every position */
        memset(text, 'x', bytes % 4);
        for (size_t at = bytes % 4; at < bytes; at += 4) memcpy(text + at, "\xf0\x9f\x98\x80", 4);
        const char *quoted = tern__quote(text, bytes, out);
        assert_int_equal(tern__utf8_check(quoted, strlen(quoted)), -1);
        assert_null(strchr(quoted, '\\'));
        assert_int_equal(strlen(quoted) == bytes + 2, bytes < 123);
    }
}

static void an_excerpt_is_no_longer_than_asked(void **state)
{
    (void)state;
    char out[TERN__QUOTE_TEXT];
    for (size_t most = 1; most < 12; most++)
        for (size_t bytes = 0; bytes <= 12; bytes += 2) { /* characters of two bytes */
            static const char text[] = "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4";
            size_t length = strlen(tern__excerpt(text, bytes, most, out)) - 2;
            bool fits = bytes <= most;
            assert_int_equal(length, fits ? bytes : most / 2 * 2 + strlen("..."));
            assert_int_equal(strstr(out, "...") == NULL, fits);
        }
}

/* Characters of one to four bytes, at every distance from the end of the room. */
static void what_is_cut_ends_with_dots(void **state)
{
    (void)state;
    static const char *const characters[] = {"x",    "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                             "\x1b", "\xff"};
    char whole[400], message[64], text[64];
    for (size_t c = 0; c < TERN__COUNT(characters); c++)
        for (size_t before = 0; before < 8; before++) {
            memset(whole, '-', before);
            whole[before] = '\0';
            for (int i = 0; i < 80; i++) strcat(whole, characters[c]);
            tern__message_format(message, sizeof(message), "%s", whole);
            text[0] = '\0';
            tern__text_append(text, sizeof(text), "%.3s", whole);
            tern__text_append(text, sizeof(text), "%s", whole + strlen(text));
            size_t bytes = strlen(message), shown = c < 4 ? strlen(characters[c]) : 4;
            assert_in_range(bytes, sizeof(message) - shown, sizeof(message) - 1);
            assert_string_equal(message + bytes - 2, "..");
            assert_int_equal(tern__utf8_check(message, bytes), -1);
            if (c < 4) assert_int_equal(strncmp(message, whole, bytes - 2), 0);
            if (c < 4) assert_string_equal(message, text);
        }
    tern__message_format(message, 6, "%s", "12345");
    assert_string_equal(message, "12345");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_is_read_as_it_was_written),
        cmocka_unit_test(what_is_not_utf8_is_found_where_it_is),
        cmocka_unit_test(a_terminal_sees_no_control),
        cmocka_unit_test(what_does_not_fit_is_cut_between_characters),
        cmocka_unit_test(a_quote_says_that_it_is_cut),
        cmocka_unit_test(an_excerpt_is_no_longer_than_asked),
        cmocka_unit_test(what_is_cut_ends_with_dots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
