#include "levin/optim/in_backward.h"

#include <mutex>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/optim/forwarding.h"

namespace levin::optim {
namespace {

using torch::autograd::PostAccumulateGradHook;

/// What the hooks share with the optimizer; without it they only call what was there before them.
struct Stepper {
  std::shared_ptr<OptimizerImpl> inner;
  std::mutex mutex;  // each device has its own thread of backward
  std::unordered_set<const c10::TensorImpl*> stepped;

  void step(const Tensor& param) {
    const std::lock_guard lock(mutex);
    LEVIN_CHECK(stepped.insert(param.unsafeGetTensorImpl()).second, "[", inner->name(),
                " in backward] a parameter of shape ", fmt::format("{}", param.sizes()),
                " got a second gradient before step(): gradients cannot be accumulated where each backward steps; call "
                "step() after every backward, or use the optimizer itself");
    inner->step_params(std::span(&param, 1));
    param.mutable_grad().reset();
  }
};

class StepHook final : public PostAccumulateGradHook {
 public:
  StepHook(std::weak_ptr<Stepper> stepper, std::unique_ptr<PostAccumulateGradHook> before)
      : stepper_(std::move(stepper)), before_(std::move(before)) {}

  void operator()(const Tensor& param) override {
    if (before_) (*before_)(param);
    const auto stepper = stepper_.lock();
    if (stepper && param.grad().defined()) stepper->step(param);
  }
  std::shared_ptr<Stepper> stepper() const { return stepper_.lock(); }
  bool belongs_to(const std::shared_ptr<Stepper>& stepper) const {
    return !stepper_.owner_before(stepper) && !stepper.owner_before(stepper_);
  }
  std::unique_ptr<PostAccumulateGradHook> release_before() { return std::move(before_); }

 private:
  std::weak_ptr<Stepper> stepper_;
  std::unique_ptr<PostAccumulateGradHook> before_;
};

// Each parameter has one place for such a hook.
std::unique_ptr<PostAccumulateGradHook>& place_of_hook(const Tensor& param) {
  return torch::autograd::impl::post_acc_grad_hooks(param);
}

class InBackwardImpl final : public ForwardingOptimizer {
 public:
  explicit InBackwardImpl(const Optimizer& optimizer)
      : ForwardingOptimizer(optimizer), stepper_(std::make_shared<Stepper>()) {
    stepper_->inner = optimizer.impl();
    for (size_t g = 0; g < num_groups(); ++g)
      for (const auto& param : params(g)) hook(param);
  }
  ~InBackwardImpl() override {
    for (const auto& param : hooked_) {
      auto& place = place_of_hook(param);
      auto* mine = dynamic_cast<StepHook*>(place.get());
      // Where another has put its hook around this one, it stays and does nothing.
      if (!mine || !mine->belongs_to(stepper_)) continue;
      auto before = mine->release_before();
      place = std::move(before);
    }
  }

  // Each parameter is stepped alone, and ranks may step them in different orders.
  std::optional<OptimizerTraits> traits() const override {
    auto traits = ForwardingOptimizer::traits();
    if (traits) traits->tensor_sums = false;
    return traits;
  }
  void step() override {
    inner().step();
    inner().zero_grad(/*set_to_none=*/true);
    stepper_->stepped.clear();
  }
  bool step_scaled(const GradScale&) override {
    levin::detail::fail("[" + name() +
                        " in backward] a loss scaler must see all gradients before a step, and here each parameter "
                        "moves as soon as it has its own; use precision \"bf16-mixed\", or the optimizer itself");
  }
  // Before step() it follows a backward that did not end: what that one has stepped cannot be taken back.
  void zero_grad(bool) override {
    if (stepper_->stepped.empty()) return;
    log_warning(
        fmt::format("[{} in backward] zero_grad() came before step(): backward has stepped {} of {} parameters "
                    "already, the others keep their values; resume from a checkpoint, or the parameters are of "
                    "different steps",
                    name(), stepper_->stepped.size(), hooked_.size()));
    inner().zero_grad(/*set_to_none=*/true);
    stepper_->stepped.clear();
  }
  void add_param_group(std::vector<Tensor> more, const StateDict& options) override {
    inner().add_param_group(std::move(more), options);
    for (const auto& param : params(num_groups() - 1)) hook(param);
  }

 private:
  void hook(const Tensor& param) {
    if (!param.requires_grad()) return;
    auto before = std::move(place_of_hook(param));
    torch::autograd::impl::set_post_acc_grad_hooks(param, std::make_unique<StepHook>(stepper_, std::move(before)));
    hooked_.push_back(param);
  }

  std::shared_ptr<Stepper> stepper_;
  std::vector<Tensor> hooked_;
};

}  // namespace

OptimizerInBackward::OptimizerInBackward(const Optimizer& optimizer) {
  LEVIN_CHECK(optimizer, "[OptimizerInBackward] the optimizer's handle is empty");
  for (const auto& param : optimizer.all_params()) {
    const auto other = detail::stepped_in_backward_by(param);
    LEVIN_CHECK(other.empty(), "[OptimizerInBackward] a parameter of shape ", fmt::format("{}", param.sizes()),
                " is stepped in backward by ", other, " already; one optimizer can have it");
  }
  LEVIN_CHECK(optimizer.impl()->step_params({}), "[OptimizerInBackward] ", optimizer.name(),
              " cannot step a part of its parameters; Levin's own optimizers can");
  impl_ = std::make_shared<InBackwardImpl>(optimizer);
}

std::string detail::stepped_in_backward_by(const Tensor& param) {
  if (!torch::autograd::impl::get_autograd_meta(param)) return {};
  const auto* hook = dynamic_cast<const StepHook*>(place_of_hook(param).get());
  const auto stepper = hook ? hook->stepper() : nullptr;
  return stepper ? stepper->inner->name() : std::string();
}

bool detail::steps_in_backward(const Optimizer& optimizer) {
  const OptimizerImpl* impl = optimizer.impl().get();
  while (impl && !dynamic_cast<const InBackwardImpl*>(impl)) {
    const auto* around = dynamic_cast<const ForwardingOptimizer*>(impl);
    impl = around ? around->inner().impl().get() : nullptr;
  }
  return impl != nullptr;
}

}  // namespace levin::optim
