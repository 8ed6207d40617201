/* mismatches.h - counts and prints the calls whose results are not the reference's. A test goes on after one
 * and fails at its end: on a GPU that is lent for minutes a wrong kernel must not hide the ones behind it. */
#ifndef TERN_TESTS_CUDA_MISMATCHES_H
#define TERN_TESTS_CUDA_MISMATCHES_H

#include "check.h"

#include "device/backend.h"
#include "kernels/away.h"

#include <stdarg.h>
#include <stdio.h>

enum { MISMATCHES_SHOWN = 200 };

static int mismatches; /* in the test that runs */

static inline void __attribute__((format(printf, 1, 2))) mismatch(const char *format, ...)
{
    va_list args;
    if (++mismatches > MISMATCHES_SHOWN) return;
    va_start(args, format);
    fprintf(stderr, "mismatch: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
}

/* Ends the test if the device does not answer any more: every call after this one would fail as well. */
static inline void assert_alive(tern_device *device)
{
    tern_error err = {0};
    if (device->backend->wait(device, &err)) fail_msg("the device is dead after this call: %s", err.text);
}

/* Runs the call on its device by `kernel`, and reports a failure with its text or status. */
static inline bool is_carried(const tern__call *call, tern__kernel_fn kernel, const char *what,
                              tern_dtype dtype)
{
    int status = tern__call_carried(call, call->device, kernel);
    if (!status && !call->err->code) return true;
    mismatch("%s, %s, %s: %s", tern__kernel_name(call->kernel), what, tern_dtype_name(dtype),
             call->err->code ? call->err->text : tern_status_name(status));
    assert_alive(call->device);
    return false;
}

/* The teardown of a test. */
static inline int no_mismatch(void **state)
{
    (void)state;
    int found = mismatches;
    mismatches = 0;
    if (found)
        fail_msg("%d calls do not do what the reference does (the first %d are printed above)", found,
                 MISMATCHES_SHOWN);
    return 0;
}

#endif
