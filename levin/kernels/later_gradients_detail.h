#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

struct CUstream_st;

namespace levin::kernels::detail {

/// Where the products of this thread are launched while LaterQueue::run computes.
class BesideStream {
 public:
  virtual ~BesideStream() = default;
  /// The stream; it waits for what the current one has been given so far.
  virtual CUstream_st* begin() = 0;
  /// Kept until the work is done.
  std::vector<at::Tensor> reads;
};

/// Null outside of it.
BesideStream* beside_stream();

}  // namespace levin::kernels::detail
