#pragma once

#include <cstdint>

#include "levin/kernels/fused_step/step_numbers.h"
#include "levin/kernels/tensor_table.h"

/// What the loops and kernels of the fused steps are told: pointers, sizes and numbers, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

enum class NumberType : uint8_t { kNone, kFloat, kDouble, kHalf, kBFloat16 };

/// One parameter and what belongs to it. For SGD `first` is the momentum buffer; with codes `first` and `second` are
/// bytes, `first_scale` and `second_scale` one float for each block of them.
struct StepEntry {
  void* param = nullptr;
  const void* grad = nullptr;
  void* first = nullptr;
  void* second = nullptr;
  void* third = nullptr;
  void* copy = nullptr;
  const float* step = nullptr;
  float* first_scale = nullptr;
  float* second_scale = nullptr;
  int64_t numel = 0;
  NumberType param_type = NumberType::kNone;
  NumberType grad_type = NumberType::kNone;
  NumberType state_type = NumberType::kNone;
  NumberType copy_type = NumberType::kNone;
  /// All pointers are multiples of 16 bytes.
  bool aligned = false;
};

template <int N>
struct StepTable : TensorTable<StepEntry, N> {
  const float* scale = nullptr;
  const float* found_inf = nullptr;
};
using NumberTable = StepTable<40>;
using CodeStepTable = StepTable<16>;

/// What the codes of averages and of squares stand for.
struct CodeBooks {
  float average[256];
  float square[256];
};
static_assert(sizeof(NumberTable) + sizeof(AdamNumbers) + sizeof(void*) <= 4096 &&
              sizeof(CodeStepTable) + sizeof(CodeBooks) + sizeof(AdamNumbers) + sizeof(void*) <= 4096);

/// Elements of one thread block on CUDA.
constexpr int64_t kBlockElements = 16384;

/// Which kernel of a step.
struct StepKernel {
  /// In a table all parameters are double, or none is.
  bool in_double = false;
  /// Rounds as torch's fused kernels do.
  bool as_torch = false;
};

/// In adam.cu, sgd.cu and adam_8bit.cu; each returns a cudaError_t. Where `refreshed`, memory of the device, is not
/// null, the kernel reads the numbers from there when it runs.
int launch_adam(const NumberTable& table, const AdamNumbers& numbers, const AdamNumbers* refreshed, StepKernel kernel,
                CUstream_st* stream);
int launch_sgd(const NumberTable& table, const SgdNumbers& numbers, const SgdNumbers* refreshed, StepKernel kernel,
               CUstream_st* stream);
int launch_adam_8bit(const CodeStepTable& table, const AdamNumbers& numbers, const AdamNumbers* refreshed,
                     const CodeBooks& codes, CUstream_st* stream);
/// Loads the kernels, which cannot be done while a graph is captured.
int load_adam();
int load_sgd();
int load_adam_8bit();

}  // namespace levin::kernels::detail
