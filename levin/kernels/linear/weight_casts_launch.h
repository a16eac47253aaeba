#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"
#include "levin/kernels/tensor_table.h"

/// What the kernel of weight_casts.cu is told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

struct CastEntry {
  const float* from = nullptr;
  void* to = nullptr;
  int64_t numel = 0;
};
using CastTable = TensorTable<CastEntry, 144>;
static_assert(sizeof(CastTable) <= 4096);

/// Elements of one thread block.
constexpr int64_t kCastElements = 8192;

/// `type` of all that is written: kHalf or kBFloat16. Returns a cudaError_t.
int launch_weight_casts(const CastTable& table, NumberType type, CUstream_st* stream);

}  // namespace levin::kernels::detail
