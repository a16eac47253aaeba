#include "levin/optim/adafactor.h"

#include <cmath>
#include <limits>

#include <ATen/Functions.h>

#include "levin/optim/step/captured.h"
#include "levin/optim/typed.h"

namespace levin::optim {
namespace {

struct AdafactorTraits {
  using Options = AdafactorOptions;

  template <class A, class B, class F>
  static void each(A& a, B& b, F&& f) {
    f("lr", a.lr, b.lr, "the most a relative step may be");
    f("beta2_decay", a.beta2_decay, b.beta2_decay, "the average of squares decays with 1 - t^beta2_decay");
    f("eps1", a.eps1, b.eps1, "least value under the root");
    f("eps2", a.eps2, b.eps2, "least scale of a parameter");
    f("d", a.d, b.d, "updates with a larger root mean square are scaled down to this");
    f("weight_decay", a.weight_decay, b.weight_decay, detail::kDecoupled);
    f("maximize", a.maximize, b.maximize, detail::kMaximize);
  }

  static void check(const std::string& name, const Options& o) {
    detail::check_not_negative(name, "lr", o.lr);
    LEVIN_CHECK(o.beta2_decay <= 0, "[", name, "] beta2_decay=", o.beta2_decay, " must be <= 0");
    detail::check_not_negative(name, "eps1", o.eps1.value_or(0));
    detail::check_not_negative(name, "eps2", o.eps2);
    LEVIN_CHECK(o.d >= 1, "[", name, "] d=", o.d, " must be >= 1");
    detail::check_not_negative(name, "weight_decay", o.weight_decay);
  }
};

using Scalars = std::vector<at::Scalar>;

double machine_epsilon(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

// Root mean squares, one number a tensor, in double: what follows is scalar arithmetic, as a host would do it, on the
// device.
std::vector<Tensor> root_mean_squares(at::TensorList tensors, double factor) {
  auto roots = at::stack(at::_foreach_norm(tensors, 2)).to(at::kDouble).unbind();
  Scalars counts;
  for (const auto& tensor : tensors) counts.emplace_back(std::sqrt(static_cast<double>(tensor.numel())) * factor);
  at::_foreach_div_(roots, counts);
  return roots;
}

/// What depends on the step or on the learning rate: a number for each parameter. In a graph they are on the device.
struct Numbers {
  Scalars mix, rates;
  std::vector<Tensor> device_mix, device_rates, device_shrink;
};

void mix_in(std::vector<Tensor>& variances, at::TensorList squares, const Numbers& now) {
  if (now.device_mix.empty())
    at::_foreach_lerp_(variances, squares, now.mix);
  else
    at::_foreach_lerp_(variances, squares, now.device_mix);
}

// variance += (mean of squares along dim - variance) * mix, without a temporary of the gradient's size.
void mix_in_squares(std::vector<Tensor>& variances, at::TensorList grads, int64_t dim, const Numbers& now) {
  std::vector<Tensor> means;
  Scalars sizes;
  for (const auto& grad : grads) {
    means.push_back(at::linalg_vector_norm(grad, 2, dim, /*keepdim=*/true));
    sizes.emplace_back(grad.size(dim));
  }
  at::_foreach_mul_(means, means);
  at::_foreach_div_(means, sizes);
  mix_in(variances, means, now);
}

class AdafactorImpl final : public detail::Typed<AdafactorTraits> {
 public:
  AdafactorImpl(std::vector<AdafactorGroup> groups, const AdafactorOptions& options)
      : Typed("Adafactor", std::move(groups), options) {}

 protected:
  enum Slot { kRow, kCol, kVariance };

  // Its steps are relative to the root mean square of a parameter, and its squares are of rows and columns.
  bool is_elementwise() const override { return false; }
  bool is_fused() const override { return false; }
  bool steps_on_host() const override { return true; }
  bool is_capturable() const override { return true; }
  std::string capture_obstacle() const override { return narrow_obstacle(); }
  uint64_t numbers_in_graph() const override { return numbers_but_lr(); }
  std::span<const char* const> slot_names() const override {
    static constexpr std::array names{"row_var", "col_var", "variance"};
    return names;
  }
  unsigned slots_needed(size_t, const Tensor& param) const override {
    return param.dim() > 1 ? 1u << kRow | 1u << kCol : 1u << kVariance;
  }
  std::vector<int64_t> slot_shape(size_t slot, const Tensor& param) const override {
    auto shape = param.sizes().vec();
    if (slot == kRow && shape.size() > 1) shape[shape.size() - 1] = 1;
    if (slot == kCol && shape.size() > 1) shape[shape.size() - 2] = 1;
    return shape;
  }
  int kind(size_t, const detail::ParamState& state) const override { return state.param.dim() > 1; }

  // Python has the two as a pair.
  void save_options(size_t group, StateDict& out) const override {
    Typed::save_options(group, out);
    out["eps"] = StateList{out.at("eps1"), out.at("eps2")};
    out.erase("eps1");
    out.erase("eps2");
  }
  void load_options(size_t group, const StateDict& in) override {
    StateDict split = in;
    if (const auto* eps = in.find("eps")) {
      const auto& pair = eps->to_list();
      LEVIN_CHECK(pair.size() == 2, "[", name_, ".load_state_dict] eps has ", pair.size(),
                  " values where 2 are needed");
      split["eps1"] = pair[0];
      split["eps2"] = pair[1];
    }
    Typed::load_options(group, split);
  }

  void update(detail::Bucket& bucket, const detail::DeviceScale&) override {
    const auto& o = options_[bucket.group];
    const double eps1 = o.eps1.value_or(machine_epsilon(bucket.dtype));
    const auto grads = o.maximize ? at::_foreach_neg(bucket.grads) : bucket.grads;

    const auto now = next_numbers(bucket);
    const bool captured = !now.device_mix.empty();
    auto alphas = root_mean_squares(bucket.params, 1);
    at::_foreach_clamp_min_(alphas, o.eps2);
    captured ? at::_foreach_mul_(alphas, now.device_rates) : at::_foreach_mul_(alphas, now.rates);

    if (o.weight_decay != 0)
      captured ? at::_foreach_mul_(bucket.params, now.device_shrink[0])
               : at::_foreach_mul_(bucket.params, 1 - o.lr * o.weight_decay);

    auto updates = bucket.kind ? factored(bucket, grads, now, eps1) : plain(bucket, grads, now);
    at::_foreach_clamp_min_(updates, eps1 * eps1);
    at::_foreach_rsqrt_(updates);
    at::_foreach_mul_(updates, grads);

    auto clips = root_mean_squares(updates, o.d);
    at::_foreach_clamp_min_(clips, 1.0);
    at::_foreach_div_(alphas, clips);
    detail::subtract_scaled(bucket, updates, alphas);
  }

 private:
  // Steps are counted on the host: in a graph before each replay.
  Numbers next_numbers(detail::Bucket& bucket) const {
    const size_t count = bucket.steps.size();
    const auto each = [this, group = bucket.group](std::span<const Tensor> steps, auto&& f) {
      for (const auto& step : steps) f(options_[group], static_cast<double>(*step.const_data_ptr<float>()));
    };
    const auto mix = [](const AdafactorOptions& o, double t) { return std::pow(t, o.beta2_decay); };
    const auto rate = [](const AdafactorOptions& o, double t) { return std::min(o.lr, 1 / std::sqrt(t)); };
    Numbers now;
    // Parameters that have made as many steps share their numbers.
    const size_t places = detail::are_equal(bucket.steps) ? 1 : count;
    const std::vector<Tensor> counted(bucket.steps.begin(), bucket.steps.begin() + static_cast<int64_t>(places));
    now.device_mix = detail::refreshed_scalars(bucket.device, bucket.dtype, places,
                                               [each, mix, counted, steps = bucket.steps](auto numbers) mutable {
                                                 detail::advance(steps);
                                                 auto to = numbers.begin();
                                                 each(counted, [&](const auto& o, double t) { *to++ = mix(o, t); });
                                               });
    if (now.device_mix.empty()) {
      detail::advance(bucket.steps);
      each(bucket.steps, [&](const auto& o, double t) {
        now.mix.emplace_back(mix(o, t));
        now.rates.emplace_back(rate(o, t));
      });
      return now;
    }
    // After the one above, which has counted the step.
    now.device_rates =
        detail::refreshed_scalars(bucket.device, at::kDouble, places, [each, rate, counted](auto numbers) {
          auto to = numbers.begin();
          each(counted, [&](const auto& o, double t) { *to++ = rate(o, t); });
        });
    now.device_shrink =
        detail::refreshed_scalars(bucket.device, bucket.dtype, 1, [this, group = bucket.group](auto numbers) {
          numbers[0] = 1 - options_[group].lr * options_[group].weight_decay;
        });
    if (places == 1) {
      now.device_mix.resize(count, now.device_mix[0]);
      now.device_rates.resize(count, now.device_rates[0]);
    }
    return now;
  }

  static std::vector<Tensor> factored(detail::Bucket& bucket, at::TensorList grads, const Numbers& now, double eps1) {
    auto& rows = bucket.slots[kRow];
    auto& cols = bucket.slots[kCol];
    mix_in_squares(rows, grads, -1, now);
    mix_in_squares(cols, grads, -2, now);
    std::vector<Tensor> estimates, means;
    for (size_t i = 0; i < rows.size(); ++i) {
      estimates.push_back(at::mul(rows[i], cols[i]));  // [n, 1] and [1, m]
      means.push_back(rows[i].mean(-2, /*keepdim=*/true));
    }
    at::_foreach_clamp_min_(means, eps1);
    at::_foreach_div_(estimates, means);
    return estimates;
  }

  static std::vector<Tensor> plain(detail::Bucket& bucket, at::TensorList grads, const Numbers& now) {
    auto& variances = bucket.slots[kVariance];
    mix_in(variances, at::_foreach_mul(grads, grads), now);
    return at::_foreach_mul(variances, 1);
  }
};

}  // namespace

Adafactor::Adafactor(std::vector<Tensor> params, AdafactorOptions options)
    : Adafactor(std::vector<AdafactorGroup>{{.params = std::move(params)}}, options) {}
Adafactor::Adafactor(std::vector<AdafactorGroup> groups, AdafactorOptions options)
    : Optimizer(std::make_shared<AdafactorImpl>(std::move(groups), options)) {}
OptimizerClass Adafactor::describe() {
  return detail::describe<Adafactor, AdafactorTraits>("Adafactor", "factored second moments: little memory for state",
                                                      {{"adafactor", {}}});
}

}  // namespace levin::optim
