#include <vector>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/core/error.h"
#include "levin/kernels/fused_step/adam_detail.h"

namespace levin::kernels::detail {
namespace {

const float* scale_pointer(const std::optional<Tensor>& scale, c10::Device device) {
  if (!scale) return nullptr;
  LEVIN_CHECK(scale->device() == device && scale->scalar_type() == at::kFloat, "[fused step] the scale is ",
              scale->toString(), " on ", scale->device(), "; Float on ", device, " is needed");
  return scale->const_data_ptr<float>();
}

template <class Table, class Launch>
void each_step_table(std::span<const StepEntry> entries, const StepScale& scale, c10::Device device, Launch&& launch) {
  const c10::cuda::CUDAGuard guard(device);
  CUstream_st* stream = c10::cuda::getCurrentCUDAStream(device.index()).stream();
  each_table<Table>(entries, kBlockElements, [&](Table& table) {
    table.scale = scale_pointer(scale.scale, device);
    table.found_inf = scale_pointer(scale.found_inf, device);
    C10_CUDA_CHECK(static_cast<cudaError_t>(launch(table, stream)));
  });
}

// The arithmetic of double parameters is another kernel.
template <class Launch>
void by_precision(std::span<const StepEntry> entries, const StepScale& scale, c10::Device device, Launch&& launch) {
  std::vector<StepEntry> parts[2];
  for (const auto& entry : entries) parts[entry.param_type == NumberType::kDouble].push_back(entry);
  for (const bool in_double : {false, true})
    each_step_table<NumberTable>(parts[in_double], scale, device, [&](const NumberTable& table, CUstream_st* stream) {
      return launch(table, in_double, stream);
    });
}

}  // namespace

void adam_cuda(std::span<const StepEntry> entries, const AdamNumbers& numbers, const StepScale& scale,
               c10::Device device, const StepReplay<AdamNumbers>& replay) {
  by_precision(entries, scale, device, [&](const NumberTable& table, bool in_double, CUstream_st* stream) {
    return launch_adam(table, numbers, replay.refreshed, {in_double, replay.as_torch}, stream);
  });
}

void sgd_cuda(std::span<const StepEntry> entries, const SgdNumbers& numbers, const StepScale& scale, c10::Device device,
              const StepReplay<SgdNumbers>& replay) {
  by_precision(entries, scale, device, [&](const NumberTable& table, bool in_double, CUstream_st* stream) {
    return launch_sgd(table, numbers, replay.refreshed, {in_double, replay.as_torch}, stream);
  });
}

void adam_8bit_cuda(std::span<const StepEntry> entries, const AdamNumbers& numbers, const AdamNumbers* refreshed,
                    const CodeBooks& codes, const StepScale& scale, c10::Device device) {
  each_step_table<CodeStepTable>(entries, scale, device, [&](const CodeStepTable& table, CUstream_st* stream) {
    return launch_adam_8bit(table, numbers, refreshed, codes, stream);
  });
}

void load_step_kernels_cuda(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  for (const int result : {load_adam(), load_sgd(), load_adam_8bit()}) C10_CUDA_CHECK(static_cast<cudaError_t>(result));
}

}  // namespace levin::kernels::detail
