/* backend.cc - c10d's collectives and messages as calls of tern.
 *
 * tern takes plain buffers of one dtype. A tensor that is not contiguous is copied to one that is, and its result
 * is copied back when the work is done. Calls that only move data take tensors of any dtype, as bytes if tern does
 * not have it. The checks of arguments are those of PyTorch's gloo back end, with its words. */
#include "backend.h"

#include <pybind11/chrono.h>

#include <regex>

namespace torch_tern
{
using at::Tensor;
using c10d::OpType;

namespace
{
/* ---- dtypes and operations ---- */

/* NONE if tern does not have it. */
tern_dtype dtype_of(at::ScalarType type)
{
    switch (type) {
    case at::kFloat: return TERN_F32;
    case at::kDouble: return TERN_F64;
    case at::kHalf: return TERN_F16;
    case at::kBFloat16: return TERN_BF16;
    case at::kLong: return TERN_I64;
    case at::kInt: return TERN_I32;
    case at::kByte: return TERN_U8;
    case at::kBool: return TERN_BOOL;
    case at::kChar: return TERN_I8;
    case at::kShort: return TERN_I16;
    default: return TERN_DTYPE_NONE;
    }
}

tern_reduce_op op_of(const c10d::ReduceOp &op)
{
    switch (op.op_) {
    case c10d::ReduceOp::SUM: return TERN_SUM;
    case c10d::ReduceOp::AVG: return TERN_AVG;
    case c10d::ReduceOp::PRODUCT: return TERN_PRODUCT;
    case c10d::ReduceOp::MIN: return TERN_MIN;
    case c10d::ReduceOp::MAX: return TERN_MAX;
    case c10d::ReduceOp::BAND: return TERN_BAND;
    case c10d::ReduceOp::BOR: return TERN_BOR;
    case c10d::ReduceOp::BXOR: return TERN_BXOR;
    case c10d::ReduceOp::PREMUL_SUM: return TERN_PREMUL_SUM;
    default: TORCH_CHECK(false, "Unhandled ReduceOp");
    }
}

/* Combines two tensors of one rank. */
void combine(Tensor &into, const Tensor &other, const c10d::ReduceOp &op)
{
    at::NoGradGuard no_grad;
    switch (op.op_) {
    case c10d::ReduceOp::SUM: into.add_(other); break;
    case c10d::ReduceOp::PRODUCT: into.mul_(other); break;
    case c10d::ReduceOp::MIN: into.copy_(at::minimum(into, other)); break;
    case c10d::ReduceOp::MAX: into.copy_(at::maximum(into, other)); break;
    case c10d::ReduceOp::BAND: into.bitwise_and_(other); break;
    case c10d::ReduceOp::BOR: into.bitwise_or_(other); break;
    case c10d::ReduceOp::BXOR: into.bitwise_xor_(other); break;
    default: TORCH_CHECK(false, "Unhandled ReduceOp");
    }
}

/* ---- buffers ---- */

/* The elements of a tensor as tern takes them. */
struct Buffer {
    Tensor tensor; /* contiguous */
    void *data;
    size_t count; /* elements of dtype */
    tern_dtype dtype;
};

Buffer buffer_of(const Tensor &contiguous, bool is_reduced)
{
    Tensor real = contiguous.is_complex() ? at::view_as_real(contiguous) : contiguous;
    tern_dtype dtype = dtype_of(real.scalar_type());
    TORCH_CHECK(!is_reduced || dtype != TERN_DTYPE_NONE, "Invalid scalar type");
    size_t count = real.numel();
    if (dtype == TERN_DTYPE_NONE) {
        dtype = TERN_U8;
        count *= real.element_size();
    }
    return {real, real.data_ptr(), count, dtype};
}

size_t bytes_of(const Buffer &buffer)
{
    return buffer.count * tern_dtype_bytes(buffer.dtype);
}

bool overlap(const Buffer &one, const Buffer &other)
{
    const char *a = static_cast<const char *>(one.data), *b = static_cast<const char *>(other.data);
    return a < b + bytes_of(other) && b < a + bytes_of(one);
}

/* ---- checks, in the words of gloo's back end ---- */

using Fail = std::function<void(const std::string &)>;

Fail fail_of(const char *function)
{
    return [function](const std::string &text) { TORCH_CHECK(false, "ProcessGroupGloo::", function, ": ", text); };
}

void check_tensors(const Fail &fail, const std::vector<Tensor> &tensors)
{
    for (const Tensor &tensor : tensors) {
        if (tensor.layout() != at::kStrided) fail("only supports dense tensors");
        if (!tensor.device().is_cpu()) fail(c10::str("unsupported device type ", tensor.device().type()));
    }
}

void check_type(const Fail &fail, const Tensor &tensor, const Tensor &like, size_t index)
{
    if (tensor.scalar_type() != like.scalar_type())
        fail(c10::str("invalid tensor type at index ", index, " (expected ", like.toString(), ", got ",
                      tensor.toString(), ")"));
}

void check_same(const Fail &fail, const std::vector<Tensor> &tensors, const Tensor &like)
{
    for (size_t i = 0; i < tensors.size(); i++) {
        check_type(fail, tensors[i], like, i);
        if (tensors[i].sizes() != like.sizes())
            fail(c10::str("invalid tensor size at index ", i, " (expected ", like.sizes(), ", got ",
                          tensors[i].sizes(), ")"));
    }
}

void check_root(const Fail &fail, int64_t root, int size)
{
    if (root < 0 || root >= size) fail(c10::str("invalid root rank: ", root));
}

void check_single(const Fail &fail, size_t count, const char *what)
{
    if (count != 1) fail(c10::str("requires a single-element ", what, " list"));
}

void check_list(const Fail &fail, size_t count, const char *what, int size)
{
    if (count != 1)
        fail(c10::str("requires a single-element ", what, " list containing a list with ", size, " tensors."));
}

Tensor &single_tensor(const Fail &fail, std::vector<Tensor> &tensors)
{
    check_single(fail, tensors.size(), "tensor");
    check_tensors(fail, tensors);
    return tensors[0];
}
} // namespace

/* ---- a call ---- */

/* A function that another thread may run, where tensors of inference mode can only be changed in that mode. */
template <class Function> std::function<void()> in_callers_mode(Function function)
{
    return [function = std::move(function), is_inference = c10::InferenceMode::is_enabled()]() mutable {
        c10::InferenceMode mode(is_inference);
        at::NoGradGuard no_grad;
        function();
    };
}

/* What a c10d call becomes, until its work is started. */
struct TernBackend::Call {
    OpType type;
    const char *title; /* in profiles */
    bool is_async;
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    Tensors inputs; /* as PyTorch sees them */
    std::vector<Tensors> outputs;
    int source = -1;
    Tensors keep;
    std::vector<std::pair<Tensor, Tensor>> copies; /* done at the end: the result, what it is copied from */

    Buffer in(const Tensor &tensor, bool is_reduced = false)
    {
        Buffer buffer = buffer_of(tensor.contiguous(), is_reduced);
        keep.push_back(buffer.tensor);
        return buffer;
    }
    Buffer out(const Tensor &tensor, bool is_reduced = false)
    {
        Tensor contiguous = tensor.contiguous();
        Buffer buffer = buffer_of(contiguous, is_reduced);
        keep.push_back(buffer.tensor);
        if (!contiguous.is_same(tensor)) copies.emplace_back(tensor, contiguous);
        return buffer;
    }
    /* A contiguous tensor for the results of all ranks or of a list, which go[i] gets parts of. */
    Buffer out_parts(const Tensors &to, int64_t numel)
    {
        Tensor all = at::empty({numel}, to[0].options());
        int64_t at = 0;
        for (const Tensor &tensor : to) {
            copies.emplace_back(tensor, all.narrow(0, at, tensor.numel()).view(tensor.sizes()));
            at += tensor.numel();
        }
        Buffer buffer = buffer_of(all, false);
        keep.push_back(buffer.tensor);
        return buffer;
    }
};

TernBackend::WorkRef TernBackend::run(Call &&call, Group::Start start)
{
    auto work = c10::make_intrusive<TernWork>(group_, getRank(), call.type, call.title, std::move(call.inputs),
                                              std::move(call.outputs), call.source);
    work->keep = std::move(call.keep);
    work->timeout = timeout_of(call.timeout);
    if (!call.copies.empty())
        work->after = in_callers_mode([copies = std::move(call.copies)] {
            for (const auto &copy : copies) copy.first.copy_(copy.second);
        });
    work->sequence = ++sequence_;
    group_->start(work, start, call.is_async);
    return work;
}

std::chrono::milliseconds TernBackend::timeout_of(std::chrono::milliseconds asked) const
{
    return asked == c10d::kUnsetTimeout || asked.count() <= 0 ? timeout_ : asked;
}

/* ---- reductions ---- */

TernBackend::WorkRef TernBackend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    const Fail fail = fail_of("allreduce");
    if (tensors.empty()) fail("requires non-empty tensor list");
    c10d::assertLayoutMatch(fail, tensors);
    c10d::assertTypeAndSizesMatch(fail, tensors);
    if (tensors[0].layout() == at::kSparse) return allreduce_sparse_tensors(tensors, opts);
    check_tensors(fail, tensors);
    const tern_reduce_op op = op_of(opts.reduceOp);
    Call call{OpType::ALLREDUCE, "tern:all_reduce", is_async(opts, 0), opts.timeout, tensors, {tensors}};
    const Buffer buffer = call.out(tensors[0], true);
    for (size_t i = 1; i < tensors.size(); i++) {
        Tensor into = buffer.tensor.view(tensors[i].sizes());
        combine(into, tensors[i], opts.reduceOp);
        call.copies.emplace_back(tensors[i], into);
    }
    if (op == TERN_PREMUL_SUM) {
        const double factor = factor_of(opts.reduceOp);
        return run(std::move(call), [=](tern_group *group, tern_error *err) {
            return tern_all_reduce_premul_post(group, buffer.data, buffer.count, buffer.dtype, factor, err);
        });
    }
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        return tern_all_reduce_post(group, buffer.data, buffer.count, buffer.dtype, op, err);
    });
}

TernBackend::WorkRef TernBackend::allreduce_coalesced(Tensors &tensors,
                                                      const c10d::AllreduceCoalescedOptions &opts)
{
    const Fail fail = fail_of("allreduce_coalesced");
    if (tensors.empty()) fail("requires non-empty tensor list");
    c10d::assertLayoutMatch(fail, tensors);
    for (const Tensor &tensor : tensors)
        if (tensor.scalar_type() != tensors[0].scalar_type()) fail("tensors must all have the same type");
    if (tensors[0].layout() != at::kStrided) fail("unsupported layout");
    check_tensors(fail, tensors);
    const tern_reduce_op op = op_of(opts.reduceOp);
    Call call{OpType::ALLREDUCE_COALESCED, "tern:all_reduce", is_async(opts, 0), opts.timeout, tensors, {tensors}};
    std::vector<tern_span> spans;
    tern_dtype dtype = TERN_DTYPE_NONE;
    for (const Tensor &tensor : tensors) {
        const Buffer buffer = call.out(tensor, true);
        spans.push_back({buffer.data, buffer.count});
        dtype = buffer.dtype;
    }
    return run(std::move(call), [=, &spans](tern_group *group, tern_error *err) {
        return tern_all_reduce_coalesced_post(group, spans.data(), spans.size(), dtype, op, err);
    });
}

/* Adds sparse tensors, as gloo's back end does: all ranks get all indices and values, and add them up. The numbers
 * of values differ between the ranks. */
TernBackend::WorkRef TernBackend::allreduce_sparse_tensors(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    const Fail fail = fail_of("allreduce");
    if (opts.reduceOp.op_ != c10d::ReduceOp::SUM)
        fail("unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)");
    if (!tensors[0].device().is_cpu()) fail(c10::str("unsupported device type ", tensors[0].device().type()));
    at::NoGradGuard no_grad;
    Tensor own = tensors[0];
    for (size_t i = 1; i < tensors.size(); i++) own = own + tensors[i];
    own = own.coalesce();
    const Tensor indices = own.indices().contiguous(), values = own.values().contiguous();
    const int64_t dims = own.sparse_dim();
    const size_t world = getSize();
    const auto sizes = own.sizes().vec();
    auto shape = sizes; /* and the number of values */
    shape.push_back(values.size(0));
    std::vector<int64_t> shapes(world * shape.size());
    tern_error err = group_->call([&](tern_group *group, tern_error *why) {
        tern_all_gather(group, shape.data(), shapes.data(), shape.size(), TERN_I64, why);
    });
    if (err.code) throw_error(err);
    Tensors all_indices, all_values;
    std::vector<tern_span> index_spans, value_spans;
    for (size_t rank = 0; rank < world; rank++) {
        const int64_t *of_rank = &shapes[rank * shape.size()];
        TORCH_CHECK(std::equal(sizes.begin(), sizes.end(), of_rank), "Sparse dimensions do not match");
        auto value_sizes = values.sizes().vec();
        value_sizes[0] = of_rank[sizes.size()];
        all_indices.push_back(at::empty({dims, value_sizes[0]}, indices.options()));
        all_values.push_back(at::empty(value_sizes, values.options()));
        const Buffer index = buffer_of(all_indices.back(), false), value = buffer_of(all_values.back(), true);
        index_spans.push_back({index.data, index.count});
        value_spans.push_back({value.data, value.count});
    }
    const Buffer own_index = buffer_of(indices, false), own_value = buffer_of(values, true);
    err = group_->call([&](tern_group *group, tern_error *why) {
        tern_all_gather_v(group, own_index.data, own_index.count, index_spans.data(), own_index.dtype, why);
    });
    if (err.code) throw_error(err);
    Call call{OpType::ALLREDUCE, "tern:all_reduce", is_async(opts, 0), opts.timeout, tensors, {tensors}};
    call.keep = {own_value.tensor};
    call.keep.insert(call.keep.end(), all_values.begin(), all_values.end());
    auto work = c10::make_intrusive<TernWork>(group_, getRank(), call.type, call.title, call.inputs, call.outputs);
    work->keep = std::move(call.keep);
    work->timeout = timeout_of(call.timeout);
    work->after = in_callers_mode([tensors, all_indices, all_values, sizes] {
        Tensor sum = at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), sizes).coalesce();
        for (const Tensor &tensor : tensors) tensor.copy_(sum);
    });
    work->sequence = ++sequence_;
    group_->start(
        work,
        [&](tern_group *group, tern_error *why) {
            return tern_all_gather_v_post(group, own_value.data, own_value.count, value_spans.data(),
                                          own_value.dtype, why);
        },
        is_async(opts, 0));
    return work;
}

TernBackend::WorkRef TernBackend::reduce(Tensors &tensors, const c10d::ReduceOptions &opts)
{
    const Fail fail = fail_of("reduce");
    check_root(fail, opts.rootRank, getSize());
    if (opts.rootTensor < 0 || opts.rootTensor >= static_cast<int64_t>(tensors.size()))
        fail(c10::str("invalid root tensor: ", opts.rootTensor));
    Tensor &tensor = single_tensor(fail, tensors);
    const tern_reduce_op op = op_of(opts.reduceOp);
    const int root = opts.rootRank;
    Call call{OpType::REDUCE, "tern:reduce", is_async(opts, 0), opts.timeout, tensors, {tensors}};
    const Buffer buffer = root == getRank() ? call.out(tensor, true) : call.in(tensor, true);
    const double factor = op == TERN_PREMUL_SUM ? factor_of(opts.reduceOp) : 0;
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        if (op == TERN_PREMUL_SUM)
            return tern_reduce_premul_post(group, buffer.data, buffer.count, buffer.dtype, factor, root, err);
        return tern_reduce_post(group, buffer.data, buffer.count, buffer.dtype, op, root, err);
    });
}

/* `input` has a part for each rank. */
TernBackend::WorkRef TernBackend::reduce_scatter_flat(Call &&call, Tensor &output, const Tensor &input,
                                                      const c10d::ReduceOp &reduce_op)
{
    const tern_reduce_op op = op_of(reduce_op);
    const Buffer in = call.in(input, true), out = call.out(output, true);
    const double factor = op == TERN_PREMUL_SUM ? factor_of(reduce_op) : 0;
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        if (op == TERN_PREMUL_SUM)
            return tern_reduce_scatter_premul_post(group, in.data, out.data, out.count, out.dtype, factor, err);
        return tern_reduce_scatter_post(group, in.data, out.data, out.count, out.dtype, op, err);
    });
}

TernBackend::WorkRef TernBackend::_reduce_scatter_base(Tensor &output, Tensor &input,
                                                       const c10d::ReduceScatterOptions &opts)
{
    const Fail fail = fail_of("_reduce_scatter_base");
    check_tensors(fail, {output, input});
    if (input.scalar_type() != output.scalar_type()) fail("input and output must have the same type");
    if (input.numel() != output.numel() * getSize())
        fail("input tensor must be the same size as output size times world size");
    Call call{OpType::_REDUCE_SCATTER_BASE, "tern:_reduce_scatter_base", is_async(opts, 0), opts.timeout, {input}, {{output}}};
    return reduce_scatter_flat(std::move(call), output, input, opts.reduceOp);
}

/* Parts of different sizes: every rank gets the whole sum and keeps its part. */
TernBackend::WorkRef TernBackend::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                                 const c10d::ReduceScatterOptions &opts)
{
    const Fail fail = fail_of("reduce_scatter");
    check_single(fail, outputs.size(), "output tensor");
    check_single(fail, inputs.size(), "input tensor");
    check_tensors(fail, outputs);
    check_tensors(fail, inputs[0]);
    if (static_cast<int>(inputs[0].size()) != getSize())
        fail(c10::str("invalid input tensor list at index 0 (expected length ", getSize(), ", got ",
                      inputs[0].size(), ")"));
    Tensors parts;
    bool is_even = true;
    int64_t before = 0;
    for (int rank = 0; rank < getSize(); rank++) {
        parts.push_back(inputs[0][rank].reshape({-1}));
        is_even &= parts[rank].numel() == parts[0].numel();
        before += rank < getRank() ? parts[rank].numel() : 0;
    }
    if (outputs[0].numel() != parts[getRank()].numel()) fail("invalid tensor size at index 0");
    Call call{OpType::REDUCE_SCATTER, "tern:reduce_scatter", is_async(opts, 0), opts.timeout, inputs[0], {outputs}};
    const Tensor all = at::cat(parts);
    if (is_even) return reduce_scatter_flat(std::move(call), outputs[0], all, opts.reduceOp);
    const tern_reduce_op op = op_of(opts.reduceOp);
    const Buffer buffer = call.in(all, true);
    call.copies.emplace_back(outputs[0], all.narrow(0, before, outputs[0].numel()).view(outputs[0].sizes()));
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        return tern_all_reduce_post(group, buffer.data, buffer.count, buffer.dtype, op, err);
    });
}

/* ---- broadcast and gathering ---- */

TernBackend::WorkRef TernBackend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts)
{
    const Fail fail = fail_of("broadcast");
    check_root(fail, opts.rootRank, getSize());
    if (opts.rootTensor < 0 || opts.rootTensor >= static_cast<int64_t>(tensors.size()))
        fail(c10::str("invalid root tensor: ", opts.rootTensor));
    check_tensors(fail, tensors);
    check_same(fail, tensors, tensors[0]);
    Call call{OpType::BROADCAST, "tern:broadcast", is_async(opts, 0), opts.timeout, tensors, {tensors}};
    const Tensor &first = tensors[opts.rootTensor];
    const int root = opts.rootRank;
    const Buffer buffer = root == getRank() ? call.in(first) : call.out(first);
    for (const Tensor &tensor : tensors)
        if (!tensor.is_same(first)) call.copies.emplace_back(tensor, buffer.tensor.view(tensor.sizes()));
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        return tern_broadcast_post(group, buffer.data, buffer.count, buffer.dtype, root, err);
    });
}

/* The tensors of a rank go as one. Each list gets those of rank 0, then those of rank 1, and so on. */
TernBackend::WorkRef TernBackend::allgather_flat(Call &&call, const Tensors &inputs, const std::vector<Tensors> &lists)
{
    Tensors flat;
    for (const Tensor &input : inputs) flat.push_back(input.reshape({-1}));
    const Tensor own = at::cat(flat);
    const Buffer in = call.in(own), out = call.out_parts(lists[0], own.numel() * getSize());
    for (size_t list = 1; list < lists.size(); list++)
        for (size_t i = 0; i < lists[list].size(); i++) call.copies.emplace_back(lists[list][i], lists[0][i]);
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        return tern_all_gather_post(group, in.data, out.data, in.count, in.dtype, err);
    });
}

TernBackend::WorkRef TernBackend::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &opts)
{
    const Fail fail = fail_of("allgather");
    if (inputs.empty()) fail("requires non-empty input tensor list");
    if (inputs.size() != outputs.size()) fail("requires input/output tensor lists to have the same length");
    const size_t length = inputs.size() * getSize();
    check_tensors(fail, inputs);
    for (size_t i = 0; i < outputs.size(); i++) {
        if (outputs[i].size() != length)
            fail(c10::str("invalid output tensor list at index ", i, " (expected length ", length, ", got ",
                          outputs[i].size(), ")"));
        check_tensors(fail, outputs[i]);
    }
    Call call{OpType::ALLGATHER, "tern:all_gather", is_async(opts, 0), opts.timeout, inputs, outputs};
    if (inputs.size() > 1) {
        check_same(fail, inputs, inputs[0]);
        for (const Tensors &list : outputs) check_same(fail, list, inputs[0]);
        return allgather_flat(std::move(call), inputs, outputs);
    }
    for (size_t i = 0; i < length; i++) check_type(fail, outputs[0][i], inputs[0], i);
    if (outputs[0][getRank()].numel() != inputs[0].numel()) check_same(fail, outputs[0], inputs[0]);
    Buffer in = call.in(inputs[0]);
    std::vector<tern_span> spans;
    bool is_shared = false; /* the input is the place of another rank's part */
    for (size_t rank = 0; rank < length; rank++) {
        const Buffer out = call.out(outputs[0][rank]);
        is_shared |= overlap(in, out) && !(static_cast<int>(rank) == getRank() && in.data == out.data);
        spans.push_back({out.data, out.count});
    }
    if (is_shared) in = call.in(in.tensor.clone());
    return run(std::move(call), [=, &spans](tern_group *group, tern_error *err) {
        return tern_all_gather_v_post(group, in.data, in.count, spans.data(), in.dtype, err);
    });
}

TernBackend::WorkRef TernBackend::_allgather_base(Tensor &output, Tensor &input,
                                                  const c10d::AllgatherOptions &opts)
{
    const Fail fail = fail_of("_allgather_base");
    check_tensors(fail, {output, input});
    if (output.scalar_type() != input.scalar_type()) fail("output tensor must have the same type as input tensor");
    if (output.numel() != input.numel() * getSize())
        fail("output tensor size must be equal to world_size times input tensor size");
    Call call{OpType::_ALLGATHER_BASE, "tern:_allgather_base", is_async(opts, 0), opts.timeout, {input}, {{output}}};
    Buffer in = call.in(input), out = call.out(output);
    const char *own = static_cast<const char *>(out.data) + bytes_of(in) * getRank();
    if (overlap(in, out) && in.data != own) in = call.in(in.tensor.clone());
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        return tern_all_gather_post(group, in.data, out.data, in.count, in.dtype, err);
    });
}

/* outputs[rank][i] gets rank's inputs[i]. */
TernBackend::WorkRef TernBackend::allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                                      const c10d::AllgatherOptions &opts)
{
    const Fail fail = fail_of("allgather_coalesced");
    if (inputs.empty()) fail("requires non-empty input tensor list");
    if (static_cast<int>(outputs.size()) != getSize()) fail("output lists should be equal to world size");
    check_tensors(fail, inputs);
    for (size_t rank = 0; rank < outputs.size(); rank++) {
        if (outputs[rank].size() != inputs.size())
            fail(c10::str("invalid output size: (expected length ", inputs.size(), ", got ", outputs[rank].size(), ")"));
        for (size_t i = 0; i < inputs.size(); i++) {
            if (outputs[rank][i].sizes() != inputs[i].sizes())
                fail(c10::str("invalid size of output tensor at index ", i, " (expected length ",
                              inputs[i].sizes(), ", got ", outputs[rank][i].sizes(), ")"));
            check_type(fail, outputs[rank][i], inputs[i], i);
        }
    }
    Tensors results;
    for (const Tensor &input : inputs)
        if (input.scalar_type() != inputs[0].scalar_type()) fail("tensors must all have the same type");
    for (const Tensors &of_rank : outputs) results.insert(results.end(), of_rank.begin(), of_rank.end());
    Call call{OpType::ALLGATHER_COALESCED, "tern:all_gather", is_async(opts, 0), opts.timeout, inputs, outputs};
    return allgather_flat(std::move(call), inputs, {results});
}

TernBackend::WorkRef TernBackend::gather(std::vector<Tensors> &outputs, Tensors &inputs,
                                         const c10d::GatherOptions &opts)
{
    const Fail fail = fail_of("gather");
    check_root(fail, opts.rootRank, getSize());
    check_single(fail, inputs.size(), "input tensor");
    check_tensors(fail, inputs);
    const int root = opts.rootRank;
    if (getRank() == root) {
        check_list(fail, outputs.size(), "output", getSize());
        if (static_cast<int>(outputs[0].size()) != getSize())
            fail(c10::str("Incorrect output list size ", outputs[0].size(), ". Output list size should be ",
                          getSize(), ", same as size of the process group."));
        check_same(fail, outputs[0], inputs[0]);
    } else if (!outputs.empty()) {
        fail("requires empty output on non-root");
    }
    Call call{OpType::GATHER, "tern:gather", is_async(opts, 0), opts.timeout, inputs, {}};
    if (getRank() == root) call.outputs = outputs;
    const Buffer in = call.in(inputs[0]);
    const Buffer out = getRank() == root ? call.out_parts(outputs[0], inputs[0].numel() * getSize()) : Buffer();
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        return tern_gather_post(group, in.data, out.data, in.count, in.dtype, root, err);
    });
}

TernBackend::WorkRef TernBackend::scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                          const c10d::ScatterOptions &opts)
{
    const Fail fail = fail_of("scatter");
    check_root(fail, opts.rootRank, getSize());
    check_single(fail, outputs.size(), "output tensor");
    check_tensors(fail, outputs);
    const int root = opts.rootRank;
    Call call{OpType::SCATTER, "tern:scatter", is_async(opts, 0), opts.timeout, {}, {outputs}};
    Buffer in = {};
    if (getRank() == root) {
        check_list(fail, inputs.size(), "input", getSize());
        if (static_cast<int>(inputs[0].size()) != getSize())
            fail(c10::str("Incorrect input list size ", inputs[0].size(), ". Input list size should be ", getSize(),
                          ", same as size of the process group."));
        check_tensors(fail, inputs[0]);
        check_same(fail, inputs[0], outputs[0]);
        call.inputs = inputs[0];
        in = call.in(at::stack(inputs[0]));
    } else if (!inputs.empty()) {
        fail("requires empty input on non-root");
    }
    const Buffer out = call.out(outputs[0]);
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        return tern_scatter_post(group, in.data, out.data, out.count, out.dtype, root, err);
    });
}

TernBackend::WorkRef TernBackend::alltoall_base(Tensor &output, Tensor &input,
                                                std::vector<int64_t> &output_counts,
                                                std::vector<int64_t> &input_counts,
                                                const c10d::AllToAllOptions &opts)
{
    const Fail fail = fail_of("alltoall_base");
    check_tensors(fail, {output, input});
    if (output.scalar_type() != input.scalar_type()) fail("tensors are not equal in data type");
    const size_t world = getSize();
    c10d::checkSplitSizes(input_counts, input, world);
    c10d::checkSplitSizes(output_counts, output, world);
    Call call{OpType::ALLTOALL_BASE, "tern:all_to_all", is_async(opts, 0), opts.timeout, {input}, {{output}}};
    const Buffer in = call.in(input), out = call.out(output);
    if (input_counts.empty() && output_counts.empty()) {
        if (in.count != out.count) fail("tensors are not equal in size");
        return run(std::move(call), [=](tern_group *group, tern_error *err) {
            return tern_all_to_all_post(group, in.data, out.data, in.count / world, in.dtype, err);
        });
    }
    std::vector<size_t> gives(world), takes(world);
    const size_t in_row = input.size(0) ? in.count / input.size(0) : 0,
                 out_row = output.size(0) ? out.count / output.size(0) : 0;
    for (size_t rank = 0; rank < world; rank++) {
        gives[rank] = in_row * (input_counts.empty() ? input.size(0) / world : input_counts[rank]);
        takes[rank] = out_row * (output_counts.empty() ? output.size(0) / world : output_counts[rank]);
    }
    return run(std::move(call), [=, &gives, &takes](tern_group *group, tern_error *err) {
        return tern_all_to_all_v_post(group, in.data, gives.data(), out.data, takes.data(), in.dtype, err);
    });
}

TernBackend::WorkRef TernBackend::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts)
{
    const Fail fail = fail_of("alltoall");
    const size_t world = getSize();
    if (outputs.size() != world || inputs.size() != world) fail("the lists of tensors need one for each rank");
    check_tensors(fail, inputs);
    check_tensors(fail, outputs);
    Tensors flat;
    std::vector<size_t> gives(world), takes(world);
    int64_t taken = 0;
    for (size_t rank = 0; rank < world; rank++) {
        if (inputs[rank].scalar_type() != inputs[0].scalar_type() ||
            outputs[rank].scalar_type() != inputs[0].scalar_type())
            fail("tensors must all have the same type");
        flat.push_back(inputs[rank].reshape({-1}));
        taken += outputs[rank].numel();
    }
    Call call{OpType::ALLTOALL, "tern:all_to_all", is_async(opts, 0), opts.timeout, inputs, {outputs}};
    const Tensor all = at::cat(flat);
    const Buffer in = call.in(all), out = call.out_parts(outputs, taken);
    const size_t each = all.numel() ? in.count / all.numel() : 1; /* tern's elements in one of PyTorch's */
    for (size_t rank = 0; rank < world; rank++) {
        gives[rank] = inputs[rank].numel() * each;
        takes[rank] = outputs[rank].numel() * (taken ? out.count / taken : 1);
    }
    return run(std::move(call), [=, &gives, &takes](tern_group *group, tern_error *err) {
        return tern_all_to_all_v_post(group, in.data, gives.data(), out.data, takes.data(), in.dtype, err);
    });
}

#if TORCH_VERSION_MAJOR >= 2
namespace
{
/* The types of these works, which torch 2.6 does not have. */
template <class Type> constexpr auto gather_type(int) -> decltype(Type::ALLGATHER_INTO_TENSOR_COALESCED)
{
    return Type::ALLGATHER_INTO_TENSOR_COALESCED;
}
template <class Type> constexpr Type gather_type(long)
{
    return Type::COALESCED;
}
template <class Type> constexpr auto scatter_type(int) -> decltype(Type::REDUCE_SCATTER_TENSOR_COALESCED)
{
    return Type::REDUCE_SCATTER_TENSOR_COALESCED;
}
template <class Type> constexpr Type scatter_type(long)
{
    return Type::COALESCED;
}
} // namespace

TernBackend::WorkRef TernBackend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                                  const c10d::AllgatherOptions &opts)
{
    const Fail fail = fail_of("allgather_into_tensor_coalesced");
    if (inputs.empty() || inputs.size() != outputs.size()) fail("requires as many outputs as inputs");
    check_tensors(fail, inputs);
    check_tensors(fail, outputs);
    Call call{gather_type<OpType>(0), "tern:all_gather", is_async(opts, 0), opts.timeout, inputs, {outputs}};
    std::vector<tern_span> ins;
    std::vector<void *> outs;
    tern_dtype dtype = TERN_DTYPE_NONE;
    for (size_t i = 0; i < inputs.size(); i++) {
        if (outputs[i].numel() != inputs[i].numel() * getSize())
            fail("output tensor size must be equal to world_size times input tensor size");
        const Buffer in = call.in(inputs[i]), out = call.out(outputs[i]);
        if (i && in.dtype != dtype) fail("tensors must all have the same type");
        ins.push_back({in.data, in.count});
        outs.push_back(out.data);
        dtype = in.dtype;
    }
    return run(std::move(call), [=, &ins, &outs](tern_group *group, tern_error *err) {
        return tern_all_gather_coalesced_post(group, ins.data(), outs.data(), ins.size(), dtype, err);
    });
}

TernBackend::WorkRef TernBackend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                                  const c10d::ReduceScatterOptions &opts)
{
    const Fail fail = fail_of("reduce_scatter_tensor_coalesced");
    if (inputs.empty() || inputs.size() != outputs.size()) fail("requires as many outputs as inputs");
    check_tensors(fail, inputs);
    check_tensors(fail, outputs);
    const tern_reduce_op op = op_of(opts.reduceOp);
    Call call{scatter_type<OpType>(0), "tern:reduce_scatter", is_async(opts, 0), opts.timeout, inputs, {outputs}};
    std::vector<const void *> ins;
    std::vector<tern_span> outs;
    tern_dtype dtype = TERN_DTYPE_NONE;
    for (size_t i = 0; i < inputs.size(); i++) {
        if (inputs[i].numel() != outputs[i].numel() * getSize())
            fail("input tensor must be the same size as output size times world size");
        const Buffer in = call.in(inputs[i], true), out = call.out(outputs[i], true);
        if (i && in.dtype != dtype) fail("tensors must all have the same type");
        ins.push_back(in.data);
        outs.push_back({out.data, out.count});
        dtype = in.dtype;
    }
    return run(std::move(call), [=, &ins, &outs](tern_group *group, tern_error *err) {
        return tern_reduce_scatter_coalesced_post(group, ins.data(), outs.data(), outs.size(), dtype, op, err);
    });
}
#endif

/* ---- messages ---- */

namespace
{
Buffer message_buffer(const char *function, std::vector<Tensor> &tensors)
{
    const Fail fail = fail_of(function);
    const Tensor &tensor = single_tensor(fail, tensors);
    if (!tensor.is_contiguous()) fail("Tensors must be contiguous");
    return buffer_of(tensor, false);
}

int tag_of(int tag)
{
    TORCH_CHECK(tag >= 0, "Tag must be nonnegative");
    return tag;
}
} // namespace

TernBackend::WorkRef TernBackend::send(Tensors &tensors, int to, int tag)
{
    const Buffer buffer = message_buffer("send", tensors);
    Call call{OpType::SEND, "tern:send", true, c10d::kUnsetTimeout, tensors, {}};
    call.keep = {buffer.tensor};
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        return tern_isend(group, buffer.data, buffer.count, buffer.dtype, to, tag_of(tag), err);
    });
}

TernBackend::WorkRef TernBackend::recv(Tensors &tensors, int from, int tag)
{
    const Buffer buffer = message_buffer("recv", tensors);
    const bool is_any = from == TERN_ANY_SOURCE;
    Call call{is_any ? OpType::RECVANYSOURCE : OpType::RECV, is_any ? "tern:recvAnySource" : "tern:recv", true,
              c10d::kUnsetTimeout, tensors, {tensors}, from};
    call.keep = {buffer.tensor};
    return run(std::move(call), [=](tern_group *group, tern_error *err) {
        return tern_irecv(group, buffer.data, buffer.count, buffer.dtype, from, tag_of(tag), err);
    });
}

TernBackend::WorkRef TernBackend::recvAnysource(Tensors &tensors, int tag)
{
    return recv(tensors, TERN_ANY_SOURCE, tag);
}

/* ---- barriers ---- */

TernBackend::WorkRef TernBackend::barrier(const c10d::BarrierOptions &opts)
{
    Call call{OpType::BARRIER, "tern:barrier", is_async(opts, 0), opts.timeout, {}, {}};
    return run(std::move(call), [](tern_group *group, tern_error *err) { return tern_barrier_post(group, err); });
}

namespace
{
/* The ranks that tern says have not come: "1, 2". */
std::string missing_ranks(const std::string &text, bool *is_one)
{
    static const std::regex rank("\\brank ([0-9]+) \\(");
    std::string list;
    const size_t from = text.find("not called by");
    const std::string rest = from == std::string::npos ? "" : text.substr(from);
    int count = 0;
    for (auto at = std::sregex_iterator(rest.begin(), rest.end(), rank); at != std::sregex_iterator(); ++at, count++)
        list += (count ? ", " : "") + at->str(1);
    *is_one = count == 1;
    return list;
}
} // namespace

/* PyTorch's words come first: programs look for them. For all ranks they are a list, even of one. */
void TernBackend::monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks)
{
    const auto timeout = opts.timeout == c10d::kUnsetTimeout ? timeout_ : opts.timeout;
    const double shortest_s = 1e-3;
    sequence_++;
    const tern_error err = group_->call([&](tern_group *group, tern_error *why) {
        tern_monitored_barrier(group, std::max(timeout.count() * 1e-3, shortest_s), wait_all_ranks, why);
    });
    if (err.code != TERN_E_TIMEOUT) {
        if (err.code) throw_error(err);
        return;
    }
    bool is_one;
    const std::string missing = missing_ranks(err.text, &is_one);
    if (getRank() == 0 && wait_all_ranks)
        TORCH_TERN_THROW(c10::str("[Rank 0]: Ranks ", missing, " failed to pass monitoredBarrier in ",
                                  timeout.count(), " ms; tern: ", err.text));
    if (getRank() == 0)
        TORCH_TERN_THROW(c10::str("Rank 0 timed out in monitoredBarrier after ", timeout.count(), " ms: ",
                                  is_one ? "Rank " : "Ranks ", missing, " failed to pass monitoredBarrier in ",
                                  timeout.count(), " ms; tern: ", err.text));
    TORCH_TERN_THROW(c10::str("Rank ", getRank(), " successfully reached monitoredBarrier, but received errors while ",
                              "waiting for send/recv from rank 0; tern: ", err.text));
}

/* ---- life ---- */

TernBackend::TernBackend(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                         std::chrono::milliseconds timeout)
    : Base(rank, size), group_(Group::open(store, rank, size, timeout)), timeout_(timeout)
{
    init();
}

TernBackend::~TernBackend()
{
    try {
        group_->close();
    } catch (const std::exception &) { /* a destructor has nobody to tell */
    }
}

const std::string TernBackend::getBackendName() const
{
    return "tern";
}

void TernBackend::setSequenceNumberForGroup()
{
}

uint64_t TernBackend::getSequenceNumberForGroup()
{
    return sequence_;
}

c10::intrusive_ptr<Base::Options> TernBackend::getBackendOptions()
{
    return c10::make_intrusive<Options>("tern", timeout_);
}

void TernBackend::enableCollectivesTiming()
{
}

void TernBackend::shutdown()
{
    group_->close();
}

void TernBackend::abort()
{
    group_->abort("the process group was aborted");
}

#if TORCH_TERN_NEWER(7)
void TernBackend::setTimeout(std::chrono::milliseconds timeout)
{
    timeout_ = timeout;
}

/* DDP asks when it makes its buckets, on all ranks: the first block of a group is a collective call. */
bool TernBackend::supportsTensorAlloc(c10::DeviceIndex)
{
    return getSize() > 1;
}

Tensor TernBackend::allocateTensor(long size, at::TensorOptions options)
{
    const size_t bytes = std::max<size_t>(size * options.dtype().itemsize(), 1);
    auto group = group_;
    void *block = group->memory_new(bytes);
    if (!block) return at::empty({size}, options);
    return at::from_blob(block, {size}, [group](void *data) { group->memory_free(data); }, options);
}

bool TernBackend::supportsSplitting() const
{
    return true;
}

c10::intrusive_ptr<Base> TernBackend::split(const c10::intrusive_ptr<c10d::Store> &store,
                                            const std::vector<int> &ranks,
                                            const c10::intrusive_ptr<Options> &opts)
{
    const auto own = std::find(ranks.begin(), ranks.end(), getRank());
    if (own == ranks.end()) return nullptr;
    return c10::make_intrusive<TernBackend>(store_clone(store, 0), static_cast<int>(own - ranks.begin()),
                                            static_cast<int>(ranks.size()), opts ? opts->timeout : timeout_);
}

c10::intrusive_ptr<Base> TernBackend::merge(const c10::intrusive_ptr<c10d::Store> &store,
                                            const c10::intrusive_ptr<Options> &opts, const int &rank,
                                            const int &size)
{
    return c10::make_intrusive<TernBackend>(store, rank, size, opts ? opts->timeout : timeout_);
}
#endif

/* ---- the module ---- */

c10::intrusive_ptr<Base> create_backend(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                        const std::chrono::duration<float> &timeout)
{
    return c10::make_intrusive<TernBackend>(store, rank, size,
                                            std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
}
} // namespace torch_tern

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
    module.def("create_backend", &torch_tern::create_backend, pybind11::call_guard<pybind11::gil_scoped_release>());
    module.def("tern_version", [] { return tern_version(); });
    module.def("end_threads", &torch_tern::Group::end_all_threads,
               pybind11::call_guard<pybind11::gil_scoped_release>());
}
