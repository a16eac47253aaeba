#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "levin/fabric/late_flags.h"
#include "levin/optim/optimizer.h"

namespace levin {

class Fabric;

/// Says, on all ranks at the same step, that the loss or a gradient of a step is nan or inf on one of them: for a loop
/// that leaves such steps out, ends, or goes back to its last checkpoint.
///
///     levin::FiniteWatch watch(fabric);
///     for (auto& batch : loader) {
///       auto loss = loss_of(net(batch["x"]), batch["y"]);
///       fabric.backward(loss);
///       if (watch.found_bad(loss, opt)) {
///         fabric.load("run/good", {{"net", net}, {"optimizer", opt}});
///         opt.zero_grad();
///         continue;
///       }
///       opt.step();
///       opt.zero_grad();
///     }
///
/// On the CPU the answer is about the step itself. On a GPU nothing waits for the device: it is about a step 64 to 128
/// calls before. With several ranks a call on the CPU exchanges one number.
class FiniteWatch {
 public:
  explicit FiniteWatch(Fabric& fabric);

  /// Called after backward, before the optimizer's step. Every rank must call.
  bool found_bad(const at::Tensor& loss, const Optimizer& optimizer);
  /// Waits for what is not known yet: whether a step since the last answer was bad, so that what is saved now is not
  /// good. Every rank must call.
  bool found_bad_before_save();
  /// The call that the last `true` was about, from 0.
  int64_t bad_step() const { return bad_step_; }

 private:
  bool note(std::optional<int64_t> bad);

  Fabric& fabric_;
  detail::LateFlags late_;
  int64_t calls_ = 0, bad_step_ = -1;
};

}  // namespace levin
