#pragma once

#include <cstdint>

/// The loops of a decode step on the CPU, without a header of torch. Sums are float, and their order depends on the
/// machine, not on the number of threads or of rows.
namespace levin::kernels::detail {

enum class LoopNumber : uint8_t { kFloat, kBFloat16, kHalf, kInt8 };

/// Rows of a matrix times a few vectors.
struct DotRows {
  const void* matrix = nullptr;  // [rows, columns]
  LoopNumber type = LoopNumber::kFloat;
  int64_t columns = 0;
  const float* x = nullptr;  // [count, columns]
  int64_t count = 0;
  float* out = nullptr;  // the product of vector i and row r is at [i * stride + r]
  int64_t stride = 0;
};
/// Of rows [begin, end).
void dot_rows(const DotRows& job, int64_t begin, int64_t end);

/// The same for a matrix of 4 bits (WeightFormat::kInt4). Columns come in words of 8: x lies with the number k of word
/// w at [8 * (w - w % 8) + 8 * place(k) + w % 8], where place(k) is that of number k in a word.
struct DotInt4 {
  const uint32_t* words = nullptr;   // [rows, columns / 8]
  const uint16_t* scales = nullptr;  // half [rows, groups, 2]: scale and zero point
  int64_t columns = 0, group = 0;
  const float* x = nullptr;     // [count, columns] in the order above
  const float* sums = nullptr;  // [count, groups]: of the numbers of x
  int64_t count = 0;
  float* out = nullptr;
  int64_t stride = 0;
};
/// The place of x's number `column` in the order of DotInt4.
inline int64_t int4_place(int64_t column) {
  const auto word = column / 8, k = column % 8;
  const auto place = k % 2 == 0 ? k / 2 : 4 + k / 2;
  return 8 * (word - word % 8) + 8 * place + word % 8;
}
void dot_rows_int4(const DotInt4& job, int64_t begin, int64_t end);

/// One head of keys and the heads of queries that share it, over slots [first, end).
struct AttendHead {
  const float* q = nullptr;    // [heads, width]
  const void* keys = nullptr;  // [slots, width]
  const void* values = nullptr;
  LoopNumber type = LoopNumber::kFloat;
  int64_t heads = 0, width = 0, first = 0, end = 0;
  float scale = 1, softcap = 0;
  /// ALiBi, of each head; null: none. The query is at slot end - 1.
  const float* slopes = nullptr;
  float* scores = nullptr;  // room for heads * (end - first)
  float* out = nullptr;     // [heads, width]
};
void attend_head(const AttendHead& job);

/// One row: (h - mean) / sqrt(variance + eps), or h / sqrt(mean of squares + eps) for rms, times weight, plus bias (may
/// be null).
struct NormRow {
  const float* h = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  int64_t columns = 0;
  double eps = 0;
  bool rms = false;
  float* out = nullptr;
};
void norm_row(const NormRow& job);

}  // namespace levin::kernels::detail
