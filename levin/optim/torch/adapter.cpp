#include "levin/optim/torch/adapter.h"

#include <cmath>
#include <deque>
#include <limits>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/trace_span.h"
#include "levin/core/words.h"
#include "levin/optim/state_layout.h"
#include "levin/optim/torch/state.h"
#include "levin/optim/zero_grad.h"

namespace levin::optim {
namespace {

std::string short_name(const torch::optim::Optimizer& optimizer) {
  const auto name = c10::demangle(typeid(optimizer).name());
  return name.substr(name.rfind(':') + 1);
}

class TorchAdapter final : public OptimizerImpl {
 public:
  explicit TorchAdapter(std::shared_ptr<torch::optim::Optimizer> optimizer)
      : optimizer_(std::move(optimizer)), kind_(detail::kind_of(*optimizer_)), name_(short_name(*optimizer_)) {
    drop_repeated();
    sync();
  }

  const torch::optim::Optimizer& torch_optimizer() const { return *optimizer_; }
  std::string name() const override { return name_; }
  std::optional<OptimizerTraits> traits() const override {
    if (const auto* own = dynamic_cast<const DeclaresTraits*>(optimizer_.get())) return own->traits();
    return detail::traits_of(*optimizer_);
  }

  void step() override {
    LEVIN_CHECK(!dynamic_cast<torch::optim::LBFGS*>(optimizer_.get()),
                "[LBFGS.step] needs the loss more than once a step; call step(closure)");
    const TraceSpan span([&] { return "Optimizer.step#" + name_ + ".step"; });
    sync();
    fit_states();
    optimizer_->step();
  }
  Tensor step_with(const std::function<Tensor()>& closure) override {
    sync();
    fit_states();
    return optimizer_->step(closure);
  }
  void zero_grad(bool set_to_none) override {
    const TraceSpan span([&] { return "Optimizer.zero_grad#" + name_ + ".zero_grad"; });
    for (auto& group : optimizer_->param_groups()) levin::optim::zero_grad(group.params(), set_to_none);
  }

  size_t num_groups() const override { return optimizer_->param_groups().size(); }
  std::vector<Tensor>& params(size_t group) override {
    LEVIN_CHECK(group < num_groups(), "[", name_, ".params] group ", group, " is asked for, there are ", num_groups());
    return optimizer_->param_groups()[group].params();
  }
  double* find_hyper(size_t group, std::string_view name) override {
    if (group >= num_groups()) return nullptr;
    sync();
    if (name == "initial_lr") return &mirrors_[group].initial_lr;
    for (auto& number : mirrors_[group].numbers)
      if (name == number.name) return &number.value;
    return nullptr;
  }

  std::vector<std::string> hyper_names() const override {
    sync();
    std::vector<std::string> names;
    for (const auto& number : mirrors_.front().numbers) names.emplace_back(number.name);
    names.emplace_back("initial_lr");
    return names;
  }
  void add_param_group(std::vector<Tensor> params, const StateDict& values) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& in) override;

 private:
  struct Number {
    const char* name;
    double value;
    double seen;
  };
  struct Mirror {
    std::deque<Number> numbers;
    double initial_lr = std::numeric_limits<double>::quiet_NaN();
  };

  /// Adagrad makes its state when it is made. A strategy may have sharded the parameter since.
  void fit_states() {
    if (std::exchange(states_fit_, true)) return;
    for (auto& group : optimizer_->param_groups())
      for (const auto& param : group.params()) {
        const auto found = optimizer_->state().find(param.unsafeGetTensorImpl());
        if (found == optimizer_->state().end()) continue;
        const auto* state = dynamic_cast<torch::optim::AdagradParamState*>(found->second.get());
        if (state && state->sum().sizes() != param.sizes()) found->second = kind_.fresh_state(group.options(), param);
      }
  }

  /// A module lists a tied parameter as often as it is registered, and torch would step it as often.
  void drop_repeated() {
    std::unordered_map<const c10::TensorImpl*, size_t> group_of;
    auto& groups = optimizer_->param_groups();
    for (size_t g = 0; g < groups.size(); ++g)
      std::erase_if(groups[g].params(), [&](const Tensor& param) {
        const auto [at, added] = group_of.emplace(param.unsafeGetTensorImpl(), g);
        LEVIN_CHECK(at->second == g, "[", name_, "] one parameter is in group ", at->second, " and in group ", g,
                    "; it would be stepped twice");
        return !added;
      });
  }

  // Numbers live here at stable addresses and in torch's options; since the last time, at most one side has changed.
  void sync() const {
    auto& groups = optimizer_->param_groups();
    while (mirrors_.size() < groups.size()) {
      auto& mirror = mirrors_.emplace_back();
      kind_.each_number(groups[mirrors_.size() - 1].options(), [&](const char* name, double& value) {
        mirror.numbers.push_back({name, value, value});
      });
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      auto number = mirrors_[g].numbers.begin();
      kind_.each_number(groups[g].options(), [&](const char*, double& theirs) {
        if (number->value != number->seen)
          theirs = number->value;
        else
          number->value = theirs;
        number->seen = number->value;
        ++number;
      });
    }
  }
  void warn_stateless() const {
    warn_once("the state of " + name_ +
              " is not saved nor loaded, only its learning rate (known: Adam, AdamW, SGD, RMSprop, Adagrad, LBFGS)");
  }

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  const detail::TorchKind& kind_;
  std::string name_;
  mutable std::deque<Mirror> mirrors_;
  bool states_fit_ = false;
};

void TorchAdapter::add_param_group(std::vector<Tensor> params, const StateDict& values) {
  LEVIN_CHECK(!params.empty(), "[", name_, ".add_param_group] the parameter list is empty");
  LEVIN_CHECK(!dynamic_cast<torch::optim::LBFGS*>(optimizer_.get()),
              "[LBFGS.add_param_group] LBFGS knows one group of parameters only");
  sync();
  auto options = optimizer_->defaults().clone();
  StateDict known;
  kind_.save_options(*options, known);
  std::vector<std::string> names;
  for (const auto& [name, value] : known) names.push_back(name);
  for (const auto& [name, value] : values)
    if (!known.contains(name)) fail_unknown(name_ + ".add_param_group", "option", name, names);
  kind_.load_options(*options, values);
  for (size_t g = 0; g < num_groups(); ++g)
    for (const auto& mine : optimizer_->param_groups()[g].params())
      for (const auto& param : params)
        LEVIN_CHECK(!mine.is_same(param), "[", name_, ".add_param_group] a parameter of the new group is in group ", g,
                    " too; a parameter belongs to one group");
  optimizer_->add_param_group(torch::optim::OptimizerParamGroup(std::move(params), std::move(options)));
  // Adagrad's constructor makes the state of every parameter; those that come later need theirs as well.
  if (kind_.has_state()) {
    auto& group = optimizer_->param_groups().back();
    for (const auto& param : group.params())
      if (auto state = kind_.fresh_state(group.options(), param))
        optimizer_->state()[param.unsafeGetTensorImpl()] = std::move(state);
  }
  sync();
}

StateDict TorchAdapter::state_dict() const {
  sync();
  StateDict states;
  StateList groups;
  int64_t index = 0;
  for (size_t g = 0; g < num_groups(); ++g) {
    auto& group = optimizer_->param_groups()[g];
    StateDict out;
    kind_.save_options(group.options(), out);
    if (!std::isnan(mirrors_[g].initial_lr)) out["initial_lr"] = mirrors_[g].initial_lr;
    StateList indices;
    for (const auto& param : group.params()) {
      const auto found = optimizer_->state().find(param.unsafeGetTensorImpl());
      if (kind_.has_state() && found != optimizer_->state().end())
        states[std::to_string(index)] = kind_.save_state(*found->second);
      indices.emplace_back(index++);
    }
    out["params"] = std::move(indices);
    groups.emplace_back(std::move(out));
  }
  if (!kind_.has_state()) warn_stateless();
  return {{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

void TorchAdapter::load_state_dict(const StateDict& in) {
  std::vector<size_t> sizes;
  for (const auto& group : optimizer_->param_groups()) sizes.push_back(group.params().size());
  const auto saved = detail::read_layout(name_, in, sizes);
  if (!kind_.has_state()) warn_stateless();

  at::NoGradGuard no_grad;
  // Made before anything changes, so that a misfit leaves all as it was.
  std::vector<std::pair<void*, std::unique_ptr<detail::TorchState>>> loaded;
  for (size_t g = 0; kind_.has_state() && g < sizes.size(); ++g)
    for (size_t i = 0; i < sizes[g]; ++i) {
      const Tensor& param = params(g)[i];
      const auto where = levin::detail::concat("[", name_, ".load_state_dict] parameter ", i, " of group ", g, ":");
      loaded.emplace_back(param.unsafeGetTensorImpl(),
                          saved.states[g][i] ? kind_.load_state(*saved.states[g][i], param, where)
                                             : kind_.fresh_state(optimizer_->param_groups()[g].options(), param));
    }
  sync();
  for (size_t g = 0; g < sizes.size(); ++g) {
    kind_.load_options(optimizer_->param_groups()[g].options(), *saved.groups[g]);
    const auto* initial = saved.groups[g]->find("initial_lr");
    mirrors_[g].initial_lr = initial ? initial->to_double() : std::numeric_limits<double>::quiet_NaN();
  }
  sync();
  for (auto& [address, state] : loaded) {
    if (state)
      optimizer_->state()[address] = std::move(state);
    else
      optimizer_->state().erase(address);
  }
}

}  // namespace

const torch::optim::Optimizer* adapted(const OptimizerImpl& optimizer) {
  const auto* adapter = dynamic_cast<const TorchAdapter*>(&optimizer);
  return adapter ? &adapter->torch_optimizer() : nullptr;
}

Optimizer adapt(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  LEVIN_CHECK(optimizer, "[adapt] the pointer to the optimizer is null");
  return Optimizer(std::make_shared<TorchAdapter>(std::move(optimizer)));
}

Optimizer adapt(torch::optim::Optimizer& optimizer) {
  // Borrowed: the pointer owns nothing.
  return adapt(std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &optimizer));
}

}  // namespace levin::optim
