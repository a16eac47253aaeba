#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

/// Products of 16-bit matrices on CUDA by cuBLASLt, with what follows them in the same kernel. Of the algorithms that
/// cuBLASLt proposes for a small product, the fastest is measured once per shape and process; of a large one the first
/// is taken.
namespace levin::kernels {

using at::Tensor;

/// Names of the operators that multiply matrices here and return one matrix, such as "levin::matmul". They are
/// registered by the call.
std::vector<std::string> product_operators();

namespace detail {

/// LEVIN_GEMM: "lt" (default), "first" never measures, "torch" leaves products to torch, "best" measures large products
/// too, under load.
enum class GemmWish { kLt, kFirst, kTorch, kBest };
/// Throws an Error for a word that is not known.
GemmWish gemm_wish(std::string_view word);
GemmWish gemm_wish_of_environment();

/// Whether products with the tensor run in the operators below: 16-bit numbers on CUDA, or a meta tensor that stands
/// for such.
bool runs_matmul(const Tensor& tensor);

/// a [M, K] times b [K, N], plus bias [N] where it is defined, added up in float. The bias has the dtype of a; the
/// result has it, or is float without a bias. Either matrix may be the transpose of a contiguous one.
Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& bias, at::ScalarType dtype);

/// The product, and the sums of the rows of a [M] in the second dtype: of a = grad^T the gradients of a weight and a
/// bias. One kernel where both dtypes are equal and cuBLASLt has one.
std::tuple<Tensor, Tensor> matmul_and_sums(const Tensor& a, const Tensor& b, at::ScalarType dtype,
                                           at::ScalarType sums_dtype);

/// out = a b, or out += a b. `out` has the dtype of a, or is float.
void matmul_into(const Tensor& out, const Tensor& a, const Tensor& b, bool add = false);

}  // namespace detail
}  // namespace levin::kernels
