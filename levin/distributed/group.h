#pragma once

#include <atomic>
#include <optional>

#include "levin/core/worker_thread.h"
#include "levin/distributed/collective.h"
#include "levin/distributed/failure.h"
#include "levin/distributed/traffic.h"
#include "levin/distributed/watch.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace levin {

/// What the groups of a run have in common: how a rank reaches the others.
struct GroupRoute {
  /// This machine's address on the interface that leads to the others.
  std::string address;
  c10::Device device = at::kCPU;
  /// CUDA tensors go over NCCL; else everything goes over Gloo.
  bool nccl = false;
  /// This process serves the store, so it leaves last.
  bool serves_store = false;
  std::chrono::milliseconds timeout{};
  /// How long to wait for the connections to be made.
  std::chrono::milliseconds join_timeout{};
  detail::WatchOptions watch = {};
  /// What this rank sends, in a group and its parts.
  std::shared_ptr<detail::TrafficCounter> traffic = std::make_shared<detail::TrafficCounter>();
  /// What set_before_abort was given, for a group and its parts.
  std::shared_ptr<std::function<void()>> before_abort = std::make_shared<std::function<void()>>();
};

/// Several processes over Gloo, and NCCL where each has a GPU of its own.
///
/// There are two sets of connections. One carries the checks: every operation first gathers a few numbers that say what
/// each rank is about to do. The other carries the data, and what c10d::Reducer sends. They are apart because two
/// operations of different sizes that meet on one Gloo connection end the process.
class ProcessCollective : public Collective {
 public:
  /// `names` are the ranks of the run by rank of the group; `parent` is the failure exchange of the group this is a
  /// part of, and `watch` its watch.
  ProcessCollective(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank, std::vector<int> names,
                    GroupRoute route, std::shared_ptr<FailureExchange> parent,
                    std::shared_ptr<detail::RankWatch> watch = nullptr);
  ~ProcessCollective() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(names_.size()); }
  void all_reduce(Tensor& tensor, ReduceOp op = ReduceOp::kSum) override;
  Tensor all_gather(const Tensor& tensor) override;
  void broadcast(Tensor& tensor, int src = 0) override;
  Tensor reduce_scatter(const Tensor& input, ReduceOp op = ReduceOp::kSum) override;
  void barrier(std::string_view name = "barrier") override;
  void barrier_without_timeout(std::string_view name) override;
  void agree(std::string_view operation, const std::string& call) override { meet(std::string(operation), call); }
  std::vector<int64_t> exchange(std::string_view operation, int64_t number) override {
    return meet(std::string(operation), std::string(operation), number);
  }
  bool is_stream_work() const override { return nccl_ != nullptr; }
  void watch_work(std::function<bool()> is_done) override;
  void set_before_abort(std::function<void()> action) override { *route_.before_abort = std::move(action); }
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const override;
  c10::intrusive_ptr<c10d::Store> store() const override;
  void run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>& body) override;
  void note_place(std::string_view place) override {
    if (home_.is_here()) watch_->set_place(place);
  }
  void note_doing(std::string_view doing) override {
    if (home_.is_here()) watch_->set_doing(doing);
  }
  FailureExchange* failures() override { return failures_.get(); }
  std::unique_ptr<Transfer> start(std::string_view operation, std::vector<Message> messages) override;
  Traffic traffic() const { return route_.traffic->read(); }

 protected:
  std::shared_ptr<Collective> part(const std::vector<int>& ranks, const std::string& name) override;

 private:
  class Sending;
  void guarded(const std::string& operation, const std::function<void()>& body);
  /// Meets all ranks and compares what each is about to do. Returns the numbers that they bring.
  std::vector<int64_t> meet(const std::string& operation, const std::string& call, int64_t number = 0);
  /// Meets before an operation on a tensor. In a capture ranks do not meet: they have, before the step.
  void begin(const std::string& operation, const std::string& call, const Tensor& tensor);
  [[noreturn]] void fail_disagreement(const std::string& operation, const std::string& call);
  c10d::Backend& backend(const Tensor& tensor) const;
  Tensor reduced(const Tensor& input, ReduceOp op,
                 const std::function<Tensor(const Tensor&, ReduceOp)>& exchange) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string name_;
  const int rank_;
  const std::vector<int> names_;
  const GroupRoute route_;
  c10::intrusive_ptr<c10d::Backend> control_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::intrusive_ptr<c10d::Backend> nccl_;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  std::shared_ptr<FailureExchange> failures_;
  struct PendingWork;
  std::shared_ptr<PendingWork> pending_;
  std::optional<FailureWatcher> watcher_;
  std::shared_ptr<detail::GroupTrace> trace_;
  std::shared_ptr<detail::RankWatch> watch_;
  const detail::HomeProcess home_;
  int64_t sequence_ = 0;
};

}  // namespace levin
