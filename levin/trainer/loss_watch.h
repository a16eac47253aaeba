#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace levin::detail {

/// Warns, once in a run, of a loss that is nan or inf, and of an epoch whose steps all returned none. Losses on a
/// device are looked at together, some batches later, without waiting for them; at the end of an epoch all have been
/// seen.
class LossWatch {
 public:
  /// What a training step returned; an empty tensor is none.
  void add(const at::Tensor& loss, int64_t epoch, int64_t batch);
  /// `trains`: a step without a loss trains nothing.
  void end_epoch(int64_t epoch, bool trains);

 private:
  /// Which of some losses are not finite, on their way to the host.
  struct Flags {
    at::Tensor values;
    std::vector<int64_t> batches;
    int64_t epoch = 0;
    std::optional<c10::Event> arrived = {};
  };
  void send(int64_t epoch);
  void look(bool wait);
  void warn(int64_t epoch, int64_t batch);

  bool warned_ = false, warned_none_ = false;
  int64_t steps_ = 0, losses_ = 0;
  std::vector<at::Tensor> pending_;
  std::vector<int64_t> batches_;
  std::deque<Flags> sent_;
};

}  // namespace levin::detail
