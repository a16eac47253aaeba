#pragma once

#include <cstdint>

#include "levin/kernels/fused_step/adam_launch.h"

/// The loops of the fused steps on the CPU: no header of torch, so that a compiler sees nothing but arithmetic.
namespace levin::kernels::detail {

/// Elements [begin, end) of one parameter. Gradients are still multiplied by `scale`.
void adam_loop(const StepEntry& entry, const AdamNumbers& numbers, double scale, int64_t begin, int64_t end);
void sgd_loop(const StepEntry& entry, const SgdNumbers& numbers, double scale, int64_t begin, int64_t end);

/// The nearest code of a number between -1 and 1: `first[x's upper 16 bits]` or the one after it, by `middle`.
struct CodeTable {
  float values[256];
  float middle[256];  // between a code and the next; infinity after the last
  uint8_t first[65536];
};
void fill_code_table(CodeTable& table, const float* values);

struct CodeTables {
  const CodeTable& average;
  const CodeTable& square;
};

/// `begin` is a multiple of a block of codes, `end` too, or the end of the parameter.
void adam_8bit_loop(const StepEntry& entry, const AdamNumbers& numbers, double scale, const CodeTables& codes,
                    int64_t begin, int64_t end);

}  // namespace levin::kernels::detail
