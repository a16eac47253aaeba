#include "levin/optim/adam_8bit.h"

#include "levin/kernels/adam_8bit.h"
#include "levin/optim/plain_kernels.h"
#include "levin/optim/typed.h"

namespace levin::optim {
namespace {

constexpr int64_t kLeastCoded = 4096;

template <class OptionsType>
struct Adam8bitTraits {
  using Options = OptionsType;

  template <class A, class B, class F>
  static void each(A& a, B& b, F&& f) {
    f("lr", a.lr, b.lr);
    f("betas", a.betas, b.betas);
    f("eps", a.eps, b.eps);
    f("weight_decay", a.weight_decay, b.weight_decay);
    f("maximize", a.maximize, b.maximize);
  }

  static void check(const std::string& name, const Options& o) {
    detail::check_not_negative(name, "lr", o.lr);
    detail::check_betas(name, o.betas);
    detail::check_not_negative(name, "eps", o.eps);
    detail::check_not_negative(name, "weight_decay", o.weight_decay);
  }
};

template <class Options>
class Adam8bitImpl final : public detail::Typed<Adam8bitTraits<Options>> {
 public:
  Adam8bitImpl(const char* name, std::vector<Adam8bitGroup> groups, const Options& options)
      : detail::Typed<Adam8bitTraits<Options>>(name, std::move(groups), options) {}

 protected:
  enum Kind { kNumbers, kCodes };
  enum Slot : size_t { kAverage, kSquare, kAverageScale, kSquareScale };

  static bool has_codes(const Tensor& param) {
    return param.numel() >= kLeastCoded && param.scalar_type() != at::kDouble;
  }

  std::span<const char* const> slot_names() const override {
    static constexpr std::array names{"state1", "state2", "absmax1", "absmax2"};
    return names;
  }
  unsigned slots_needed(size_t, const Tensor& param) const override { return has_codes(param) ? 0b1111 : 0b0011; }
  int kind(size_t, const detail::ParamState& state) const override {
    return has_codes(state.param) ? kCodes : kNumbers;
  }
  c10::ScalarType slot_dtype(size_t, size_t slot, const Tensor& param) const override {
    return has_codes(param) && (slot == kAverage || slot == kSquare) ? at::kByte : at::kFloat;
  }
  std::vector<int64_t> slot_shape(size_t slot, const Tensor& param) const override {
    if (!has_codes(param)) return param.sizes().vec();
    const int64_t blocks = kernels::code_blocks(param.numel());
    if (slot == kAverage || slot == kSquare) return {blocks, kernels::kCodeBlock};
    return {blocks};
  }
  bool in_memory_order(const Tensor& param) const override { return has_codes(param); }
  bool takes_grad(const Tensor& param, c10::ScalarType grad) const override {
    return detail::has_kernels(param) && kernels::takes_grad(param.scalar_type(), grad);
  }
  bool writes_copies() const override { return true; }

  void update(detail::Bucket& bucket, const detail::DeviceScale& scale) override {
    const auto& o = this->options_[bucket.group];
    constexpr bool decoupled = std::same_as<Options, AdamW8bitOptions>;
    const kernels::AdamNumbers numbers{o.lr,           o.betas[0], o.betas[1], o.eps,
                                       o.weight_decay, false,      o.maximize, decoupled};
    detail::advance(bucket.steps);
    auto& [averages, squares, average_scales, square_scales] = bucket.slots;
    if (bucket.kind == kCodes)
      kernels::fused_adam_8bit(
          {bucket.params, bucket.grads, averages, squares, average_scales, square_scales, bucket.steps, bucket.copies},
          numbers, scale);
    else
      kernels::fused_adam({bucket.params, bucket.grads, averages, squares, {}, bucket.steps, bucket.copies}, numbers,
                          scale);
    detail::take_back(bucket.steps, scale.found_inf);
  }
};

}  // namespace

Adam8bit::Adam8bit(std::vector<Tensor> params, Adam8bitOptions options)
    : Adam8bit(std::vector<Adam8bitGroup>{{.params = std::move(params)}}, options) {}
Adam8bit::Adam8bit(std::vector<Adam8bitGroup> groups, Adam8bitOptions options)
    : Optimizer(std::make_shared<Adam8bitImpl<Adam8bitOptions>>("Adam8bit", std::move(groups), options)) {}

AdamW8bit::AdamW8bit(std::vector<Tensor> params, AdamW8bitOptions options)
    : AdamW8bit(std::vector<AdamW8bitGroup>{{.params = std::move(params)}}, options) {}
AdamW8bit::AdamW8bit(std::vector<AdamW8bitGroup> groups, AdamW8bitOptions options)
    : Optimizer(std::make_shared<Adam8bitImpl<AdamW8bitOptions>>("AdamW8bit", std::move(groups), options)) {}

}  // namespace levin::optim
