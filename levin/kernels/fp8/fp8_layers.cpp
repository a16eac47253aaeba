#include "levin/kernels/fp8/fp8_layers.h"

#include <algorithm>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/core/log.h"

namespace levin::kernels {
namespace detail {
namespace {

Fp8ContextPtr& context_here() {
  thread_local Fp8ContextPtr context;
  return context;
}

}  // namespace

const Fp8ContextPtr& fp8_context() {
  return context_here();
}

Fp8ContextScope::Fp8ContextScope(Fp8ContextPtr context) : before_(std::move(context)) {
  std::swap(before_, context_here());
}

Fp8ContextScope::~Fp8ContextScope() {
  auto& here = context_here();
  if (here && here != before_) {
    here->weights.clear();
    here->biases.clear();
  }
  here = std::move(before_);
}

}  // namespace detail

namespace {

constexpr int64_t kOperands = 3;

bool is_weight(const std::string& name, const Tensor& parameter) {
  const auto dot = name.rfind('.');
  return parameter.dim() >= 2 && name.find("weight", dot == std::string::npos ? 0 : dot) != std::string::npos;
}

bool fits(const Tensor& weight) {
  return weight.dim() == 2 && weight.numel() > 0 && weight.size(0) % kFp8Multiple == 0 &&
         weight.size(1) % kFp8Multiple == 0;
}

}  // namespace

Fp8Layers::Fp8Layers(std::shared_ptr<const torch::nn::Module> module, const Fp8Setup& setup)
    : module_(std::move(module)), setup_(setup) {
  const auto& options = setup.options;
  LEVIN_CHECK(options.history >= 1, "[fp8] history ", options.history, " is not allowed (1 or more)");
  for (const int margin : {options.margin, options.gradient_margin})
    LEVIN_CHECK(margin >= 0 && margin <= 15, "[fp8] margin ", margin, " is not allowed (0 to 15)");
  std::vector<std::string> all;
  std::vector<bool> usable;
  for (const auto& parameter : module_->named_parameters()) {
    if (!is_weight(parameter.key(), parameter.value())) continue;
    all.push_back(parameter.key());
    usable.push_back(fits(parameter.value()));
  }
  for (size_t i = 0; i < all.size(); ++i)
    if (usable[i] && !(options.keep_ends && (i == 0 || i + 1 == all.size()))) names_.push_back(all[i]);
  const auto slots = names_.size() * kOperands;
  has_history_.resize(slots);
  recorded_ = std::make_unique<std::atomic<bool>[]>(slots);
}

// Not in the constructor: a strategy may replace the tensors of parameters when it sets the module up.
void Fp8Layers::bind() {
  bound_ = true;
  const auto parameters = module_->named_parameters();
  for (size_t i = 0; i < names_.size(); ++i)
    if (const auto* parameter = parameters.find(names_[i])) {
      const auto& impl = parameter->getIntrusivePtr();
      weights_.try_emplace(impl.get(), Weight{c10::weak_intrusive_ptr<c10::TensorImpl>(impl), static_cast<int64_t>(i)});
    }
}

void Fp8Layers::make_histories() {
  if (history_.defined()) return;
  const auto slots = static_cast<int64_t>(has_history_.size());
  const auto options = at::TensorOptions(setup_.device).dtype(at::kFloat);
  history_ = at::zeros({slots, setup_.options.history}, options);
  seen_ = at::zeros({slots}, options);
}

detail::Fp8ContextPtr Fp8Layers::begin() {
  const std::lock_guard lock(mutex_);
  if (!bound_) bind();
  if (++forwards_ == 2 && !used_)
    warn_once(
        "precision \"fp8-mixed\": no layer multiplied in float8; layers that can are levin::nn::Linear and those of "
        "Levin's models, with sizes that are multiples of 16, without the first and the last weight");
  auto context = c10::make_intrusive<detail::Fp8Context>();
  context->layers = shared_from_this();
  context->records = is_delayed() && at::GradMode::is_enabled();
  if (context->records && !names_.empty()) {
    const at::NoGradGuard no_grad;
    make_histories();
    // A tensor of its own: graphs of earlier forwards keep theirs.
    amax_ = fp8_roll(history_, seen_);
    for (size_t i = 0; i < has_history_.size(); ++i) has_history_[i] = has_history_[i] || recorded_[i];
  }
  context->amax = amax_;
  context->has_history = has_history_;
  return context;
}

Tensor Fp8Layers::history() const {
  return history_.defined() ? history_.view({static_cast<int64_t>(names_.size()), kOperands, setup_.options.history})
                            : Tensor();
}

std::optional<int64_t> Fp8Layers::index_of(const Tensor& weight) const {
  const auto found = weights_.find(weight.unsafeGetTensorImpl());
  return found == weights_.end() ? std::nullopt : std::optional(found->second.index);
}

Fp8Cast Fp8Layers::cast(const detail::Fp8Context& context, int64_t index, detail::Fp8Operand operand,
                        const Tensor& matrix, Fp8CastOptions wanted) {
  used_ = true;
  const auto& options = setup_.options;
  const bool gradient = operand == detail::Fp8Operand::kGradient, per_row = options.recipe == Fp8Recipe::kRow;
  wanted.dtype = gradient && !per_row ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
  wanted.per_row = per_row;
  wanted.margin = gradient && is_delayed() ? options.gradient_margin : options.margin;
  const auto slot = index * kOperands + static_cast<int64_t>(operand);
  const auto at = static_cast<size_t>(slot);
  Tensor amax, seen;
  if (context.amax.defined() && context.has_history[at]) amax = context.amax.narrow(0, slot, 1);
  if (context.records) {
    seen = seen_.narrow(0, slot, 1);
    recorded_[at] = true;
  }
  return fp8_cast(matrix, amax, seen, wanted);
}

Tensor Fp8Layers::state() const {
  if (!is_delayed() || names_.empty()) return {};
  const auto weights = static_cast<int64_t>(names_.size()), length = setup_.options.history;
  auto state = at::zeros({weights * kOperands, length + 2}, at::kFloat);
  if (history_.defined()) {
    state.narrow(1, 0, length).copy_(history_);
    state.select(1, length).copy_(seen_);
  }
  auto* begun = state.mutable_data_ptr<float>() + length + 1;
  for (size_t i = 0; i < has_history_.size(); ++i, begun += length + 2)
    *begun = (recorded_[i] ? 1.0f : 0.0f) + (has_history_[i] ? 1.0f : 0.0f);
  return state.view({weights, kOperands, length + 2});
}

void Fp8Layers::load_state(const std::vector<std::string>& names, const Tensor& given) {
  if (!is_delayed() || names_.empty()) return;
  LEVIN_CHECK(given.dim() == 3 && given.size(0) == static_cast<int64_t>(names.size()) && given.size(1) == kOperands &&
                  given.size(2) >= 3 && given.is_floating_point(),
              "[fp8] the state of ", names.size(), " weights must be [", names.size(), ", ", kOperands,
              ", history + 2], got ", given.sizes());
  const at::NoGradGuard no_grad;
  const auto from = given.to(at::kCPU, at::kFloat).contiguous();
  const auto there = from.size(2) - 2, length = setup_.options.history, kept = std::min(there, length);
  std::unordered_map<std::string, int64_t> places;
  for (size_t i = 0; i < names.size(); ++i) places.emplace(names[i], static_cast<int64_t>(i));

  const auto slots = static_cast<int64_t>(has_history_.size());
  const auto history = at::zeros({slots, length}, at::kFloat), seen = at::zeros({slots}, at::kFloat);
  std::vector<bool> recorded(has_history_.size()), begun(has_history_.size());
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto place = places.find(names_[i]);
    if (place == places.end()) continue;
    const auto rows = from[place->second];  // [3, there + 2]
    const auto first = static_cast<int64_t>(i) * kOperands;
    history.narrow(0, first, kOperands).narrow(1, 0, kept).copy_(rows.narrow(1, 0, kept));
    seen.narrow(0, first, kOperands).copy_(rows.select(1, there));
    for (int64_t k = 0; k < kOperands; ++k) {
      const auto flags = rows[k][there + 1].item<float>();
      recorded[static_cast<size_t>(first + k)] = flags > 0;
      begun[static_cast<size_t>(first + k)] = flags > 1;
    }
  }

  const std::lock_guard lock(mutex_);
  make_histories();
  history_.copy_(history);
  seen_.copy_(seen);
  amax_ = history_.amax({1});
  has_history_ = begun;
  for (size_t i = 0; i < recorded.size(); ++i) recorded_[i] = recorded[i];
}

Fp8Scope::Fp8Scope(const std::shared_ptr<Fp8Layers>& layers) {
  // Inside a scope of the same module, or without layers, nothing begins.
  const auto& here = detail::fp8_context();
  if (layers && !(here && here->layers == layers)) scope_.emplace(layers->begin());
}

std::optional<int64_t> fp8_layer(const Tensor& x, const Tensor& weight) {
  const auto& context = detail::fp8_context();
  if (!context || x.dim() < 1 || x.numel() == 0 || x.scalar_type() == at::kDouble || !x.is_floating_point())
    return std::nullopt;
  // Memory estimates, which run without data, have an autocast of their own.
  if (!x.is_meta() && !at::autocast::is_autocast_enabled(x.device().type())) return std::nullopt;
  const auto index = context->layers->index_of(weight);
  if (!index || weight.dim() != 2 || x.size(-1) != weight.size(1)) return std::nullopt;
  return index;
}

}  // namespace levin::kernels
