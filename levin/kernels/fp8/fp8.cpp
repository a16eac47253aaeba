#include "levin/kernels/fp8/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include "levin/core/error.h"
#include "levin/kernels/activation_detail.h"
#include "levin/kernels/fp8/fp8_detail.h"
#include "levin/kernels/fp8/fp8_launch.h"
#include "levin/kernels/operators.h"

namespace levin::kernels {

namespace detail {

Fp8Parts empty_fp8_parts(const Tensor& x, at::ScalarType dtype, bool per_row, bool rows, bool columns,
                         const MaybeDtype& sums) {
  const auto m = x.size(0), k = x.size(1), padded = (m + kFp8Multiple - 1) / kFp8Multiple * kFp8Multiple;
  const auto codes = x.options().dtype(dtype), numbers = x.options().dtype(at::kFloat);
  Fp8Parts parts;
  if (rows) std::get<0>(parts) = at::empty({m, k}, codes);
  if (columns) std::get<1>(parts) = at::empty({k, padded}, codes);
  if (!per_row)
    std::get<2>(parts) = at::empty({1}, numbers);
  else if (rows)
    std::get<2>(parts) = at::empty({m, 1}, numbers);
  if (per_row && columns) std::get<3>(parts) = at::empty({k, 1}, numbers);
  if (sums) std::get<4>(parts) = at::empty({k}, x.options().dtype(*sums));
  return parts;
}

}  // namespace detail

namespace {

using detail::Fp8Parts;
using detail::MaybeDtype;
using detail::MaybeKind;
using detail::MaybeTensor;

// ---- the emulation of the CPU

double largest_of(at::ScalarType dtype) {
  return dtype == at::kFloat8_e5m2 ? std::numeric_limits<c10::Float8_e5m2>::max()
                                   : std::numeric_limits<c10::Float8_e4m3fn>::max();
}

/// As scale_of in fp8.cu.
Tensor scales_of(const Tensor& amax, at::ScalarType dtype, int64_t margin) {
  const auto largest = static_cast<float>(largest_of(dtype));
  auto scales = amax.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  auto* values = scales.mutable_data_ptr<float>();
  for (int64_t i = 0; i < scales.numel(); ++i) {
    const float size = values[i], ratio = largest / size;
    if (!(size > 0) || !std::isfinite(size)) {
      values[i] = 1;
      continue;
    }
    const int64_t exponent = std::isfinite(ratio) ? std::ilogb(ratio) : 126;
    values[i] = std::ldexp(1.0f, static_cast<int>(std::clamp<int64_t>(exponent - margin, -126, 126)));
  }
  return scales;
}

Tensor codes_of(const Tensor& x, const Tensor& scale, at::ScalarType dtype) {
  const auto largest = largest_of(dtype);
  const auto scaled = at::clamp(x * scale, -largest, largest);
  return at::where(x.isfinite(), scaled, std::numeric_limits<double>::quiet_NaN()).to(at::kFloat).to(dtype);
}

/// The activation of x, or the product of x with its derivative, by operators of their own.
Tensor activated(const Tensor& x, int64_t kind, const MaybeTensor& derivative_at) {
  return derivative_at ? detail::run_activation_backward(x, *derivative_at, static_cast<Activation>(kind))
                       : detail::run_activation(x, static_cast<Activation>(kind));
}

Fp8Parts cast_cpu(const Tensor& given, const MaybeTensor& amax, const MaybeTensor& seen, at::ScalarType dtype,
                  bool per_row, bool rows, bool columns, int64_t margin, MaybeKind kind,
                  const MaybeTensor& derivative_at, MaybeDtype sums) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto x = kind ? activated(given, *kind, derivative_at) : given;
  const auto wide = x.to(at::kFloat);
  const auto size = at::where(wide.isfinite(), wide.abs(), 0).to(at::kFloat);
  const auto most = x.numel() == 0 ? at::zeros({1}, wide.options()) : size.max().view({1});
  if (seen) seen->copy_(at::maximum(*seen, most.view_as(*seen)));
  const auto of_rows = scales_of(per_row ? size.amax({1}, /*keepdim=*/true) : amax.value_or(most), dtype, margin);
  Fp8Parts parts;
  if (sums) std::get<4>(parts) = at::sum(x, {0}, /*keepdim=*/false, *sums);
  if (rows) std::get<0>(parts) = codes_of(wide, of_rows, dtype);
  if (rows || !per_row) std::get<2>(parts) = of_rows.reciprocal();
  if (!columns) return parts;
  const auto of_columns = per_row ? scales_of(size.amax({0}, /*keepdim=*/true).t(), dtype, margin) : of_rows;
  const auto padding = (kFp8Multiple - x.size(0) % kFp8Multiple) % kFp8Multiple;
  const auto turned = at::constant_pad_nd(wide.t().contiguous(), {0, padding}, 0);
  std::get<1>(parts) = codes_of(turned, of_columns, dtype);
  if (per_row) std::get<3>(parts) = of_columns.reciprocal();
  return parts;
}

Tensor product_cpu(const Tensor& a, const Tensor& b, const Tensor& inverse_a, const Tensor& inverse_b,
                   const MaybeTensor& bias, at::ScalarType dtype, bool) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::RecordFunctionGuard unseen(/*is_enabled=*/false);  // it is counted once
  auto result = at::mm(a.to(at::kFloat) * inverse_a, (b.to(at::kFloat) * inverse_b).t());
  if (bias) result.add_(*bias);
  return result.to(dtype);
}

Tensor roll_cpu(const Tensor& history, const Tensor& seen) {
  const auto moved = at::cat({seen.unsqueeze(1), history.narrow(1, 0, history.size(1) - 1)}, 1);
  history.copy_(at::where(seen.unsqueeze(1) > 0, moved, history));
  seen.zero_();
  return history.amax({1});
}

// ---- without data: what CUDA allocates

Fp8Parts cast_meta(const Tensor& x, const MaybeTensor& amax, const MaybeTensor&, at::ScalarType dtype, bool per_row,
                   bool rows, bool columns, int64_t, MaybeKind, const MaybeTensor&, MaybeDtype sums) {
  const auto found = per_row ? at::empty({x.size(0) + x.size(1)}, x.options().dtype(at::kFloat))
                     : amax  ? Tensor()
                             : at::empty({1}, x.options().dtype(at::kFloat));
  const auto tiles = (x.size(0) + detail::kFp8TileRows - 1) / detail::kFp8TileRows;
  const auto partials = sums ? at::empty({tiles, x.size(1)}, x.options().dtype(at::kFloat)) : Tensor();
  return detail::empty_fp8_parts(x, dtype, per_row, rows, columns, sums);
}

Tensor product_meta(const Tensor& a, const Tensor& b, const Tensor& inverse_a, const Tensor&, const MaybeTensor&,
                    at::ScalarType dtype, bool) {
  const auto made = [&](at::ScalarType as) { return at::empty({a.size(0), b.size(0)}, a.options().dtype(as)); };
  if (inverse_a.dim() < 2 || dtype == at::kBFloat16) return made(dtype);
  const auto narrow = made(at::kBFloat16);
  return made(dtype);
}

Tensor roll_meta(const Tensor&, const Tensor& seen) {
  return at::empty_like(seen);
}

// ---- the operators

struct Fp8Ops : detail::Operators {
  detail::Operator<decltype(cast_meta)> cast =
      add("fp8_cast(Tensor x, Tensor? amax, Tensor(a!)? seen, ScalarType dtype, bool per_row, bool rows, bool columns, "
          "int margin, int? activation, Tensor? derivative_at, ScalarType? sums) -> (Tensor, Tensor, Tensor, Tensor, "
          "Tensor)",
          cast_meta, cast_cpu);
  detail::Operator<decltype(product_meta)> product =
      add("fp8_mm(Tensor a, Tensor b, Tensor inverse_a, Tensor inverse_b, Tensor? bias, ScalarType dtype, bool "
          "fast_accumulation) -> Tensor",
          product_meta, product_cpu);
  detail::Operator<decltype(roll_meta)> roll =
      add("fp8_roll(Tensor(a!) history, Tensor(b!) seen) -> Tensor", roll_meta, roll_cpu);

  Fp8Ops() { detail::register_fp8_cuda(cuda); }
};

MaybeTensor if_defined(const Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

bool is_float8(at::ScalarType dtype) {
  return dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2;
}

}  // namespace

Fp8Cast fp8_cast(const Tensor& x, const Tensor& amax, const Tensor& seen, const Fp8CastOptions& options) {
  LEVIN_CHECK(x.dim() == 2 && x.size(1) % kFp8Multiple == 0, "[fp8_cast] needs a matrix with a multiple of ",
              kFp8Multiple, " columns, got ", x.sizes());
  LEVIN_CHECK(x.scalar_type() == at::kFloat || at::isReducedFloatingType(x.scalar_type()),
              "[fp8_cast] needs Float, Half or BFloat16, got ", x.scalar_type());
  LEVIN_CHECK(is_float8(options.dtype), "[fp8_cast] casts to Float8_e4m3fn and Float8_e5m2, not to ", options.dtype);
  LEVIN_CHECK(!options.per_row || !amax.defined(), "[fp8_cast] scales per row are those of the tensor itself");
  const auto& at = options.derivative_at;
  LEVIN_CHECK(!at.defined() || (options.activation && at.sizes() == x.sizes() && at.scalar_type() == x.scalar_type()),
              "[fp8_cast] derivative_at needs an activation, and the sizes and dtype of x");
  const at::NoGradGuard no_grad;
  Tensor matrix = x.contiguous();
  auto kind = options.activation ? MaybeKind(static_cast<int64_t>(*options.activation)) : std::nullopt;
  auto derivative_at = at.defined() ? MaybeTensor(at.contiguous()) : std::nullopt;
  const bool at_once = amax.defined() && !options.per_row && x.scalar_type() == at::kBFloat16 &&
                       (options.dtype == at::kFloat8_e5m2) == at.defined();
  if (kind && !at_once) {
    matrix = activated(matrix, *kind, derivative_at);
    kind.reset(), derivative_at.reset();
  }
  auto [rows, columns, inverse, column_inverse, sums] = detail::operators<Fp8Ops>().cast.call(
      matrix, if_defined(amax), if_defined(seen), options.dtype, options.per_row, options.rows, options.columns,
      options.margin, kind, derivative_at, options.sums);
  if (!options.per_row) column_inverse = inverse;
  return {rows, columns, inverse, column_inverse, sums};
}

Tensor fp8_mm(const Tensor& a, const Tensor& b, const Tensor& inverse_a, const Tensor& inverse_b, const Tensor& bias,
              c10::ScalarType dtype, bool fast_accumulation) {
  LEVIN_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1) && is_float8(a.scalar_type()) &&
                  is_float8(b.scalar_type()),
              "[fp8_mm] needs a [M, K] and b [N, K] in float8, got ", a.toString(), " ", a.sizes(), " and ",
              b.toString(), " ", b.sizes());
  return detail::operators<Fp8Ops>().product.call(a, b, inverse_a, inverse_b, if_defined(bias), dtype,
                                                  fast_accumulation);
}

Tensor fp8_roll(const Tensor& history, const Tensor& seen) {
  LEVIN_CHECK(history.dim() == 2 && history.size(1) > 0 && seen.dim() == 1 && seen.size(0) == history.size(0),
              "[fp8_roll] needs a history [S, H] and [S], got ", history.sizes(), " and ", seen.sizes());
  return detail::operators<Fp8Ops>().roll.call(history, seen);
}

}  // namespace levin::kernels
