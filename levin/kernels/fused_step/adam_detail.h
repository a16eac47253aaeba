#pragma once

#include <optional>
#include <span>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "levin/kernels/fused_step/adam.h"
#include "levin/kernels/fused_step/adam_launch.h"
#include "levin/kernels/fused_step/adam_loops.h"

namespace levin::kernels::detail {

NumberType number_type(const char* operation, at::ScalarType dtype);

/// The entries of all parameters that have elements, and their device, which must be one. `fill` adds what belongs to
/// the kind of step.
struct StepEntries {
  std::vector<StepEntry> entries;
  std::optional<c10::Device> device;
};
StepEntries step_entries(const char* operation, std::span<const Tensor> params, std::span<const Tensor> grads,
                         std::span<const Tensor> copies, c10::function_ref<void(StepEntry&, size_t)> fill);

/// A state tensor that must be as the parameter is: its pointer; also says when alignment is lost.
void* state_pointer(const char* operation, StepEntry& entry, const char* name, std::span<const Tensor> list,
                    size_t index, const Tensor& param);
/// The step counter of parameter `index`.
const float* step_pointer(const char* operation, std::span<const Tensor> steps, size_t index, const Tensor& param);

/// The number in a scale that is on the CPU; 1 when there is none.
double host_scale(const StepScale& scale);
/// Whether a scale that is on the CPU says that nothing may change.
bool host_skips(const StepScale& scale);

/// Calls body(entry, begin, end) for pieces of about 64 thousand elements of all entries, on all threads of torch's
/// pool together; pieces begin at multiples of kCodeBlock. The body must not throw.
void each_piece(std::span<const StepEntry> entries, c10::function_ref<void(size_t, int64_t, int64_t)> body);

/// In adam_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void adam_cuda(std::span<const StepEntry> entries, const AdamNumbers& numbers, const StepScale& scale,
               c10::Device device, const StepReplay<AdamNumbers>& replay);
void sgd_cuda(std::span<const StepEntry> entries, const SgdNumbers& numbers, const StepScale& scale, c10::Device device,
              const StepReplay<SgdNumbers>& replay);
void adam_8bit_cuda(std::span<const StepEntry> entries, const AdamNumbers& numbers, const AdamNumbers* refreshed,
                    const CodeBooks& codes, const StepScale& scale, c10::Device device);
void load_step_kernels_cuda(c10::Device device);

}  // namespace levin::kernels::detail
