#pragma once

#include "levin/kernels/tensor_table.h"

namespace levin::kernels::detail {

/// Which entry of a TensorTable this thread block works on.
template <class Table>
__device__ int entry_of_block(const Table& table) {
  int low = 0, high = table.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (static_cast<int>(blockIdx.x) >= table.first_block[middle])
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace levin::kernels::detail
