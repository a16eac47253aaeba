#pragma once

namespace levin::detail {

/// Lets layers of normalization on the CPU, under autocast, have 16-bit weights beside float32 inputs or statistics, by
/// upcasting the weights. CUDA's autocast computes norms in float32; that of the CPU leaves them alone, and their
/// kernels refuse it. A strategy that gathers parameters in 16 bits meets it: after a float32 buffer has upcast
/// activations, or in a batch norm, whose statistics stay in float32.
void upcast_weights_of_cpu_norms();

}  // namespace levin::detail
