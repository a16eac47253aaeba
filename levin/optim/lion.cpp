#include "levin/optim/lion.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_foreach_sub.h>

#include "levin/optim/step/captured.h"
#include "levin/optim/typed.h"

namespace levin::optim {
namespace {

struct LionTraits {
  using Options = LionOptions;

  template <class A, class B, class F>
  static void each(A& a, B& b, F&& f) {
    f("lr", a.lr, b.lr, "learning rate, 3 to 10 times smaller than AdamW's");
    f("betas", a.betas, b.betas, "mix of momentum and gradient for the update, and for what is kept");
    f("weight_decay", a.weight_decay, b.weight_decay, detail::kDecoupled);
  }

  static void check(const std::string& name, const Options& o) {
    detail::check_not_negative(name, "lr", o.lr);
    detail::check_betas(name, o.betas);
    detail::check_not_negative(name, "weight_decay", o.weight_decay);
  }
};

class LionImpl final : public detail::Typed<LionTraits> {
 public:
  LionImpl(std::vector<LionGroup> groups, const LionOptions& options) : Typed("Lion", std::move(groups), options) {}

 protected:
  bool is_fused() const override { return false; }
  std::span<const char* const> slot_names() const override {
    static constexpr std::array names{"exp_avg"};
    return names;
  }
  int step_temporaries() const override { return 1; }
  bool counts_steps() const override { return false; }
  bool is_capturable() const override { return true; }
  std::string capture_obstacle() const override { return narrow_obstacle(); }
  uint64_t numbers_in_graph() const override { return numbers_but_lr(); }
  unsigned slots_needed(size_t, const Tensor&) const override { return 1; }

  void update(detail::Bucket& bucket, const detail::DeviceScale&) override {
    const auto& o = options_[bucket.group];
    auto& momentum = bucket.slots[0];
    auto direction = at::_foreach_mul(momentum, o.betas[0]);
    at::_foreach_add_(direction, bucket.grads, 1 - o.betas[0]);
    at::_foreach_sign_(direction);
    const auto now =
        detail::refreshed_scalars(bucket.device, bucket.dtype, 2, [this, group = bucket.group](auto numbers) {
          const auto& latest = options_[group];
          numbers[0] = latest.lr;
          numbers[1] = 1 - latest.lr * latest.weight_decay;
        });
    if (!now.empty()) {
      if (o.weight_decay != 0) at::_foreach_mul_(bucket.params, now[1]);
      at::_foreach_mul_(direction, now[0]);
      at::_foreach_sub_(bucket.params, direction);
    } else {
      if (o.weight_decay != 0) at::_foreach_mul_(bucket.params, 1 - o.lr * o.weight_decay);
      at::_foreach_add_(bucket.params, direction, -o.lr);
    }
    at::_foreach_mul_(momentum, o.betas[1]);
    at::_foreach_add_(momentum, bucket.grads, 1 - o.betas[1]);
  }
};

}  // namespace

Lion::Lion(std::vector<Tensor> params, LionOptions options)
    : Lion(std::vector<LionGroup>{{.params = std::move(params)}}, options) {}
Lion::Lion(std::vector<LionGroup> groups, LionOptions options)
    : Optimizer(std::make_shared<LionImpl>(std::move(groups), options)) {}
OptimizerClass Lion::describe() {
  return detail::describe<Lion, LionTraits>("Lion", "steps by the sign of the momentum; one state tensor",
                                            {{"lion", {}}});
}

}  // namespace levin::optim
