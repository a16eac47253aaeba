#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "levin/core/state_dict.h"
#include "levin/kernels/fp8/fp8.h"
#include "levin/optim/optimizer.h"

namespace levin {

using at::Tensor;

/// A precision, resolved: what becomes of parameters, inputs, computation and outputs. A plain value;
/// `known_precisions()` lists the table it comes from.
struct PrecisionPlan {
  std::string name = "32-true";
  /// Parameters are made in and converted to this dtype; none: left as they are.
  std::optional<c10::ScalarType> params = {};
  /// Floating tensors given to forward are cast to this dtype; none: left as they are.
  std::optional<c10::ScalarType> inputs = {};
  /// Floating tensors that forward returns are cast to this dtype.
  std::optional<c10::ScalarType> outputs = {};
  /// Forward runs under autocast to this dtype.
  std::optional<c10::ScalarType> autocast = {};
  /// The loss is scaled against underflow (fp16 only).
  bool scales_loss = false;
  /// Linear layers multiply in float8; none: as autocast says.
  std::optional<kernels::Fp8Options> fp8 = {};

  bool operator==(const PrecisionPlan&) const = default;
};

/// "32-true", "16-mixed", "bf16", "64", ... to a plan, with Lightning's aliases. On the CPU 16-mixed becomes
/// bf16-mixed, with a line that says so; another line says when the CPU has no products in that dtype (in float8:
/// never) and they are emulated. An unknown word is an Error with the known ones and the nearest.
PrecisionPlan resolve_precision(std::string_view word, c10::DeviceType device);
std::vector<std::string> known_precisions();

/// Runs its scope under autocast to a dtype on a device type, and restores what was before. The cache of cast weights
/// is dropped when the outermost scope ends, as in torch.autocast.
class Autocast {
 public:
  Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType previous_dtype_;
  bool previous_enabled_;
};

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
};

/// The loss scaler of fp16 training, number by number torch.amp.GradScaler.
class GradScaler {
 public:
  explicit GradScaler(GradScalerOptions options = {});
  /// One whose scale is 1 for ever: all it does is to leave out the steps of which the loss or a gradient is inf or
  /// nan, on all ranks. It has no state to save.
  static GradScaler that_skips();

  /// loss * scale
  Tensor scale(const Tensor& loss);
  /// Divides the gradients of an optimizer by the scale, once per step; needed before clipping.
  void unscale(Optimizer& optimizer);
  /// Steps unless a gradient is inf or nan. Fused optimizers are told on the device; for others the host waits for the
  /// answer.
  void step(Optimizer& optimizer);
  /// Grows or backs off. After the step of each optimizer, or once after all of them: both count as one step, until the
  /// next scale(). Gradients that are left are unscaled by the scale that they were made with.
  void update();

  /// Forgets a step that was not completed: what was unscaled or stepped since the last update().
  void abandon_step();
  /// What comes belongs to another step than the last update(). scale() says so; a graph that is replayed cannot.
  void begin_step();

  /// Steps that were left out since this was asked last; the host waits for the device.
  int64_t take_skipped_steps();

  /// There is no loss: the next step of an optimizer is left out, and the scale stays as it is. Holds until scale().
  void skip_step() { skips_ = true; }
  /// Whether that was asked for; asking ends it.
  bool take_skip() { return std::exchange(skips_, false); }

  /// For gradients that are spread over ranks: `reduce` makes what one rank found known to all, in place.
  void share_found_inf(std::function<void(Tensor&)> reduce) { share_ = std::move(reduce); }

  double current_scale() const;
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  struct PerOptimizer;
  PerOptimizer& of(const Optimizer& optimizer);
  void check_inf(PerOptimizer& state, Optimizer& optimizer, bool unscale);
  /// That of the gradients of this step.
  const Tensor& used_scale() const { return before_.scale.defined() ? before_.scale : scale_; }

  /// What was before the first update() of a step, and what all optimizers of the step have found since.
  struct Before {
    Tensor scale, growth_tracker, found_inf;
  };

  GradScalerOptions options_;
  Tensor scale_;
  Tensor growth_tracker_;
  Before before_;
  std::function<void(Tensor&)> share_;
  std::vector<std::shared_ptr<PerOptimizer>> per_optimizer_;
  bool skips_ = false;
  /// The scale stays 1.
  bool fixed_ = false;
  /// Counted on the device.
  Tensor skipped_;
};

}  // namespace levin
