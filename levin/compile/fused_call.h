#pragma once

#include <memory>
#include <string>

#include "levin/compile/graph.h"
#include "levin/compile/group.h"

namespace levin::compile {

/// A group in a graph. Its reads and writes are the group's tensors in order.
class FusedCall final : public Call {
 public:
  FusedCall(Group group, c10::Device device);
  ~FusedCall() override;

  std::string name() const override;
  void run(std::span<const Tensor> reads, std::span<const Tensor> writes) override;
  std::string text() const override;
  const Group& group() const { return group_; }
  c10::Device device() const { return device_; }
  /// Makes the kernel, which `run` does otherwise.
  void prepare();

 private:
  Group group_;
  c10::Device device_;
  std::shared_ptr<GroupKernel> kernel_;
};

/// Makes the kernels of all, several at once.
void prepare(std::span<FusedCall* const> calls);

}  // namespace levin::compile
