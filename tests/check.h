/* check.h - cmocka with the includes it wants, and what our tests share. */
#ifndef TERN_TESTS_CHECK_H
#define TERN_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <tern.h>

/* Fails with the error's own text. */
#define assert_ok(err)                                                                                       \
    do {                                                                                                     \
        if ((err).code) fail_msg("%s: %s: %s", tern_status_name((err).code), (err).func, (err).text);        \
    } while (0)

#endif
