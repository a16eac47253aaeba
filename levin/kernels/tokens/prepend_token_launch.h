#pragma once

#include <algorithm>
#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of prepend_token.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// Sizes of [images, tokens, columns]; the first token of an image is not one of its patches.
struct TokenSizes {
  int64_t images = 0, tokens = 0, columns = 0;
};

struct TokenForward {
  const void* patches = nullptr;    // [images, tokens - 1, columns]
  const void* token = nullptr;      // [columns]
  const void* positions = nullptr;  // [tokens, columns]
  void* out = nullptr;              // [images, tokens, columns]
  TokenSizes sizes;
  NumberType patches_type = NumberType::kNone, token_type = NumberType::kNone, positions_type = NumberType::kNone;
  NumberType out_type = NumberType::kNone;
  /// Patches and out lie at multiples of 16 bytes; token and positions do.
  bool aligned = false, parameters_aligned = false;
};

/// What is null is not computed.
struct TokenBackward {
  const void* grad = nullptr;  // [images, tokens, columns]
  void* patches = nullptr;     // [images, tokens - 1, columns]
  void* token = nullptr;       // [columns]
  void* positions = nullptr;   // [tokens, columns]
  void* sums = nullptr;        // [columns]: of the gradient of the patches
  /// [parts, tokens, columns] float, of double gradients double; null where there is nothing to add up.
  void* partials = nullptr;
  int64_t parts = 1;
  TokenSizes sizes;
  NumberType grad_type = NumberType::kNone, patches_type = NumberType::kNone;
  NumberType token_type = NumberType::kNone, positions_type = NumberType::kNone, sums_type = NumberType::kNone;
  /// Grad and patches lie at multiples of 16 bytes.
  bool aligned = false;
};

/// Into how many parts backward divides the images: one wave of blocks, of 4 images at least.
inline int64_t token_parts(const TokenSizes& sizes, NumberType grad, int processors) {
  const int64_t packs = std::max<int64_t>(1, sizes.tokens * sizes.columns * number_size(grad) / 16);
  const int64_t most = std::clamp<int64_t>(sizes.images / 4, 1, 1024);
  return std::clamp<int64_t>(int64_t{1024} * processors / packs, 1, most);
}

/// Which dtypes the kernels are made for: the result has the dtype of the patches, or is float beside 16 bits. Those of
/// token and positions are any.
constexpr bool token_kernel_knows(NumberType patches, NumberType out) {
  return patches == out || (out == NumberType::kFloat && number_size(patches) == 2);
}

/// In prepend_token.cu; each returns a cudaError_t.
int launch_token_forward(const TokenForward& given, CUstream_st* stream);
int launch_token_backward(const TokenBackward& given, CUstream_st* stream);

}  // namespace levin::kernels::detail
