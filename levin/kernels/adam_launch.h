#pragma once

#include <cstdint>

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

struct AdamRates {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  bool decoupled = false;
  bool maximize = false;
};

struct SgdRates {
  double lr = 0, keep = 0, take = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

/// What one launch takes: 4 KB of arguments hold this many entries.
constexpr int kEntriesPerLaunch = 40;

struct StepTable {
  StepEntry entries[kEntriesPerLaunch];
  /// The first thread block of each entry, and the number of all.
  int32_t first_block[kEntriesPerLaunch + 1] = {};
  int32_t count = 0;
  const float* scale = nullptr;
  const float* found_inf = nullptr;
  const float* first_codes = nullptr;   // [256], for codes only
  const float* second_codes = nullptr;  // [256]
};

/// Elements of one thread block on CUDA.
constexpr int64_t kBlockElements = 8192;

/// In adam.cu; each returns a cudaError_t.
int launch_adam(const StepTable& table, const AdamRates& rates, CUstream_st* stream);
int launch_sgd(const StepTable& table, const SgdRates& rates, CUstream_st* stream);
/// In adam_8bit.cu. One thread block takes one block of codes at a time.
int launch_adam_8bit(const StepTable& table, const AdamRates& rates, CUstream_st* stream);

}  // namespace levin::kernels::detail
