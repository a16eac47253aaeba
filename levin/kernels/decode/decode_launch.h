#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of decode.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// Threads of a block of attention, of one that has all keys of a head, numbers of a head that a thread takes, and the
/// widest head.
constexpr int kDecodeThreads = 128, kWideDecodeThreads = 512, kDecodeDims = 8, kWidestHead = 256;

/// What keys and values are kept in: the type of the queries, or bytes with a scale for each token and head.
enum class KeptAs { kNumbers, kInt8, kFp8 };

struct DecodeLaunch {
  NumberType type = NumberType::kFloat;  // or kHalf, kBFloat16: of all but what says float
  KeptAs kept = KeptAs::kNumbers;        // of keys and values
  int32_t rows = 0, heads = 0, kv_heads = 0, width = 0;
  const int64_t* positions = nullptr;  // [rows]
  const void* q = nullptr;             // [rows, heads, width], with the stride of a row in numbers
  const void* k = nullptr;             // [rows, kv_heads, width]
  const void* v = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  const float* angles = nullptr;  // [2, angle_rows, half], or null: nothing is turned
  int64_t angle_rows = 0;
  int32_t half = 0;
  void* keys = nullptr;  // [rows, kv_heads, capacity, width]
  void* values = nullptr;
  float* key_scales = nullptr;  // of bytes: [rows, kv_heads, capacity]
  float* value_scales = nullptr;
  int64_t capacity = 0;
  const int64_t* blocks = nullptr;  // [rows, table_width], or null: a row of keys and values for each row
  int64_t table_width = 0;
  int32_t block_shift = 0;        // blocks have 1 << block_shift tokens, which is `capacity`
  void* turned = nullptr;         // of bytes, the queries with their positions: [rows, heads, width]
  void* out = nullptr;            // [rows, heads, width]
  const float* slopes = nullptr;  // [heads], or null: no ALiBi
  /// Nothing that is still running writes positions, angles, blocks, and keys and values of earlier tokens.
  bool early_cache = false;
  float scale = 1, softcap = 0;
  int64_t window = 0;
  int32_t splits = 1;        // parts of the keys, each with a block of its own
  bool wide = false;         // blocks of kWideDecodeThreads, with one part
  bool groups = false;       // by launch_decode_groups
  bool cluster = false;      // by launch_decode_cluster, with one part
  float* partial = nullptr;  // [rows, heads, splits, width + 2], with more than one part
};

/// Turns queries and keys by their positions, and puts keys and values into the cache; attention over it. Returns a
/// cudaError_t.
int launch_decode_attention(const DecodeLaunch& launch, CUstream_st* stream);

/// Query heads that share keys, up to this many, as one operand of the tensor cores: 16-bit numbers, heads of 64 or
/// 128. In decode_groups.cu; without the join of several parts.
constexpr int kMostOfGroup = 8;
constexpr bool has_decode_groups(NumberType type, KeptAs kept, int64_t shared_by, int64_t width) {
  return (type == NumberType::kHalf || type == NumberType::kBFloat16) && kept == KeptAs::kNumbers && shared_by > 1 &&
         shared_by <= kMostOfGroup && (width == 64 || width == 128);
}
void launch_decode_groups(const DecodeLaunch& launch, CUstream_st* stream);

/// Heads with keys of their own, few of both, on compute capability 9.0: a cluster of blocks for each. In
/// decode_cluster.cu.
constexpr bool has_decode_cluster(int major, KeptAs kept, int64_t shared_by) {
  return major >= 9 && kept == KeptAs::kNumbers && shared_by == 1;
}
void launch_decode_cluster(const DecodeLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
