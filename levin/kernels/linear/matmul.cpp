#include "levin/kernels/linear/matmul.h"

#include <cstdlib>
#include <optional>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "levin/core/words.h"
#include "levin/kernels/attention/causal_attention_detail.h"
#include "levin/kernels/attention/short_attention_detail.h"
#include "levin/kernels/linear/matmul_detail.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace detail {
namespace {

using Two = std::tuple<Tensor, Tensor>;

// ---- on the CPU: torch's, for tests

Tensor on_cpu(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, at::ScalarType dtype) {
  return bias ? at::addmm(*bias, a, b) : at::mm(a, b).to(dtype);
}
Two with_sums_on_cpu(const Tensor& a, const Tensor& b, at::ScalarType dtype, at::ScalarType sums_dtype) {
  return {at::mm(a, b).to(dtype), a.sum(1).to(sums_dtype)};
}

void into_on_cpu(const Tensor& out, const Tensor& a, const Tensor& b, bool add) {
  const auto product = at::mm(a, b);
  add ? out.add_(product) : out.copy_(product);
}

// ---- on meta tensors: what the kernels of CUDA allocate

Tensor on_meta(const Tensor& a, const Tensor& b, const std::optional<Tensor>&, at::ScalarType dtype) {
  return at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype));
}
Two with_sums_on_meta(const Tensor& a, const Tensor& b, at::ScalarType dtype, at::ScalarType sums_dtype) {
  return {on_meta(a, b, {}, dtype), at::empty({a.size(0)}, a.options().dtype(sums_dtype))};
}

void into_on_meta(const Tensor&, const Tensor&, const Tensor&, bool) {}

struct MatmulOps : Operators {
  Operator<decltype(on_cpu)> matmul =
      add("matmul(Tensor a, Tensor b, Tensor? bias, ScalarType dtype) -> Tensor", on_meta, on_cpu);
  Operator<decltype(with_sums_on_cpu)> matmul_and_sums =
      add("matmul_and_sums(Tensor a, Tensor b, ScalarType dtype, ScalarType sums_dtype) -> (Tensor, Tensor)",
          with_sums_on_meta, with_sums_on_cpu);
  Operator<decltype(into_on_cpu)> matmul_into =
      add("matmul_into(Tensor(a!) out, Tensor a, Tensor b, bool add) -> ()", into_on_meta, into_on_cpu);

  MatmulOps() { register_matmul_cuda(cuda); }
};

}  // namespace

GemmWish gemm_wish(std::string_view word) {
  static const std::vector<std::string> known{"lt", "first", "torch", "best"};  // as GemmWish
  for (size_t i = 0; i < known.size(); ++i)
    if (word == known[i]) return static_cast<GemmWish>(i);
  fail_unknown("matmul", "LEVIN_GEMM", word, known);
}

GemmWish gemm_wish_of_environment() {
  static const auto wish = [] {
    const char* word = std::getenv("LEVIN_GEMM");
    return gemm_wish(word ? word : "lt");
  }();
  return wish;
}

bool runs_matmul(const Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) && runs_fused(tensor) &&
         gemm_wish_of_environment() != GemmWish::kTorch;
}

Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& bias, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<MatmulOps>().matmul.call(a, b, bias.defined() ? std::optional(bias) : std::nullopt, dtype);
}

Two matmul_and_sums(const Tensor& a, const Tensor& b, at::ScalarType dtype, at::ScalarType sums_dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return operators<MatmulOps>().matmul_and_sums.call(a, b, dtype, sums_dtype);
}

void matmul_into(const Tensor& out, const Tensor& a, const Tensor& b, bool add) {
  const at::AutoDispatchBelowADInplaceOrView below;
  operators<MatmulOps>().matmul_into.call(out, a, b, add);
}

}  // namespace detail

std::vector<std::string> product_operators() {
  (void)detail::operators<detail::MatmulOps>();
  return {"levin::matmul", detail::short_attention_operator(), detail::causal_attention_operator()};
}

}  // namespace levin::kernels
