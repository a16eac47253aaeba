#pragma once

#include <cstdint>

#include "levin/compile/group.h"

namespace levin::compile::detail {

/// Numbers that a loop handles at once: buffers have a multiple of these.
inline constexpr int64_t kLanes = 16;

/// A buffer of one class: float, double, int64_t, or int32_t for bools (0 or -1). Step 0: one line of kLanes alike
/// numbers stands for all.
struct Operand {
  const void* data = nullptr;
  int step = 1;
};

/// One operation on a block. `operand` is the class of its arguments.
struct Instruction {
  ScalarOp op = ScalarOp::kNumber;
  Number number = Number::kFloat, operand = Number::kFloat;
  at::ScalarType dtype = at::kFloat;
  void* out = nullptr;
  Operand a, b, c;
};

/// Runs one operation on `n` numbers, which is rounded up to kLanes.
void run_instruction(const Instruction& instruction, int64_t n);
/// Sum, product or extreme of n numbers. Sums are made in double.
double reduce_floats(ScalarOp op, const float* x, int64_t n);
/// sums[i] += x[i]
void add_floats(double* sums, const float* x, int64_t n);
void from_bfloat16(float* to, const uint16_t* from, int64_t n);
void to_bfloat16(uint16_t* to, const float* from, int64_t n);

/// Numbers of memory into a buffer of their class.
void read_run(void* to, const void* base, int64_t place, int64_t stride, int64_t n, at::ScalarType dtype);
/// Numbers of a buffer, or one of them again and again (step 0), into memory.
void write_run(void* base, int64_t place, int64_t stride, const void* from, int step, int64_t n, at::ScalarType dtype);

}  // namespace levin::compile::detail
