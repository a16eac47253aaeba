#include "levin/optim/optimizer.h"

#include <ATen/core/grad_mode.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {
Tensor OptimizerImpl::step_with(const std::function<Tensor()>& closure) {
  Tensor loss;
  {
    at::AutoGradMode enabled(true);
    loss = closure();
  }
  step();
  return loss;
}

void OptimizerImpl::add_param_group(std::vector<Tensor>, const StateDict&) {
  levin::detail::fail("[" + name() + ".add_param_group] this optimizer cannot take more parameters once it is made");
}

std::string OptimizerImpl::prepare_capture() {
  return name() + " works out its step with numbers of the host, such as the learning rate, which a graph would repeat";
}

Tensor Optimizer::step(const std::function<Tensor()>& closure) {
  LEVIN_CHECK(closure, "[optimizer.step] the closure is empty; give a function that returns the loss, or call step()");
  return get().step_with(closure);
}

std::vector<Tensor> Optimizer::all_params() const {
  std::vector<Tensor> all;
  for (size_t group = 0; group < num_groups(); ++group) {
    const auto& params = get().params(group);
    all.insert(all.end(), params.begin(), params.end());
  }
  return all;
}

double& Optimizer::hyper(std::string_view name, size_t group) const {
  auto& impl = get();
  LEVIN_CHECK(group < impl.num_groups(), "[optimizer.hyper] group ", group, " is asked for, ", impl.name(), " has ",
              impl.num_groups());
  if (double* value = impl.find_hyper(group, name)) return *value;
  fail_unknown(impl.name(), "hyperparameter", name, impl.hyper_names());
}

void Optimizer::fail_empty() {
  levin::detail::fail(
      "[optimizer] this handle is empty; assign an optimizer to it first, for example levin::optim::AdamW(params)");
}

}  // namespace levin
