#include "levin/distributed/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {
namespace detail {
namespace {

struct OpWord {
  std::string_view word;
  ReduceOp op;
};
constexpr std::array kOps{OpWord{"sum", ReduceOp::kSum},        OpWord{"mean", ReduceOp::kMean},
                          OpWord{"min", ReduceOp::kMin},        OpWord{"max", ReduceOp::kMax},
                          OpWord{"prod", ReduceOp::kProduct},   OpWord{"avg", ReduceOp::kMean},
                          OpWord{"product", ReduceOp::kProduct}};

std::string dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace

std::string_view word_of(ReduceOp op) {
  return std::find_if(kOps.begin(), kOps.end(), [&](const auto& entry) { return entry.op == op; })->word;
}

std::string describe(const Tensor& tensor) {
  return fmt::format("{} [{}]", dtype_name(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_dense(std::string_view operation, const Tensor& tensor) {
  LEVIN_CHECK(tensor.defined(), "[", operation, "] the tensor is undefined");
  LEVIN_CHECK(tensor.layout() == at::kStrided, "[", operation, "] the tensor is ", tensor.layout(),
              "; only dense tensors can be sent");
}

void check_reducible(std::string_view operation, const Tensor& tensor, ReduceOp op) {
  check_dense(operation, tensor);
  const auto refused = [&](bool wrong, std::string_view hint) {
    LEVIN_CHECK(!wrong, "[", operation, "] a tensor of ", dtype_name(tensor.scalar_type()), " has no ", word_of(op),
                "; ", hint);
  };
  refused(op == ReduceOp::kMean && !tensor.is_floating_point() && !tensor.is_complex(),
          "convert it to a floating type first");
  refused(tensor.is_complex() && op != ReduceOp::kSum && op != ReduceOp::kMean, "sum and mean can be taken");
}

void check_source(std::string_view operation, int src, int size) {
  LEVIN_CHECK(src >= 0 && src < size, "[", operation, "] source rank ", src, " is not in the group: 0 to ", size - 1);
}

void check_scatterable(const Tensor& input, int size) {
  LEVIN_CHECK(input.dim() > 0 && input.size(0) % size == 0, "[reduce_scatter] the first dimension of ", describe(input),
              " cannot be split over ", size, " ranks");
}

}  // namespace detail

ReduceOp reduce_op(std::string_view word) {
  std::vector<std::string> known;
  for (const auto& entry : detail::kOps) {
    if (entry.word == word) return entry.op;
    known.emplace_back(entry.word);
  }
  fail_unknown("reduce_op", "operation", word, known);
}

}  // namespace levin
