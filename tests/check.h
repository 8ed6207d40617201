/* check.h - cmocka with the includes it wants, and what our tests share. */
#ifndef TERN_TESTS_CHECK_H
#define TERN_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <tern.h>

#ifdef __SANITIZE_THREAD__
/* oneDNN's cache of primitives is not compiled for the race detector, which sees it read and write but no
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
