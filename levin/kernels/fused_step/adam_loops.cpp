#include "levin/kernels/fused_step/adam_loops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "levin/kernels/fused_step/adam_convert.h"

namespace levin::kernels::detail {
namespace {

// How much of each list is worked on at a time: all of it stays in the first cache.
constexpr int64_t kStretch = 512;

// W bytes of numbers in one register. Spelled out, since -O2 leaves longer loops as they are; and never an argument or
// a result, whose place would depend on what the machine has.
template <class T, int W>
struct Register {
  typedef T Type __attribute__((vector_size(W)));
  static constexpr int kNumbers = W / static_cast<int>(sizeof(T));
};

// A plain call of sqrt may set errno, and compilers leave it out of vector code for that.
inline __attribute__((always_inline)) void take_roots(float* numbers) {
#ifdef __x86_64__
  _mm_storeu_ps(numbers, _mm_sqrt_ps(_mm_loadu_ps(numbers)));
#elif defined(__aarch64__)
  vst1q_f32(numbers, vsqrtq_f32(vld1q_f32(numbers)));
#else
  for (int j = 0; j < 4; ++j) numbers[j] = std::sqrt(numbers[j]);
#endif
}
inline __attribute__((always_inline)) void take_roots(double* numbers) {
#ifdef __x86_64__
  _mm_storeu_pd(numbers, _mm_sqrt_pd(_mm_loadu_pd(numbers)));
#elif defined(__aarch64__)
  vst1q_f64(numbers, vsqrtq_f64(vld1q_f64(numbers)));
#else
  for (int j = 0; j < 2; ++j) numbers[j] = std::sqrt(numbers[j]);
#endif
}

template <class T, class V>
inline __attribute__((always_inline)) void load(V& numbers, const T* from) {
  std::memcpy(&numbers, from, sizeof(V));
}
template <class T, class V>
inline __attribute__((always_inline)) void store(const V& numbers, T* to) {
  std::memcpy(to, &numbers, sizeof(V));
}

template <class T>
constexpr NumberType kTypeOf = sizeof(T) == 4 ? NumberType::kFloat : NumberType::kDouble;

// A stretch of one tensor as numbers of the arithmetic: in place where they are that already, else in a buffer.
template <class T>
struct Stretch {
  T* numbers;
  bool in_place;

  __attribute__((always_inline)) Stretch(const void* tensor, NumberType type, int64_t at, int64_t count, T* buffer) {
    in_place = type == kTypeOf<T> && count % kLanes == 0;
    numbers = in_place ? static_cast<T*>(const_cast<void*>(tensor)) + at : buffer;
    if (!in_place) load_numbers(tensor, type, at, count, buffer);
  }
  __attribute__((always_inline)) void write_back(void* tensor, NumberType type, int64_t at, int64_t count) const {
    if (!in_place) store_numbers(numbers, type, at, count, tensor);
  }
};

/// A stretch of one tensor's numbers, in place or in buffers.
template <class T>
struct AdamStretch {
  T* params;
  const T* grads;
  T* averages;
  T* squares;
  T* largest;  // null without amsgrad
};

template <class T, int W>
inline __attribute__((always_inline)) void adam_numbers(const AdamStep<T>& f, const AdamStretch<T>& on, int64_t count) {
  using V = typename Register<T, W>::Type;
  constexpr int kNumbers = Register<T, W>::kNumbers, kPart = 16 / static_cast<int>(sizeof(T));
  for (int64_t i = 0; i < count; i += kNumbers) {
    V p, g, m, v;
    load(p, on.params + i);
    load(g, on.grads + i);
    load(m, on.averages + i);
    load(v, on.squares + i);
    p = p * f.shrink;
    g = g * f.grad_factor + p * f.decay;
    m = m + (g - m) * f.take1;
    v = v * f.beta2 + g * g * f.take2;
    store(m, on.averages + i);
    store(v, on.squares + i);
    if (on.largest) {
      V x;
      load(x, on.largest + i);
      v = x < v ? v : x;
      store(v, on.largest + i);
    }
    T roots[kNumbers];
    store(v, roots);
    for (int j = 0; j < kNumbers; j += kPart) take_roots(roots + j);
    load(v, roots);
    p = p - m * f.step_size / (v * f.root_factor + f.eps);
    store(p, on.params + i);
  }
}

template <class T, int W>
inline __attribute__((always_inline)) void adam_body(const StepEntry& e, const AdamNumbers& n, double scale,
                                                     int64_t begin, int64_t end) {
  alignas(64) T buffers[5][kStretch];
  const auto step = adam_step<T>(n, *e.step, scale);
  for (int64_t at = begin; at < end; at += kStretch) {
    const int64_t count = std::min(kStretch, end - at);
    const Stretch<T> param(e.param, e.param_type, at, count, buffers[0]);
    const Stretch<T> grad(e.grad, e.grad_type, at, count, buffers[1]);
    const Stretch<T> average(e.first, e.state_type, at, count, buffers[2]);
    const Stretch<T> square(e.second, e.state_type, at, count, buffers[3]);
    if (e.third) {
      const Stretch<T> largest(e.third, e.state_type, at, count, buffers[4]);
      adam_numbers<T, W>(step, {param.numbers, grad.numbers, average.numbers, square.numbers, largest.numbers}, count);
      largest.write_back(e.third, e.state_type, at, count);
    } else {
      adam_numbers<T, W>(step, {param.numbers, grad.numbers, average.numbers, square.numbers, nullptr}, count);
    }
    param.write_back(e.param, e.param_type, at, count);
    average.write_back(e.first, e.state_type, at, count);
    square.write_back(e.second, e.state_type, at, count);
    if (e.copy) store_numbers(param.numbers, e.copy_type, at, count, e.copy);
  }
}

template <class T, int W>
inline __attribute__((always_inline)) void sgd_body(const StepEntry& e, const SgdNumbers& n, double scale,
                                                    int64_t begin, int64_t end) {
  alignas(64) T buffers[3][kStretch];
  const auto f = sgd_step<T>(n, scale);
  for (int64_t at = begin; at < end; at += kStretch) {
    const int64_t count = std::min(kStretch, end - at);
    const Stretch<T> param(e.param, e.param_type, at, count, buffers[0]);
    const Stretch<T> grad(e.grad, e.grad_type, at, count, buffers[1]);
    using V = typename Register<T, W>::Type;
    if (e.first) {
      const Stretch<T> buffer(e.first, e.state_type, at, count, buffers[2]);
      for (int64_t i = 0; i < count; i += Register<T, W>::kNumbers) {
        V p, g, b;
        load(p, param.numbers + i);
        load(g, grad.numbers + i);
        load(b, buffer.numbers + i);
        g = g * f.grad_factor + p * f.decay;
        b = b * f.keep + g * f.take;
        p = p - (g * f.direct + b * f.rest) * f.lr;
        store(b, buffer.numbers + i);
        store(p, param.numbers + i);
      }
      buffer.write_back(e.first, e.state_type, at, count);
    } else {
      for (int64_t i = 0; i < count; i += Register<T, W>::kNumbers) {
        V p, g;
        load(p, param.numbers + i);
        load(g, grad.numbers + i);
        p = p - (g * f.grad_factor + p * f.decay) * f.lr;
        store(p, param.numbers + i);
      }
    }
    param.write_back(e.param, e.param_type, at, count);
    if (e.copy) store_numbers(param.numbers, e.copy_type, at, count, e.copy);
  }
}

// One block of codes: back to numbers, a step, and to codes again under a new scale.
template <int W>
inline __attribute__((always_inline)) void adam_8bit_block(const StepEntry& e, const AdamStep<float>& step,
                                                           const CodeTables& codes, int64_t at, int64_t count) {
  const auto& [average, square] = codes;
  constexpr int64_t kBlock = 256;
  alignas(64) float p_buffer[kBlock], g_buffer[kBlock], m[kBlock], v[kBlock];
  auto* first = static_cast<uint8_t*>(e.first) + at;
  auto* second = static_cast<uint8_t*>(e.second) + at;
  float& m_scale = e.first_scale[at / kBlock];
  float& v_scale = e.second_scale[at / kBlock];
  for (int64_t i = 0; i < kBlock; ++i) m[i] = average.values[first[i]] * m_scale;
  for (int64_t i = 0; i < kBlock; ++i) v[i] = square.values[second[i]] * v_scale;
  const Stretch<float> param(e.param, e.param_type, at, count, p_buffer);
  const Stretch<float> grad(e.grad, e.grad_type, at, count, g_buffer);
  adam_numbers<float, W>(step, {param.numbers, grad.numbers, m, v, nullptr}, count);
  param.write_back(e.param, e.param_type, at, count);
  if (e.copy) store_numbers(param.numbers, e.copy_type, at, count, e.copy);
  for (int64_t i = count; i < kBlock; ++i) m[i] = v[i] = 0;

  float m_largest[kLanes] = {}, v_largest[kLanes] = {};
  for (int64_t i = 0; i < kBlock; i += kLanes)
    for (int j = 0; j < kLanes; ++j) {
      const float magnitude = as_float(as_bits(m[i + j]) & 0x7fffffffu);
      m_largest[j] = m_largest[j] < magnitude ? magnitude : m_largest[j];
      v_largest[j] = v_largest[j] < v[i + j] ? v[i + j] : v_largest[j];
    }
  m_scale = *std::max_element(m_largest, m_largest + kLanes);
  v_scale = *std::max_element(v_largest, v_largest + kLanes);
  const float m_divisor = m_scale > 0 ? m_scale : 1, v_divisor = v_scale > 0 ? v_scale : 1;
  for (int64_t i = 0; i < kBlock; i += kLanes)
    for (int j = 0; j < kLanes; ++j) {
      m[i + j] /= m_divisor;
      v[i + j] /= v_divisor;
    }
  for (int64_t i = 0; i < kBlock; ++i) {
    const uint8_t code = average.first[as_bits(m[i]) >> 16];
    first[i] = static_cast<uint8_t>(code + (m[i] > average.middle[code]));
  }
  for (int64_t i = 0; i < kBlock; ++i) {
    const uint8_t code = square.first[as_bits(v[i]) >> 16];
    const auto nearest = static_cast<uint8_t>(code + (v[i] > square.middle[code]));
    second[i] = static_cast<uint8_t>(nearest + (nearest == 0 && v[i] > 0));
  }
}

template <int W>
inline __attribute__((always_inline)) void adam_8bit_body(const StepEntry& e, const AdamNumbers& n, double scale,
                                                          const CodeTables& codes, int64_t begin, int64_t end) {
  const auto step = adam_step<float>(n, *e.step, scale);
  for (int64_t at = begin; at < end; at += 256)
    adam_8bit_block<W>(e, step, codes, at, std::min<int64_t>(256, end - at));
}

template <int W>
inline __attribute__((always_inline)) void adam_any(const StepEntry& e, const AdamNumbers& n, double scale,
                                                    int64_t begin, int64_t end) {
  e.param_type == NumberType::kDouble ? adam_body<double, W>(e, n, scale, begin, end)
                                      : adam_body<float, W>(e, n, scale, begin, end);
}
template <int W>
inline __attribute__((always_inline)) void sgd_any(const StepEntry& e, const SgdNumbers& n, double scale, int64_t begin,
                                                   int64_t end) {
  e.param_type == NumberType::kDouble ? sgd_body<double, W>(e, n, scale, begin, end)
                                      : sgd_body<float, W>(e, n, scale, begin, end);
}

}  // namespace

// The library is compiled for the oldest x86-64; what the machine has besides is asked for when it runs. (By hand, and
// not by target_clones: its resolvers run before sanitizers are ready.)
#ifdef __x86_64__
namespace {

enum class Level { kBase, kAvx2, kAvx512 };

Level machine_level() {
  static const Level level = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                                 ? Level::kAvx512
                             : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? Level::kAvx2
                                                                                               : Level::kBase;
  return level;
}

__attribute__((target("avx2,fma"))) void adam_avx2(const StepEntry& e, const AdamNumbers& n, double scale,
                                                   int64_t begin, int64_t end) {
  adam_any<32>(e, n, scale, begin, end);
}
__attribute__((target("avx2,fma"))) void sgd_avx2(const StepEntry& e, const SgdNumbers& n, double scale, int64_t begin,
                                                  int64_t end) {
  sgd_any<32>(e, n, scale, begin, end);
}
__attribute__((target("avx2,fma"))) void adam_8bit_avx2(const StepEntry& e, const AdamNumbers& n, double scale,
                                                        const CodeTables& codes, int64_t begin, int64_t end) {
  adam_8bit_body<32>(e, n, scale, codes, begin, end);
}
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))) void adam_avx512(const StepEntry& e,
                                                                                        const AdamNumbers& n,
                                                                                        double scale, int64_t begin,
                                                                                        int64_t end) {
  adam_any<64>(e, n, scale, begin, end);
}
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))) void sgd_avx512(const StepEntry& e,
                                                                                       const SgdNumbers& n,
                                                                                       double scale, int64_t begin,
                                                                                       int64_t end) {
  sgd_any<64>(e, n, scale, begin, end);
}

}  // namespace

void adam_loop(const StepEntry& e, const AdamNumbers& n, double scale, int64_t begin, int64_t end) {
  switch (machine_level()) {
    case Level::kAvx512:
      return adam_avx512(e, n, scale, begin, end);
    case Level::kAvx2:
      return adam_avx2(e, n, scale, begin, end);
    case Level::kBase:
      return adam_any<16>(e, n, scale, begin, end);
  }
}

void sgd_loop(const StepEntry& e, const SgdNumbers& n, double scale, int64_t begin, int64_t end) {
  switch (machine_level()) {
    case Level::kAvx512:
      return sgd_avx512(e, n, scale, begin, end);
    case Level::kAvx2:
      return sgd_avx2(e, n, scale, begin, end);
    case Level::kBase:
      return sgd_any<16>(e, n, scale, begin, end);
  }
}

void adam_8bit_loop(const StepEntry& e, const AdamNumbers& n, double scale, const CodeTables& codes, int64_t begin,
                    int64_t end) {
  if (machine_level() == Level::kBase) return adam_8bit_body<16>(e, n, scale, codes, begin, end);
  adam_8bit_avx2(e, n, scale, codes, begin, end);
}
#else
void adam_loop(const StepEntry& e, const AdamNumbers& n, double scale, int64_t begin, int64_t end) {
  adam_any<16>(e, n, scale, begin, end);
}
void sgd_loop(const StepEntry& e, const SgdNumbers& n, double scale, int64_t begin, int64_t end) {
  sgd_any<16>(e, n, scale, begin, end);
}
void adam_8bit_loop(const StepEntry& e, const AdamNumbers& n, double scale, const CodeTables& codes, int64_t begin,
                    int64_t end) {
  adam_8bit_body<16>(e, n, scale, codes, begin, end);
}
#endif

void fill_code_table(CodeTable& table, const float* values) {
  for (int k = 0; k < 256; ++k) {
    table.values[k] = values[k];
    table.middle[k] = k < 255 ? (values[k] + values[k + 1]) / 2 : std::numeric_limits<float>::infinity();
  }
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    // The least number that has these upper bits: codes below its own are no candidates.
    const float least = as_float(upper << 16 | (upper >= 0x8000 ? 0xffffu : 0u));
    int code = 0;
    while (code < 255 && least > table.middle[code]) ++code;
    table.first[upper] = static_cast<uint8_t>(code);
  }
}

}  // namespace levin::kernels::detail
