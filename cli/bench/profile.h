/* profile.h - the time that each kernel takes in a bench's steps, compared with its arithmetic and its bytes.
 */
#ifndef TERN_CLI_BENCH_PROFILE_H
#define TERN_CLI_BENCH_PROFILE_H

#include "bench/machine.h"

#include "kernels/kernel.h"

#include <cjson/cJSON.h>

typedef struct tern__profile tern__profile;

/* Observes all kernels of the device, which must outlive the profile. There is one row per kernel, or with
 * `shapes` one per kernel and operand shapes. The profile keeps `err` and reports later errors, such as
 * E_MEMORY, there. */
tern__profile *tern__profile_new(tern_device *device, bool shapes, tern_error *err);
void tern__profile_free(tern__profile *profile);

/* Prints the profile of `steps` steps that took `ms` milliseconds in total: the row with the longest time
 * first, and the time outside of kernels last. */
void tern__profile_print(tern__profile *profile, const tern__machine *machine, long steps, double ms);
/* Returns the same as a JSON object. */
cJSON *tern__profile_json(tern__profile *profile, const tern__machine *machine, long steps, double ms);

#endif
