#include "kernels/cpu/dnnl.h"

#include "kernels/cpu/amx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#define BUCKETS 256

typedef struct library {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    tern__prim *buckets[BUCKETS];
} library;

static void prim_free(tern__prim *prim)
{
    for (int i = 0; i < TERN__PRIM_ARGS + 1; i++)
        if (prim->args[i].memory) dnnl_memory_destroy(prim->args[i].memory);
    if (prim->primitive) dnnl_primitive_destroy(prim->primitive);
    tern__free(prim);
}

static void library_free(void *data)
{
    library *lib = data;
    for (int b = 0; b < BUCKETS; b++) {
        for (tern__prim *prim = lib->buckets[b], *next; prim; prim = next) {
            next = prim->next;
            prim_free(prim);
        }
    }
    if (lib->stream) dnnl_stream_destroy(lib->stream);
    if (lib->engine) dnnl_engine_destroy(lib->engine);
    tern__free(lib);
}

int tern__dnnl_fail(const tern__call *call, dnnl_status_t status, const char *what)
{
    if (status == dnnl_unimplemented) return TERN_E_UNSUPPORTED;
    const char *kernel = tern__kernel_name(call->kernel);
    if (status == dnnl_out_of_memory)
        return tern__error_set(call->err, kernel, TERN_E_MEMORY, "%s: out of memory in oneDNN (%s)", kernel,
                               what);
    tern__error_set(call->err, kernel, TERN_E_SYSTEM, "%s: oneDNN's %s failed with status %d", kernel, what,
                    (int)status);
    if (call->err) call->err->native = (int)status;
    return TERN_E_SYSTEM;
}

/* oneDNN asks CPUID's leaf 0x1d for the size of AMX's tiles. There are virtual machines that announce AMX and
 * leave the leaf empty, and the kernels for AMX die there of an illegal instruction: then they are not taken,
 * unless the user has named an instruction set. */
static void avoid_amx_without_tiles(void)
{
#ifdef __x86_64__
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool named = getenv("ONEDNN_MAX_CPU_ISA") || getenv("DNNL_MAX_CPU_ISA");
    bool has_amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bit_AMX_TILE);
    if (named || !has_amx || (__get_cpuid_count(0x1d, 0, &a, &b, &c, &d) && a > 0)) return;
    dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
#endif
}

/* The device's oneDNN, opened with its first kernel. NULL: call->err is set. */
static library *library_of(const tern__call *call)
{
    tern_device *device = call->device;
    if (device->slots[TERN__SLOT_DNNL].data) return device->slots[TERN__SLOT_DNNL].data;
    library *lib = tern__alloc(sizeof(*lib), __func__, call->err);
    if (!lib) return NULL;
    avoid_amx_without_tiles();
    dnnl_status_t status = dnnl_engine_create(&lib->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        tern__dnnl_fail(call, status, "engine");
        library_free(lib);
        return NULL;
    }
    device->slots[TERN__SLOT_DNNL].data = lib;
    device->slots[TERN__SLOT_DNNL].free = library_free;
    return lib;
}

dnnl_engine_t tern__dnnl_engine(const tern__call *call)
{
    library *lib = library_of(call);
    return lib ? lib->engine : NULL;
}

void tern__kernel_choices(char *text, size_t size)
{
    const dnnl_version_t *version = dnnl_version();
    avoid_amx_without_tiles();
    snprintf(text, size, "oneDNN %d.%d.%d for isa 0x%x%s", version->major, version->minor, version->patch,
             (unsigned)dnnl_get_effective_cpu_isa(), tern__amx_has() ? ", AMX" : "");
}

const char *tern__kernel_lacks(tern_dtype dtype)
{
    avoid_amx_without_tiles();
    bool has_bf16 =
        (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
    if (dtype == TERN_BF16 && !has_bf16 && !tern__amx_has()) return "AVX-512 BF16 or AMX";
    return dtype == TERN_F16 ? "a oneDNN with kernels for f16" : NULL;
}

bool tern__dnnl_has_bf16(void)
{
    avoid_amx_without_tiles(); /* the question settles the instruction set */
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

tern__prim_key tern__prim_key_make(const tern__call *call, int part)
{
    return (tern__prim_key){.kernel = (int32_t)call->kernel, .part = part, .threads = call->device->threads};
}

/* FNV-1a over the key's words. */
static unsigned bucket_of(const tern__prim_key *key)
{
    uint64_t hash = 1469598103934665603u;
    const uint32_t *word = (const uint32_t *)key;
    for (size_t i = 0; i < sizeof(*key) / sizeof(*word); i++) hash = (hash ^ word[i]) * 1099511628211u;
    return (unsigned)(hash >> 32) % BUCKETS;
}

tern__prim *tern__prim_find(const tern__call *call, const tern__prim_key *key)
{
    library *lib = library_of(call);
    tern__prim *prim = lib ? lib->buckets[bucket_of(key)] : NULL;
    while (prim && memcmp(&prim->key, key, sizeof(*key)) != 0) prim = prim->next;
    return prim;
}

int tern__dnnl_attr_new(const tern__call *call, dnnl_primitive_attr_t *attr)
{
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    return status == dnnl_success ? TERN_OK : tern__dnnl_fail(call, status, "attributes");
}

dnnl_data_type_t tern__dnnl_type(tern_dtype dtype)
{
    return dtype == TERN_F32 ? dnnl_f32 : dtype == TERN_BF16 ? dnnl_bf16 : dnnl_data_type_undef;
}

dnnl_status_t tern__dnnl_describe(const tern__view *view, dnnl_memory_desc_t *desc)
{
    static const dnnl_format_tag_t blocked[] = {[3] = dnnl_nCw16c, [4] = dnnl_nChw16c, [5] = dnnl_nCdhw16c};
    dnnl_data_type_t type = tern__dnnl_type(view->dtype);
    dnnl_dims_t dims = {0};
    memcpy(dims, view->shape, sizeof(view->shape));
    if (view->layout == TERN__PLAIN || view->ndim == 2)
        return dnnl_memory_desc_init_by_strides(desc, view->ndim, dims, type, NULL);
    if (view->ndim < 3 || view->ndim > 5) return dnnl_unimplemented;
    return dnnl_memory_desc_init_by_tag(desc, view->ndim, dims, type, blocked[view->ndim]);
}

static dnnl_status_t fill_args(tern__prim *prim, dnnl_engine_t engine, const tern__prim_arg *args,
                               int arg_count, const dnnl_memory_desc_t *scratch)
{
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < arg_count && status == dnnl_success; i++) {
        prim->args[i].arg = args[i].arg;
        status = dnnl_memory_create(&prim->args[i].memory, args[i].desc, engine, DNNL_MEMORY_NONE);
    }
    prim->arg_count = arg_count;
    prim->scratch_bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    if (status == dnnl_success && prim->scratch_bytes) {
        prim->args[arg_count].arg = DNNL_ARG_SCRATCHPAD;
        status = dnnl_memory_create(&prim->args[arg_count].memory, scratch, engine, DNNL_MEMORY_NONE);
    }
    return status;
}

int tern__prim_new(const tern__call *call, const tern__prim_key *key, dnnl_primitive_desc_t desc,
                   const tern__prim_arg *args, int arg_count, tern__prim **out)
{
    library *lib = library_of(call);
    tern__prim *prim = lib ? tern__alloc(sizeof(*prim), __func__, call->err) : NULL;
    if (!prim) {
        dnnl_primitive_desc_destroy(desc);
        return TERN_E_MEMORY;
    }
    prim->key = *key;
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    dnnl_status_t status = dnnl_primitive_create(&prim->primitive, desc);
    if (status == dnnl_success) status = fill_args(prim, lib->engine, args, arg_count, scratch);
    dnnl_primitive_desc_destroy(desc);
    if (status != dnnl_success) {
        prim_free(prim);
        return tern__dnnl_fail(call, status, "primitive");
    }
    tern__prim **bucket = &lib->buckets[bucket_of(key)];
    prim->next = *bucket;
    *bucket = prim;
    *out = prim;
    return TERN_OK;
}

int tern__prim_run(const tern__call *call, tern__prim *prim, void *const *data)
{
    library *lib = library_of(call);
    for (int i = 0; i < prim->arg_count; i++) dnnl_memory_set_data_handle(prim->args[i].memory, data[i]);
    int arg_count = prim->arg_count;
    if (prim->scratch_bytes) {
        void *scratch = tern__device_scratch(call->device, TERN__SCRATCH_LIBRARY, prim->scratch_bytes);
        if (!scratch) return tern__dnnl_fail(call, dnnl_out_of_memory, "scratchpad");
        dnnl_memory_set_data_handle(prim->args[arg_count++].memory, scratch);
    }
    dnnl_status_t status = dnnl_primitive_execute(prim->primitive, lib->stream, arg_count, prim->args);
    return status == dnnl_success ? TERN_OK : tern__dnnl_fail(call, status, "execute");
}
