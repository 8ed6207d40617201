/* clock.h - when a device came to places in its work. One with memory of its own is not waited for when
 * a place is set, so the clock sees what it does by itself. */
#ifndef TERN_CLI_BENCH_CLOCK_H
#define TERN_CLI_BENCH_CLOCK_H

#include "device/device.h"

typedef struct tern__bench_clock tern__bench_clock;

/* For the places 0 to `places` - 1. The device must outlive it. */
tern__bench_clock *tern__bench_clock_new(tern_device *device, int places, tern_error *err);
void tern__bench_clock_free(tern__bench_clock *clock);
/* Here it is; a place may be set again. */
void tern__bench_clock_set(tern__bench_clock *clock, int place, tern_error *err);
/* Milliseconds between two places that were set; waits until the device has come to them. */
double tern__bench_clock_ms(tern__bench_clock *clock, int from, int to);

#endif
