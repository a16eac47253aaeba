#include "levin/memory/shapes/shapes.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include "levin/core/error.h"
#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {
namespace {

using c10::DispatchKey;

class RuleKernel final : public c10::OperatorKernel {
 public:
  explicit RuleKernel(const ShapeRule& rule) : rule_(rule) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) const {
    ShapeCall call(op, *stack);
    rule_.shape(call);
    call.finish();
  }

 private:
  const ShapeRule& rule_;
};

class UnknownKernel final : public c10::OperatorKernel {
 public:
  explicit UnknownKernel(const UnknownShape& unknown) : unknown_(unknown) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) const {
    throw UnknownShapeError(op.schema().name(), unknown_.needs);
  }

 private:
  const UnknownShape& unknown_;
};

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}
bool has_shape(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::Meta) || is_composite(op) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

template <class Kernel, class Row>
torch::CppFunction kernel_of(const Row& row) {
  return torch::CppFunction::makeFromBoxedKernel(c10::BoxedKernel::makeFromFunctor(std::make_unique<Kernel>(row)));
}

/// Overloads of the operators of "aten", by name.
using Overloads = std::unordered_map<std::string, std::vector<c10::OperatorHandle>>;
const Overloads& overloads() {
  static const Overloads all = [] {
    Overloads found;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (!name.name.starts_with("aten::")) continue;
      if (const auto op = dispatcher.findOp(name); op && op->hasSchema()) found[name.name.substr(6)].push_back(*op);
    }
    return found;
  }();
  return all;
}

std::string full_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

void register_rule(torch::Library& meta, const ShapeRule& rule) {
  const std::string name = rule.op;
  const auto dot = name.find('.');
  const auto overload = dot == name.npos ? "" : name.substr(dot + 1);
  const auto found = overloads().find(name.substr(0, dot));
  LEVIN_CHECK(found != overloads().end(), "[estimate_memory] this LibTorch has no operator aten::", name);
  for (const auto& op : found->second) {
    const bool is_meant = op.operator_name().overload_name == overload;
    if (rule.replaces ? is_meant || (dot == name.npos && !has_shape(op)) : !has_shape(op))
      meta.impl(full_name(op).c_str(), kernel_of<RuleKernel>(rule));
  }
}

void register_unknown(torch::Library& meta, torch::Library& above, const UnknownShape& unknown) {
  const std::string_view row = unknown.op;
  const auto dot = row.find('.');
  const auto found = overloads().find(std::string(row.substr(0, dot)));
  LEVIN_CHECK(found != overloads().end(), "[estimate_memory] this LibTorch has no operator aten::", row);
  for (const auto& op : found->second) {
    if (dot != row.npos && op.operator_name().overload_name != row.substr(dot + 1)) continue;
    if (is_composite(op))
      above.impl(full_name(op).c_str(), kernel_of<UnknownKernel>(unknown));
    else if (!has_shape(op))
      meta.impl(full_name(op).c_str(), kernel_of<UnknownKernel>(unknown));
  }
}

/// Two tensors without values are equal when they are one. (Attention asks whether queries, keys and values are.)
bool is_same(const Tensor& a, const Tensor& b) {
  return a.is_same(b) || (a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_alias_of(b) &&
                          a.storage_offset() == b.storage_offset());
}

/// Storage grows as it does with memory, where the allocator is asked.
const Tensor& resize(const Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  Sizes wanted;
  int64_t elements = 1;
  for (const auto& size : sizes) wanted.push_back(size.expect_int()), elements *= wanted.back();
  auto* impl = self.unsafeGetTensorImpl();
  const bool changed = self.sizes() != at::IntArrayRef(wanted);
  if (changed) impl->set_sizes_contiguous(wanted);
  if (changed && format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  auto* storage = self.storage().unsafeGetStorageImpl();
  const auto bytes =
      static_cast<size_t>((elements + self.storage_offset()) * static_cast<int64_t>(self.element_size()));
  if (elements > 0 && bytes > storage->nbytes()) {
    storage->set_data_ptr(c10::GetAllocator(c10::kMeta)->allocate(bytes));
    storage->set_nbytes(bytes);
  }
  return self;
}

}  // namespace

UnknownShapeError::UnknownShapeError(const std::string& op, const std::string& needs)
    : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, op + ": " + needs) {}

void register_shapes(torch::Library& meta, torch::Library& above) {
  for (const auto rules : {activation_shapes(), loss_shapes(), layer_shapes(), embedding_shapes(), recurrent_shapes(),
                           elementwise_shapes(), reduction_shapes(), linear_algebra_shapes()})
    for (const auto& rule : rules) register_rule(meta, rule);
  meta.impl("equal", is_same);
  meta.impl("resize_", resize);
  for (const auto& unknown : unknown_shapes()) register_unknown(meta, above, unknown);
}

}  // namespace levin::detail
