#include "levin/distributed/nccl.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "levin/distributed/traffic.h"

namespace levin::detail {
namespace {

/// NCCL as PyTorch builds it, with a count of what it sends.
class CountedNccl final : public c10d::ProcessGroupNCCL {
 public:
  using WorkRef = c10::intrusive_ptr<c10d::Work>;
  CountedNccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options,
              std::shared_ptr<TrafficCounter> traffic)
      : ProcessGroupNCCL(std::move(store), rank, size, std::move(options)), traffic_(std::move(traffic)) {}

  WorkRef allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    count("all_reduce", tensors);
    return ProcessGroupNCCL::allreduce(tensors, options);
  }
  WorkRef broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    count("broadcast", tensors);
    return ProcessGroupNCCL::broadcast(tensors, options);
  }
  WorkRef _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    count("all_gather", {input});
    return ProcessGroupNCCL::_allgather_base(output, input, options);
  }
  WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    count("reduce_scatter", {input});
    return ProcessGroupNCCL::_reduce_scatter_base(output, input, options);
  }
  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_counts,
                        std::vector<int64_t>& input_counts, const c10d::AllToAllOptions& options) override {
    const auto bytes = static_cast<int64_t>(input.nbytes());
    const bool uneven = !input_counts.empty() && input.numel() > 0;
    const auto sent = uneven ? bytes - input_counts[static_cast<size_t>(getRank())] * (bytes / input.size(0))
                             : sent_in_ring("all_to_all", bytes, getSize());
    if (traffic_) traffic_->add("all_to_all", bytes, sent);
    return ProcessGroupNCCL::alltoall_base(output, input, output_counts, input_counts, options);
  }

 private:
  void count(std::string_view operation, const std::vector<at::Tensor>& tensors) {
    int64_t bytes = 0;
    for (const auto& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
    if (traffic_ && bytes > 0) traffic_->add(operation, bytes, sent_in_ring(operation, bytes, getSize()));
  }

  const std::shared_ptr<TrafficCounter> traffic_;
};

}  // namespace

std::string why_no_nccl() {
  return {};
}

c10::intrusive_ptr<c10d::Backend> make_nccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                            c10::Device device, std::chrono::milliseconds timeout,
                                            std::shared_ptr<TrafficCounter> traffic) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<CountedNccl>(store, rank, size, options, std::move(traffic));
  // Bound to its device: NCCL then need not guess it from the first tensor, and a barrier uses the right one.
  backend->setBoundDeviceId(device);
  return backend;
}

}  // namespace levin::detail
