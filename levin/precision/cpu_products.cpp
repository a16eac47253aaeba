#include "levin/precision/cpu_products.h"

#include <atomic>
#include <vector>

#include <ATen/CPUFunctions.h>
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

namespace levin::detail {

using at::Tensor;

namespace {

using at::Scalar;
using c10::SymInt;
using c10::SymIntArrayRef;
using MaybeTensor = std::optional<Tensor>;

// How many want it; kernels ask at every call.
std::atomic<int> wide_bfloat16 = 0;
std::atomic<int> wide_half = 0;

std::atomic<int>& wanted(c10::ScalarType dtype) {
  return dtype == at::kHalf ? wide_half : wide_bfloat16;
}

bool defined(const MaybeTensor& tensor) {
  return tensor && tensor->defined();
}

// All in one dtype that is computed in float32. Who switched oneDNN off gets LibTorch's own kernels, which take no
// scratch. Mixed dtypes continue to LibTorch, which refuses them in its own words.
template <typename... Others>
bool narrow(const Tensor& first, const Others&... others) {
  const auto dtype = first.scalar_type();
  if ((dtype != at::kBFloat16 && dtype != at::kHalf) || wanted(dtype).load(std::memory_order_relaxed) == 0)
    return false;
  return ((others.scalar_type() == dtype) && ...) && at::globalContext().userEnabledMkldnn();
}

Tensor wide(const Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kFloat) : tensor;
}

MaybeTensor wide(const MaybeTensor& tensor) {
  const bool convert = defined(tensor) && at::isReducedFloatingType(tensor->scalar_type());
  return convert ? tensor->to(at::kFloat) : tensor;
}

Tensor rounded(const Tensor& result, const Tensor& like) {
  return result.defined() ? result.to(like.scalar_type()) : result;
}

Tensor& put(const Tensor& result, Tensor& out) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

Tensor mm(const Tensor& a, const Tensor& b) {
  if (!narrow(a, b)) return at::cpu::mm(a, b);
  return rounded(at::cpu::mm(wide(a), wide(b)), a);
}

Tensor& mm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!narrow(a, b, out)) return at::cpu::mm_outf(a, b, out);
  return put(at::cpu::mm(wide(a), wide(b)), out);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  if (!narrow(a, b)) return at::cpu::bmm(a, b);
  return rounded(at::cpu::bmm(wide(a), wide(b)), a);
}

Tensor& bmm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!narrow(a, b, out)) return at::cpu::bmm_outf(a, b, out);
  return put(at::cpu::bmm(wide(a), wide(b)), out);
}

Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (!narrow(self, a, b)) return at::cpu::addmm(self, a, b, beta, alpha);
  return rounded(at::cpu::addmm(wide(self), wide(a), wide(b), beta, alpha), a);
}

Tensor& addmm_(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (!narrow(self, a, b)) return at::cpu::addmm_(self, a, b, beta, alpha);
  auto result = wide(self);
  return self.copy_(at::cpu::addmm_(result, wide(a), wide(b), beta, alpha));
}

Tensor& addmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                  Tensor& out) {
  if (!narrow(self, a, b, out)) return at::cpu::addmm_outf(self, a, b, beta, alpha, out);
  return put(at::cpu::addmm(wide(self), wide(a), wide(b), beta, alpha), out);
}

Tensor addmm_activation(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                        bool gelu) {
  if (!narrow(self, a, b)) return at::cpu::_addmm_activation(self, a, b, beta, alpha, gelu);
  return rounded(at::cpu::_addmm_activation(wide(self), wide(a), wide(b), beta, alpha, gelu), a);
}

Tensor& addmm_activation_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                             const Scalar& alpha, bool gelu, Tensor& out) {
  if (!narrow(self, a, b, out)) return at::cpu::_addmm_activation_outf(self, a, b, beta, alpha, gelu, out);
  return put(at::cpu::_addmm_activation(wide(self), wide(a), wide(b), beta, alpha, gelu), out);
}

Tensor baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (!narrow(self, a, b)) return at::cpu::baddbmm(self, a, b, beta, alpha);
  return rounded(at::cpu::baddbmm(wide(self), wide(a), wide(b), beta, alpha), a);
}

Tensor& baddbmm_(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (!narrow(self, a, b)) return at::cpu::baddbmm_(self, a, b, beta, alpha);
  auto result = wide(self);
  return self.copy_(at::cpu::baddbmm_(result, wide(a), wide(b), beta, alpha));
}

Tensor& baddbmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                    Tensor& out) {
  if (!narrow(self, a, b, out)) return at::cpu::baddbmm_outf(self, a, b, beta, alpha, out);
  return put(at::cpu::baddbmm(wide(self), wide(a), wide(b), beta, alpha), out);
}

namespace composite = at::compositeexplicitautograd;

Tensor convolution(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, SymIntArrayRef stride,
                   SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
                   SymInt groups) {
  const auto compute = [&](const Tensor& input, const Tensor& kernel, const MaybeTensor& added) {
    return composite::convolution_symint(input, kernel, added, stride, padding, dilation, transposed, output_padding,
                                         groups);
  };
  if (!narrow(x, weight, defined(bias) ? *bias : weight)) return compute(x, weight, bias);
  return rounded(compute(wide(x), wide(weight), wide(bias)), x);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                        at::OptionalSymIntArrayRef bias, SymIntArrayRef stride,
                                                        SymIntArrayRef padding, SymIntArrayRef dilation,
                                                        bool transposed, SymIntArrayRef output_padding, SymInt groups,
                                                        std::array<bool, 3> mask) {
  const auto compute = [&](const Tensor& output, const Tensor& input, const Tensor& kernel) {
    return composite::convolution_backward_symint(output, input, kernel, bias, stride, padding, dilation, transposed,
                                                  output_padding, groups, mask);
  };
  if (!narrow(grad, x, weight)) return compute(grad, x, weight);
  const auto [of_x, of_weight, of_bias] = compute(wide(grad), wide(x), wide(weight));
  return {rounded(of_x, x), rounded(of_weight, x), rounded(of_bias, x)};
}

std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal,
                                     const MaybeTensor& mask, std::optional<double> scale) {
  const auto compute = at::cpu::_scaled_dot_product_flash_attention_for_cpu;
  if (!narrow(q, k, v)) return compute(q, k, v, dropout, causal, mask, scale);
  const auto [out, logsumexp] = compute(wide(q), wide(k), wide(v), dropout, causal, wide(mask), scale);
  return {rounded(out, q), logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                      const Tensor& v, const Tensor& out, const Tensor& logsumexp,
                                                      double dropout, bool causal, const MaybeTensor& mask,
                                                      std::optional<double> scale) {
  const auto compute = at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward;
  if (!narrow(grad, q, k, v, out)) return compute(grad, q, k, v, out, logsumexp, dropout, causal, mask, scale);
  const auto [of_q, of_k, of_v] =
      compute(wide(grad), wide(q), wide(k), wide(v), wide(out), logsumexp, dropout, causal, wide(mask), scale);
  return {rounded(of_q, q), rounded(of_k, q), rounded(of_v, q)};
}

// LibTorch warns when a kernel of its own is replaced; here that is the purpose.
class Quiet final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

bool cpu_has_products_in(c10::ScalarType dtype) {
  const auto* name = dtype == at::kHalf ? "mkldnn::_is_mkldnn_fp16_supported" : "mkldnn::_is_mkldnn_bf16_supported";
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  if (!op) return false;  // a LibTorch without oneDNN
  torch::jit::Stack stack;
  op->callBoxed(&stack);
  return stack.back().toBool();
}

struct WideProducts::State {
  c10::ScalarType dtype;
  torch::Library library{torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__};
};

WideProducts::WideProducts(c10::ScalarType dtype) : state_(new State{.dtype = dtype}) {
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  auto& library = state_->library;
  library.impl("mm", TORCH_FN(mm));
  library.impl("mm.out", TORCH_FN(mm_out));
  library.impl("bmm", TORCH_FN(bmm));
  library.impl("bmm.out", TORCH_FN(bmm_out));
  library.impl("addmm", TORCH_FN(addmm));
  library.impl("addmm_", TORCH_FN(addmm_));
  library.impl("addmm.out", TORCH_FN(addmm_out));
  library.impl("_addmm_activation", TORCH_FN(addmm_activation));
  library.impl("_addmm_activation.out", TORCH_FN(addmm_activation_out));
  library.impl("baddbmm", TORCH_FN(baddbmm));
  library.impl("baddbmm_", TORCH_FN(baddbmm_));
  library.impl("baddbmm.out", TORCH_FN(baddbmm_out));
  library.impl("convolution", TORCH_FN(convolution));
  library.impl("convolution_backward", TORCH_FN(convolution_backward));
  library.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", TORCH_FN(attention_backward));
  ++wanted(dtype);
}

WideProducts::~WideProducts() {
  --wanted(state_->dtype);
}

namespace {

// When the library is loaded: a product may come from any thread and from code that knows nothing of Levin, and one is
// enough to switch oneDNN off.
[[maybe_unused]] const auto& kept = *[] {
  auto* made = new std::vector<std::unique_ptr<WideProducts>>();
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    if (!cpu_has_products_in(dtype)) made->push_back(std::make_unique<WideProducts>(dtype));
  return made;
}();

}  // namespace

}  // namespace levin::detail
