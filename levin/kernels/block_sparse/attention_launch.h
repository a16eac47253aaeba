#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of forward.cu and backward.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// Tokens of a block, and numbers of a head, that the kernels are made for.
inline constexpr int kSparseBlock = 64, kSparseHead = 64;

/// Numbers are of 16 bits; pointers to them are multiples of 16.
struct BlockSparseLaunch {
  const void* qkv = nullptr;            // [batch, blocks * 64, 3, heads, 64]
  const bool* mask = nullptr;           // [batch, blocks * 64], or null: all are tokens
  const int32_t* seen = nullptr;        // [heads, blocks - 2, width]
  const int32_t* seen_by = nullptr;     // [heads, blocks + 1 + (blocks - 2) * width]
  void* out = nullptr;                  // [batch, blocks * 64, heads, 64]
  float* sums = nullptr;                // [batch, heads, blocks * 64]: log-sum-exp, infinite for padding
  NumberType type = NumberType::kHalf;  // or kBFloat16
  int32_t batch = 0, heads = 0, blocks = 0, width = 0;
  float scale = 1;
};

struct BlockSparseBackwardLaunch {
  BlockSparseLaunch forward = {};
  const void* grad = nullptr;  // as forward.out
  float* products = nullptr;   // [batch, heads, blocks * 64]: workspace, sums of grad * out
  void* grad_qkv = nullptr;    // as forward.qkv
};

/// Both return a cudaError_t.
int launch_block_sparse(const BlockSparseLaunch& launch, CUstream_st* stream);
int launch_block_sparse_backward(const BlockSparseBackwardLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
