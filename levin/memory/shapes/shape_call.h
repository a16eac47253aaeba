#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

namespace c10 {
class OperatorHandle;
}

namespace levin::detail {

using at::Tensor;
using Sizes = std::vector<int64_t>;

/// A call of an operator on meta tensors: its arguments by name, and the results that a rule says.
class ShapeCall {
 public:
  ShapeCall(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

  /// An argument by its name in the schema; an undefined tensor where it is None.
  const Tensor& tensor(std::string_view name = "self") const;
  bool has(std::string_view name) const;
  /// A list, also of one number.
  Sizes ints(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  bool flag(std::string_view name) const;
  std::optional<at::ScalarType> dtype(std::string_view name = "dtype") const;
  /// Element `i` of a mask of gradients.
  bool wants(size_t i, std::string_view name = "output_mask") const;

  /// The next result: like a tensor, as at::empty_like lays it out.
  void like(const Tensor& tensor, std::optional<at::ScalarType> dtype = {});
  /// The next result, by its sizes.
  void result(Sizes sizes, at::ScalarType dtype, at::MemoryFormat format = at::MemoryFormat::Contiguous);
  void result(Sizes sizes, const Tensor& dtype_of, at::MemoryFormat format = at::MemoryFormat::Contiguous) {
    result(std::move(sizes), dtype_of.scalar_type(), format);
  }
  /// The next result, whose storage has room for that many elements.
  void result_in(int64_t elements, Sizes sizes, at::ScalarType dtype);
  /// The next result is an argument itself.
  void same(const Tensor& tensor);
  /// The next result is an undefined tensor.
  void none();
  /// Memory that the operator takes while it runs.
  void scratch(Sizes sizes, at::ScalarType dtype);
  void scratch_like(const Tensor& tensor) { scratch(tensor.sizes().vec(), tensor.scalar_type()); }

  /// Replaces the arguments by the results. Tensors that the operator writes (`out`, `self` of an operator in place)
  /// get the sizes of theirs.
  void finish();

 private:
  struct Result {
    Sizes sizes = {}, strides = {};
    at::ScalarType dtype = at::kFloat;
    int64_t elements = -1;
    bool defined = true;
    Tensor given = {};
  };
  size_t at(std::string_view name) const;
  const c10::IValue& argument(std::string_view name) const;
  Tensor make(const Result& result) const;

  const c10::OperatorHandle& op_;
  std::vector<c10::IValue>& stack_;
  size_t first_;
  std::vector<Result> results_;
  std::vector<Tensor> scratch_;
};

using ShapeFunction = std::function<void(ShapeCall&)>;

/// The shapes of an operator of "aten", in all overloads for which LibTorch has none.
struct ShapeRule {
  const char* op;
  ShapeFunction shape;
  /// LibTorch has a shape function that knows nothing of the memory that the operator takes; this one is used.
  bool replaces = false;
};

/// An operator whose results depend on values: what it needs, and what to write in its place.
struct UnknownShape {
  const char* op;
  const char* needs;
};

// The tables, a file each.
std::span<const ShapeRule> activation_shapes();
std::span<const ShapeRule> loss_shapes();
std::span<const ShapeRule> layer_shapes();
std::span<const ShapeRule> embedding_shapes();
std::span<const ShapeRule> recurrent_shapes();
std::span<const ShapeRule> elementwise_shapes();
std::span<const ShapeRule> reduction_shapes();
std::span<const ShapeRule> linear_algebra_shapes();
std::span<const UnknownShape> unknown_shapes();

// What many rules are.

/// Each result is like the argument of that name.
ShapeFunction likes(std::vector<std::string_view> names);
/// The same in memory without gaps, in the usual order.
ShapeFunction contiguous_likes(std::vector<std::string_view> names);
/// Of a gradient mask: each result like the argument, where it is wanted.
ShapeFunction masked_likes(std::vector<std::string_view> names);
/// Elementwise in two arguments that are broadcast.
ShapeFunction broadcasts(std::string_view a, std::string_view b, std::optional<at::ScalarType> dtype = {});
/// Writes into its arguments, and returns them or nothing.
void writes_arguments(ShapeCall& call);

}  // namespace levin::detail
