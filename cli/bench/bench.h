/* bench.h - the benches of `tern bench`, one file each, and what they share. A bench gets its own name as
 * argv[0] and returns the exit code. */
#ifndef TERN_CLI_BENCH_BENCH_H
#define TERN_CLI_BENCH_BENCH_H

#include "cli.h"
#include "flags.h"

#include "device/device.h"

#include <cjson/cJSON.h>

tern__cli_fn tern__bench_collective; /* argv[0] names the collective, or is "collectives" */
tern__cli_fn tern__bench_step;
tern__cli_fn tern__bench_store;

extern const tern__cli_page tern__collective_page, tern__barrier_page, tern__step_page, tern__store_page;

/* A clock records when a device reaches given points in its work. Recording a point on a GPU does not wait
 * for it: the clock uses events, so it measures the GPU's time and not the host's. */
typedef struct tern__bench_clock tern__bench_clock;

/* A clock with points 0 to `points` - 1. The device must outlive it. */
tern__bench_clock *tern__bench_clock_new(tern_device *device, int points, tern_error *err);
void tern__bench_clock_free(tern__bench_clock *clock);
/* Records a point now; a point may be recorded again. */
void tern__bench_clock_set(tern__bench_clock *clock, int point, tern_error *err);
/* Returns the milliseconds between two recorded points; waits until the device has reached them. */
double tern__bench_clock_ms(tern__bench_clock *clock, int from, int to);

/* Returns the median of `count` values and sorts them. */
double tern__bench_median(double *values, size_t count);

/* Prints a line if the ranks of this host have more kernel threads, `threads` each, than cores. */
void tern__bench_print_oversubscribed(int threads);

/* Prints the object as one line on stdout and frees it. */
void tern__bench_print(cJSON *line);

#endif
