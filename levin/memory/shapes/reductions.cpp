#include <algorithm>
#include <utility>

#include <c10/core/WrapDimMinimal.h>

#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {
namespace {

/// The sizes without the dimensions of `dim` (all where there are none), or with 1 in their place.
Sizes reduced(const ShapeCall& call, bool keeps) {
  const auto& x = call.tensor();
  const auto dims = call.has("dim") ? call.ints("dim") : Sizes{};
  Sizes sizes;
  for (int64_t i = 0; i < x.dim(); ++i) {
    const bool gone =
        dims.empty() || std::ranges::any_of(dims, [&](int64_t dim) { return c10::maybe_wrap_dim(dim, x.dim()) == i; });
    if (!gone || keeps) sizes.push_back(gone ? 1 : x.size(i));
  }
  return sizes;
}

bool keeps_dims(const ShapeCall& call) {
  return call.has("keepdim") && call.flag("keepdim");
}

/// Sums of integers are of 64 bits.
at::ScalarType sum_dtype(const ShapeCall& call) {
  const auto dtype = call.tensor().scalar_type();
  return call.dtype().value_or(at::isIntegralType(dtype, /*includeBool=*/true) ? at::kLong : dtype);
}

void total(ShapeCall& call) {
  call.result(reduced(call, keeps_dims(call)), call.has("dtype") ? sum_dtype(call) : call.tensor().scalar_type());
}
void sum_like(ShapeCall& call) {
  call.result(reduced(call, keeps_dims(call)), sum_dtype(call));
}
void real_total(ShapeCall& call) {
  call.result(reduced(call, keeps_dims(call)), c10::toRealValueType(call.tensor().scalar_type()));
}
void spread_and_mean(ShapeCall& call) {
  real_total(call);
  call.result(reduced(call, keeps_dims(call)), call.tensor());
}
void count(ShapeCall& call) {
  call.result(reduced(call, false), at::kLong);
}
void two_totals(ShapeCall& call) {
  total(call);
  total(call);
}
/// Values and where they were.
void value_and_index(ShapeCall& call) {
  total(call);
  if (call.has("dim")) call.result(reduced(call, keeps_dims(call)), at::kLong);
}
/// A copy of the rows is put in order, with the places of their elements.
void ordered(ShapeCall& call) {
  call.scratch_like(call.tensor());
  call.scratch(call.tensor().sizes().vec(), at::kLong);
  value_and_index(call);
}
void scalar(ShapeCall& call) {
  call.result({}, call.tensor());
}

void multinomial(ShapeCall& call) {
  const auto& x = call.tensor();
  auto sizes = x.sizes().vec();
  sizes.back() = call.integer("num_samples");
  call.scratch_like(x);
  call.result(std::move(sizes), at::kLong);
}

void histogram(ShapeCall& call) {
  call.result({call.integer("bins")}, call.tensor());
}
void histogram_and_edges(ShapeCall& call) {
  const auto edges =
      call.has("bins") && call.tensor("bins").defined() ? call.tensor("bins").size(0) : call.integer("bins") + 1;
  call.result({edges - 1}, call.tensor());
  call.result({edges}, call.tensor());
}

/// A number for each segment, whose lengths or offsets are tensors.
void segments(ShapeCall& call) {
  const auto& x = call.tensor("data");
  auto sizes = x.sizes().vec();
  sizes[static_cast<size_t>(call.integer("axis"))] =
      call.has("lengths") ? call.tensor("lengths").size(-1) : call.tensor("offsets").size(-1) - 1;
  call.result(std::move(sizes), x);
}

}  // namespace

std::span<const ShapeRule> reduction_shapes() {
  static const std::vector<ShapeRule> rules{
      {"std", real_total},
      {"var", real_total},
      {"std_mean", spread_and_mean},
      {"var_mean", spread_and_mean},
      {"prod", sum_like},
      {"nansum", sum_like},
      {"max", total},
      {"min", total},
      {"_aminmax", two_totals},
      {"median", value_and_index},
      {"nanmedian", value_and_index},
      {"kthvalue", ordered},
      {"mode", value_and_index},
      {"count_nonzero", count},
      {"dot", scalar},
      {"vdot", scalar},
      {"trace", scalar},
      {"_cummax_helper", writes_arguments},
      {"_cummin_helper", writes_arguments},
      {"_logcumsumexp", contiguous_likes({"self"})},
      {"multinomial", multinomial},
      {"histc", histogram},
      {"histogram", histogram_and_edges},
      {"segment_reduce", segments},
      {"_segment_reduce_backward", contiguous_likes({"data"})},
      {"nonzero_static",
       [](ShapeCall& call) {
         call.result({call.integer("size"), call.tensor().dim()}, at::kLong);
       }},
  };
  return rules;
}

}  // namespace levin::detail
