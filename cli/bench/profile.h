/* profile.h - what the kernels of a bench's steps took, beside what they cost at least. */
#ifndef TERN_CLI_BENCH_PROFILE_H
#define TERN_CLI_BENCH_PROFILE_H

#include "bench/machine.h"

#include "kernels/kernel.h"

#include <cjson/cJSON.h>

typedef struct tern__profile tern__profile;

/* Watches the device, which must outlive it. One row a kernel, or, with `shapes`, one for each kernel and its
 * shapes. `err` is told, later too, when memory runs out. */
tern__profile *tern__profile_new(tern_device *device, bool shapes, tern_error *err);
void tern__profile_free(tern__profile *profile);

/* What was seen during `steps` steps that took `ms` milliseconds together: the row that took longest first,
 * and last what passed outside of kernels. */
void tern__profile_print(tern__profile *profile, const tern__machine *machine, long steps, double ms);
/* The same as an object; NULL: out of memory. */
cJSON *tern__profile_json(tern__profile *profile, const tern__machine *machine, long steps, double ms);

#endif
