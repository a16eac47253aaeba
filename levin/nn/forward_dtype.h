#pragma once

#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>

namespace c10 {
class OperatorHandle;
}

namespace levin::detail {

/// The dtype of tensors that a forward in a true precision makes itself. Operators of this thread make them where they
/// would make tensors of torch's default dtype: factories that are given none, and arithmetic that turns integers into
/// floating numbers. Torch's own default is one for the process, and stays as it is: threads of loaders make samples
/// meanwhile. `torch::tensor({0.5})` reads torch's own.
///
/// Undefined: that of torch. Returns what was set before.
c10::ScalarType set_forward_dtype(c10::ScalarType dtype);
/// Undefined outside of such a forward.
c10::ScalarType forward_dtype();

/// Whether a factory that was given no dtype makes tensors of the default (floating) one.
bool makes_default_dtype(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace levin::detail
