#include "levin/optim/torch/state.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "levin/core/error.h"

namespace levin::optim::detail {
namespace {

using Betas = std::tuple<double, double>;

template <class O, class S>
struct AdamTraits {
  using Options = O;
  using State = S;
  static void options(auto& o, auto&& f) {
    f("lr", o.lr());
    f("betas", o.betas());
    f("eps", o.eps());
    f("weight_decay", o.weight_decay());
    f("amsgrad", o.amsgrad());
  }
  static void state(auto& s, auto&& f) {
    f("step", s.step());
    f("exp_avg", s.exp_avg());
    f("exp_avg_sq", s.exp_avg_sq());
    f("max_exp_avg_sq", s.max_exp_avg_sq());
  }
};

struct SgdTraits {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static void options(auto& o, auto&& f) {
    f("lr", o.lr());
    f("momentum", o.momentum());
    f("dampening", o.dampening());
    f("weight_decay", o.weight_decay());
    f("nesterov", o.nesterov());
  }
  static void state(auto& s, auto&& f) { f("momentum_buffer", s.momentum_buffer()); }
};

struct RmspropTraits {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static void options(auto& o, auto&& f) {
    f("lr", o.lr());
    f("momentum", o.momentum());
    f("alpha", o.alpha());
    f("eps", o.eps());
    f("centered", o.centered());
    f("weight_decay", o.weight_decay());
  }
  static void state(auto& s, auto&& f) {
    f("step", s.step());
    f("square_avg", s.square_avg());
    f("momentum_buffer", s.momentum_buffer());
    f("grad_avg", s.grad_avg());
  }
};

struct AdagradTraits {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static void options(auto& o, auto&& f) {
    f("lr", o.lr());
    f("lr_decay", o.lr_decay());
    f("eps", o.eps());
    f("weight_decay", o.weight_decay());
    f("initial_accumulator_value", o.initial_accumulator_value());
  }
  static void state(auto& s, auto&& f) {
    f("step", s.step());
    f("sum", s.sum());
  }
};

struct LbfgsTraits {
  using Options = torch::optim::LBFGSOptions;
  using State = torch::optim::LBFGSParamState;
  static void options(auto& o, auto&& f) {
    f("lr", o.lr());
    f("max_iter", o.max_iter());
    f("max_eval", o.max_eval());
    f("tolerance_grad", o.tolerance_grad());
    f("tolerance_change", o.tolerance_change());
    f("history_size", o.history_size());
    f("line_search_fn", o.line_search_fn());
  }
  /// Of all parameters together; it stands at the first.
  static void state(auto& s, auto&& f) {
    f("func_evals", s.func_evals());
    f("n_iter", s.n_iter());
    f("t", s.t());
    f("prev_loss", s.prev_loss());
    f("d", s.d());
    f("H_diag", s.H_diag());
    f("prev_flat_grad", s.prev_flat_grad());
    f("old_dirs", s.old_dirs());
    f("old_stps", s.old_stps());
    f("ro", s.ro());
    f("al", s.al());
  }
};

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

/// A number, a text, a tensor, a list of tensors, or one of these that may be missing, as a state has it.
template <class T>
StateValue to_state(const T& value) {
  if constexpr (IsOptional<T>::value) {
    return value ? to_state(*value) : StateValue();
  } else if constexpr (std::same_as<T, Tensor>) {
    return value.defined() ? StateValue(value) : StateValue();
  } else if constexpr (requires { typename T::value_type; } && !std::same_as<T, std::string>) {
    StateList list;
    for (const auto& item : value) list.push_back(to_state(item));
    return list;
  } else {
    return StateValue(value);
  }
}

/// The same back; tensors get the dtype and device of `like`.
template <class T>
T from_state(const StateValue& saved, const Tensor& like) {
  if constexpr (IsOptional<T>::value) {
    if (saved.empty()) return std::nullopt;
    return from_state<typename T::value_type>(saved, like);
  } else if constexpr (std::same_as<T, Tensor>) {
    if (saved.empty()) return {};
    return saved.to_tensor().detach().to(like.device(), like.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  } else if constexpr (std::same_as<T, std::string>) {
    return saved.to_string();
  } else if constexpr (std::same_as<T, int64_t>) {
    return saved.is_tensor() ? static_cast<int64_t>(saved.to_tensor().item<double>()) : saved.to_int();
  } else if constexpr (std::same_as<T, double>) {
    return saved.is_tensor() ? saved.to_tensor().item<double>() : saved.to_double();
  } else {
    T list;
    for (const auto& item : saved.to_list()) list.push_back(from_state<typename T::value_type>(item, like));
    return list;
  }
}

template <class Traits>
class Known final : public TorchKind {
  using Options = typename Traits::Options;
  using State = typename Traits::State;

 public:
  void each_number(TorchOptions& options, const std::function<void(const char*, double&)>& f) const override {
    Traits::options(static_cast<Options&>(options), [&](const char* name, auto& value) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::same_as<Value, double>) f(name, value);
      if constexpr (std::same_as<Value, Betas>) {
        f("beta1", std::get<0>(value));
        f("beta2", std::get<1>(value));
      }
    });
  }

  void save_options(TorchOptions& options, StateDict& out) const override {
    Traits::options(static_cast<Options&>(options), [&](const char* name, const auto& value) {
      if constexpr (std::same_as<std::remove_cvref_t<decltype(value)>, Betas>)
        out[name] = StateList{std::get<0>(value), std::get<1>(value)};
      else
        out[name] = to_state(value);
    });
  }

  void load_options(TorchOptions& options, const StateDict& in) const override {
    Traits::options(static_cast<Options&>(options), [&](const char* name, auto& value) {
      using Value = std::remove_cvref_t<decltype(value)>;
      const auto* saved = in.find(name);
      if (!saved) return;
      if constexpr (std::same_as<Value, Betas>)
        value = {saved->to_list().at(0).to_double(), saved->to_list().at(1).to_double()};
      else if constexpr (std::same_as<Value, bool>)
        value = saved->to_bool();
      else
        value = from_state<Value>(*saved, {});
    });
  }

  bool has_state() const override { return true; }

  StateDict save_state(TorchState& state) const override {
    StateDict out;
    Traits::state(static_cast<State&>(state), [&](const char* name, const auto& value) {
      if (auto saved = to_state(value); name == std::string_view("step"))
        out[name] = at::scalar_tensor(saved.to_double(), at::kFloat);
      else if (!saved.empty())
        out[name] = std::move(saved);
    });
    return out;
  }

  std::unique_ptr<TorchState> load_state(const StateDict& in, const Tensor& param,
                                         const std::string& where) const override {
    auto state = std::make_unique<State>();
    Traits::state(*state, [&](const char* name, auto& value) {
      const auto* saved = in.find(name);
      if (!saved || saved->empty()) return;
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::same_as<Value, Tensor> && !std::same_as<Traits, LbfgsTraits>) {
        const Tensor& tensor = saved->to_tensor();
        LEVIN_CHECK(tensor.sizes() == param.sizes(), where, " \"", name, "\" has shape ",
                    fmt::format("{}", tensor.sizes()), " in the saved state, ", fmt::format("{}", param.sizes()),
                    " is needed");
        value = at::empty_like(param.detach()).copy_(tensor);
      } else {
        value = from_state<Value>(*saved, param);
      }
    });
    return state;
  }

  std::unique_ptr<TorchState> fresh_state(const TorchOptions& options, const Tensor& param) const override {
    if constexpr (std::same_as<Traits, AdagradTraits>) {
      auto state = std::make_unique<State>();
      state->sum(at::full_like(param.detach(), static_cast<const Options&>(options).initial_accumulator_value()));
      return state;
    }
    return nullptr;
  }
};

class Other final : public TorchKind {
 public:
  void each_number(TorchOptions& options, const std::function<void(const char*, double&)>& f) const override {
    const double before = options.get_lr();
    double lr = before;
    f("lr", lr);
    if (lr != before) options.set_lr(lr);
  }
  void save_options(TorchOptions& options, StateDict& out) const override { out["lr"] = options.get_lr(); }
  void load_options(TorchOptions& options, const StateDict& in) const override {
    if (const auto* lr = in.find("lr")) options.set_lr(lr->to_double());
  }
  bool has_state() const override { return false; }
  StateDict save_state(TorchState&) const override { return {}; }
  std::unique_ptr<TorchState> load_state(const StateDict&, const Tensor&, const std::string&) const override {
    return nullptr;
  }
  std::unique_ptr<TorchState> fresh_state(const TorchOptions&, const Tensor&) const override { return nullptr; }
};

}  // namespace

const TorchKind& kind_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  static const Known<AdamTraits<AdamOptions, AdamParamState>> adam;
  static const Known<AdamTraits<AdamWOptions, AdamWParamState>> adamw;
  static const Known<SgdTraits> sgd;
  static const Known<RmspropTraits> rmsprop;
  static const Known<AdagradTraits> adagrad;
  static const Known<LbfgsTraits> lbfgs;
  static const Other other;
  if (dynamic_cast<const Adam*>(&optimizer)) return adam;
  if (dynamic_cast<const AdamW*>(&optimizer)) return adamw;
  if (dynamic_cast<const SGD*>(&optimizer)) return sgd;
  if (dynamic_cast<const RMSprop*>(&optimizer)) return rmsprop;
  if (dynamic_cast<const Adagrad*>(&optimizer)) return adagrad;
  if (dynamic_cast<const LBFGS*>(&optimizer)) return lbfgs;
  return other;
}

std::optional<OptimizerTraits> traits_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  const auto& type = typeid(optimizer);
  // A step of these treats every element separately; their steps are counted on the host.
  const auto elementwise = [](const std::vector<std::string>& names) {
    return OptimizerTraits{.elementwise = true, .slots = [names](at::IntArrayRef sizes, c10::ScalarType dtype) {
                             std::vector<OptimizerSlot> slots;
                             for (const auto& name : names) slots.push_back({name, sizes.vec(), dtype});
                             return slots;
                           }};
  };
  const auto& defaults = optimizer.defaults();
  if (type == typeid(Adam))
    return static_cast<const AdamOptions&>(defaults).amsgrad()
               ? elementwise({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"})
               : elementwise({"exp_avg", "exp_avg_sq"});
  if (type == typeid(AdamW))
    return static_cast<const AdamWOptions&>(defaults).amsgrad()
               ? elementwise({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"})
               : elementwise({"exp_avg", "exp_avg_sq"});
  if (type == typeid(SGD))
    return static_cast<const SGDOptions&>(defaults).momentum() != 0 ? elementwise({"momentum_buffer"})
                                                                    : elementwise({});
  if (type == typeid(RMSprop)) {
    const auto& options = static_cast<const RMSpropOptions&>(defaults);
    std::vector<std::string> names{"square_avg"};
    if (options.momentum() > 0) names.emplace_back("momentum_buffer");
    if (options.centered()) names.emplace_back("grad_avg");
    return elementwise(names);
  }
  if (type == typeid(Adagrad)) return elementwise({"sum"});
  if (type == typeid(LBFGS)) return OptimizerTraits{.elementwise = false};
  return std::nullopt;
}

}  // namespace levin::optim::detail
