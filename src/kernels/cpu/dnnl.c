/* dnnl.c - the device's oneDNN engine and its cache of primitives. */
#include "kernels/cpu/dnnl.h"

#include "base/hash.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/dnnl_api.h"
#include "kernels/cpu/signals.h"
#include "kernels/cpu/widths.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#define BUCKETS 1024

typedef struct library {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    tern__prim *buckets[BUCKETS];
    tern__prim *newest, *oldest; /* by latest use */
    int count;
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
    for (tern__prim *prim = lib->newest, *older; prim; prim = older) {
        older = prim->older;
        prim_free(prim);
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

/* oneDNN asks CPUID's leaf 0x1d for the size of AMX's tiles. Some virtual machines announce AMX but leave
 * that leaf empty, and the AMX kernels then die of an illegal instruction. So AMX is disabled there,
 * unless the user has named an instruction set. */
static void look_for_tiles(void)
{
#ifdef __x86_64__
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool has_amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bit_AMX_TILE);
    if (tern__isa_is_named() || !has_amx || (__get_cpuid_count(0x1d, 0, &a, &b, &c, &d) && a > 0)) return;
    dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
#endif
}

/* Once a process: a virtual machine traps CPUID, which takes longer than a small convolution. */
static void avoid_amx_without_tiles(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_for_tiles);
}

static int library_new(const tern__call *call, library **out)
{
    library *lib = tern__alloc(sizeof(*lib), __func__, call->err);
    if (!lib) return TERN_E_MEMORY;
    avoid_amx_without_tiles();
    dnnl_status_t status = dnnl_engine_create(&lib->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        library_free(lib);
        return tern__dnnl_fail(call, status, "engine");
    }
    *out = lib;
    return TERN_OK;
}

/* Returns the device's oneDNN state; NULL before tern__dnnl_open. */
static library *library_of(const tern__call *call)
{
    return call->device->slots[TERN__SLOT_DNNL].data;
}

int tern__dnnl_open(const tern__call *call, dnnl_engine_t *engine)
{
    tern_device *device = call->device;
    library *lib = library_of(call);
    int status = lib ? TERN_OK : library_new(call, &lib);
    if (status) return status;
    device->slots[TERN__SLOT_DNNL].data = lib;
    device->slots[TERN__SLOT_DNNL].free = library_free;
    *engine = lib->engine;
    return TERN_OK;
}

void tern__kernel_choices(char *text, size_t size)
{
    const dnnl_version_t *version = dnnl_version();
    avoid_amx_without_tiles();
    snprintf(text, size, "oneDNN %d.%d.%d for isa 0x%x%s", version->major, version->minor, version->patch,
             (unsigned)dnnl_get_effective_cpu_isa(), tern__amx_has() ? ", AMX" : "");
}

#ifdef __x86_64__
#define BF16_NEEDS "AVX-512 BF16 or AMX"
#else
#define BF16_NEEDS "a oneDNN with kernels for bf16"
#endif

const char *tern__kernel_lacks(tern_dtype dtype)
{
    avoid_amx_without_tiles();
    bool has_bf16 =
        (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
    if (dtype == TERN_BF16 && !has_bf16 && !tern__amx_has()) return BF16_NEEDS;
    return dtype == TERN_F16 ? "a oneDNN with kernels for f16" : NULL;
}

bool tern__dnnl_is_there(void)
{
    return true;
}

bool tern__dnnl_has_bf16(void)
{
    avoid_amx_without_tiles(); /* the query fixes the instruction set */
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

/* On ARM oneDNN 2.6 generates code for convolutions only for SVE with 512-bit registers. */
bool tern__dnnl_has_convolutions(void)
{
#ifdef __aarch64__
    enum { SVE_512 = 0x10 };
    return dnnl_get_effective_cpu_isa() & SVE_512;
#else
    return true;
#endif
}

uint64_t tern__dnnl_hash(const void *bytes, size_t size)
{
    uint64_t hash = TERN__FNV;
    const uint32_t *word = bytes;
    for (size_t i = 0; i < size / sizeof(*word); i++) hash = tern__fnv_word(hash, word[i]);
    return hash;
}

unsigned tern__prim_key_hash(const tern__prim_key *key)
{
    return (unsigned)(tern__dnnl_hash(key, sizeof(*key)) >> 32);
}

/* ---- primitives, by key and by latest use ---- */

static tern__prim **dnnl_bucket_of(library *lib, const tern__prim_key *key)
{
    return &lib->buckets[tern__prim_key_hash(key) % BUCKETS];
}

static void put_newest(library *lib, tern__prim *prim)
{
    prim->newer = NULL;
    prim->older = lib->newest;
    *(lib->newest ? &lib->newest->newer : &lib->oldest) = prim;
    lib->newest = prim;
}

static void dnnl_take_out(library *lib, tern__prim *prim)
{
    *(prim->newer ? &prim->newer->older : &lib->newest) = prim->older;
    *(prim->older ? &prim->older->newer : &lib->oldest) = prim->newer;
}

static void evict(library *lib, tern__prim *prim)
{
    tern__prim **at = dnnl_bucket_of(lib, &prim->key);
    while (*at != prim) at = &(*at)->next;
    *at = prim->next;
    dnnl_take_out(lib, prim);
    prim_free(prim);
    lib->count--;
}

static void dnnl_keep(library *lib, tern__prim *prim)
{
    tern__prim **bucket = dnnl_bucket_of(lib, &prim->key);
    prim->next = *bucket;
    *bucket = prim;
    put_newest(lib, prim);
    if (++lib->count > TERN__PRIMS_MAX) evict(lib, lib->oldest);
}

tern__prim *tern__prim_find(const tern__call *call, const tern__prim_key *key)
{
    library *lib = library_of(call);
    tern__prim *prim = lib ? *dnnl_bucket_of(lib, key) : NULL;
    while (prim && memcmp(&prim->key, key, sizeof(*key)) != 0) prim = prim->next;
    if (!prim || prim == lib->newest) return prim;
    dnnl_take_out(lib, prim);
    put_newest(lib, prim);
    return prim;
}

int tern__prims_count(const tern_device *device)
{
    const library *lib = device->slots[TERN__SLOT_DNNL].data;
    return lib ? lib->count : 0;
}

/* ---- making and running primitives ---- */

/* Stores the primitive's description of an argument: the caller's if it says the same. */
static dnnl_status_t take_desc(tern__prim *prim, int i, const void *own, const tern__dnnl_desc *have)
{
    void *told = NULL;
    dnnl_status_t status = tern__dnnl_api_describe(have, &told);
    if (status != dnnl_success) return status;
    if (dnnl_memory_desc_equal(own, told))
        prim->desc[i] = *have;
    else
        prim->desc[i] = (tern__dnnl_desc){.own = own, .own_signature = tern__dnnl_api_signature(own)};
    prim->bytes[i] = dnnl_memory_desc_get_size(own);
    tern__dnnl_api_free(told);
    return dnnl_success;
}

/* Descriptions belong to the primitive and live as long as it does. */
static dnnl_status_t fill_args(tern__prim *prim, dnnl_engine_t engine, const tern__prim_arg *args,
                               int arg_count)
{
    const_dnnl_primitive_desc_t plan = NULL;
    dnnl_status_t status = dnnl_primitive_get_primitive_desc(prim->primitive, &plan);
    for (int i = 0; i < arg_count && status == dnnl_success; i++) {
        const void *own = dnnl_primitive_desc_query_md(plan, dnnl_query_exec_arg_md, args[i].arg);
        prim->args[i].arg = args[i].arg;
        status = dnnl_memory_create(&prim->args[i].memory, own, engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success) status = take_desc(prim, i, own, args[i].have);
    }
    if (status != dnnl_success) return status;
    const void *scratch = dnnl_primitive_desc_query_md(plan, dnnl_query_scratchpad_md, 0);
    prim->arg_count = arg_count;
    prim->scratch_bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    if (!prim->scratch_bytes) return dnnl_success;
    prim->args[arg_count].arg = DNNL_ARG_SCRATCHPAD;
    return dnnl_memory_create(&prim->args[arg_count].memory, scratch, engine, DNNL_MEMORY_NONE);
}

/* Whether it uses the matrix products older than brgemm, on any instruction set: which of their kernels
 * runs is decided at run time. */
static bool moves_stack(const_dnnl_primitive_desc_t plan)
{
    const char *name = tern__dnnl_plan_name(plan);
    return strstr(name, "gemm") && !strstr(name, "brgemm");
}

int tern__prim_new(const tern__call *call, const tern__prim_key *key, dnnl_primitive_desc_t plan,
                   const tern__prim_arg *args, int arg_count, tern__prim **out)
{
    library *lib = library_of(call); /* the library that made the plan */
    tern__prim *prim = tern__alloc(sizeof(*prim), __func__, call->err);
    if (!prim) {
        dnnl_primitive_desc_destroy(plan);
        return TERN_E_MEMORY;
    }
    prim->key = *key;
    prim->moves_stack = moves_stack(plan);
    dnnl_status_t status = dnnl_primitive_create(&prim->primitive, plan);
    dnnl_primitive_desc_destroy(plan);
    if (status == dnnl_success) status = fill_args(prim, lib->engine, args, arg_count);
    if (status != dnnl_success) {
        prim_free(prim);
        return tern__dnnl_fail(call, status, "primitive");
    }
    dnnl_keep(lib, prim);
    *out = prim;
    return TERN_OK;
}

static dnnl_status_t execute(const tern__call *call, const tern__prim *prim, dnnl_stream_t stream,
                             int arg_count)
{
    sigset_t before;
    if (prim->moves_stack) tern__signals_hold(call->device->threads, &before);
    dnnl_status_t status = dnnl_primitive_execute(prim->primitive, stream, arg_count, prim->args);
    if (prim->moves_stack) tern__signals_release(call->device->threads, &before);
    return status;
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
    dnnl_status_t status = execute(call, prim, lib->stream, arg_count);
    return status == dnnl_success ? TERN_OK : tern__dnnl_fail(call, status, "execute");
}
