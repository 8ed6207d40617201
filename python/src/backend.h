/* backend.h - the back end "tern" of torch.distributed: c10d's collectives and messages as calls of tern. */
#pragma once

#include "group.h"

namespace torch_tern
{
class TernBackend : public Base
{
  public:
    using Work = c10d::Work;
    using Tensors = std::vector<at::Tensor>;
    using WorkRef = c10::intrusive_ptr<Work>;

    TernBackend(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                std::chrono::milliseconds timeout);
    ~TernBackend() override;
    const std::string getBackendName() const override;

    WorkRef broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
    WorkRef allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    WorkRef allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &opts) override;
    WorkRef reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override;
    WorkRef allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &opts) override;
    WorkRef _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &opts) override;
    WorkRef allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &opts) override;
    WorkRef gather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::GatherOptions &opts) override;
    WorkRef scatter(Tensors &outputs, std::vector<Tensors> &inputs, const c10d::ScatterOptions &opts) override;
    WorkRef reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &opts) override;
    WorkRef _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &opts) override;
    WorkRef alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_counts,
                          std::vector<int64_t> &input_counts, const c10d::AllToAllOptions &opts) override;
    WorkRef alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) override;
    WorkRef send(Tensors &tensors, int to, int tag) override;
    WorkRef recv(Tensors &tensors, int from, int tag) override;
    WorkRef recvAnysource(Tensors &tensors, int tag) override;
    WorkRef barrier(const c10d::BarrierOptions &opts) override;
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks) override;
    void setSequenceNumberForGroup() override;
    uint64_t getSequenceNumberForGroup() override;

    /* Without `override`, since torch 2.6 does not have them. */
    c10::intrusive_ptr<Options> getBackendOptions();
    void enableCollectivesTiming(); /* there is nothing to turn on */
    void shutdown();
    void abort();
#if TORCH_VERSION_MAJOR >= 2
    WorkRef allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &opts) override;
    WorkRef reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &opts) override;
#endif
#if TORCH_TERN_NEWER(7)
    bool supportsTensorAlloc(c10::DeviceIndex device) override;
    at::Tensor allocateTensor(long size, at::TensorOptions options) override;
    void setTimeout(std::chrono::milliseconds timeout) override;
    bool supportsSplitting() const override;
    c10::intrusive_ptr<Base> split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                   const c10::intrusive_ptr<Options> &opts) override;
    /* Without `override`, since 2.7 does not have it. */
    c10::intrusive_ptr<Base> merge(const c10::intrusive_ptr<c10d::Store> &store,
                                   const c10::intrusive_ptr<Options> &opts, const int &rank, const int &size);
#endif

  private:
    struct Call;
    WorkRef run(Call &&call, Group::Start start);
    WorkRef allreduce_sparse_tensors(Tensors &tensors, const c10d::AllreduceOptions &opts);
    WorkRef allgather_flat(Call &&call, const Tensors &inputs, const std::vector<Tensors> &lists);
    WorkRef reduce_scatter_flat(Call &&call, at::Tensor &output, const at::Tensor &input,
                                const c10d::ReduceOp &op);
    std::chrono::milliseconds timeout_of(std::chrono::milliseconds asked) const;

    std::shared_ptr<Group> group_;
    std::chrono::milliseconds timeout_;
    std::atomic<uint64_t> sequence_{0};
};
} // namespace torch_tern
