/* data_parallel.c - makes the replicas of a tern_data_parallel, and reports what they cost. */
#include "parallel/data_parallel.h"

#include "base/opts.h"

#include <stdio.h>

tern_data_parallel_opts tern_data_parallel_defaults(void)
{
    return (tern_data_parallel_opts){.size = sizeof(tern_data_parallel_opts)};
}

/* ---- making ---- */

static int check_devices(const tern_data_parallel_opts *opts, tern_error *err)
{
    if (opts->device_count < 0 || opts->device_count > TERN__REPLICAS_MAX || opts->dim < 0)
        return tern__error_set(err, "tern_data_parallel_new", TERN_E_RANGE,
                               "expected a device_count from 0 to %d and a dim of at least 0, got %d and %d",
                               TERN__REPLICAS_MAX, opts->device_count, opts->dim);
    for (int i = 0; opts->devices && i < opts->device_count; i++) {
        const tern_device *device = opts->devices[i];
        if (!device || !(device->worker || device->backend))
            return tern__error_set(err, "tern_data_parallel_new", TERN_E_INVALID,
                                   "device %d is %s: expected a group of cores as \"cpu:%d\", or \"cuda:%d\"",
                                   i, device ? device->name : "NULL", i, i);
        for (int j = 0; j < i; j++)
            if (opts->devices[j] == device)
                return tern__error_set(err, "tern_data_parallel_new", TERN_E_INVALID,
                                       "devices %d and %d are the same: open %s once for each", j, i,
                                       device->name);
    }
    return TERN_OK;
}

/* Like PyTorch, requires everything on the first device (device_ids[0]). */
static int check_places(tern_module *module, const tern_device *first, tern_error *err)
{
    for (int i = 0; i < tern__entry_count(module); i++) {
        tern_state_entry entry = tern__entry_get(module, i);
        if (!entry.tensor->device || entry.tensor->device == first) continue;
        return tern__error_set(err, "tern_data_parallel_new", TERN_E_INVALID,
                               "the module must have its parameters and buffers on %s, the first device, but "
                               "\"%s\" is on %s",
                               first->name, entry.name, entry.tensor->device->name);
    }
    return TERN_OK;
}

/* Opens one device per core of this rank's share. */
static int open_devices(tern_data_parallel *parallel, tern_error *err)
{
    int first;
    if (tern__device_share(&first, &parallel->count, err)) return err->code;
    parallel->count = TERN__MIN(parallel->count, TERN__REPLICAS_MAX);
    parallel->own =
        tern__alloc((size_t)parallel->count * sizeof(*parallel->own), "tern_data_parallel_new", err);
    for (int i = 0; parallel->own && i < parallel->count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "cpu:%d", first + i);
        parallel->own[i] = tern_device_open(name, err);
        if (!parallel->own[i]) return err->code;
    }
    parallel->opts.devices = parallel->own;
    return parallel->own ? TERN_OK : TERN_E_MEMORY;
}

static int data_parallel_build(tern_data_parallel *parallel, tern_error *err)
{
    parallel->count = parallel->opts.device_count;
    int status = parallel->opts.devices ? TERN_OK : open_devices(parallel, err);
    if (!status && parallel->count == 0)
        status = tern__error_set(err, "tern_data_parallel_new", TERN_E_RANGE, "expected at least 1 device");
    if (!status) status = check_places(parallel->module, parallel->opts.devices[0], err);
    if (status) return status;
    if (!parallel->opts.output_device) parallel->opts.output_device = parallel->opts.devices[0];
    parallel->sums.device = parallel->opts.devices[0];
    size_t bytes = (size_t)parallel->count * sizeof(*parallel->replicas);
    parallel->replicas = tern__alloc(bytes, "tern_data_parallel_new", err);
    if (!parallel->replicas) return TERN_E_MEMORY;
    for (int i = 0; i < parallel->count && !status; i++) {
        parallel->replicas[i] =
            (tern__replica){.parallel = parallel, .index = i, .device = parallel->opts.devices[i]};
        status = tern__replica_open(&parallel->replicas[i], err);
    }
    return status;
}

tern_data_parallel *tern_data_parallel_new(tern_module *module, const tern_data_parallel_opts *user,
                                           tern_error *err)
{
    tern_error why = {0};
    tern_data_parallel_opts opts = tern_data_parallel_defaults();
    if (tern__is_set(err)) return NULL;
    if (!module || !module->tree) {
        tern__error_set(err, __func__, TERN_E_INVALID, "the module is NULL or was never made");
        return NULL;
    }
    if (tern__opts_read(&opts, sizeof(opts), user, __func__, err) || check_devices(&opts, err)) return NULL;
    tern_data_parallel *parallel = tern__alloc(sizeof(*parallel), __func__, err);
    if (!parallel) return NULL;
    *parallel = (tern_data_parallel){.module = module, .opts = opts};
    if (data_parallel_build(parallel, &why) == TERN_OK) return parallel;
    tern_data_parallel_free(parallel);
    if (err) *err = why;
    return NULL;
}

void tern_data_parallel_free(tern_data_parallel *parallel)
{
    if (!parallel) return;
    for (int i = 0; parallel->replicas && i < parallel->count; i++)
        tern__replica_close(&parallel->replicas[i]);
    tern__mirrors_free(&parallel->sums);
    for (int i = 0; parallel->own && i < parallel->count; i++) tern_device_close(parallel->own[i]);
    tern__free(parallel->own);
    tern__free(parallel->replicas);
    tern__free(parallel);
}

int tern_data_parallel_count(const tern_data_parallel *parallel)
{
    return parallel ? parallel->count : 0;
}

/* ---- memory and times ---- */

tern_replica_stats tern_data_parallel_stats(const tern_data_parallel *parallel, int index)
{
    if (!parallel || index < 0 || index >= parallel->count) return (tern_replica_stats){0};
    const tern__replica *replica = &parallel->replicas[index];
    return (tern_replica_stats){.device = replica->device->name,
                                .bytes = tern__device_bytes(replica->device) + replica->grad_bytes,
                                .forward_s = (double)replica->forward_ns * 1e-9,
                                .backward_s = (double)replica->backward_ns * 1e-9};
}

void tern_data_parallel_print(const tern_data_parallel *parallel)
{
    if (!parallel) return;
    printf("%-8s %-10s %12s %14s %14s\n", "replica", "device", "memory MB", "forward ms", "backward ms");
    for (int i = 0; i < parallel->count; i++) {
        tern_replica_stats s = tern_data_parallel_stats(parallel, i);
        printf("%-8d %-10s %12.1f %14.2f %14.2f\n", i, s.device, (double)s.bytes * 1e-6, s.forward_s * 1e3,
               s.backward_s * 1e3);
    }
}
