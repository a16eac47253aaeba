#pragma once

#include "levin/distributed/collective.h"

namespace levin {

/// The group of one process: every operation is what it would be among one.
class SingleCollective : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce(Tensor& tensor, ReduceOp op = ReduceOp::kSum) override;
  Tensor all_gather(const Tensor& tensor) override;
  void broadcast(Tensor& tensor, int src = 0) override;
  Tensor reduce_scatter(const Tensor& input, ReduceOp op = ReduceOp::kSum) override;
  void barrier(std::string_view name = "barrier") override;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const override;
  c10::intrusive_ptr<c10d::Store> store() const override;

 protected:
  std::shared_ptr<Collective> part(const std::vector<int>& ranks, const std::string& name) override;
};

/// A group of which nobody else is there: one of its ranks computes on tensors without memory, and operations allocate
/// what they would among `size`. For estimates of memory.
class ImaginedCollective : public SingleCollective {
 public:
  ImaginedCollective(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(Tensor& tensor, ReduceOp op = ReduceOp::kSum) override;
  /// Every rank has what this one has.
  Tensor all_gather(const Tensor& tensor) override;
  void broadcast(Tensor& tensor, int src = 0) override;
  Tensor reduce_scatter(const Tensor& input, ReduceOp op = ReduceOp::kSum) override;
  std::vector<int64_t> exchange(std::string_view operation, int64_t number) override;
  /// Nothing: what comes is in tensors that are there.
  void run(std::string_view, const std::function<void(c10d::ProcessGroup&)>&) override {}
  /// Keeps the tensors until it is waited for, as messages under way do.
  std::unique_ptr<Transfer> start(std::string_view operation, std::vector<Message> messages) override;

 protected:
  std::shared_ptr<Collective> part(const std::vector<int>& ranks, const std::string& name) override;

 private:
  int rank_, size_;
};

}  // namespace levin
