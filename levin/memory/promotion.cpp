#include "levin/memory/promotion.h"

#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "levin/core/dispatch.h"

namespace levin::detail {

using at::Tensor;

namespace {

// Below that of autocast, so that what autocast has cast is not cast again.
constexpr auto kPromotionKey = kLowerKey;
thread_local bool promotes_here = false;

bool promotes(std::string_view op) {
  static const std::unordered_set<std::string_view> all{
      "aten::add",  "aten::add_",     "aten::sub",     "aten::sub_",    "aten::rsub",     "aten::mul",
      "aten::mul_", "aten::div",      "aten::div_",    "aten::addcmul", "aten::addcmul_", "aten::addcdiv",
      "aten::pow",  "aten::addcdiv_", "aten::maximum", "aten::minimum", "aten::where"};
  return all.contains(op);
}

/// The copies that the operator makes for itself.
std::vector<Tensor> copies_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto first = stack.size() - arguments.size();
  at::native::ResultTypeState types;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (const auto& value = stack[first + i]; value.isTensor() && value.toTensor().is_meta())
      types = at::native::update_result_type_state(value.toTensor(), types);
  const auto common = at::native::result_type(types);
  std::vector<Tensor> copies;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!stack[first + i].isTensor()) continue;
    const auto& tensor = stack[first + i].toTensor();
    if (!tensor.is_meta() || tensor.scalar_type() == common || tensor.scalar_type() == at::kBool) continue;
    const auto* alias = arguments[i].alias_info();
    const int count = alias && alias->isWrite() ? 2 : 1;
    for (int k = 0; k < count; ++k)
      copies.push_back(at::empty(tensor.sizes(), at::TensorOptions(at::kMeta).dtype(common)));
  }
  return copies;
}

void promote_arguments(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::vector<Tensor> copies;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> once;  // whoever stands below may begin the call again
  if (promotes_here) {
    copies = copies_of(op, *stack);
    once.emplace(kPromotionKey);
  }
  pass_on(kPromotionKey, op, keys, stack);
}

}  // namespace

struct MetaPromotion::State {
  std::optional<c10::impl::IncludeDispatchKeyGuard> include;
};

MetaPromotion::MetaPromotion() : state_(std::make_unique<State>()) {
  static const bool registered = [] {
    take_operators(
        kPromotionKey, [](const c10::OperatorHandle& op) { return promotes(op.schema().name()); },
        c10::BoxedKernel::makeFromFunction<&promote_arguments>());
    return true;
  }();
  (void)registered;
  promotes_here = true;
  state_->include.emplace(kPromotionKey);
}

MetaPromotion::~MetaPromotion() {
  state_->include.reset();
  promotes_here = false;
}

}  // namespace levin::detail
