#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_runtime.h>

namespace levin::kernels::detail {

/// *place = value in global memory, by instructions of 16, 8 or 4 bytes. A plain assignment says as much, but behind
/// branches the compiler divides it into the members of the struct.
template <class Struct>
__device__ __forceinline__ void store_whole(Struct* place, const Struct& value) {
  constexpr auto kBytes = sizeof(Struct);
  using Piece = std::conditional_t<
      kBytes % 16 == 0, uint4,
      std::conditional_t<kBytes % 8 == 0, uint2, std::conditional_t<kBytes % 4 == 0, uint32_t, char>>>;
  if constexpr (std::is_same_v<Piece, char>) {
    *place = value;
  } else {
    static_assert(alignof(Struct) % sizeof(Piece) == 0);
    Piece pieces[kBytes / sizeof(Piece)];
    memcpy(pieces, &value, kBytes);
#pragma unroll
    for (size_t i = 0; i < kBytes / sizeof(Piece); ++i) __stwb(reinterpret_cast<Piece*>(place) + i, pieces[i]);
  }
}

}  // namespace levin::kernels::detail
