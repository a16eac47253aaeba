#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/WrapDimMinimal.h>

#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {
namespace {

/// The magnitude of complex numbers is real.
void real_like(ShapeCall& call) {
  const auto& x = call.tensor();
  call.like(x, c10::toRealValueType(x.scalar_type()));
}
void boolean_like(ShapeCall& call) {
  call.like(call.tensor(), at::kBool);
}
void floating_like(ShapeCall& call) {
  const auto& x = call.tensor();
  call.like(x, at::isIntegralType(x.scalar_type(), /*includeBool=*/true) ? at::kFloat : x.scalar_type());
}
void frexp(ShapeCall& call) {
  call.like(call.tensor());
  call.like(call.tensor(), at::kInt);
}

/// A flipped or rolled copy; one that is rolled in several dimensions is rolled one by one.
void roll(ShapeCall& call) {
  const auto& x = call.tensor();
  if (call.ints("dims").size() > 1) call.scratch_like(x);
  call.result(x.sizes().vec(), x);
}

void take(ShapeCall& call) {
  call.result(call.tensor("index").sizes().vec(), call.tensor());
}
void index_select(ShapeCall& call) {
  const auto& x = call.tensor();
  auto sizes = x.sizes().vec();
  const auto dim = call.integer("dim");
  if (!sizes.empty()) sizes[static_cast<size_t>(dim < 0 ? dim + x.dim() : dim)] = call.tensor("index").numel();
  call.result(std::move(sizes), x);
}

void narrow_copy(ShapeCall& call) {
  const auto& x = call.tensor();
  auto sizes = x.sizes().vec();
  sizes[static_cast<size_t>(c10::maybe_wrap_dim(call.integer("dim"), x.dim()))] = call.integer("length");
  call.result(std::move(sizes), x);
}

void unfold_backward(ShapeCall& call) {
  call.result(call.ints("input_sizes"), call.tensor("grad_in"));
}

/// Backward writes gradients into new zeros; with meta tensors it takes the operator that copies these first.
void written(ShapeCall& call) {
  const bool in_backward = !at::GradMode::is_enabled();
  in_backward ? call.same(call.tensor()) : call.like(call.tensor());
}

void found(ShapeCall& call) {
  call.result(call.has("self") && call.tensor("self").defined() ? call.tensor("self").sizes().vec() : Sizes{},
              call.flag("out_int32") ? at::kInt : at::kLong);
}

/// [2, N]: the places below or above a diagonal of a matrix.
void triangle(ShapeCall& call, bool upper) {
  const auto rows = call.integer("row"), columns = call.integer("col"), offset = call.integer("offset");
  int64_t below = 0;
  for (int64_t row = 0; row < rows; ++row) below += std::clamp<int64_t>(row + offset + (upper ? 0 : 1), 0, columns);
  call.result({2, upper ? rows * columns - below : below}, call.dtype().value_or(at::kLong));
}

void repeat_interleave(ShapeCall& call) {
  const auto& repeats = call.tensor("repeats");
  TORCH_CHECK(call.has("output_size"), "aten::repeat_interleave: attempted to run this operator with Meta tensors");
  call.result({call.integer("output_size")}, repeats);
}

}  // namespace

std::span<const ShapeRule> elementwise_shapes() {
  static const std::vector<ShapeRule> rules{
      {"abs", real_like},
      {"angle", real_like},
      {"conj_physical", likes({"self"})},
      {"nan_to_num", likes({"self"})},
      {"logit", floating_like},
      {"mvlgamma", floating_like},
      {"isnan", boolean_like},
      {"frexp", frexp},
      {"logical_not", boolean_like},
      {"logical_and", broadcasts("self", "other", at::kBool)},
      {"logical_or", broadcasts("self", "other", at::kBool)},
      {"logical_xor", broadcasts("self", "other", at::kBool)},
      {"floor_divide", broadcasts("self", "other")},
      {"remainder", likes({"other"})},
      {"rsub", broadcasts("self", "other")},
      {"_add_relu", broadcasts("self", "other")},
      {"__lshift__", likes({"self"})},
      {"__rshift__", likes({"self"})},
      {"where", broadcasts("self", "other")},
      {"flip", likes({"self"})},
      {"roll", roll},
      {"take", take},
      {"index_select", index_select},
      {"narrow_copy", narrow_copy},
      {"unfold_backward", unfold_backward},
      {"scatter_add", written, /*replaces=*/true},
      {"scatter.src", written, /*replaces=*/true},
      {"index_put", written, /*replaces=*/true},
      {"index_add", written, /*replaces=*/true},
      {"searchsorted", found},
      {"bucketize", found},
      {"tril_indices", [](ShapeCall& call) { triangle(call, false); }},
      {"triu_indices", [](ShapeCall& call) { triangle(call, true); }},
      {"repeat_interleave", repeat_interleave},
      {"randperm", writes_arguments},
      {"bernoulli", likes({"self"})},
      {"poisson", likes({"self"})},
      {"binomial", likes({"count"})},
      {"_standard_gamma", likes({"self"})},
      {"_standard_gamma_grad", likes({"self"})},
      {"_sample_dirichlet", likes({"self"})},
      {"_dirichlet_grad", likes({"x"})},
      {"_assert_async", writes_arguments},
      {"_amp_foreach_non_finite_check_and_unscale_", writes_arguments},
      {"_fused_adam_", writes_arguments},
      {"_fused_adamw_", writes_arguments},
      {"_fused_sgd_", writes_arguments},
      {"_fused_adagrad_", writes_arguments},
  };
  return rules;
}

}  // namespace levin::detail
