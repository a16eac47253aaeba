#include "levin/devices/flop_counter.h"

#include <array>
#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include "levin/core/error.h"

namespace levin {
namespace {

// The observer is a plain function without a place for a pointer, so the sum is of the process.
std::atomic<int64_t> counted = 0;
std::atomic<bool> counting = false;

using Inputs = c10::ArrayRef<const c10::IValue>;

c10::IntArrayRef sizes(Inputs inputs, size_t at) {
  if (at >= inputs.size() || !inputs[at].isTensor()) return {};
  const auto& tensor = inputs[at].toTensor();
  return tensor.defined() ? tensor.sizes() : c10::IntArrayRef();
}

int64_t product(c10::IntArrayRef shape) {
  int64_t all = 1;
  for (const int64_t n : shape) all *= n;
  return all;
}

// [..., m, k] x [..., k, n]
template <size_t kFirst>
int64_t matmul(Inputs inputs) {
  const auto a = sizes(inputs, kFirst), b = sizes(inputs, kFirst + 1);
  if (a.size() < 2 || b.empty()) return 0;
  return 2 * product(a) * (b.size() < 2 ? 1 : b.back());
}

// a [m, k], b [n, k]
int64_t transposed_product(Inputs inputs) {
  const auto a = sizes(inputs, 0), b = sizes(inputs, 1);
  return b.empty() ? 0 : 2 * product(a) * b[0];
}

// Every output element (input element, when transposed) meets the whole kernel of one channel.
int64_t convolution_of(c10::IntArrayRef sites, c10::IntArrayRef weight) {
  if (sites.size() < 2 || weight.empty() || weight[0] == 0) return 0;
  int64_t positions = sites[0];
  for (size_t i = 2; i < sites.size(); ++i) positions *= sites[i];
  return 2 * positions * product(weight);
}

bool truth(Inputs inputs, size_t at) {
  return at < inputs.size() && inputs[at].isBool() && inputs[at].toBool();
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
int64_t convolution(Inputs inputs) {
  const auto input = sizes(inputs, 0), weight = sizes(inputs, 1);
  if (truth(inputs, 6)) return convolution_of(input, weight);
  if (input.size() < 3 || weight.size() != input.size()) return 0;
  const auto stride = inputs[3].toIntVector(), padding = inputs[4].toIntVector(), dilation = inputs[5].toIntVector();
  std::vector<int64_t> output{input[0], weight[0]};
  for (size_t i = 2; i < input.size(); ++i) {
    const auto of = [&](const std::vector<int64_t>& values) { return values.size() == 1 ? values[0] : values[i - 2]; };
    output.push_back((input[i] + 2 * of(padding) - of(dilation) * (weight[i] - 1) - 1) / of(stride) + 1);
  }
  return convolution_of(output, weight);
}

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, output_mask): one convolution's worth for each of the two gradients.
int64_t convolution_backward(Inputs inputs) {
  const int64_t once = convolution_of(truth(inputs, 7) ? sizes(inputs, 1) : sizes(inputs, 0), sizes(inputs, 2));
  if (inputs.size() < 11 || !inputs[10].isBoolList()) return 2 * once;
  const auto mask = inputs[10].toBoolList();
  return once * (static_cast<int64_t>(mask.get(0)) + static_cast<int64_t>(mask.get(1)));
}

// query [B, H, T, D], key [B, H, S, D], value [B, H, S, E]: Q K^T and P V; backward does five such products.
template <size_t kQuery, bool kBackward>
int64_t attention(Inputs inputs) {
  const auto q = sizes(inputs, kQuery), k = sizes(inputs, kQuery + 1), v = sizes(inputs, kQuery + 2);
  if (q.size() != 4 || k.size() != 4 || v.size() != 4) return 0;
  const int64_t pairs = 2 * q[0] * q[1] * q[2] * k[2];
  return pairs * (kBackward ? 3 * q[3] + 2 * v[3] : q[3] + v[3]);
}

// qkv [B, T, 3, H, D], packed.
template <size_t kPacked, bool kBackward>
int64_t packed_attention(Inputs inputs) {
  const auto qkv = sizes(inputs, kPacked);
  return qkv.size() == 5 ? (kBackward ? 10 : 4) * qkv[0] * qkv[3] * qkv[1] * qkv[1] * qkv[4] : 0;
}

struct Rule {
  std::string_view name;
  int64_t (*flops)(Inputs);
};
// The lowest operators that still show shapes: what calls them (linear, matmul, einsum) is not counted again.
constexpr std::array kRules{
    Rule{"aten::mm", matmul<0>},
    Rule{"aten::bmm", matmul<0>},
    Rule{"aten::_scaled_mm", matmul<0>},
    Rule{"levin::fp8_mm", transposed_product},
    Rule{"levin::linear_cross_entropy_step", transposed_product},
    Rule{"levin::matmul", matmul<0>},
    Rule{"levin::matmul_and_sums", matmul<0>},
    Rule{"levin::matmul_into", matmul<1>},
    Rule{"aten::addmm", matmul<1>},
    Rule{"aten::_addmm_activation", matmul<1>},
    Rule{"aten::baddbmm", matmul<1>},
    Rule{"aten::addmv", matmul<1>},
    Rule{"aten::mv", matmul<0>},
    Rule{"aten::convolution", convolution},
    Rule{"aten::convolution_backward", convolution_backward},
    Rule{"aten::_scaled_dot_product_flash_attention", attention<0, false>},
    Rule{"aten::_scaled_dot_product_flash_attention_for_cpu", attention<0, false>},
    Rule{"aten::_scaled_dot_product_efficient_attention", attention<0, false>},
    Rule{"aten::_scaled_dot_product_cudnn_attention", attention<0, false>},
    Rule{"aten::_scaled_dot_product_flash_attention_backward", attention<1, true>},
    Rule{"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention<1, true>},
    Rule{"aten::_scaled_dot_product_efficient_attention_backward", attention<1, true>},
    Rule{"aten::_scaled_dot_product_cudnn_attention_backward", attention<1, true>},
    Rule{"levin::short_attention", packed_attention<0, false>},
    Rule{"levin::short_attention_backward", packed_attention<1, true>},
    Rule{"levin::causal_attention_backward", packed_attention<1, true>},
};

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  for (const auto& rule : kRules)
    if (rule.name == name) {
      counted += rule.flops(function.inputs());
      break;
    }
  return nullptr;
}

}  // namespace

FlopCounter::FlopCounter() {
  LEVIN_CHECK(!counting.exchange(true), "[FlopCounter] another one is counting; there can be one at a time");
  counted = 0;
  handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(observe).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  at::removeCallback(handle_);
  counting = false;
}

double FlopCounter::flops() const {
  return static_cast<double>(counted.load());
}

}  // namespace levin
