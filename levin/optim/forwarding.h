#pragma once

#include <utility>

#include "levin/optim/optimizer.h"

namespace levin::optim {

/// An optimizer around another: all but its steps are those of the inner one. A decorator overrides step() and what
/// else it changes. Other ways of stepping go through its step(), or are refused, unless it overrides them too.
class ForwardingOptimizer : public OptimizerImpl {
 public:
  std::string name() const override { return inner_.name(); }
  std::optional<OptimizerTraits> traits() const override { return inner_.traits(); }
  void zero_grad(bool set_to_none) override { inner_.zero_grad(set_to_none); }
  size_t num_groups() const override { return inner_.num_groups(); }
  std::vector<Tensor>& params(size_t group) override { return inner_.params(group); }
  double* find_hyper(size_t group, std::string_view hyper) override { return inner_.impl()->find_hyper(group, hyper); }
  std::vector<std::string> hyper_names() const override { return inner_.impl()->hyper_names(); }
  void add_param_group(std::vector<Tensor> more, const StateDict& options) override {
    inner_.add_param_group(std::move(more), options);
  }
  bool set_slot_memory(std::function<Tensor(const Tensor& like)> make) override {
    return inner_.impl()->set_slot_memory(std::move(make));
  }
  void set_shards(ParamShards shards) override { inner_.impl()->set_shards(std::move(shards)); }
  StateDict state_dict() const override { return inner_.state_dict(); }
  bool check_state_dict(const StateDict& state) override { return inner_.impl()->check_state_dict(state); }
  bool makes_room(const StateDict& state) const override { return inner_.impl()->makes_room(state); }
  void load_state_dict(const StateDict& state) override { inner_.load_state_dict(state); }

  Optimizer& inner() { return inner_; }
  const Optimizer& inner() const { return inner_; }

 protected:
  explicit ForwardingOptimizer(Optimizer inner) : inner_(std::move(inner)) {}

 private:
  Optimizer inner_;
};

}  // namespace levin::optim
