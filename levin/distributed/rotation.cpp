#include "levin/distributed/rotation.h"

#include <utility>

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace levin {
namespace {
constexpr int kRotationTag = 1;
}

Rotation::Rotation(Collective& ranks, const Tensor& tensor)
    : ranks_(ranks), device_(tensor.device()), sent_(tensor.detach().contiguous()) {
  if (ranks.size() == 1) {
    received_ = sent_;
    return;
  }
  // Gloo carries memory of the host only.
  if (sent_.is_cuda() && !ranks.is_stream_work()) sent_ = sent_.cpu();
  received_ = at::empty_like(sent_);
  const int next = (ranks.rank() + 1) % ranks.size(), before = (ranks.rank() + ranks.size() - 1) % ranks.size();
  std::vector<Tensor> out{sent_}, in{received_};
  ranks.run(fmt::format("rotate {} bytes", sent_.nbytes()), [&](c10d::ProcessGroup& all) {
    // NCCL: both in one launch, or each would wait for the partner of the other.
    const bool joined = sent_.is_cuda();
    if (joined) all.startCoalescing(c10::DeviceType::CUDA);
    works_.push_back(all.send(out, next, kRotationTag));
    works_.push_back(all.recv(in, before, kRotationTag));
    if (joined) works_ = {all.endCoalescing(c10::DeviceType::CUDA)};
  });
}

Rotation::~Rotation() = default;

Tensor Rotation::wait() {
  if (!works_.empty())
    ranks_.run("rotate", [&](c10d::ProcessGroup&) {
      for (const auto& work : works_)
        if (work) work->wait();
    });
  works_.clear();
  sent_.reset();
  return std::exchange(received_, {}).to(device_);
}

}  // namespace levin
