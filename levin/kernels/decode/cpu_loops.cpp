#include "levin/kernels/decode/cpu_loops.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#ifdef __aarch64__
#include <arm_neon.h>
#endif
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "levin/core/error.h"
#include "levin/kernels/fused_step/adam_convert.h"

#define LEVIN_INLINE inline __attribute__((always_inline))
// Sums stay in registers only where loops over them are gone, which -O2 does not see to.
#define LEVIN_UNROLL _Pragma("GCC unroll 8")

namespace levin::kernels::detail {
namespace {

constexpr int kLine = 64, kAhead = 1024;  // bytes

// W bytes of numbers in one register; never an argument or a result that is not inlined, whose place would depend on
// what the machine has.
template <class T, int W>
struct Register {
  typedef T Type __attribute__((vector_size(W)));
};

template <int W>
struct Floats {
  using V = typename Register<float, W>::Type;
  using Bits = typename Register<uint32_t, W>::Type;
  using Integers = typename Register<int32_t, W>::Type;
  static constexpr int kNumbers = W / 4;

  static LEVIN_INLINE void load(V& to, const float* from) { std::memcpy(&to, from, W); }
  struct BFloat16 {
    uint16_t bits;
  };
  struct Half {
    uint16_t bits;
  };
  static LEVIN_INLINE void load(V& to, const BFloat16* from) {
    typename Register<uint16_t, W / 2>::Type narrow;
    std::memcpy(&narrow, from, W / 2);
    const Bits bits = __builtin_convertvector(narrow, Bits) << 16;
    std::memcpy(&to, &bits, W);
  }
  static LEVIN_INLINE void load(V& to, const Half* from) {
#if defined(__clang__) && defined(__x86_64__)
    if constexpr (W >= 32) {  // one instruction of machines that have such registers (F16C)
      typename Register<_Float16, W / 2>::Type halves;
      std::memcpy(&halves, from, W / 2);
      to = __builtin_convertvector(halves, V);
      return;
    }
#endif
    typename Register<uint16_t, W / 2>::Type narrow;
    std::memcpy(&narrow, from, W / 2);
    const Bits wide = __builtin_convertvector(narrow, Bits), sign = (wide & 0x8000u) << 16;
    const Bits shifted = (wide & 0x7fffu) << 13;
    V scaled;
    std::memcpy(&scaled, &shifted, W);
    scaled = scaled * 0x1p112F;  // the bias of the exponents; exact
    Bits bits;
    std::memcpy(&bits, &scaled, W);
    // Infinite and not a number.
    bits = bits | sign | ((Bits)(shifted >= 0x0f800000u) & 0x7f800000u);
    std::memcpy(&to, &bits, W);
  }
  static LEVIN_INLINE void load(V& to, const int8_t* from) {
    typename Register<int8_t, W / 4>::Type narrow;
    std::memcpy(&narrow, from, W / 4);
    to = __builtin_convertvector(__builtin_convertvector(narrow, Integers), V);
  }
  /// Two registers of numbers that lie side by side.
  template <class T>
  static LEVIN_INLINE void load_two(V& a, V& b, const T* from) {
#ifdef __aarch64__
    // By name: compilers do not find them for half a register.
    if constexpr (std::is_same_v<T, BFloat16>) {
      const auto both = vld1q_u16(reinterpret_cast<const uint16_t*>(from));
      a = (V)vshll_n_u16(vget_low_u16(both), 16);
      b = (V)vshll_high_n_u16(both, 16);
      return;
    } else if constexpr (std::is_same_v<T, Half>) {
      const auto both = vreinterpretq_f16_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(from)));
      a = (V)vcvt_f32_f16(vget_low_f16(both));
      b = (V)vcvt_high_f32_f16(both);
      return;
    } else if constexpr (std::is_same_v<T, int8_t>) {
      const auto both = vmovl_s8(vld1_s8(from));
      a = (V)vcvtq_f32_s32(vmovl_s16(vget_low_s16(both)));
      b = (V)vcvtq_f32_s32(vmovl_high_s16(both));
      return;
    }
#endif
    load(a, from);
    load(b, from + kNumbers);
  }
  static LEVIN_INLINE float number(const float* from) {
    return *from;
  }
  static LEVIN_INLINE float number(const BFloat16* from) {
    return from_bfloat16(from->bits);
  }
  static LEVIN_INLINE float number(const Half* from) {
    return from_half(from->bits);
  }
  static LEVIN_INLINE float number(const int8_t* from) {
    return static_cast<float>(*from);
  }

  static LEVIN_INLINE float sum(const V& v) {
    float numbers[kNumbers];
    std::memcpy(numbers, &v, W);
    for (int step = kNumbers / 2; step > 0; step /= 2)
      for (int i = 0; i < step; ++i) numbers[i] += numbers[i + step];
    return numbers[0];
  }
};

/// A row of the matrix times C vectors. One row after the other, and no two at a time: that is how memory is read
/// fastest.
template <class T, int W, int C>
LEVIN_INLINE void dot_row(const T* row, const float* x, int64_t columns, float* out, int64_t stride) {
  using F = Floats<W>;
  using V = typename F::V;
  // Enough sums that additions do not wait for each other.
  constexpr int N = F::kNumbers, kSums = C == 1 ? 4 : 2;
  V sums[C][kSums];
  LEVIN_UNROLL
  for (int c = 0; c < C; ++c) {
    LEVIN_UNROLL
    for (int s = 0; s < kSums; ++s) sums[c][s] = V{};
  }
  int64_t i = 0;
  for (; i + kSums * N <= columns; i += kSums * N) {
    // Rows lie one after the other. The processor alone does not read far enough ahead.
    LEVIN_UNROLL
    for (int at = 0; at < kSums * N * int{sizeof(T)}; at += kLine)
      __builtin_prefetch(reinterpret_cast<const char*>(row + i) + at + kAhead);
    V w[kSums];
    LEVIN_UNROLL
    for (int s = 0; s < kSums; s += 2) F::load_two(w[s], w[s + 1], row + i + s * N);
    LEVIN_UNROLL
    for (int c = 0; c < C; ++c) {
      LEVIN_UNROLL
      for (int s = 0; s < kSums; ++s) {
        V numbers;
        F::load(numbers, x + c * columns + i + s * N);
        sums[c][s] += w[s] * numbers;
      }
    }
  }
  LEVIN_UNROLL
  for (int c = 0; c < C; ++c) {
    V all = sums[c][0] + sums[c][1];
    if constexpr (kSums == 4) all += sums[c][2] + sums[c][3];
    auto total = F::sum(all);
    for (auto j = i; j < columns; ++j) total += F::number(row + j) * x[c * columns + j];
    out[c * stride] = total;
  }
}

template <class T, int W>
LEVIN_INLINE void dot_all(const DotRows& job, int64_t begin, int64_t end) {
  for (auto r = begin; r < end; ++r) {
    const auto* row = static_cast<const T*>(job.matrix) + r * job.columns;
    const auto* x = job.x;
    auto* out = job.out + r;
    auto left = job.count;
    for (; left >= 4; left -= 4, x += 4 * job.columns, out += 4 * job.stride)
      dot_row<T, W, 4>(row, x, job.columns, out, job.stride);
    if (left >= 2) {
      dot_row<T, W, 2>(row, x, job.columns, out, job.stride);
      left -= 2, x += 2 * job.columns, out += 2 * job.stride;
    }
    if (left == 1) dot_row<T, W, 1>(row, x, job.columns, out, job.stride);
  }
}

template <int W>
LEVIN_INLINE void dot_any(const DotRows& job, int64_t begin, int64_t end) {
  switch (job.type) {
    case LoopNumber::kFloat:
      return dot_all<float, W>(job, begin, end);
    case LoopNumber::kBFloat16:
      return dot_all<typename Floats<W>::BFloat16, W>(job, begin, end);
    case LoopNumber::kHalf:
      return dot_all<typename Floats<W>::Half, W>(job, begin, end);
    case LoopNumber::kInt8:
      return dot_all<int8_t, W>(job, begin, end);
  }
}

/// Words of 8 numbers in turns of 8, as x lies: the number of each word at one place is a register.
template <int W, int R>
LEVIN_INLINE void int4_block(const DotInt4& job, int64_t row, const float* x, const float* sums, float* out) {
  using F = Floats<W>;
  using V = typename F::V;
  constexpr int N = F::kNumbers, kWords = 8;
  const auto words = job.columns / 8, groups = job.columns / job.group, turns = job.group / (8 * kWords);
  V total[R];
  float offset[R] = {};
  LEVIN_UNROLL
  for (int r = 0; r < R; ++r) total[r] = V{};
  for (int64_t g = 0; g < groups; ++g) {
    V part[R][2];
    LEVIN_UNROLL
    for (int r = 0; r < R; ++r) part[r][0] = V{}, part[r][1] = V{};
    for (int64_t t = g * turns; t < (g + 1) * turns; ++t) {
      LEVIN_UNROLL
      for (int half = 0; half < kWords; half += N) {
        typename F::Bits w[R];
        LEVIN_UNROLL
        for (int r = 0; r < R; ++r) std::memcpy(&w[r], job.words + (row + r) * words + t * kWords + half, W);
        LEVIN_UNROLL
        for (int place = 0; place < 8; ++place) {
          V numbers;
          F::load(numbers, x + t * 64 + place * 8 + half);
          LEVIN_UNROLL
          for (int r = 0; r < R; ++r) {
            const auto codes = (typename F::Integers)((w[r] >> (4 * place)) & 15);
            part[r][place % 2] += __builtin_convertvector(codes, V) * numbers;
          }
        }
      }
    }
    LEVIN_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto* pair = job.scales + ((row + r) * groups + g) * 2;
      const auto scale = from_half(pair[0]);
      total[r] += (part[r][0] + part[r][1]) * scale;
      offset[r] += scale * from_half(pair[1]) * sums[g];
    }
  }
  LEVIN_UNROLL
  for (int r = 0; r < R; ++r) out[r] = F::sum(total[r]) - offset[r];
}

template <int W>
LEVIN_INLINE void int4_any(const DotInt4& job, int64_t begin, int64_t end) {
  const auto groups = job.columns / job.group;
  auto row = begin;
  for (; row + 2 <= end; row += 2)
    for (int64_t c = 0; c < job.count; ++c)
      int4_block<W, 2>(job, row, job.x + c * job.columns, job.sums + c * groups, job.out + c * job.stride + row);
  for (; row < end; ++row)
    for (int64_t c = 0; c < job.count; ++c)
      int4_block<W, 1>(job, row, job.x + c * job.columns, job.sums + c * groups, job.out + c * job.stride + row);
}

/// exp of numbers up to 0, in place, and their sum. Within 2 units of the last place.
template <int W>
LEVIN_INLINE float exp_and_sum(float* x, int64_t count, float largest) {
  using F = Floats<W>;
  using V = typename F::V;
  constexpr int N = F::kNumbers;
  const auto exponential = [](V & v) __attribute__((always_inline)) {
    const V low = V{} - 87.0F;
    v = v < low ? low : v;
    // 2^n * e^r with |r| <= log(2) / 2. The constant rounds to an integer.
    constexpr float kRound = 12582912.0F;
    const V n = (v * 1.44269504F + kRound) - kRound;
    const V r = (v - n * 0.693359375F) + n * 2.12194440e-4F;
    V p = V{} + 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = p * r * r + r + 1.0F;
    const auto shift = (__builtin_convertvector(n, typename F::Integers) + 127) << 23;
    V power;
    std::memcpy(&power, &shift, W);
    v = p * power;
  };
  V sums{};
  float rest = 0;
  int64_t i = 0;
  for (; i + N <= count; i += N) {
    V v;
    F::load(v, x + i);
    v = v - largest;
    exponential(v);
    sums += v;
    std::memcpy(x + i, &v, W);
  }
  if (i < count) {
    float last[N] = {};
    for (int j = 0; j < N; ++j) last[j] = i + j < count ? x[i + j] - largest : 0.0F;
    V v;
    F::load(v, last);
    exponential(v);
    std::memcpy(last, &v, W);
    for (int j = 0; i + j < count; ++j) rest += x[i + j] = last[j];
  }
  return F::sum(sums) + rest;
}

/// out = the sum of shares[s] * rows[s].
template <class T, int W>
LEVIN_INLINE void mix_rows(const T* rows, const float* shares, int64_t count, int64_t width, float factor, float* out) {
  using F = Floats<W>;
  using V = typename F::V;
  constexpr int N = F::kNumbers, kPart = 4;
  int64_t d = 0;
  for (; d + kPart * N <= width; d += kPart * N) {
    V sums[kPart];
    LEVIN_UNROLL
    for (int p = 0; p < kPart; ++p) sums[p] = V{};
    for (int64_t s = 0; s < count; ++s) {
      LEVIN_UNROLL
      for (int p = 0; p < kPart; p += 2) {
        V a, b;
        F::load_two(a, b, rows + s * width + d + p * N);
        sums[p] += a * shares[s];
        sums[p + 1] += b * shares[s];
      }
    }
    LEVIN_UNROLL
    for (int p = 0; p < kPart; ++p) {
      const V mixed = sums[p] * factor;
      std::memcpy(out + d + p * N, &mixed, W);
    }
  }
  for (; d < width; ++d) {
    float sum = 0;
    for (int64_t s = 0; s < count; ++s) sum += F::number(rows + s * width + d) * shares[s];
    out[d] = sum * factor;
  }
}

template <class T, int W>
LEVIN_INLINE void attend_typed(const AttendHead& job) {
  const auto count = job.end - job.first;
  const auto *keys = static_cast<const T*>(job.keys) + job.first * job.width,
             *values = static_cast<const T*>(job.values) + job.first * job.width;
  dot_all<T, W>({.matrix = keys,
                 .type = job.type,
                 .columns = job.width,
                 .x = job.q,
                 .count = job.heads,
                 .out = job.scores,
                 .stride = count},
                0, count);
  for (int64_t h = 0; h < job.heads; ++h) {
    auto* scores = job.scores + h * count;
    auto largest = -HUGE_VALF;
    for (int64_t s = 0; s < count; ++s) {
      auto score = scores[s] * job.scale;
      if (job.softcap > 0) score = std::tanh(score / job.softcap) * job.softcap;
      if (job.slopes) score += job.slopes[h] * static_cast<float>(s - count + 1);
      scores[s] = score;
      largest = score > largest ? score : largest;
    }
    const auto sum = exp_and_sum<W>(scores, count, largest);
    mix_rows<T, W>(values, scores, count, job.width, 1 / sum, job.out + h * job.width);
  }
}

template <int W>
LEVIN_INLINE void attend_any(const AttendHead& job) {
  switch (job.type) {
    case LoopNumber::kBFloat16:
      return attend_typed<typename Floats<W>::BFloat16, W>(job);
    case LoopNumber::kHalf:
      return attend_typed<typename Floats<W>::Half, W>(job);
    case LoopNumber::kFloat:
      return attend_typed<float, W>(job);
    case LoopNumber::kInt8:
      levin::detail::fail("[decode_attention] keys of int8 come with scales, which these loops do not read");
  }
}

/// Sums of the numbers (power 1) or their squares around a center.
template <int W, bool kSquares>
LEVIN_INLINE double sum_of(const float* x, int64_t count, float center) {
  using F = Floats<W>;
  using V = typename F::V;
  constexpr int N = F::kNumbers;
  V sums{};
  int64_t i = 0;
  for (; i + N <= count; i += N) {
    V v;
    F::load(v, x + i);
    v = v - center;
    sums += kSquares ? v * v : v;
  }
  double total = F::sum(sums);
  for (; i < count; ++i) total += kSquares ? (x[i] - center) * (x[i] - center) : x[i] - center;
  return total;
}

template <int W>
LEVIN_INLINE void norm_any(const NormRow& job) {
  const auto n = static_cast<double>(job.columns);
  const auto mean = job.rms ? 0.0F : static_cast<float>(sum_of<W, false>(job.h, job.columns, 0) / n);
  const auto factor = static_cast<float>(1 / std::sqrt(sum_of<W, true>(job.h, job.columns, mean) / n + job.eps));
  for (int64_t i = 0; i < job.columns; ++i)
    job.out[i] = (job.h[i] - mean) * factor * job.weight[i] + (job.bias ? job.bias[i] : 0.0F);
}

}  // namespace

// The library is compiled for the oldest x86-64; what the machine has besides is asked for when it runs.
#ifdef __x86_64__
#define LEVIN_AVX2 __attribute__((target("avx2,fma,f16c")))
#define LEVIN_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
namespace {

bool has_f16c() {  // __builtin_cpu_supports() of clang does not know it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  return has;
}
bool has_avx512() {
  static const bool has = has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}

LEVIN_AVX512 void dot_avx512(const DotRows& job, int64_t begin, int64_t end) {
  dot_any<64>(job, begin, end);
}

LEVIN_AVX2 void dot_avx2(const DotRows& job, int64_t begin, int64_t end) {
  dot_any<32>(job, begin, end);
}
LEVIN_AVX2 void int4_avx2(const DotInt4& job, int64_t begin, int64_t end) {
  int4_any<32>(job, begin, end);
}
LEVIN_AVX2 void attend_avx2(const AttendHead& job) {
  attend_any<32>(job);
}
LEVIN_AVX2 void norm_avx2(const NormRow& job) {
  norm_any<32>(job);
}

}  // namespace

void dot_rows(const DotRows& job, int64_t begin, int64_t end) {
  if (has_avx512()) return dot_avx512(job, begin, end);
  return has_avx2() ? dot_avx2(job, begin, end) : dot_any<16>(job, begin, end);
}
void dot_rows_int4(const DotInt4& job, int64_t begin, int64_t end) {
  return has_avx2() ? int4_avx2(job, begin, end) : int4_any<16>(job, begin, end);
}
void attend_head(const AttendHead& job) {
  return has_avx2() ? attend_avx2(job) : attend_any<16>(job);
}
void norm_row(const NormRow& job) {
  return has_avx2() ? norm_avx2(job) : norm_any<16>(job);
}
#else
void dot_rows(const DotRows& job, int64_t begin, int64_t end) {
  dot_any<16>(job, begin, end);
}
void dot_rows_int4(const DotInt4& job, int64_t begin, int64_t end) {
  int4_any<16>(job, begin, end);
}
void attend_head(const AttendHead& job) {
  attend_any<16>(job);
}
void norm_row(const NormRow& job) {
  norm_any<16>(job);
}
#endif

}  // namespace levin::kernels::detail
