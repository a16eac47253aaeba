#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "levin/distributed/collective.h"
#include "levin/strategies/sharding/call_order.h"

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace levin::detail {

using at::Tensor;

/// What overlaps with the computation: a collective, copies around it, or copies alone.
struct LaneWork {
  /// How errors and those who count call it: "fsdp.all_gather".
  std::string_view operation;
  /// Tensors that must live until it is done.
  std::vector<Tensor> used;
  /// Before the collective.
  std::function<void()> before = {};
  /// Null: there is nobody to communicate with.
  Collective* group = nullptr;
  std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)> collective = {};
  /// After it.
  std::function<void()> after = {};
  /// Its number in the order of calls, for what ranks must start in the same order; -1: nobody else takes part.
  int unit = -1;
};

/// A LaneWork that was started.
class LaneTask {
 public:
  LaneTask();
  LaneTask(LaneTask&&) noexcept;
  LaneTask& operator=(LaneTask&&) noexcept;
  ~LaneTask();

  bool pending() const { return state_ != nullptr; }
  /// Makes the compute stream wait for it (on the CPU: waits), and lets go of its tensors. Returns how the host can
  /// wait for it too, for what was copied to host memory; empty when it is there.
  std::function<void()> finish();

 private:
  friend class Lanes;
  struct State;
  explicit LaneTask(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Streams that overlap with the compute stream: one gathers parameters, one reduces gradients. On the CPU collectives
/// run on threads of their own and everything else at once.
class Lanes {
 public:
  enum Which { kGather, kReduce };

  explicit Lanes(c10::Device device);
  ~Lanes();

  /// Starts something on a lane, after all that was given to the compute stream so far.
  LaneTask run(Which lane, LaneWork work);
  /// The host waits for all that was started on the lanes.
  void synchronize() const;
  c10::Device device() const { return device_; }

  /// Compares what ranks start, before they do. Null: there is nobody to compare with.
  void set_order(std::shared_ptr<CallOrder> order) { order_ = std::move(order); }
  CallOrder* order() const { return order_.get(); }

 private:
  struct Streams;
  c10::Device device_;
  std::shared_ptr<CallOrder> order_;
  std::unique_ptr<Streams> streams_;
};

}  // namespace levin::detail
