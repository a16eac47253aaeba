#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

/// The random generator of a CUDA device while a graph is captured: torch refuses to read or set its state then. In
/// graphs_cuda.cpp.
namespace levin::detail {

/// Where the generator is within the graph, in the form set_captured_rng takes; nothing when it is not being captured.
std::optional<at::Tensor> captured_rng(c10::Device device);
/// False when it is not being captured, and nothing was done. An Error for a state from outside of the capture.
bool set_captured_rng(c10::Device device, const at::Tensor& state);

}  // namespace levin::detail
