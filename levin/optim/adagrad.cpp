#include "levin/optim/adagrad.h"

#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include "levin/optim/step/captured.h"
#include "levin/optim/step/plain_kernels.h"
#include "levin/optim/typed.h"

namespace levin::optim {
namespace {

struct AdagradTraits {
  using Options = AdagradOptions;

  template <class A, class B, class F>
  static void each(A& a, B& b, F&& f) {
    f("lr", a.lr, b.lr, detail::kLr);
    f("lr_decay", a.lr_decay, b.lr_decay, "the rate of step t is lr / (1 + (t - 1) * lr_decay)");
    f("eps", a.eps, b.eps, detail::kEps);
    f("weight_decay", a.weight_decay, b.weight_decay, detail::kL2);
    f("initial_accumulator_value", a.initial_accumulator_value, b.initial_accumulator_value,
      "initial value of the sum of squares");
    f("maximize", a.maximize, b.maximize, detail::kMaximize);
  }

  static void check(const std::string& name, const Options& o) {
    detail::check_not_negative(name, "lr", o.lr);
    detail::check_not_negative(name, "lr_decay", o.lr_decay);
    detail::check_not_negative(name, "weight_decay", o.weight_decay);
    detail::check_not_negative(name, "initial_accumulator_value", o.initial_accumulator_value);
    detail::check_not_negative(name, "eps", o.eps);
  }
};

class AdagradImpl final : public detail::Typed<AdagradTraits> {
 public:
  AdagradImpl(std::vector<AdagradGroup> groups, const AdagradOptions& options)
      : Typed("Adagrad", std::move(groups), options) {}

 protected:
  std::span<const char* const> slot_names() const override {
    static constexpr std::array names{"sum"};
    return names;
  }
  unsigned slots_needed(size_t, const Tensor&) const override { return 1; }
  Tensor make_slot(size_t group, size_t, const Tensor& param) const override {
    return at::full_like(param, options_[group].initial_accumulator_value);
  }

  bool is_capturable() const override { return true; }
  // torch's kernel reads a rate of the device as float.
  std::string capture_obstacle() const override {
    for (size_t group = 0; group < num_groups(); ++group)
      for (const auto& param : params_of(group))
        if (param.scalar_type() == at::kDouble)
          return name_ + " steps double parameters with a learning rate of the host, which a graph would repeat";
    return {};
  }
  uint64_t numbers_in_graph() const override { return numbers_but_lr(); }

  bool is_plain(const Tensor& param) const override { return detail::is_small_on_cpu(param); }

  void update(detail::Bucket& bucket, const detail::DeviceScale& scale) override {
    const auto& o = options_[bucket.group];
    detail::advance(bucket.steps);
    if (bucket.plain)
      detail::plain_adagrad(bucket, {o.lr, o.lr_decay, o.weight_decay, o.eps, o.maximize}, scale);
    else if (bucket.device.is_cuda() && bucket.dtype != at::kDouble)  // the same kernel eagerly and in graphs
      at::_fused_adagrad_(bucket.params, bucket.grads, bucket.slots[0], bucket.steps, lr_on_device(bucket), o.lr_decay,
                          o.weight_decay, o.eps, o.maximize, scale.scale, scale.found_inf);
    else
      at::_fused_adagrad_(bucket.params, bucket.grads, bucket.slots[0], bucket.steps, o.lr, o.lr_decay, o.weight_decay,
                          o.eps, o.maximize, scale.scale, scale.found_inf);
    detail::take_back(bucket.steps, scale.found_inf);
  }

 private:
  Tensor lr_on_device(const detail::Bucket& bucket) const {
    const auto now = detail::refreshed_scalars(
        bucket.device, at::kFloat, 1, [this, group = bucket.group](auto numbers) { numbers[0] = options_[group].lr; });
    if (!now.empty()) return now[0];
    return at::full({}, options_[bucket.group].lr, at::TensorOptions(bucket.device).dtype(at::kFloat));
  }
};

}  // namespace

Adagrad::Adagrad(std::vector<Tensor> params, AdagradOptions options)
    : Adagrad(std::vector<AdagradGroup>{{.params = std::move(params)}}, options) {}
Adagrad::Adagrad(std::vector<AdagradGroup> groups, AdagradOptions options)
    : Optimizer(std::make_shared<AdagradImpl>(std::move(groups), options)) {}
OptimizerClass Adagrad::describe() {
  return detail::describe<Adagrad, AdagradTraits>("Adagrad", "divides by the root of the summed squared gradients",
                                                  {{"adagrad", {}}});
}

}  // namespace levin::optim
