#include "levin/memory/autocast.h"

#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "levin/core/dispatch.h"
#include "levin/kernels/played_device.h"

namespace levin::detail {

using at::Tensor;

namespace {

using Stack = torch::jit::Stack;

// Above autograd, so that casts are differentiated.
constexpr auto kCastKey = kTopKey;

enum class CastRule : uint8_t { kLower, kFloat, kFloatResult, kWidest };
using CastRules = std::unordered_map<std::string_view, CastRule>;

/// The lists of torch's header, which are those of CUDA; overloads of one name follow one rule.
const CastRules& cuda_rules() {
  static const CastRules rules = [] {
    CastRules all;
#define LEVIN_LOWER(op, ...) all.emplace("aten::" #op, CastRule::kLower);
#define LEVIN_FLOAT(op, ...) all.emplace("aten::" #op, CastRule::kFloat);
#define LEVIN_RESULT(op, ...) all.emplace("aten::" #op, CastRule::kFloatResult);
#define LEVIN_WIDEST(op, ...) all.emplace("aten::" #op, CastRule::kWidest);
    AT_FORALL_LOWER_PRECISION_FP(LEVIN_LOWER)
    AT_FORALL_FP32(LEVIN_FLOAT)
    AT_FORALL_FP32_SET_OPT_DTYPE(LEVIN_RESULT)
    AT_FORALL_PROMOTE(LEVIN_WIDEST)
#undef LEVIN_LOWER
#undef LEVIN_FLOAT
#undef LEVIN_RESULT
#undef LEVIN_WIDEST
    return all;
  }();
  return rules;
}

/// The CPU's, as far as training meets them.
const CastRules& cpu_rules() {
  static const CastRules rules = [] {
    CastRules all;
    for (const auto* op : {"aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::bmm", "aten::mm", "aten::baddbmm",
                           "aten::addmm", "aten::addbmm", "aten::linear", "aten::_convolution", "aten::matmul",
                           "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d", "aten::prelu",
                           "aten::scaled_dot_product_attention", "aten::linalg_vecdot"})
      all.emplace(op, CastRule::kLower);
    for (const auto* op : {"aten::mse_loss", "aten::binary_cross_entropy", "aten::nll_loss", "aten::kl_div",
                           "aten::huber_loss", "aten::smooth_l1_loss", "aten::prod", "aten::cdist"})
      all.emplace(op, CastRule::kFloat);
    for (const auto* op : {"aten::stack", "aten::cat", "aten::index_copy"}) all.emplace(op, CastRule::kWidest);
    return all;
  }();
  return rules;
}

}  // namespace

struct MetaAutocast::State {
  const CastRules* rules = nullptr;
  c10::ScalarType dtype = at::kFloat;
  /// Cast weights, by weight; the weights outlive the scope.
  std::unordered_map<c10::TensorImpl*, Tensor> weights;
  std::optional<c10::impl::IncludeDispatchKeyGuard> include;
  /// For layers that do their own casts.
  kernels::PlayedAutocast for_kernels = {};
};

namespace {

thread_local MetaAutocast::State* cast_here = nullptr;

bool is_castable(const Tensor& tensor) {
  return tensor.defined() && tensor.is_meta() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
}

Tensor cast_to(const Tensor& tensor, at::ScalarType dtype) {
  if (!is_castable(tensor) || tensor.scalar_type() == dtype) return tensor;
  const bool is_weight = dtype == cast_here->dtype && tensor.scalar_type() == at::kFloat && tensor.requires_grad() &&
                         tensor.is_leaf() && !tensor.is_view();
  if (!is_weight) return tensor.to(dtype);
  auto& kept = cast_here->weights[tensor.unsafeGetTensorImpl()];
  if (!kept.defined()) kept = tensor.to(dtype);
  return kept;
}

template <class F>
void replace_tensors(c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = f(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<Tensor> list;
    for (const auto& each : value.toTensorVector()) list.push_back(each.defined() ? f(each) : each);
    value = c10::List<Tensor>(list);
  }
}

void cast_arguments(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const CastRules none;
  const auto& rules = cast_here ? *cast_here->rules : none;
  const auto rule = rules.find(op.schema().name());
  if (rule == rules.end()) return pass_on(kCastKey, op, keys, stack);
  const c10::impl::ExcludeDispatchKeyGuard below(kCastKey);
  const auto& arguments = op.schema().arguments();
  const auto first = stack->size() - arguments.size();
  auto dtype = rule->second == CastRule::kLower ? cast_here->dtype : at::kFloat;
  if (rule->second == CastRule::kFloatResult) {
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].name() == "dtype" && (*stack)[first + i].isNone() && (*stack)[first].isTensor() &&
          is_castable((*stack)[first].toTensor()))
        (*stack)[first + i] = at::kFloat;
    return op.callBoxed(stack);
  }
  if (rule->second == CastRule::kWidest) {
    dtype = cast_here->dtype;
    for (size_t i = 0; i < arguments.size(); ++i)
      replace_tensors((*stack)[first + i], [&](const Tensor& tensor) {
        if (is_castable(tensor) && tensor.scalar_type() == at::kFloat) dtype = at::kFloat;
        return tensor;
      });
  }
  for (size_t i = 0; i < arguments.size(); ++i)
    replace_tensors((*stack)[first + i], [&](const Tensor& tensor) { return cast_to(tensor, dtype); });
  op.callBoxed(stack);
}

}  // namespace

MetaAutocast::MetaAutocast(c10::DeviceType device, c10::ScalarType dtype) : state_(std::make_unique<State>()) {
  state_->rules = device == c10::kCUDA ? &cuda_rules() : &cpu_rules();
  state_->dtype = dtype;
  static const bool registered = [] {
    const auto has_rule = [](const c10::OperatorHandle& op) {
      return cuda_rules().contains(op.schema().name()) || cpu_rules().contains(op.schema().name());
    };
    take_operators(kCastKey, has_rule, c10::BoxedKernel::makeFromFunction<&cast_arguments>());
    return true;
  }();
  (void)registered;
  cast_here = state_.get();
  state_->for_kernels = {dtype, [](const Tensor& tensor) { return cast_to(tensor, cast_here->dtype); }};
  kernels::set_played_autocast(&state_->for_kernels);
  state_->include.emplace(kCastKey);
}

MetaAutocast::~MetaAutocast() {
  state_->include.reset();
  kernels::set_played_autocast(nullptr);
  cast_here = nullptr;
}

}  // namespace levin::detail
