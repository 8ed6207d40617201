/* test_error.c - errors: the first one wins, texts, names and errno. */
#include "check.h"

#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void first_error_wins(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_int_equal(tern__error_set(&err, "one", TERN_E_SHAPE, "expected %d, got %d", 3, 4), TERN_E_SHAPE);
    tern__error_set(&err, "two", TERN_E_IO, "later");
    assert_int_equal(err.code, TERN_E_SHAPE);
    assert_string_equal(err.text, "expected 3, got 4");
    assert_string_equal(err.func, "one");
}

/* A user's callback sets an error by the function or by hand; the latter has no func. */
static void a_callback_says_what_it_failed_with(void **state)
{
    (void)state;
    char line[128] = "";
    tern_error err = {0}, by_hand = {.code = TERN_E_IO, .text = "torn \x1b[31m"};
    assert_int_equal(tern_error_set(&err, "get", TERN_E_IO, "sample %d is torn", 3), TERN_E_IO);
    assert_int_equal(tern_error_set(&err, "get", TERN_E_RANGE, "later"), TERN_E_RANGE);
    assert_int_equal(tern_error_set(NULL, "get", TERN_E_IO, "x"), TERN_E_IO);
    int own = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    dup2(fileno(file), STDERR_FILENO);
    tern_error_print(&err);
    tern_error_print(&by_hand);
    dup2(own, STDERR_FILENO);
    rewind(file);
    assert_true(fread(line, 1, sizeof(line) - 1, file) > 0);
    fclose(file);
    close(own);
    assert_string_equal(line, "tern: get: sample 3 is torn\ntern: torn \\x1b[31m\n");
}

static const char raw[] = "a\x1b[31m\r\n\x7f\xc2\x9b\xe2\x80\xae\xff\xc3\xa4\\x";
static const char shown[] = "a\\x1b[31m\\r\\n\\x7f\\u009b\\u202e\\xff\xc3\xa4\\x";

static void copy_log(tern_log_level level, const char *text, void *ctx)
{
    (void)level;
    snprintf(ctx, 64, "%s", text);
}

/* Names and bytes of files, in errors from the library and from callbacks, and in log messages. */
static void a_terminal_sees_no_control(void **state)
{
    (void)state;
    tern_error err = {0}, users = {0}, system = {0};
    char logged[64], line[128];
    tern__error_set(&err, "f", TERN_E_IO, "%s", raw);
    assert_string_equal(err.text, shown);
    tern_error_set(&users, "f", TERN_E_IO, "%s", raw);
    assert_string_equal(users.text, shown);
    errno = ENOENT;
    tern__error_errno(&system, "f", TERN_E_IO, "cannot open %s", raw);
    snprintf(line, sizeof(line), "cannot open %s: No such file or directory", shown);
    assert_string_equal(system.text, line);
    assert_int_equal(system.native, ENOENT);
    tern_log_set(copy_log, logged);
    tern__log(TERN_LOG_INFO, "%s", raw);
    tern_log_set(NULL, NULL);
    assert_string_equal(logged, shown);
}

/* A path of any length: the reason is there, and what is cut ends with dots. */
static void a_long_name_leaves_the_reason(void **state)
{
    (void)state;
    static const char reason[] = ": Permission denied";
    char path[2000] = "";
    for (size_t i = 0; strlen(path) + 4 < sizeof(path); i++) {
        if (i % 7 == 0 && i < 1000) strcat(path, "\xc3\xa4");
        strcat(path, "p");
        tern_error err = {0}, system = {0};
        tern__error_set(&err, "f", TERN_E_IO, "%s is torn", path);
        size_t bytes = strlen(err.text), whole = strlen(path) + strlen(" is torn");
        assert_int_equal(bytes < TERN_ERROR_TEXT - 2 ? whole : bytes, bytes);
        assert_true(whole < TERN_ERROR_TEXT || !strcmp(err.text + bytes - 2, ".."));
        errno = EACCES;
        tern__error_errno(&system, "f", TERN_E_IO, "%s", path);
        bytes = strlen(system.text) - strlen(reason);
        assert_string_equal(system.text + bytes, reason);
        assert_true(bytes == strlen(path) || !strncmp(system.text + bytes - 2, "..", 2));
    }
}

static void a_code_that_is_no_status_is_invalid(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_int_equal(tern_error_set(&err, "get", EIO, "sample 3: read failed"), TERN_E_INVALID);
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_string_equal(err.text, "sample 3: read failed");
    assert_int_equal(tern_error_set(NULL, "get", 0, "x"), TERN_E_INVALID);
}

static void the_headers_have_the_librarys_version(void **state)
{
    (void)state;
    char text[32];
    int number = TERN_VERSION_MAJOR * 10000 + TERN_VERSION_MINOR * 100 + TERN_VERSION_PATCH;
    snprintf(text, sizeof(text), "%d.%d.%d", TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH);
    assert_string_equal(text, tern_version());
    assert_int_equal(number, TERN_VERSION_NUMBER);
}

static void null_error_is_accepted(void **state)
{
    (void)state;
    assert_int_equal(tern__error_set(NULL, "f", TERN_E_IO, "x"), TERN_E_IO);
    assert_int_equal(tern_error_print(NULL), 0);
}

static void every_status_has_name_and_text(void **state)
{
    (void)state;
#define X(name, value, text)                                                                                 \
    assert_string_equal(tern_status_name(TERN_##name), #name);                                               \
    assert_string_equal(tern_status_text(value), text);
    TERN_STATUS_LIST(X)
#undef X
    assert_string_equal(tern_status_name(-1000), "?");
}

static void env_int_names_variable_and_value(void **state)
{
    (void)state;
    long value;
    tern_error err = {0};
    setenv("TERN_TEST_INT", "12x", 1);
    assert_int_equal(tern__env_int("TERN_TEST_INT", 0, 100, 7, &value, &err), TERN_E_ENV);
    assert_non_null(strstr(err.text, "TERN_TEST_INT=\"12x\""));
    err = (tern_error){0};
    setenv("TERN_TEST_INT", "101", 1);
    assert_int_equal(tern__env_int("TERN_TEST_INT", 0, 100, 7, &value, &err), TERN_E_ENV);
    unsetenv("TERN_TEST_INT");
    err = (tern_error){0};
    assert_int_equal(tern__env_int("TERN_TEST_INT", 0, 100, 7, &value, &err), TERN_OK);
    assert_int_equal(value, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_error_wins),
        cmocka_unit_test(a_callback_says_what_it_failed_with),
        cmocka_unit_test(a_terminal_sees_no_control),
        cmocka_unit_test(a_long_name_leaves_the_reason),
        cmocka_unit_test(a_code_that_is_no_status_is_invalid),
        cmocka_unit_test(the_headers_have_the_librarys_version),
        cmocka_unit_test(null_error_is_accepted),
        cmocka_unit_test(every_status_has_name_and_text),
        cmocka_unit_test(env_int_names_variable_and_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
