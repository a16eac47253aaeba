#include "levin/nn/forward_dtype.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "levin/core/dispatch.h"

namespace levin::detail {
namespace {

using Stack = torch::jit::Stack;
using OperatorNames = std::unordered_set<std::string_view>;

// Above autograd, so that casts are differentiated; that of synchronized batch norm means something to others.
constexpr auto kDtypeKey = kTopKey;

thread_local c10::ScalarType forward_dtype_here = c10::ScalarType::Undefined;
thread_local bool key_was_included = false;

c10::IValue* named_argument(const c10::OperatorHandle& op, Stack& stack, std::string_view name) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == name) return &stack[stack.size() - arguments.size() + i];
  return nullptr;
}

bool takes_tensors(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const auto& each) { return each.type()->str().find("Tensor") != std::string::npos; });
}

bool writes_argument(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const auto& each) { return each.alias_info() && each.alias_info()->isWrite(); });
}

bool is_factory(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const auto has = [&](std::string_view name) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const auto& each) { return each.name() == name; });
  };
  return has("dtype") && has("device") && !takes_tensors(op);
}

void make_in_dtype(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (forward_dtype_here != c10::ScalarType::Undefined)
    if (auto* dtype = named_argument(op, *stack, "dtype"); dtype->isNone() && makes_default_dtype(op, *stack))
      *dtype = forward_dtype_here;
  pass_on(kDtypeKey, op, keys, stack);
}

/// Functions whose result is a floating number, of integers too.
const OperatorNames& always_floating() {
  static const OperatorNames names{
      "aten::acos",  "aten::acosh", "aten::asin",    "aten::asinh",     "aten::atan",      "aten::atan2",
      "aten::atanh", "aten::cos",   "aten::cosh",    "aten::erf",       "aten::erfc",      "aten::erfinv",
      "aten::exp",   "aten::exp2",  "aten::expm1",   "aten::i0",        "aten::lgamma",    "aten::log",
      "aten::log10", "aten::log1p", "aten::log2",    "aten::logit",     "aten::rsqrt",     "aten::sigmoid",
      "aten::sin",   "aten::sinc",  "aten::sinh",    "aten::sqrt",      "aten::tan",       "aten::tanh",
      "aten::xlogy", "aten::div",   "aten::digamma", "aten::logsumexp", "aten::reciprocal"};
  return names;
}

/// Functions whose result is one where a number that is given is.
const OperatorNames& floating_by_number() {
  static const OperatorNames names{"aten::add",       "aten::sub",       "aten::rsub",      "aten::mul",
                                   "aten::pow",       "aten::clamp",     "aten::clamp_min", "aten::fmod",
                                   "aten::clamp_max", "aten::remainder", "aten::where"};
  return names;
}

bool turns_integers(const c10::OperatorHandle& op) {
  if (writes_argument(op) || op.schema().arguments().size() == 0) return false;
  const std::string_view name = op.schema().name();
  if (name == "aten::div") return op.schema().overload_name() == "Tensor" || op.schema().overload_name() == "Scalar";
  return always_floating().contains(name) || floating_by_number().contains(name);
}

bool is_wrapped_number_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

void cast_integers(const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), first = stack.size() - count;
  const bool is_where = schema.name() == "aten::where";
  bool floating_number = false, integers = false;
  for (size_t i = is_where; i < count; ++i) {
    const auto& value = stack[first + i];
    if (value.isDouble()) floating_number = true;
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const auto& tensor = value.toTensor();
    const bool integral = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
    if (is_wrapped_number_of(tensor))
      floating_number |= !integral;
    else if (!integral)
      return;  // its dtype counts
    else
      integers = true;
  }
  if (!floating_number && !always_floating().contains(schema.name())) return;
  if (is_where && !integers) {  // of two numbers
    const auto device = stack[first].toTensor().device();
    const auto number = [&](size_t i) {
      return at::scalar_tensor(stack[first + i].toScalar(), at::TensorOptions(device).dtype(forward_dtype_here));
    };
    const auto result = at::where(stack[first].toTensor(), number(1), number(2));
    stack.resize(first);
    stack.emplace_back(result);
    return;
  }
  for (size_t i = is_where; i < count; ++i)
    if (auto& value = stack[first + i];
        value.isTensor() && value.toTensor().defined() && !is_wrapped_number_of(value.toTensor()))
      value = value.toTensor().to(forward_dtype_here);
}

void turn_integers(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (forward_dtype_here != c10::ScalarType::Undefined) {
    const auto size = stack->size();
    cast_integers(op, *stack);
    if (stack->size() != size) return;  // it is done
  }
  pass_on(kDtypeKey, op, keys, stack);
}

void register_kernels() {
  static const bool done = [] {
    take_operators(kDtypeKey, is_factory, c10::BoxedKernel::makeFromFunction<&make_in_dtype>());
    take_operators(kDtypeKey, turns_integers, c10::BoxedKernel::makeFromFunction<&turn_integers>());
    return true;
  }();
  (void)done;
}

}  // namespace

c10::ScalarType set_forward_dtype(c10::ScalarType dtype) {
  constexpr auto kNone = c10::ScalarType::Undefined;
  const auto before = std::exchange(forward_dtype_here, dtype);
  if (before == kNone && dtype != kNone) {
    register_kernels();
    key_was_included = c10::impl::tls_is_dispatch_key_included(kDtypeKey);
    c10::impl::tls_set_dispatch_key_included(kDtypeKey, true);
  } else if (before != kNone && dtype == kNone) {
    c10::impl::tls_set_dispatch_key_included(kDtypeKey, key_was_included);
  }
  return before;
}

c10::ScalarType forward_dtype() {
  return forward_dtype_here;
}

bool makes_default_dtype(const c10::OperatorHandle& op, const Stack& stack) {
  const std::string_view name = op.schema().name();
  for (const std::string_view word : {"aten::randint", "aten::randperm", "aten::tril_indices", "aten::triu_indices"})
    if (name.starts_with(word)) return false;
  if (name != "aten::full" && name != "aten::arange" && name != "aten::scalar_tensor") return true;
  for (const auto* word : {"fill_value", "start", "end", "step", "s"})
    if (const auto* number = named_argument(op, const_cast<Stack&>(stack), word); number && number->isDouble())
      return true;
  return false;
}

}  // namespace levin::detail
