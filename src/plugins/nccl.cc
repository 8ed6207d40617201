/* nccl.cc - the plug-in that calls NCCL (comm/nccl/plugin.h). Like the files of src/cuda it is C that a C++
 * compiler accepts. It cannot call the library; only base/error.c is compiled in. */
#include "base/half.h" /* first: NCCL's header has a type named like arguments in half.h */

#include <cuda_runtime.h>
#include <nccl.h>

extern "C" {
#include "comm/move/nccl/plugin.h"
}

#include <cstdio>
#include <cstring>

/* ---- errors ---- */

static int code_of(ncclResult_t result)
{
    return result == ncclRemoteError ? TERN_E_PEER : TERN_E_SYSTEM;
}

/* NCCL's last error says more than the name of the code, but may belong to another call. */
static int nccl_check(ncclResult_t result, ncclComm_t comm, const char *what, tern_error *err)
{
    if (result == ncclSuccess) return TERN_OK;
    if (result == ncclInProgress) return TERN_PENDING;
    const char *last = ncclGetLastError(comm);
    tern__error_set(err, "tern_nccl", code_of(result),
                    "%s: %s%s%.300s; choose other devices, or another back end "
                    "(TERN_BACKEND=gloo, or tern_group_opts.backend)",
                    what, ncclGetErrorString(result), last && *last ? ": " : "", last ? last : "");
    if (err && !err->native) err->native = (int)result;
    return code_of(result);
}

/* ---- queries ---- */

static void nccl_describe(char *text, size_t size)
{
    int version = 0;
    ncclGetVersion(&version);
    std::snprintf(text, size, "NCCL %d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
}

static int gpu(int index, unsigned char out[TERN__NCCL_GPU], tern_error *err)
{
    cudaDeviceProp p;
    cudaError_t code = cudaGetDeviceProperties(&p, index);
    if (code != cudaSuccess)
        return tern__error_set(err, "tern_nccl", TERN_E_SYSTEM, "cudaGetDeviceProperties: CUDA error %d",
                               (int)code);
    std::memcpy(out, &p.uuid, TERN__NCCL_GPU);
    return TERN_OK;
}

static int make_id(char id[TERN__NCCL_ID], tern_error *err)
{
    ncclUniqueId unique;
    static_assert(sizeof(unique) == TERN__NCCL_ID, "the size of an id");
    int status = nccl_check(ncclGetUniqueId(&unique), nullptr, "ncclGetUniqueId", err);
    std::memcpy(id, &unique, sizeof(unique));
    return status;
}

/* ---- communicators ---- */

static void *open_comm(int index, int rank, int world, int blocks, const char id[TERN__NCCL_ID],
                       tern_error *err)
{
    ncclUniqueId unique;
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (blocks) config.maxCTAs = blocks;
    std::memcpy(&unique, id, sizeof(unique));
    cudaSetDevice(index);
    int status = nccl_check(ncclCommInitRankConfig(&comm, world, unique, rank, &config), nullptr,
                            "ncclCommInitRankConfig", err);
    return status < 0 && status != TERN_PENDING ? nullptr : comm;
}

static int test(void *comm, tern_error *err)
{
    ncclResult_t state = ncclSuccess;
    int status = nccl_check(ncclCommGetAsyncError((ncclComm_t)comm, &state), (ncclComm_t)comm,
                            "ncclCommGetAsyncError", err);
    return status ? status : nccl_check(state, (ncclComm_t)comm, "NCCL", err);
}

/* A non-blocking communicator must be finalized before it is destroyed. */
static int finalize(void *comm, tern_error *err)
{
    return nccl_check(ncclCommFinalize((ncclComm_t)comm), (ncclComm_t)comm, "ncclCommFinalize", err);
}

static void destroy(void *comm)
{
    ncclCommDestroy((ncclComm_t)comm);
}

static void abort_comm(void *comm)
{
    ncclCommAbort((ncclComm_t)comm);
}

/* ---- memory ---- */

/* Memory that cannot be registered, for whatever reason (such as NCCL_LOCAL_REGISTER=0), is moved with
 * copies. */
static void *attach(void *comm, void *data, size_t bytes)
{
    void *handle = nullptr;
    return ncclCommRegister((ncclComm_t)comm, data, bytes, &handle) == ncclSuccess ? handle : nullptr;
}

static void detach(void *comm, void *handle)
{
    ncclCommDeregister((ncclComm_t)comm, handle);
}

/* ---- calls ---- */

/* A bool is 0 or 1, so the sum of two is the maximum and the product the minimum. Bitwise operations go
 * through the host. */
static bool find_op(const tern__nccl_call *call, ncclRedOp_t *op)
{
    bool is_bool = call->dtype == TERN_BOOL;
    switch (call->op) {
    case TERN_SUM: *op = is_bool ? ncclMax : ncclSum; return true;
    case TERN_PRODUCT: *op = is_bool ? ncclMin : ncclProd; return true;
    case TERN_MIN: *op = ncclMin; return true;
    case TERN_MAX: *op = ncclMax; return true;
    default: return false;
    }
}

/* NCCL has no 16-bit integers: i16 is moved as bytes, and reduced through the host. */
static ncclDataType_t nccl_type_of(tern_dtype dtype)
{
    switch (dtype) {
    case TERN_F32: return ncclFloat32;
    case TERN_F64: return ncclFloat64;
    case TERN_BF16: return ncclBfloat16;
    case TERN_F16: return ncclFloat16;
    case TERN_I64: return ncclInt64;
    case TERN_I32: return ncclInt32;
    case TERN_I8: return ncclInt8;
    default: return ncclUint8;
    }
}

/* Writes the factor as an element of `dtype`. */
static void write_factor(void *to, tern_dtype dtype, double factor)
{
    float single = (float)factor;
    uint16_t bits = dtype == TERN_BF16 ? tern__bf16_from_f32(single) : tern__f16_from_f32(single);
    if (dtype == TERN_F64)
        std::memcpy(to, &factor, sizeof(factor));
    else if (dtype == TERN_F32)
        std::memcpy(to, &single, sizeof(single));
    else
        std::memcpy(to, &bits, sizeof(bits));
}

static ncclResult_t reduce(ncclComm_t comm, const tern__nccl_call *call, ncclRedOp_t op, cudaStream_t stream)
{
    ncclDataType_t type = nccl_type_of(call->dtype);
    if (call->kind == TERN__NCCL_ALL_REDUCE)
        return ncclAllReduce(call->from, call->to, call->count, type, op, comm, stream);
    if (call->kind == TERN__NCCL_REDUCE)
        return ncclReduce(call->from, call->to, call->count, type, op, call->peer, comm, stream);
    return ncclReduceScatter(call->from, call->to, call->count, type, op, comm, stream);
}

static ncclResult_t reduce_by_factor(ncclComm_t comm, const tern__nccl_call *call, cudaStream_t stream)
{
    ncclRedOp_t op;
    alignas(8) char factor[8];
    write_factor(factor, call->dtype, call->factor);
    ncclResult_t result =
        ncclRedOpCreatePreMulSum(&op, factor, nccl_type_of(call->dtype), ncclScalarHostImmediate, comm);
    if (result != ncclSuccess) return result;
    result = reduce(comm, call, op, stream);
    ncclRedOpDestroy(op, comm);
    return result;
}

static ncclResult_t move(ncclComm_t comm, const tern__nccl_call *call, cudaStream_t stream)
{
    ncclDataType_t type = nccl_type_of(call->dtype);
    size_t count = call->dtype == TERN_I16 ? sizeof(int16_t) * call->count : call->count;
    switch (call->kind) {
    case TERN__NCCL_ALL_GATHER: return ncclAllGather(call->from, call->to, count, type, comm, stream);
    case TERN__NCCL_BROADCAST:
        return ncclBroadcast(call->from, call->to, count, type, call->peer, comm, stream);
    case TERN__NCCL_SEND: return ncclSend(call->from, count, type, call->peer, comm, stream);
    default: return ncclRecv(call->to, count, type, call->peer, comm, stream);
    }
}

static int nccl_run(void *of, const tern__nccl_call *call, void *stream, tern_error *err)
{
    ncclComm_t comm = (ncclComm_t)of;
    cudaStream_t lane = (cudaStream_t)stream;
    ncclRedOp_t op;
    ncclResult_t result;
    if (call->kind > TERN__NCCL_REDUCE_SCATTER)
        result = move(comm, call, lane);
    else if (call->dtype == TERN_I16)
        return tern__error_set(err, "tern_nccl", TERN_E_UNSUPPORTED, "NCCL has no i16");
    else if (call->op == TERN_PREMUL_SUM)
        result = reduce_by_factor(comm, call, lane);
    else if (find_op(call, &op))
        result = reduce(comm, call, op, lane);
    else
        return tern__error_set(err, "tern_nccl", TERN_E_UNSUPPORTED, "NCCL has no band, bor or bxor");
    int status = nccl_check(result, comm, "NCCL", err);
    return status == TERN_PENDING ? TERN_OK : status;
}

static int nccl_begin(tern_error *err)
{
    return nccl_check(ncclGroupStart(), nullptr, "ncclGroupStart", err);
}

static int end(void *comm, tern_error *err)
{
    return nccl_check(ncclGroupEnd(), (ncclComm_t)comm, "ncclGroupEnd", err);
}

extern "C" TERN_API const tern__nccl_plugin tern__nccl_functions = {
    TERN_VERSION, nccl_describe, gpu,    make_id, open_comm,  test,     finalize,
    destroy,      abort_comm,    attach, detach,  nccl_begin, nccl_run, end,
};
