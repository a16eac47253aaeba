#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

struct NormedStream {
  Tensor output;
  Tensor stream;
};

/// The norm at the head of a residual branch, together with the sum at the end of the branch before it.
/// stream [..., C], branch of the same sizes or undefined, weight [C], bias [C] or undefined:
///
///     h = stream + dropout(branch);  output = norm(h);  returns {output, h}
///
/// with layer norm or, where `rms`, root mean square norm over the last dimension. `dropout` is the fraction of the
/// branch that is dropped: pass 0 where the model does not train. Without a branch h is the stream itself.
///
/// On CUDA forward and backward are one kernel each (levin::residual_norm): the gradients of both results are added
/// where they are computed. The stream may be wider than the branch. Under autocast a float stream stays float and the
/// output has autocast's dtype. On the CPU it is what at::layer_norm and at::rms_norm give.
NormedStream residual_norm(const Tensor& stream, const Tensor& branch, const Tensor& weight, const Tensor& bias,
                           double eps, bool rms, double dropout = 0);

}  // namespace levin::kernels
