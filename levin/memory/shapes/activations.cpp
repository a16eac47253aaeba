#include "levin/kernels/played_device.h"
#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {
namespace {

/// The CPU keeps a number for each element.
void log_sigmoid(ShapeCall& call) {
  const auto& x = call.tensor();
  call.like(x);
  kernels::played_device() == c10::kCUDA ? call.result({0}, x) : call.like(x);
}

void native_dropout(ShapeCall& call) {
  call.like(call.tensor("input"));
  call.like(call.tensor("input"), at::kBool);
}

}  // namespace

std::span<const ShapeRule> activation_shapes() {
  static const std::vector<ShapeRule> rules{
      {"relu", likes({"self"})},
      {"log_sigmoid_forward", log_sigmoid},
      {"log_sigmoid_backward", likes({"self"})},
      {"mish_backward", likes({"self"}), /*replaces=*/true},
      {"hardswish", likes({"self"})},
      {"hardswish_backward", likes({"grad_output"})},
      {"hardtanh", likes({"self"})},
      {"hardtanh_backward", likes({"grad_output"})},
      // The gradient of the weight is as large as the input, and summed later.
      {"_prelu_kernel", likes({"self"})},
      {"_prelu_kernel_backward", likes({"self", "self"})},
      {"glu_backward", contiguous_likes({"self"})},
      {"glu_backward_jvp", contiguous_likes({"grad_x"})},
      {"glu_jvp", likes({"glu"})},
      {"rrelu_with_noise", contiguous_likes({"self"})},
      {"native_dropout", native_dropout},
      {"native_dropout_backward", likes({"grad_output"})},
      {"_masked_softmax", contiguous_likes({"self"})},
      {"_masked_softmax_backward", contiguous_likes({"grad_output"})},
  };
  return rules;
}

}  // namespace levin::detail
