#include "levin/kernels/decode/few_rows.h"

#include <algorithm>
#include <optional>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels::detail {
namespace {

bool is_loop_number(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

Tensor linear_on_cpu(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  auto sizes = x.sizes().vec();
  const auto columns = sizes.back(), rows = weight.size(0), count = columns > 0 ? x.numel() / columns : 0;
  sizes.back() = rows;
  const auto in = x.to(at::kFloat).contiguous();
  const auto matrix = weight.contiguous();
  auto out = at::empty(sizes, x.options().dtype(at::kFloat));
  const DotRows job{.matrix = matrix.const_data_ptr(),
                    .type = loop_number(weight.scalar_type()),
                    .columns = columns,
                    .x = in.const_data_ptr<float>(),
                    .count = count,
                    .out = out.mutable_data_ptr<float>(),
                    .stride = rows};
  for_matrix_rows(rows, columns, [&](int64_t begin, int64_t end) { dot_rows(job, begin, end); });
  if (bias) out += *bias;
  return out.to(x.scalar_type());
}

/// An operator of its own, so that profilers and counters see it.
struct FewRowsOps : Operators {
  Operator<decltype(linear_on_cpu)> linear = add<decltype(linear_on_cpu)>(
      "few_rows_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", /*meta=*/nullptr, linear_on_cpu);
};

}  // namespace

LoopNumber loop_number(at::ScalarType dtype) {
  LEVIN_CHECK(is_loop_number(dtype), "[few_rows] numbers of ", dtype, " are not known");
  if (dtype == at::kFloat) return LoopNumber::kFloat;
  return dtype == at::kHalf ? LoopNumber::kHalf : LoopNumber::kBFloat16;
}

bool has_few_rows(const Tensor& x) {
  if (at::GradMode::is_enabled() || !x.is_cpu() || !is_loop_number(x.scalar_type()) || x.dim() == 0) return false;
  return x.size(-1) > 0 && x.numel() <= kFewRows * x.size(-1) && !autocast_dtype(x);
}

void for_matrix_rows(int64_t rows, int64_t columns, c10::function_ref<void(int64_t, int64_t)> body) {
  constexpr int64_t kTogether = 4, kNumbersOfPart = 1 << 15;
  const auto grain = std::max<int64_t>(1, kNumbersOfPart / (kTogether * std::max<int64_t>(columns, 1)));
  parallel_for(0, (rows + kTogether - 1) / kTogether, grain,
               [&](int64_t begin, int64_t end) { body(begin * kTogether, std::min(end * kTogether, rows)); });
}

bool runs_few_rows_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto dtype = x.scalar_type();
  return has_few_rows(x) && weight.is_cpu() && weight.dim() == 2 && weight.size(1) == x.size(-1) &&
         weight.scalar_type() == dtype && weight.is_contiguous() &&
         (!bias.defined() ||
          (bias.is_cpu() && bias.scalar_type() == dtype && bias.dim() == 1 && bias.size(0) == weight.size(0)));
}

Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<FewRowsOps>().linear.call(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

Tensor few_rows_norm(const Tensor& h, const Tensor& weight, const Tensor& bias, double eps, bool rms) {
  const auto wide = h.to(at::kFloat).contiguous(), scale = weight.to(at::kFloat).contiguous(),
             offset = bias.defined() ? bias.to(at::kFloat).contiguous() : bias;
  auto out = at::empty_like(wide);
  const auto columns = h.size(-1);
  for (int64_t at = 0; at < wide.numel(); at += columns)
    norm_row({.h = wide.const_data_ptr<float>() + at,
              .weight = scale.const_data_ptr<float>(),
              .bias = offset.defined() ? offset.const_data_ptr<float>() : nullptr,
              .columns = columns,
              .eps = eps,
              .rms = rms,
              .out = out.mutable_data_ptr<float>() + at});
  return out.to(h.scalar_type());
}

}  // namespace levin::kernels::detail
