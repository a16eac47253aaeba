#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levin/report/trace/op_tree.h"

namespace levin::report {

struct MemoryPoint {
  Ns time = 0;
  int64_t allocated = 0, reserved = 0;
};

/// A block of memory from allocation to release. An end that the trace does not have is missing.
struct MemoryBlock {
  /// "aten::addmm (aten::empty)", "<unknown>".
  std::string operator_name;
  int64_t bytes = 0;
  std::optional<Ns> allocated, released;
};

/// What the calls of an operator allocated and released. Totals are with what they called.
struct MemoryStatistics {
  uint32_t name = 0;
  uint64_t calls = 0;
  int64_t increase = 0, self_increase = 0;
  int64_t count = 0, self_count = 0;
  int64_t size = 0, self_size = 0;
};

struct MemoryDevice {
  /// -1 for the CPU.
  int device = -1;
  int64_t peak_allocated = -1, peak_reserved = -1;
  Ns peak_time = 0;
  std::vector<MemoryPoint> curve;
  /// The largest; `left_out` is how many there are besides.
  std::vector<MemoryBlock> blocks;
  uint64_t left_out = 0;
  std::vector<MemoryStatistics> statistics;
};

/// "CPU", "GPU0".
std::string device_name(int device);

std::vector<MemoryDevice> view_memory(const TraceEvents& trace, const OpTree& tree);

/// A curve of at most `most` points; those with the highest and lowest values stay.
std::vector<MemoryPoint> thin(const std::vector<MemoryPoint>& points, size_t most);

}  // namespace levin::report
