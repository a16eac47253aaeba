#include "levin/optim/adam_8bit.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "levin/kernels/fused_step/adam_8bit.h"
#include "levin/optim/state_layout.h"
#include "levin/optim/step/captured.h"
#include "levin/optim/step/plain_kernels.h"
#include "levin/optim/typed.h"

namespace levin::optim {
namespace {

constexpr int64_t kLeastCoded = 4096;

template <class OptionsType>
struct Adam8bitTraits {
  using Options = OptionsType;

  template <class A, class B, class F>
  static void each(A& a, B& b, F&& f) {
    detail::each_adam_number(a, b, f, std::same_as<Options, AdamW8bitOptions> ? detail::kDecoupled : detail::kL2);
    f("maximize", a.maximize, b.maximize, detail::kMaximize);
  }

  static void check(const std::string& name, const Options& o) { detail::check_adam_numbers(name, o); }
};

// In each block the largest magnitude has the first code or the last one. The first stands for a little less than one
// where there is a sign; as the whole scale it gives the scale back when the values are coded again.
Tensor spread_codes(const Tensor& codes, const Tensor& scales, bool with_sign) {
  auto values = kernels::dynamic_codes(with_sign);
  if (with_sign) values.front() = -1;
  const auto map = at::from_blob(values.data(), {256}, at::kFloat);
  return map.index_select(0, codes.reshape({-1}).to(at::kCPU, at::kInt))
      .view({-1, kernels::kCodeBlock})
      .mul_(scales.to(at::kCPU).unsqueeze(1))
      .view({-1});
}

/// Codes [blocks, 256] and scales [blocks] of values in the order of memory.
std::pair<Tensor, Tensor> nearest_codes(const Tensor& values, bool with_sign) {
  const auto& codes = kernels::dynamic_codes(with_sign);
  std::array<float, 255> middles;
  for (size_t i = 0; i < middles.size(); ++i) middles[i] = (codes[i] + codes[i + 1]) / 2;
  auto blocks = at::zeros({kernels::code_blocks(values.numel()), kernels::kCodeBlock}, at::kFloat);
  blocks.view({-1}).narrow(0, 0, values.numel()).copy_(values);
  auto scales = blocks.abs().amax(1);
  blocks.div_(scales.masked_fill(scales <= 0, 1).unsqueeze(1));
  auto nearest = at::bucketize(blocks, at::from_blob(middles.data(), {255}, at::kFloat), /*out_int32=*/true);
  if (!with_sign) nearest.masked_fill_((nearest == 0).logical_and_(blocks > 0), 1);
  return {nearest.to(at::kByte), scales};
}

template <class Options>
class Adam8bitImpl final : public detail::Typed<Adam8bitTraits<Options>> {
 public:
  Adam8bitImpl(const char* name, std::vector<Adam8bitGroup> groups, const Options& options)
      : detail::Typed<Adam8bitTraits<Options>>(name, std::move(groups), options) {}

  void set_shards(ParamShards shards) override { find_shard_ = std::move(shards.find); }

  StateDict state_dict() const override {
    auto out = detail::GroupedOptimizer::state_dict();
    if (!find_shard_) return out;
    const at::NoGradGuard no_grad;
    auto& states = out["state"].to_dict();
    int64_t index = 0;
    for (size_t g = 0; g < this->num_groups(); ++g)
      for (const auto& param : this->params_of(g)) {
        const auto key = std::to_string(index++);
        if (!has_codes(param) || !states.contains(key) || !find_shard_(param)) continue;
        auto& state = states[key].to_dict();
        for (const size_t slot : {kAverage, kSquare}) {
          if (!state.contains(kNames[slot])) continue;
          state[kNames[slot]] = spread(param, slot, state.at(kNames[slot]).to_tensor(),
                                       state.at(kNames[slot + kAverageScale]).to_tensor());
          state.erase(kNames[slot + kAverageScale]);
        }
      }
    return out;
  }

  bool check_state_dict(const StateDict&) override { return false; }  // of what load_state_dict makes of it

  void load_state_dict(const StateDict& in) override {
    std::vector<size_t> sizes;
    for (size_t g = 0; g < this->num_groups(); ++g) sizes.push_back(this->params_of(g).size());
    const auto saved = detail::read_layout(this->name_, in, sizes);
    const at::NoGradGuard no_grad;
    StateDict converted = in;
    auto& states = converted["state"].to_dict();
    for (size_t g = 0; g < sizes.size(); ++g) {
      const auto& indices = saved.groups[g]->at("params").to_list();
      for (size_t i = 0; i < sizes[g]; ++i)
        if (saved.states[g][i])
          states[std::to_string(indices[i].to_int())] = as_kept(this->params_of(g)[i], *saved.states[g][i]);
    }
    ++changes_;
    detail::GroupedOptimizer::load_state_dict(converted);
  }

 protected:
  enum Kind { kNumbers, kCodes };
  enum Slot : size_t { kAverage, kSquare, kAverageScale, kSquareScale };
  static constexpr std::array kNames{"state1", "state2", "absmax1", "absmax2"};

  static bool has_codes(const Tensor& param) {
    return param.numel() >= kLeastCoded && param.scalar_type() != at::kDouble;
  }

  // A part is coded in blocks of its own, and stepped by them up to the rounding of codes: elementwise is near enough.
  std::span<const char* const> slot_names() const override { return kNames; }
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
  bool is_capturable() const override { return true; }

  void update(detail::Bucket& bucket, const detail::DeviceScale& scale) override {
    const auto numbers = numbers_of(bucket.group);
    const auto* refreshed =
        detail::refreshed_numbers<kernels::AdamNumbers>([this, group = bucket.group] { return numbers_of(group); });
    ++changes_;
    detail::advance(bucket.steps);
    auto& [averages, squares, average_scales, square_scales] = bucket.slots;
    if (bucket.kind == kCodes)
      kernels::fused_adam_8bit(
          {bucket.params, bucket.grads, averages, squares, average_scales, square_scales, bucket.steps, bucket.copies},
          numbers, scale, refreshed);
    else
      kernels::fused_adam({bucket.params, bucket.grads, averages, squares, {}, bucket.steps, bucket.copies}, numbers,
                          scale, {.refreshed = refreshed});
    detail::take_back(bucket.steps, scale.found_inf);
  }

 private:
  kernels::AdamNumbers numbers_of(size_t group) const {
    const auto& o = this->options_[group];
    constexpr bool decoupled = std::same_as<Options, AdamW8bitOptions>;
    return {o.lr, o.betas[0], o.betas[1], o.eps, o.weight_decay, false, o.maximize, decoupled};
  }

  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Spread {
    uint64_t changes = 0;
    std::optional<WeakTensor> tensor = {};
  };

  // The same tensor as long as somebody holds it and nothing has changed: savers know tensors by identity, and ask more
  // than once.
  Tensor spread(const Tensor& param, size_t slot, const Tensor& codes, const Tensor& scales) const {
    auto& known = spread_[param.unsafeGetTensorImpl()][slot];
    if (known.tensor && known.changes == changes_)
      if (auto alive = known.tensor->lock()) return Tensor(std::move(alive));
    const auto flat = spread_codes(codes, scales, slot == kAverage).narrow(0, 0, param.numel());
    const auto values = flat.as_strided(param.sizes(), param.strides());
    known = {changes_, WeakTensor(values.getIntrusivePtr())};
    return values;
  }

  /// The state of a parameter in the form in which it is kept here: a file may have codes or floats, of the full
  /// parameter or of the part.
  StateDict as_kept(const Tensor& param, const StateDict& in) const {
    StateDict out = in;
    const auto part = find_shard_ ? find_shard_(param) : std::nullopt;
    for (const size_t slot : {kAverage, kSquare}) {
      const auto* found = in.find(kNames[slot]);
      const auto* scales = in.find(kNames[slot + kAverageScale]);
      if (!found || !found->is_tensor() || !found->to_tensor().defined()) continue;
      auto value = found->to_tensor();
      if (value.scalar_type() == at::kByte && part && scales && scales->is_tensor()) {
        value = part_of(value, scales->to_tensor(), *part, param, slot == kAverage);
        if (!value.defined()) continue;  // of something else: it will be refused
        out[kNames[slot]] = value;
        out.erase(kNames[slot + kAverageScale]);
      }
      if (!value.is_floating_point() || value.sizes() != param.sizes() || !has_codes(param)) continue;
      const auto ordered = at::empty_strided(param.sizes(), param.strides(), at::kFloat).copy_(value);
      auto [codes, largest] = nearest_codes(ordered.as_strided({param.numel()}, {1}), slot == kAverage);
      out[kNames[slot]] = std::move(codes);
      out[kNames[slot + kAverageScale]] = std::move(largest);
    }
    return out;
  }

  /// This part's values, of codes that one process has saved. A parameter with rows of one block has codes of its own
  /// shape, which come as rows, with the scales of all.
  static Tensor part_of(const Tensor& codes, const Tensor& scales, const ParamShard& part, const Tensor& param,
                        bool with_sign) {
    const int64_t blocks = kernels::code_blocks(part.full_numel), size = kernels::kCodeBlock;
    if (scales.numel() != blocks) return {};
    if (codes.sizes() == at::IntArrayRef({blocks, size}))
      return spread_codes(codes, scales, with_sign).narrow(0, part.first, param.numel()).view(param.sizes());
    if (codes.sizes() != param.sizes() || codes.dim() != 2 || codes.size(1) != size) return {};
    return spread_codes(codes, scales.narrow(0, part.first / size, codes.size(0)), with_sign).view(param.sizes());
  }

  decltype(ParamShards::find) find_shard_;
  uint64_t changes_ = 0;
  mutable std::unordered_map<const c10::TensorImpl*, std::array<Spread, 2>> spread_;
};

}  // namespace

Adam8bit::Adam8bit(std::vector<Tensor> params, Adam8bitOptions options)
    : Adam8bit(std::vector<Adam8bitGroup>{{.params = std::move(params)}}, options) {}
Adam8bit::Adam8bit(std::vector<Adam8bitGroup> groups, Adam8bitOptions options)
    : Optimizer(std::make_shared<Adam8bitImpl<Adam8bitOptions>>("Adam8bit", std::move(groups), options)) {}
OptimizerClass Adam8bit::describe() {
  return detail::describe<Adam8bit, Adam8bitTraits<Adam8bitOptions>>("Adam8bit", "Adam with 8-bit state",
                                                                     {{"adam_8bit", {}}});
}

AdamW8bit::AdamW8bit(std::vector<Tensor> params, AdamW8bitOptions options)
    : AdamW8bit(std::vector<AdamW8bitGroup>{{.params = std::move(params)}}, options) {}
AdamW8bit::AdamW8bit(std::vector<AdamW8bitGroup> groups, AdamW8bitOptions options)
    : Optimizer(std::make_shared<Adam8bitImpl<AdamW8bitOptions>>("AdamW8bit", std::move(groups), options)) {}
OptimizerClass AdamW8bit::describe() {
  return detail::describe<AdamW8bit, Adam8bitTraits<AdamW8bitOptions>>("AdamW8bit", "AdamW with 8-bit state",
                                                                       {{"adamw_8bit", {}}});
}

}  // namespace levin::optim
