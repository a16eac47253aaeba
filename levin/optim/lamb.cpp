#include "levin/optim/lamb.h"

#include <cmath>

#include <ATen/Functions.h>

#include "levin/optim/step/captured.h"
#include "levin/optim/typed.h"

namespace levin::optim {
namespace {

struct LambTraits {
  using Options = LambOptions;

  template <class A, class B, class F>
  static void each(A& a, B& b, F&& f) {
    detail::each_adam_number(a, b, f, "added to the update as weight_decay * param, before its norm is taken");
    f("bias_correction", a.bias_correction, b.bias_correction, "divide the moments by 1 - beta^t");
    f("always_adapt", a.always_adapt, b.always_adapt, "use the trust ratio also where weight_decay is 0");
    f("max_trust_ratio", a.max_trust_ratio, b.max_trust_ratio, "upper bound of the trust ratio; default: none");
    f("maximize", a.maximize, b.maximize, detail::kMaximize);
  }

  static void check(const std::string& name, const Options& o) {
    detail::check_adam_numbers(name, o);
    LEVIN_CHECK(!o.max_trust_ratio || *o.max_trust_ratio > 0, "[", name, "] max_trust_ratio=", *o.max_trust_ratio,
                " must be > 0");
  }
};

using Tensors = std::vector<Tensor>;

class LambImpl final : public detail::Typed<LambTraits> {
 public:
  LambImpl(std::vector<LambGroup> groups, const LambOptions& options) : Typed("Lamb", std::move(groups), options) {}

  void set_shards(ParamShards shards) override { sum_ = std::move(shards.sum); }

 protected:
  enum Slot { kAverage, kSquare };

  bool is_elementwise() const override { return false; }
  bool takes_tensor_sums() const override { return true; }
  bool is_fused() const override { return false; }
  bool steps_on_host() const override { return true; }
  bool is_capturable() const override { return true; }
  std::string capture_obstacle() const override {
    return sum_ ? name_ + " sums norms over shards by lists that the host makes" : std::string();
  }
  uint64_t numbers_in_graph() const override { return numbers_but_lr(); }
  int step_temporaries() const override { return 1; }
  std::span<const char* const> slot_names() const override {
    static constexpr std::array names{"exp_avg", "exp_avg_sq"};
    return names;
  }
  unsigned slots_needed(size_t, const Tensor&) const override { return 0b11; }
  // 16-bit numbers have no room for eps, nor for the inverse of a small root: moments and updates are float then.
  c10::ScalarType slot_dtype(size_t, size_t, const Tensor& param) const override {
    return at::promote_types(param.scalar_type(), at::kFloat);
  }

  // The norms of all parameters are there before the first one moves: one all-reduce for all of them.
  void update_all(std::vector<detail::Bucket>& buckets, const detail::DeviceScale&) override {
    std::vector<Tensors> updates;
    std::vector<Tensor> squares;  // [params of the bucket, 2]: of the parameter, of the update
    for (auto& bucket : buckets) {
      updates.push_back(adam_updates(bucket));
      squares.push_back(at::stack({squared_norms(bucket.params), squared_norms(updates.back())}, 1));
    }
    if (sum_) sum_over_shards(buckets, squares);
    for (size_t i = 0; i < buckets.size(); ++i) {
      const auto& o = options_[buckets[i].group];
      auto rates = trust_ratios(squares[i], o);
      const auto lr = detail::refreshed_scalars(
          rates.device(), at::kDouble, 1,
          [this, group = buckets[i].group](auto numbers) { numbers[0] = options_[group].lr; });
      if (lr.empty())
        rates.mul_(o.lr);
      else
        rates.mul_(lr[0]);
      detail::subtract_scaled(buckets[i], updates[i], rates.unbind());
    }
  }

 private:
  static Tensor squared_norms(at::TensorList tensors) {
    const auto dtype = at::promote_types(tensors[0].scalar_type(), at::kFloat);
    return at::stack(at::_foreach_norm(tensors, 2, dtype)).to(at::kDouble).square_();
  }

  static Tensors promoted(const Tensors& tensors) {
    Tensors all;
    for (const auto& tensor : tensors) all.push_back(tensor.to(at::promote_types(tensor.scalar_type(), at::kFloat)));
    return all;
  }

  Tensors adam_updates(detail::Bucket& bucket) const {
    const auto& o = options_[bucket.group];
    const auto grads = o.maximize ? at::_foreach_neg(promoted(bucket.grads)) : promoted(bucket.grads);
    auto& averages = bucket.slots[kAverage];
    auto& squares = bucket.slots[kSquare];
    const auto corrections = next_corrections(bucket);
    at::_foreach_mul_(averages, o.betas[0]);
    at::_foreach_add_(averages, grads, 1 - o.betas[0]);
    at::_foreach_mul_(squares, o.betas[1]);
    at::_foreach_addcmul_(squares, grads, grads, 1 - o.betas[1]);

    auto updates = at::_foreach_sqrt(squares);
    corrections.divide(updates, 1);
    at::_foreach_add_(updates, o.eps);
    at::_foreach_reciprocal_(updates);
    at::_foreach_mul_(updates, averages);
    corrections.divide(updates, 0);
    if (o.weight_decay != 0) at::_foreach_add_(updates, promoted(bucket.params), o.weight_decay);
    return updates;
  }

  /// What the first and the second moments are divided by, in turns: a pair for each parameter, or one for all.
  struct Corrections {
    std::vector<at::Scalar> host;
    Tensors device;

    void divide(Tensors& updates, size_t which) const {
      if (device.size() == 2) return at::_foreach_div_(updates, device[which]);
      std::vector<at::Scalar> numbers;
      Tensors tensors;
      for (size_t i = which; i < host.size(); i += 2) numbers.push_back(host[i]);
      for (size_t i = which; i < device.size(); i += 2) tensors.push_back(device[i]);
      return device.empty() ? at::_foreach_div_(updates, numbers) : at::_foreach_div_(updates, tensors);
    }
  };

  // Steps are counted on the host: in a graph before each replay.
  Corrections next_corrections(detail::Bucket& bucket) const {
    const auto count = 2 * (detail::are_equal(bucket.steps) ? 1 : bucket.steps.size());
    const auto next = [this, group = bucket.group, steps = bucket.steps](std::span<double> numbers) mutable {
      const auto& o = options_[group];
      detail::advance(steps);
      for (size_t i = 0; i < numbers.size() / 2; ++i) {
        const double t = *steps[i].const_data_ptr<float>();
        numbers[2 * i] = o.bias_correction ? 1 - std::pow(o.betas[0], t) : 1;
        numbers[2 * i + 1] = o.bias_correction ? std::sqrt(1 - std::pow(o.betas[1], t)) : 1;
      }
    };
    const auto dtype = bucket.slots[kAverage][0].scalar_type();
    if (auto device = detail::refreshed_scalars(bucket.device, dtype, count, next); !device.empty())
      return {.host = {}, .device = std::move(device)};
    std::vector<double> numbers(2 * bucket.steps.size());
    auto now = next;
    now(numbers);
    return {.host = {numbers.begin(), numbers.end()}, .device = {}};
  }

  // Every rank calls it, with all parameters in their order: a rank may have no element of some.
  void sum_over_shards(const std::vector<detail::Bucket>& buckets, std::vector<Tensor>& squares) const {
    Tensors params;
    std::vector<size_t> first_of_group;
    for (size_t g = 0; g < num_groups(); ++g) {
      first_of_group.push_back(params.size());
      params.insert(params.end(), params_of(g).begin(), params_of(g).end());
    }
    const auto device = params.front().device();
    const auto count = static_cast<int64_t>(params.size());
    auto all = at::zeros({count, 2}, at::TensorOptions(device).dtype(at::kDouble));
    Tensors rows;
    for (size_t i = 0; i < buckets.size(); ++i) {
      std::vector<int64_t> row;
      for (const auto index : buckets[i].index)
        row.push_back(static_cast<int64_t>(first_of_group[buckets[i].group] + index));
      rows.push_back(at::tensor(row, at::kLong).to(device));
      all.index_copy_(0, rows.back(), squares[i].to(device));
    }
    all = sum_(all, params);
    for (size_t i = 0; i < buckets.size(); ++i) squares[i] = all.index_select(0, rows[i]).to(squares[i].device());
  }

  static Tensor trust_ratios(const Tensor& squares, const LambOptions& o) {
    if (o.weight_decay == 0 && !o.always_adapt) return at::ones({squares.size(0)}, squares.options());
    const auto ratios = squares.select(1, 0).div(squares.select(1, 1)).sqrt_();
    const auto is_known = squares.gt(0).all(1);
    auto used = at::where(is_known, ratios, at::ones_like(ratios));
    return o.max_trust_ratio ? used.clamp_max_(*o.max_trust_ratio) : used;
  }

  decltype(ParamShards::sum) sum_;
};

}  // namespace

Lamb::Lamb(std::vector<Tensor> params, LambOptions options)
    : Lamb(std::vector<LambGroup>{{.params = std::move(params)}}, options) {}
Lamb::Lamb(std::vector<LambGroup> groups, LambOptions options)
    : Optimizer(std::make_shared<LambImpl>(std::move(groups), options)) {}
OptimizerClass Lamb::describe() {
  return detail::describe<Lamb, LambTraits>("Lamb", "Adam's update scaled by a trust ratio for each tensor",
                                            {{"lamb", {}}});
}

}  // namespace levin::optim
