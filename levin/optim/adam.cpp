#include "levin/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "levin/optim/step/captured.h"
#include "levin/optim/step/plain_kernels.h"
#include "levin/optim/step/told.h"
#include "levin/optim/typed.h"

namespace levin::optim {
namespace {

template <class OptionsType>
struct AdamTraits {
  using Options = OptionsType;

  template <class A, class B, class F>
  static void each(A& a, B& b, F&& f) {
    detail::each_adam_number(a, b, f, std::same_as<Options, AdamWOptions> ? detail::kDecoupled : detail::kL2);
    f("amsgrad", a.amsgrad, b.amsgrad, "divide by the largest exp_avg_sq so far");
    f("maximize", a.maximize, b.maximize, detail::kMaximize);
  }
  static void shared(Options& o, auto& f) {
    f("moments_dtype", o.moments_dtype, "dtype of exp_avg and exp_avg_sq; default: the parameter's dtype");
  }

  static void check(const std::string& name, const Options& o) {
    detail::check_adam_numbers(name, o);
    LEVIN_CHECK(!o.moments_dtype || *o.moments_dtype == at::kFloat || *o.moments_dtype == at::kBFloat16, "[", name,
                "] moments_dtype=", *o.moments_dtype, " is not known; Float and BFloat16 are");
  }
};

template <class Options>
class AdamImpl final : public detail::Typed<AdamTraits<Options>> {
 public:
  AdamImpl(const char* name, std::vector<AdamGroup> groups, const Options& options)
      : detail::Typed<AdamTraits<Options>>(name, std::move(groups), options) {}

 protected:
  std::span<const char* const> slot_names() const override {
    static constexpr std::array names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    return names;
  }
  int variant(size_t group) const override { return this->options_[group].amsgrad; }
  unsigned slots_needed(size_t group, const Tensor&) const override {
    return this->options_[group].amsgrad ? 0b111 : 0b011;
  }

  c10::ScalarType slot_dtype(size_t group, size_t, const Tensor& param) const override {
    return this->options_[group].moments_dtype.value_or(param.scalar_type());
  }

  bool is_plain(const Tensor& param) const override { return detail::is_small_on_cpu(param); }
  bool takes_grad(const Tensor& param, c10::ScalarType grad) const override {
    return detail::has_kernels(param) && kernels::takes_grad(param.scalar_type(), grad);
  }
  bool writes_copies() const override { return true; }
  bool is_capturable() const override { return true; }

  void update(detail::Bucket& bucket, const detail::DeviceScale& scale) override {
    const auto& o = this->options_[bucket.group];
    detail::advance(bucket.steps);
    auto& [averages, squares, largest, none] = bucket.slots;
    const auto numbers = numbers_of(bucket.group);
    const bool by_levin = bucket.mixed || !bucket.copies.empty();
    const auto* refreshed =
        detail::refreshed_numbers<kernels::AdamNumbers>([this, group = bucket.group] { return numbers_of(group); });
    // On CUDA the same kernel eagerly and in graphs, so that both give the same bits; it gives torch's numbers up to
    // the last bit.
    const kernels::StepReplay<kernels::AdamNumbers> replay{refreshed, bucket.device.is_cuda()};
    if (by_levin || refreshed || bucket.device.is_cuda())
      detail::tell_step<kernels::AdamNumbers>(
          "fused_adam",
          {{&bucket.params, true},
           {&bucket.grads, false},
           {&averages, true},
           {&squares, true},
           {&largest, true},
           {&bucket.steps, false},
           {&bucket.copies, true}},
          numbers, scale, replay, bucket.device, [](const detail::StepLists& lists, const auto&... rest) {
            kernels::fused_adam({lists[0], lists[1], lists[2], lists[3], lists[4], lists[5], lists[6]}, rest...);
          });
    else if (bucket.plain)
      detail::plain_adam(bucket, numbers, scale);
    else if constexpr (kDecoupledDecay)
      at::_fused_adamw_(bucket.params, bucket.grads, averages, squares, largest, bucket.steps, o.lr, o.betas[0],
                        o.betas[1], o.weight_decay, o.eps, o.amsgrad, o.maximize, scale.scale, scale.found_inf);
    else
      at::_fused_adam_(bucket.params, bucket.grads, averages, squares, largest, bucket.steps, o.lr, o.betas[0],
                       o.betas[1], o.weight_decay, o.eps, o.amsgrad, o.maximize, scale.scale, scale.found_inf);
    detail::take_back(bucket.steps, scale.found_inf);
  }

 private:
  static constexpr bool kDecoupledDecay = std::same_as<Options, AdamWOptions>;

  kernels::AdamNumbers numbers_of(size_t group) const {
    const auto& o = this->options_[group];
    return {o.lr, o.betas[0], o.betas[1], o.eps, o.weight_decay, o.amsgrad, o.maximize, kDecoupledDecay};
  }
};

}  // namespace

Adam::Adam(std::vector<Tensor> params, AdamOptions options)
    : Adam(std::vector<AdamGroup>{{.params = std::move(params)}}, options) {}
Adam::Adam(std::vector<AdamGroup> groups, AdamOptions options)
    : Optimizer(std::make_shared<AdamImpl<AdamOptions>>("Adam", std::move(groups), options)) {}
OptimizerClass Adam::describe() {
  return detail::describe<Adam, AdamTraits<AdamOptions>>("Adam", "Adam with L2 decay", {{"adam", {}}});
}

AdamW::AdamW(std::vector<Tensor> params, AdamWOptions options)
    : AdamW(std::vector<AdamWGroup>{{.params = std::move(params)}}, options) {}
AdamW::AdamW(std::vector<AdamWGroup> groups, AdamWOptions options)
    : Optimizer(std::make_shared<AdamImpl<AdamWOptions>>("AdamW", std::move(groups), options)) {}
OptimizerClass AdamW::describe() {
  return detail::describe<AdamW, AdamTraits<AdamWOptions>>("AdamW", "Adam with decoupled weight decay",
                                                           {{"adamw", {}}});
}

}  // namespace levin::optim
