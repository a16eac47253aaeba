#include "levin/kernels/fused_step/adam_8bit.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <ATen/Functions.h>

#include "levin/core/error.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/fused_step/adam_loops.h"

namespace levin::kernels {
namespace {

// The middles of equal parts of [0.1, 1], for every decade, in the precision in which the map was published.
std::array<float, 256> make_codes(bool with_sign) {
  std::array<float, 256> codes{};
  size_t count = 0;
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = (with_sign ? 1 : 2) << decade;
    for (int i = 0; i < parts; ++i) {
      const float low = static_cast<float>(0.1 + 0.9 * i / parts),
                  high = static_cast<float>(0.1 + 0.9 * (i + 1) / parts);
      const auto value = static_cast<float>(std::pow(10.0, decade - 6) * static_cast<double>((low + high) / 2.0f));
      codes[count++] = value;
      if (with_sign) codes[count++] = -value;
    }
  }
  codes[count++] = 0;
  codes[count++] = 1;
  std::ranges::sort(codes);
  return codes;
}

const detail::CodeTable& code_table(bool with_sign) {
  const auto make = [](bool sign) {
    auto table = std::make_unique<detail::CodeTable>();
    detail::fill_code_table(*table, dynamic_codes(sign).data());
    return table;
  };
  static const auto with = make(true), without = make(false);
  return with_sign ? *with : *without;
}

void check_codes(const Tensor& codes, const Tensor& scales, const Tensor& param, size_t index) {
  const int64_t blocks = code_blocks(param.numel());
  LEVIN_CHECK(codes.device() == param.device() && codes.scalar_type() == at::kByte &&
                  codes.sizes() == at::IntArrayRef({blocks, kCodeBlock}) && codes.is_contiguous(),
              "[fused_adam_8bit] codes of parameter ", index, " are ", codes.toString(), " ", codes.sizes(),
              "; contiguous Byte [", blocks, ", ", kCodeBlock, "] on ", param.device(), " is needed");
  LEVIN_CHECK(scales.device() == param.device() && scales.scalar_type() == at::kFloat &&
                  scales.sizes() == at::IntArrayRef({blocks}) && scales.is_contiguous(),
              "[fused_adam_8bit] scales of parameter ", index, " are ", scales.toString(), " ", scales.sizes(),
              "; contiguous Float [", blocks, "] on ", param.device(), " is needed");
}

}  // namespace

const std::array<float, 256>& dynamic_codes(bool with_sign) {
  static const auto with = make_codes(true), without = make_codes(false);
  return with_sign ? with : without;
}

void fused_adam_8bit(const Adam8bitTensors& t, const AdamNumbers& n, const StepScale& scale,
                     const AdamNumbers* refreshed) {
  constexpr const char* kOperation = "fused_adam_8bit";
  const size_t count = t.params.size();
  for (const size_t length : {t.grads.size(), t.averages.size(), t.squares.size(), t.average_scales.size(),
                              t.square_scales.size(), t.steps.size(), t.copies.empty() ? count : t.copies.size()})
    LEVIN_CHECK(length == count, "[fused_adam_8bit] there are ", count, " parameters, and another list has ", length);
  LEVIN_CHECK(!n.amsgrad, "[fused_adam_8bit] amsgrad is not known with 8-bit averages");
  const auto fill = [&](detail::StepEntry& entry, size_t i) {
    const Tensor& param = t.params[i];
    LEVIN_CHECK(param.scalar_type() != at::kDouble, "[fused_adam_8bit] parameter ", i,
                " is of Double; Float, Half and BFloat16 are known");
    check_codes(t.averages[i], t.average_scales[i], param, i);
    check_codes(t.squares[i], t.square_scales[i], param, i);
    entry.first = t.averages[i].mutable_data_ptr();
    entry.second = t.squares[i].mutable_data_ptr();
    entry.first_scale = t.average_scales[i].mutable_data_ptr<float>();
    entry.second_scale = t.square_scales[i].mutable_data_ptr<float>();
    entry.step = detail::step_pointer(kOperation, t.steps, i, param);
  };
  const auto [entries, device] = detail::step_entries(kOperation, t.params, t.grads, t.copies, fill);
  if (entries.empty()) return;
  if (device->is_cuda()) {
    detail::CodeBooks books;
    std::ranges::copy(dynamic_codes(true), books.average);
    std::ranges::copy(dynamic_codes(false), books.square);
    return detail::adam_8bit_cuda(entries, n, refreshed, books, scale, *device);
  }
  LEVIN_CHECK(device->is_cpu(), "[fused_adam_8bit] the parameters are on ", *device, "; cpu and cuda are known");
  if (detail::host_skips(scale)) return;
  const double scaled = detail::host_scale(scale);
  const auto &average = code_table(true), &square = code_table(false);
  detail::each_piece(entries, [&, &entries = entries](size_t e, int64_t begin, int64_t end) {
    detail::adam_8bit_loop(entries[e], n, scaled, {average, square}, begin, end);
  });
}

Tensor from_codes(const Tensor& codes, const Tensor& scales, bool with_sign, int64_t numel) {
  const auto& values = dynamic_codes(with_sign);
  const Tensor map = at::from_blob(const_cast<float*>(values.data()), {256}, at::kFloat).to(codes.device());
  return (map.index_select(0, codes.reshape({-1}).to(at::kLong)).view(codes.sizes()) * scales.unsqueeze(1))
      .reshape({-1})
      .narrow(0, 0, numel);
}

}  // namespace levin::kernels
