/* check.h - cmocka with the headers that it needs, and macros that all tests use. */
#ifndef TERN_TESTS_CHECK_H
#define TERN_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <tern.h>

#ifdef __SANITIZE_THREAD__
/* oneDNN is not compiled for ThreadSanitizer, which sees the accesses to its primitive cache but not its
 * lock. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libdnnl.so\nrace:libdnnl.so\n";
}
#endif

/* Fails with the error's own text. */
#define assert_ok(err)                                                                                       \
    do {                                                                                                     \
        if ((err).code) fail_msg("%s: %s: %s", tern_status_name((err).code), (err).func, (err).text);        \
    } while (0)

#endif
