#include "levin/memory/shapes/shape_call.h"

#include <algorithm>
#include <utility>

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/TypeProperties.h>

#include "levin/core/error.h"

namespace levin::detail {

ShapeCall::ShapeCall(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack)
    : op_(op), stack_(stack), first_(stack.size() - op.schema().arguments().size()) {}

size_t ShapeCall::at(std::string_view name) const {
  const auto& arguments = op_.schema().arguments();
  const auto found =
      std::ranges::find(arguments, name, [](const c10::Argument& each) { return std::string_view(each.name()); });
  return static_cast<size_t>(found - arguments.begin());
}

const c10::IValue& ShapeCall::argument(std::string_view name) const {
  const auto i = at(name);
  LEVIN_CHECK(i < op_.schema().arguments().size(), "[estimate_memory] ", op_.schema().name(), " has no argument ",
              name);
  return stack_[first_ + i];
}

const Tensor& ShapeCall::tensor(std::string_view name) const {
  static const Tensor undefined;
  const auto& value = argument(name);
  return value.isTensor() ? value.toTensor() : undefined;
}

bool ShapeCall::has(std::string_view name) const {
  const auto i = at(name);
  if (i >= op_.schema().arguments().size()) return false;
  const auto& value = stack_[first_ + i];
  return value.isTensor() ? value.toTensor().defined() : !value.isNone();
}

Sizes ShapeCall::ints(std::string_view name) const {
  const auto& value = argument(name);
  if (value.isNone()) return {};
  if (value.isInt()) return {value.toInt()};
  if (value.isIntList()) return value.toIntVector();
  Sizes sizes;
  for (const auto& each : value.toListRef())
    sizes.push_back(each.isInt() ? each.toInt() : each.toSymInt().expect_int());
  return sizes;
}

int64_t ShapeCall::integer(std::string_view name) const {
  const auto& value = argument(name);
  return value.isInt() ? value.toInt() : value.toSymInt().expect_int();
}

double ShapeCall::number(std::string_view name) const {
  return argument(name).toScalar().toDouble();
}

bool ShapeCall::flag(std::string_view name) const {
  return argument(name).toBool();
}

std::optional<at::ScalarType> ShapeCall::dtype(std::string_view name) const {
  if (!has(name)) return {};
  return argument(name).toScalarType();
}

bool ShapeCall::wants(size_t i, std::string_view name) const {
  return argument(name).toBoolList().get(i);
}

void ShapeCall::like(const Tensor& tensor, std::optional<at::ScalarType> dtype) {
  const bool dense = tensor.is_non_overlapping_and_dense();
  results_.push_back(
      {.sizes = tensor.sizes().vec(),
       .strides = dense ? tensor.strides().vec() : at::infer_dense_strides(tensor.sizes(), tensor.strides()),
       .dtype = dtype.value_or(tensor.scalar_type())});
}

void ShapeCall::result(Sizes sizes, at::ScalarType dtype, at::MemoryFormat format) {
  const auto plain = at::empty(sizes, at::TensorOptions(at::kMeta).dtype(dtype).memory_format(format));
  results_.push_back({.sizes = std::move(sizes), .strides = plain.strides().vec(), .dtype = dtype});
}

void ShapeCall::result_in(int64_t elements, Sizes sizes, at::ScalarType dtype) {
  result(std::move(sizes), dtype);
  results_.back().elements = elements;
}

void ShapeCall::same(const Tensor& tensor) {
  results_.push_back({.given = tensor});
}

void ShapeCall::none() {
  results_.push_back({.defined = false});
}

void ShapeCall::scratch(Sizes sizes, at::ScalarType dtype) {
  scratch_.push_back(at::empty(sizes, at::TensorOptions(at::kMeta).dtype(dtype)));
}

Tensor ShapeCall::make(const Result& result) const {
  if (!result.defined || result.given.defined()) return result.given;
  const auto options = at::TensorOptions(at::kMeta).dtype(result.dtype);
  if (result.elements < 0) return at::empty_strided(result.sizes, result.strides, options);
  auto made = at::empty({result.elements}, options);
  made.resize_(result.sizes);
  return made;
}

void ShapeCall::finish() {
  const auto& returns = op_.schema().returns();
  std::vector<c10::IValue> made;
  for (size_t i = 0; i < returns.size(); ++i) {
    const auto* alias = returns[i].alias_info();
    if (!alias || !alias->isWrite()) {
      LEVIN_CHECK(i < results_.size(), "[estimate_memory] the rule of ", op_.schema().name(), " has ", results_.size(),
                  " of ", returns.size(), " results");
      made.emplace_back(make(results_[i]));
      continue;
    }
    for (size_t k = 0; k < op_.schema().arguments().size(); ++k) {
      const auto* written = op_.schema().arguments()[k].alias_info();
      if (!written || !written->isWrite() || written->beforeSets() != alias->beforeSets()) continue;
      const auto out = stack_[first_ + k].toTensor();
      if (i < results_.size() && out.sizes() != at::IntArrayRef(results_[i].sizes)) {
        out.resize_(results_[i].sizes);
        if (out.strides() != at::IntArrayRef(results_[i].strides))
          out.as_strided_(results_[i].sizes, results_[i].strides);
      }
      made.emplace_back(out);
      break;
    }
  }
  scratch_.clear();
  stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
  for (auto& each : made) stack_.push_back(std::move(each));
}

ShapeFunction likes(std::vector<std::string_view> names) {
  return [names = std::move(names)](ShapeCall& call) {
    for (const auto name : names) call.like(call.tensor(name));
  };
}

ShapeFunction contiguous_likes(std::vector<std::string_view> names) {
  return [names = std::move(names)](ShapeCall& call) {
    for (const auto name : names) call.result(call.tensor(name).sizes().vec(), call.tensor(name));
  };
}

ShapeFunction masked_likes(std::vector<std::string_view> names) {
  return [names = std::move(names)](ShapeCall& call) {
    for (size_t i = 0; i < names.size(); ++i)
      call.wants(i) && call.has(names[i]) ? call.like(call.tensor(names[i])) : call.none();
  };
}

ShapeFunction broadcasts(std::string_view a, std::string_view b, std::optional<at::ScalarType> dtype) {
  return [=](ShapeCall& call) {
    const auto &x = call.tensor(a), &y = call.tensor(b);
    if (!y.defined()) return call.like(x, dtype);
    if (!x.defined()) return call.like(y, dtype);
    const auto kept = dtype.value_or(at::result_type(x, y));
    if (x.sizes() == y.sizes()) return call.like(x, kept);
    auto sizes = at::infer_size(x.sizes(), y.sizes());
    for (const auto* each : {&x, &y})
      if (each->sizes() == at::IntArrayRef(sizes)) return call.like(*each, kept);
    call.result(std::move(sizes), kept);
  };
}

void writes_arguments(ShapeCall&) {}

}  // namespace levin::detail
