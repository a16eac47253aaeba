#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/core/error.h"
#include "levin/distributed/collective.h"

namespace levin::testing {

/// Forwards every call to another group; tests intercept what they override. It has no subgroups: they would be
/// groups that nobody intercepts.
class ForwardingCollective : public Collective {
 public:
  explicit ForwardingCollective(Collective& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_reduce(Tensor& tensor, ReduceOp op) override { inner_.all_reduce(tensor, op); }
  Tensor all_gather(const Tensor& tensor) override { return inner_.all_gather(tensor); }
  void broadcast(Tensor& tensor, int src) override { inner_.broadcast(tensor, src); }
  Tensor reduce_scatter(const Tensor& input, ReduceOp op) override { return inner_.reduce_scatter(input, op); }
  void barrier(std::string_view name) override { inner_.barrier(name); }
  void barrier_without_timeout(std::string_view name) override { inner_.barrier_without_timeout(name); }
  void agree(std::string_view operation, const std::string& call) override { inner_.agree(operation, call); }
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const override { return inner_.process_group(); }
  c10::intrusive_ptr<c10d::Store> store() const override { return inner_.store(); }
  void run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>& body) override {
    inner_.run(operation, body);
  }
  FailureExchange* failures() override { return inner_.failures(); }
  std::vector<int64_t> exchange(std::string_view operation, int64_t number) override {
    return inner_.exchange(operation, number);
  }
  bool is_stream_work() const override { return inner_.is_stream_work(); }
  void watch_work(std::function<bool()> is_done) override { inner_.watch_work(std::move(is_done)); }
  std::unique_ptr<Transfer> start(std::string_view operation, std::vector<Message> messages) override {
    return inner_.start(operation, std::move(messages));
  }
  void set_before_abort(std::function<void()> action) override { inner_.set_before_abort(std::move(action)); }

 protected:
  std::shared_ptr<Collective> part(const std::vector<int>&, const std::string& name) override {
    throw Error("[testing] a group that forwards has no subgroups: " + name);
  }

 private:
  Collective& inner_;
};

}  // namespace levin::testing
