#include "levin/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "levin/optim/step/captured.h"
#include "levin/optim/step/plain_kernels.h"
#include "levin/optim/step/told.h"
#include "levin/optim/typed.h"

namespace levin::optim {
namespace {

struct SGDTraits {
  using Options = SGDOptions;

  template <class A, class B, class F>
  static void each(A& a, B& b, F&& f) {
    f("lr", a.lr, b.lr, detail::kLr);
    f("momentum", a.momentum, b.momentum, "fraction of the previous update that is kept");
    f("dampening", a.dampening, b.dampening, "fraction of the gradient that does not enter the momentum");
    f("weight_decay", a.weight_decay, b.weight_decay, detail::kL2);
    f("nesterov", a.nesterov, b.nesterov, "look ahead along the momentum");
    f("maximize", a.maximize, b.maximize, detail::kMaximize);
  }

  static void check(const std::string& name, const Options& o) {
    detail::check_not_negative(name, "lr", o.lr);
    detail::check_not_negative(name, "momentum", o.momentum);
    detail::check_not_negative(name, "weight_decay", o.weight_decay);
    LEVIN_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0), "[", name,
                "] nesterov needs momentum > 0 and dampening 0, not momentum=", o.momentum,
                " and dampening=", o.dampening);
  }
};

class SGDImpl final : public detail::Typed<SGDTraits> {
 public:
  SGDImpl(std::vector<SGDGroup> groups, const SGDOptions& options) : Typed("SGD", std::move(groups), options) {}

 protected:
  // Parameters whose momentum buffer is new go to a bucket of their own: their first update takes the gradient
  // undamped.
  enum Kind { kRunning, kFirst };

  std::span<const char* const> slot_names() const override {
    static constexpr std::array names{"momentum_buffer"};
    return names;
  }
  bool counts_steps() const override { return false; }
  int variant(size_t group) const override { return options_[group].momentum != 0; }
  unsigned slots_needed(size_t group, const Tensor&) const override { return options_[group].momentum != 0; }
  int kind(size_t group, const detail::ParamState& state) const override {
    return options_[group].momentum != 0 && !state.slots[0].defined() ? kFirst : kRunning;
  }

  // A first update that the loss scaler skips is still to come, undamped: the host has to know. The same on all ranks,
  // also on one whose shards are empty.
  bool is_fused() const override {
    return std::ranges::none_of(options_, [](const auto& o) { return o.momentum != 0 && o.dampening != 0; });
  }

  bool is_plain(const Tensor& param) const override { return detail::is_small_on_cpu(param); }
  bool takes_grad(const Tensor& param, c10::ScalarType grad) const override {
    return detail::has_kernels(param) && kernels::takes_grad(param.scalar_type(), grad);
  }
  bool writes_copies() const override { return true; }
  bool is_capturable() const override { return true; }

  void update(detail::Bucket& bucket, const detail::DeviceScale& scale) override {
    const auto& o = options_[bucket.group];
    const bool is_first = bucket.kind == kFirst;
    if (is_first) invalidate();
    const auto numbers = numbers_of(bucket.group, is_first);
    // torch's fused kernel for the CPU leaves 16-bit parameters unchanged, all but the rest of a vector.
    const bool unknown_to_torch = bucket.device.is_cpu() && at::isReducedFloatingType(bucket.dtype);
    const bool by_levin = bucket.mixed || !bucket.copies.empty() || (unknown_to_torch && !bucket.plain);
    const auto* refreshed = detail::refreshed_numbers<kernels::SgdNumbers>(
        [this, group = bucket.group] { return numbers_of(group, /*is_first=*/false); });
    if (by_levin || refreshed || bucket.device.is_cuda())  // as in adam.cpp
      return detail::tell_step<kernels::SgdNumbers>(
          "fused_sgd",
          {{&bucket.params, true}, {&bucket.grads, false}, {&bucket.slots[0], true}, {&bucket.copies, true}}, numbers,
          scale, {refreshed, bucket.device.is_cuda()}, bucket.device,
          [](const detail::StepLists& lists, const auto&... rest) {
            kernels::fused_sgd({lists[0], lists[1], lists[2], lists[3]}, rest...);
          });
    if (bucket.plain) return detail::plain_sgd(bucket, numbers, scale);
    at::_fused_sgd_(bucket.params, bucket.grads, bucket.slots[0], o.weight_decay, o.momentum, o.lr, o.dampening,
                    o.nesterov, o.maximize, is_first, scale.scale, scale.found_inf);
  }

 private:
  kernels::SgdNumbers numbers_of(size_t group, bool is_first) const {
    const auto& o = options_[group];
    return {o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, o.maximize, is_first};
  }
};

}  // namespace

SGD::SGD(std::vector<Tensor> params, SGDOptions options)
    : SGD(std::vector<SGDGroup>{{.params = std::move(params)}}, options) {}
SGD::SGD(std::vector<SGDGroup> groups, SGDOptions options)
    : Optimizer(std::make_shared<SGDImpl>(std::move(groups), options)) {}
OptimizerClass SGD::describe() {
  return detail::describe<SGD, SGDTraits>("SGD", "stochastic gradient descent, with or without momentum",
                                          {{"sgd", {}}, {"sgd_momentum", {.momentum = 0.9}}});
}

}  // namespace levin::optim
