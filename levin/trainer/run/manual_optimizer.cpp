#include "levin/trainer/run/manual_optimizer.h"

#include <memory>
#include <utility>

#include "levin/optim/forwarding.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

/// Counts the steps of an optimizer that training_step drives itself, and calls the hooks around them.
class ManualOptimizer final : public optim::ForwardingOptimizer {
 public:
  ManualOptimizer(Optimizer inner, Run& run) : ForwardingOptimizer(std::move(inner)), run_(run) {}

  void step() override {
    before();
    check_finite(run_);
    inner().step();
    ++run_.state.progress.global_step;
  }
  Tensor step_with(const std::function<Tensor()>& closure) override {
    auto loss = inner().step([&] {
      auto value = closure();
      before();
      check_finite(run_);
      return value;
    });
    ++run_.state.progress.global_step;
    return loss;
  }

 private:
  void before() {
    const auto* site = run_.state.place.site;
    if (run_.fabric->grad_scaler()) run_.fabric->unscale_gradients(inner());
    call<Hook::on_before_optimizer_step>(run_, inner());
    refuses_gradients(run_, inner());
    run_.state.place.site = site;
  }

  Run& run_;
};

}  // namespace

Optimizer for_manual_optimization(Optimizer optimizer, Run& run) {
  return Optimizer(std::make_shared<ManualOptimizer>(std::move(optimizer), run));
}

Optimizer as_set_up(const Optimizer& optimizer) {
  const auto* manual = dynamic_cast<const ManualOptimizer*>(optimizer.impl().get());
  return manual ? manual->inner() : optimizer;
}

}  // namespace levin::detail
