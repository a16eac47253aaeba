#include "levin/memory/kernels.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "levin/kernels/played_device.h"
#include "levin/memory/choices.h"
#include "levin/memory/convolutions.h"
#include "levin/memory/shapes/shapes.h"

namespace levin::detail {

using at::Tensor;

namespace {

using MaybeTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using SymInts = c10::SymIntArrayRef;
using Mask3 = std::array<bool, 3>;

bool plays_cuda() {
  return kernels::played_device() == c10::kCUDA;
}

Tensor like(const Tensor& tensor, bool wanted = true) {
  return wanted ? at::empty_like(tensor) : Tensor();
}
Tensor made(at::IntArrayRef sizes, const Tensor& as, std::optional<at::ScalarType> dtype = {}) {
  return at::empty(sizes, dtype ? as.options().dtype(*dtype) : as.options());
}
/// Sums of 16-bit numbers are kept in float32.
at::ScalarType sum_dtype(const Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
}
Tensor contiguous_like(const Tensor& tensor, bool wanted = true) {
  return wanted ? at::empty_like(tensor, at::MemoryFormat::Contiguous) : Tensor();
}

// ---- normalization

Three layer_norm(const Tensor& x, SymInts shape, const MaybeTensor& weight, const MaybeTensor&, double) {
  auto stats = x.sizes().vec();
  for (size_t i = stats.size() - shape.size(); i < stats.size(); ++i) stats[i] = 1;
  // CUDA keeps the statistics of 16-bit inputs in float32, the CPU in the dtype of the weights.
  const auto dtype = plays_cuda()                  ? sum_dtype(x)
                     : weight && weight->defined() ? weight->scalar_type()
                                                   : x.scalar_type();
  return {contiguous_like(x), made(stats, x, dtype), made(stats, x, dtype)};
}
Three layer_norm_backward(const Tensor&, const Tensor& x, SymInts, const Tensor&, const Tensor&,
                          const MaybeTensor& weight, const MaybeTensor& bias, Mask3 mask) {
  Three result{contiguous_like(x, mask[0]), {}, {}};
  if (mask[1] && weight) std::get<1>(result) = like(*weight);
  if (mask[2] && bias) std::get<2>(result) = like(*bias);
  return result;
}

Three batch_norm(const Tensor& x, const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, const MaybeTensor&,
                 bool training, double, double) {
  const int64_t kept = training ? x.size(1) : 0;
  return {like(x), made({kept}, x, sum_dtype(x)), made({kept}, x, sum_dtype(x))};
}
Three batch_norm_backward(const Tensor&, const Tensor& x, const MaybeTensor& weight, const MaybeTensor&,
                          const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, bool, double, Mask3 mask) {
  const auto dtype = weight && weight->defined() ? weight->scalar_type() : x.scalar_type();
  return {like(x, mask[0]), mask[1] ? made({x.size(1)}, x, dtype) : Tensor(),
          mask[2] ? made({x.size(1)}, x, dtype) : Tensor()};
}

Three group_norm(const Tensor& x, const MaybeTensor&, const MaybeTensor&, c10::SymInt n, c10::SymInt, c10::SymInt,
                 int64_t groups, double) {
  const std::vector<int64_t> stats{n.expect_int(), groups};
  return {like(x), made(stats, x, sum_dtype(x)), made(stats, x, sum_dtype(x))};
}
Three group_norm_backward(const Tensor&, const Tensor& x, const Tensor&, const Tensor&, const MaybeTensor& weight,
                          c10::SymInt, c10::SymInt c, c10::SymInt, int64_t, Mask3 mask) {
  const auto dtype = weight && weight->defined() ? weight->scalar_type() : x.scalar_type();
  return {like(x, mask[0]), mask[1] ? made({c.expect_int()}, x, dtype) : Tensor(),
          mask[2] ? made({c.expect_int()}, x, dtype) : Tensor()};
}

// ---- attention: [B, H, T, D]; results are laid out as [B, T, H, D], as they come from one product

Tensor heads_last(const Tensor& q, int64_t width) {
  return made({q.size(0), q.size(2), q.size(1), width}, q).transpose(1, 2);
}

using Flash = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;
Flash flash(const Tensor& q, const Tensor& k, const Tensor& v, double, bool, bool, std::optional<double>) {
  auto out = heads_last(q, v.size(3));
  auto sums = made({q.size(0), q.size(1), q.size(2)}, q, at::kFloat);
  return {out, sums, {}, {}, q.size(2), k.size(2), made({2}, q, at::kLong), made({0}, q, at::kLong), made({0}, q)};
}
Three flash_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&,
                     const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double, bool, const Tensor&, const Tensor&,
                     std::optional<double>) {
  // The gradient of the queries is summed in float32, in whole tiles.
  const auto rows = (q.size(2) + 127) / 128 * 128, width = (q.size(3) + 31) / 32 * 32;
  const auto sum = made({q.size(0), rows, q.size(1), width}, q, at::kFloat);
  const auto dot = made({q.size(0), q.size(1), rows}, q, at::kFloat);
  return {heads_last(q, q.size(3)), heads_last(k, k.size(3)), heads_last(v, v.size(3))};
}

Flash cudnn(const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor&, bool sums, double, bool, bool,
            std::optional<double>) {
  auto out = heads_last(q, v.size(3));
  auto kept = sums ? made({q.size(0), q.size(1), q.size(2), 1}, q, at::kFloat) : Tensor();
  return {out, kept, {}, {}, q.size(2), k.size(2), made({}, q, at::kLong), made({}, q, at::kLong), {}};
}
Three cudnn_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&,
                     const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, c10::SymInt,
                     c10::SymInt, double, bool, std::optional<double>) {
  // The workspace of its plan: the gradient of the queries is summed in float32 here, too.
  const auto sum = made({q.size(0), q.size(1), q.size(2), q.size(3)}, q, at::kFloat);
  const auto dot = made({q.size(0), q.size(1), q.size(2)}, q, at::kFloat);
  return {heads_last(q, q.size(3)), heads_last(k, k.size(3)), heads_last(v, v.size(3))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor&, const Tensor& v,
                                                     const MaybeTensor&, bool sums, double, bool,
                                                     std::optional<double>) {
  const auto rows = sums ? (q.size(2) + 31) / 32 * 32 : 0;
  return {heads_last(q, v.size(3)), made({q.size(0), q.size(1), rows}, q, at::kFloat), made({}, q, at::kLong),
          made({}, q, at::kLong)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor&, const Tensor& q, const Tensor& k,
                                                              const Tensor& v, const Tensor& bias, const Tensor&,
                                                              const Tensor&, const Tensor&, const Tensor&, double,
                                                              std::array<bool, 4> mask, bool, std::optional<double>) {
  const auto dot = made({q.size(0), q.size(1), q.size(2)}, q, at::kFloat);
  return {heads_last(q, q.size(3)), heads_last(k, k.size(3)), heads_last(v, v.size(3)),
          mask[3] && bias.defined() ? like(bias) : Tensor()};
}

std::tuple<Tensor, Tensor> cpu_flash(const Tensor& q, const Tensor&, const Tensor& v, double, bool, const MaybeTensor&,
                                     std::optional<double>) {
  return {heads_last(q, v.size(3)), made({q.size(0), q.size(2), q.size(1)}, q, sum_dtype(q)).transpose(1, 2)};
}
Three cpu_flash_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&,
                         double, bool, const MaybeTensor&, std::optional<double>) {
  return {heads_last(q, q.size(3)), heads_last(k, k.size(3)), heads_last(v, v.size(3))};
}

/// What the device would choose among its kernels.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& mask, double dropout,
                 bool causal, std::optional<double> scale, bool grouped) {
  const bool has_mask = mask && mask->defined();
  const bool batched = q.dim() == 4 && k.dim() == 4 && v.dim() == 4, plain = batched && !grouped;
  // Flash attention takes heads of keys that several heads of queries share; the others do not.
  if (batched && plays_cuda() && at::isReducedFloatingType(q.scalar_type()) && !has_mask && q.size(3) <= 256)
    return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v, dropout, causal, false, scale));
  if (plain && plays_cuda() && q.scalar_type() != at::kDouble) {
    const bool grad = at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
    return std::get<0>(at::_scaled_dot_product_efficient_attention(q, k, v, mask, grad, dropout, causal, scale));
  }
  if (plain && !plays_cuda() && dropout == 0)
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale));
  return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, {}, scale, grouped));
}
Tensor safe_softmax(const Tensor& x, int64_t, std::optional<at::ScalarType> dtype) {
  return at::empty_like(x, x.options().dtype(dtype.value_or(x.scalar_type())));
}

// ---- sums

/// Bytes in which CUDA's reduction leaves partial sums of the columns of a matrix, when it divides the rows over blocks
/// of threads: as ATen lays a reduction out (setReduceConfig), on a device of 132 multiprocessors.
int64_t partial_sums(int64_t rows, int64_t columns) {
  constexpr int64_t kThreads = 512, kWarp = 32, kResident = 2048, kMultiprocessors = 132;
  constexpr int64_t kLeastPerThread = 16, kMostPerThread = 256;
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto power_of_2 = [](int64_t n, int64_t most) {
    int64_t power = 1;
    while (power * 2 <= std::min(n, most)) power *= 2;
    return power;
  };
  const int64_t vector = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
  const auto most_threads = kThreads / vector;
  const auto across = power_of_2(columns / vector, most_threads);
  const auto height = std::min(power_of_2(rows, most_threads), most_threads / std::min(across, kWarp));
  const auto width = std::min(across, most_threads / height);
  if (rows < std::min(height * kLeastPerThread, kMostPerThread)) return 0;
  const auto per_thread = up(rows, height), blocks = up(columns / vector, width);
  const auto wanted = kMultiprocessors * (kResident / (width * height));
  if (per_thread < kMostPerThread || blocks > wanted) return 0;
  const auto parts =
      std::max(std::min(up(wanted, blocks), up(per_thread, kLeastPerThread)), up(per_thread, kMostPerThread));
  constexpr int64_t kFloat = 4;
  return parts > 1 ? kFloat * columns * parts * width * vector : 0;
}

Tensor sum(const Tensor& x, at::OptionalIntArrayRef dims, bool keep, std::optional<at::ScalarType> asked) {
  std::vector<bool> summed(static_cast<size_t>(x.dim()), !dims || dims->empty());
  for (const auto dim : dims.value_or(at::IntArrayRef())) {
    const auto at = c10::maybe_wrap_dim(dim, x.dim());
    if (x.dim() > 0) summed[static_cast<size_t>(at)] = true;
  }
  std::vector<int64_t> sizes;
  int64_t rows = 1;
  for (size_t i = 0; i < summed.size(); ++i) {
    const auto size = x.size(static_cast<int64_t>(i));
    if (summed[i]) rows *= size;
    if (!summed[i] || keep) sizes.push_back(summed[i] ? 1 : size);
  }
  const auto dtype = asked.value_or(at::isIntegralType(x.scalar_type(), true) ? at::kLong : x.scalar_type());
  auto result = made(sizes, x, dtype);
  // Gradients of biases: all dimensions but the last.
  const bool of_columns = !summed.empty() &&
                          std::is_partitioned(summed.begin(), summed.end(), [](bool is) { return is; }) &&
                          summed.front() && !summed.back();
  if (plays_cuda() && of_columns && x.is_contiguous() && x.numel() > 0)
    (void)made({partial_sums(rows, x.numel() / rows)}, x, at::kByte);  // gone when the sum is there
  return result;
}

}  // namespace

MetaKernels::MetaKernels(c10::DeviceType device)
    : shapes_(
          std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__)),
      choices_(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__,
                                                __LINE__)) {
  kernels::set_played_device(device);
  auto& m = *shapes_;
  // Some have one, which knows nothing of the memory that the device's takes; a warning says that this one is used now.
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  m.impl("sum.dim_IntList", sum);
  m.impl("native_layer_norm", layer_norm);
  m.impl("native_layer_norm_backward", layer_norm_backward);
  m.impl("native_batch_norm", batch_norm);
  m.impl("native_batch_norm_backward", batch_norm_backward);
  m.impl("native_group_norm", group_norm);
  m.impl("native_group_norm_backward", group_norm_backward);
  m.impl("_scaled_dot_product_flash_attention", flash);
  m.impl("_scaled_dot_product_flash_attention_backward", flash_backward);
  m.impl("_scaled_dot_product_cudnn_attention", cudnn);
  m.impl("_scaled_dot_product_cudnn_attention_backward", cudnn_backward);
  m.impl("_scaled_dot_product_efficient_attention", efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward);
  m.impl("_scaled_dot_product_flash_attention_for_cpu", cpu_flash);
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward", cpu_flash_backward);
  m.impl("_safe_softmax", safe_softmax);
  choices_->impl("scaled_dot_product_attention", attention);
  register_convolutions(m);
  register_choices(m, *choices_);
  register_shapes(m, *choices_);
}

MetaKernels::~MetaKernels() {
  kernels::set_played_device(c10::kCPU);
}

}  // namespace levin::detail
