#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "levin/distributed/collective.h"

namespace c10d {
class Work;
}

namespace levin::detail {

using at::Tensor;

/// Something that runs beside the computation: copies on a stream, a collective, or both in a row.
class LaneTask {
 public:
  LaneTask();
  LaneTask(LaneTask&&) noexcept;
  LaneTask& operator=(LaneTask&&) noexcept;
  ~LaneTask();

  bool pending() const { return state_ != nullptr; }
  /// Makes the compute stream wait for it (on the CPU: waits), and lets go of the tensors it used.
  void finish();

 private:
  friend class Lanes;
  struct State;
  std::unique_ptr<State> state_;
};

/// The streams beside the compute stream on which parameters come and gradients go. On the CPU collectives run on
/// threads of their own, and everything else at once.
class Lanes {
 public:
  enum Which { kGather, kReduce };
  static std::shared_ptr<Lanes> make(c10::Device device);
  virtual ~Lanes() = default;

  /// Runs `body` on a lane after all that was given to the compute stream so far. `body` may return the Work of a
  /// collective that it started. The tensors in `used` live until the task is finished.
  virtual LaneTask run(Which lane, std::vector<Tensor> used,
                       const std::function<c10::intrusive_ptr<c10d::Work>()>& body) = 0;
  c10::Device device() const { return device_; }

 protected:
  explicit Lanes(c10::Device device) : device_(device) {}
  static LaneTask task(std::unique_ptr<LaneTask::State> state);
  c10::Device device_;
};

}  // namespace levin::detail
