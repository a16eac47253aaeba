#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/optim/describe.h"
#include "levin/optim/grouped.h"

namespace levin::optim::detail {

/// Puts what a group overrides over the defaults. `Traits::each(a, b, f)` calls f(name, a.field, b.field, help) for
/// every option.
template <class Traits, class Options, class Group>
Options merged(Options options, const Group& group) {
  Traits::each(options, group, [](const char*, auto& value, const auto& override_with, const char*) {
    if (override_with) value = *override_with;
  });
  return options;
}

/// Adds to GroupedOptimizer what depends on the type of the options: one copy per group, its numbers by name, its place
/// in the state dict. Traits: Options, each(a, b, f), check(operation, options).
template <class Traits>
class Typed : public GroupedOptimizer {
 public:
  using Options = typename Traits::Options;

  std::string name() const final { return name_; }

  double* find_hyper(size_t group, std::string_view name) final {
    if (group >= options_.size()) return nullptr;
    if (name == "initial_lr") return &initial_lr_[group];
    double* found = nullptr;
    auto& options = options_[group];
    Traits::each(options, options, [&](std::string_view field, auto& value, auto&, const char*) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::same_as<Value, double>) {
        if (field == name) found = &value;
      } else if constexpr (std::same_as<Value, std::array<double, 2>>) {
        if (name == "beta1") found = &value[0];
        if (name == "beta2") found = &value[1];
      }
    });
    return found;
  }

  std::vector<std::string> hyper_names() const final {
    std::vector<std::string> names{"lr", "initial_lr"};
    Traits::each(defaults_, defaults_, [&](const char* field, const auto& value, auto&, const char*) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::same_as<Value, double>) {
        if (field != names.front()) names.emplace_back(field);
      } else if constexpr (std::same_as<Value, std::array<double, 2>>) {
        names.insert(names.end(), {"beta1", "beta2"});
      }
    });
    return names;
  }

  void add_param_group(std::vector<Tensor> params, const StateDict& values) final {
    LEVIN_CHECK(!params.empty(), "[", name_, ".add_param_group] the parameter list is empty");
    std::vector<std::string> known;
    Traits::each(defaults_, defaults_,
                 [&](const char* field, auto&, auto&, const char*) { known.emplace_back(field); });
    for (const auto& [option, value] : values)
      if (std::ranges::find(known, option) == known.end())
        fail_unknown(name_ + ".add_param_group", "option", option, known);
    const size_t group = options_.size();
    options_.push_back(defaults_);
    try {
      load_options(group, values);
      Traits::check(name_, options_[group]);
      append_group(std::move(params));
    } catch (...) {
      options_.pop_back();
      throw;
    }
  }

 protected:
  template <class Group>
  Typed(std::string name, std::vector<Group> groups, const Options& defaults)
      : GroupedOptimizer(std::move(name)), defaults_(defaults) {
    Traits::check(name_, defaults);
    std::vector<std::vector<Tensor>> lists;
    for (auto& group : groups) {
      options_.push_back(merged<Traits>(defaults, group));
      Traits::check(name_, options_.back());
      lists.push_back(std::move(group.params));
    }
    set_groups(std::move(lists));
  }

  void save_options(size_t group, StateDict& out) const override {
    const auto& options = options_[group];
    Traits::each(options, options, [&](const char* name, const auto& value, const auto&, const char*) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::same_as<Value, std::array<double, 2>>)
        out[name] = StateList{value[0], value[1]};
      else if constexpr (std::same_as<Value, std::optional<double>>)
        out[name] = value ? StateValue(*value) : StateValue();
      else
        out[name] = value;
    });
  }

  // What a file does not have stays as it is: it may come from an older torch.
  void load_options(size_t group, const StateDict& in) override {
    auto& options = options_[group];
    Traits::each(options, options, [&](const char* name, auto& value, auto&, const char*) {
      using Value = std::remove_cvref_t<decltype(value)>;
      const StateValue* saved = in.find(name);
      if (!saved) return;
      if constexpr (std::same_as<Value, std::array<double, 2>>) {
        const auto& list = saved->to_list();
        LEVIN_CHECK(list.size() == 2, "[", name_, ".load_state_dict] ", name, " has ", list.size(),
                    " values where 2 are needed");
        value = {list[0].to_double(), list[1].to_double()};
      } else if constexpr (std::same_as<Value, std::optional<double>>) {
        value = saved->empty() ? Value() : Value(saved->to_double());
      } else if constexpr (std::same_as<Value, bool>) {
        value = saved->to_bool();
      } else {
        value = saved->to_double();
      }
    });
  }

  /// All but the learning rate, for an optimizer that takes only this from the device in a graph.
  uint64_t numbers_but_lr() const {
    uint64_t hash = 0;
    const auto add = [&](double number) { hash = (hash ^ std::bit_cast<uint64_t>(number)) * 1099511628211ull; };
    for (const auto& options : options_)
      Traits::each(options, options, [&](std::string_view field, const auto& value, const auto&, const char*) {
        using Value = std::remove_cvref_t<decltype(value)>;
        if (field == "lr") return;
        if constexpr (std::same_as<Value, std::array<double, 2>>) {
          add(value[0]);
          add(value[1]);
        } else if constexpr (std::same_as<Value, std::optional<double>>) {
          add(value.value_or(-1));
        } else {
          add(static_cast<double>(value));
        }
      });
    return hash;
  }

  std::deque<Options> options_;

 private:
  Options defaults_;
};

/// The checks that optimizers share; the error names option and value.
inline void check_not_negative(const std::string& name, const char* option, double value) {
  LEVIN_CHECK(std::isfinite(value) && value >= 0, "[", name, "] ", option, "=", value, " must be a finite number >= 0");
}
inline void check_betas(const std::string& name, const std::array<double, 2>& betas) {
  for (size_t i = 0; i < 2; ++i)
    LEVIN_CHECK(betas[i] >= 0 && betas[i] < 1, "[", name, "] betas[", i, "]=", betas[i], " must be in [0, 1)");
}

/// What Adam and its kin have in common.
template <class A, class B, class F>
void each_adam_number(A& a, B& b, F& f, const char* decay) {
  f("lr", a.lr, b.lr, kLr);
  f("betas", a.betas, b.betas, kBetas);
  f("eps", a.eps, b.eps, kEps);
  f("weight_decay", a.weight_decay, b.weight_decay, decay);
}
template <class Options>
void check_adam_numbers(const std::string& name, const Options& o) {
  check_not_negative(name, "lr", o.lr);
  check_betas(name, o.betas);
  check_not_negative(name, "eps", o.eps);
  check_not_negative(name, "weight_decay", o.weight_decay);
}

}  // namespace levin::optim::detail
