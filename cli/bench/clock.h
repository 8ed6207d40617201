/* clock.h - records when a device reaches given points in its work. Recording a point on a GPU does not wait
 * for it: the clock uses events, so it measures the GPU's time and not the host's. */
#ifndef TERN_CLI_BENCH_CLOCK_H
#define TERN_CLI_BENCH_CLOCK_H

#include "device/device.h"

typedef struct tern__bench_clock tern__bench_clock;

/* A clock with points 0 to `points` - 1. The device must outlive it. */
tern__bench_clock *tern__bench_clock_new(tern_device *device, int points, tern_error *err);
void tern__bench_clock_free(tern__bench_clock *clock);
/* Records a point now; a point may be recorded again. */
void tern__bench_clock_set(tern__bench_clock *clock, int point, tern_error *err);
/* Returns the milliseconds between two recorded points; waits until the device has reached them. */
double tern__bench_clock_ms(tern__bench_clock *clock, int from, int to);

#endif
