/* mismatches.h - counts and prints the calls whose results differ from the reference's. The test goes on
 * after a mismatch and fails at its end, so that one wrong kernel does not hide others. */
#ifndef TERN_TESTS_CUDA_MISMATCHES_H
#define TERN_TESTS_CUDA_MISMATCHES_H

#include "check.h"

#include "device/backend.h"
#include "kernels/operand_copies.h"

#include <stdarg.h>
#include <stdio.h>

enum { MISMATCHES_SHOWN = 200 };

static int mismatches; /* in the current test */

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

/* Ends the test if the device has failed, since all later calls would fail as well. */
static inline void assert_alive(tern_device *device)
{
    tern_error err = {0};
    if (device->backend->wait(device, &err)) fail_msg("the device is dead after this call: %s", err.text);
}

/* Runs the call on its device with `kernel`, and reports a failure with its text or status. */
static inline bool is_carried(const tern__call *call, tern__kernel_fn kernel, const char *what,
                              tern_dtype dtype)
{
    int status = tern__kernel_run_on_copies(call, call->device, kernel);
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
        fail_msg("%d calls differ from the reference (the first %d are printed above)", found,
                 MISMATCHES_SHOWN);
    return 0;
}

#endif
