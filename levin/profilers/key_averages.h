#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace levin {

/// What rows of a table have in common.
struct KeyGrouping {
  /// Calls with other shapes are other rows; needs record_shapes.
  bool by_input_shape = false;
  /// Calls in other units of the model are other rows; needs with_modules.
  bool by_unit = false;
  /// Calls from other places are other rows, by this many innermost frames of the call stack; 0: not. Needs with_stack.
  int64_t by_stack = 0;
};

/// All calls of an operator, span, runtime function or kernel. Times are nanoseconds, memory is bytes.
struct KeyAverage {
  std::string name;
  /// "encoder.layers.0", with `by_unit`.
  std::string unit = {};
  /// "train.cpp(42): forward;main.cpp(7): main", the innermost frame first, with `by_stack`.
  std::string stack = {};
  /// "[[32, 128], [128, 10]]", with `by_input_shape`.
  std::string input_shapes = {};
  int64_t calls = 0;
  /// Without what was called inside.
  int64_t self_cpu = 0;
  int64_t cpu_total = 0;
  /// Kernels and copies that it launched itself, and with those of what was called inside.
  int64_t self_device = 0;
  int64_t device_total = 0;
  int64_t self_cpu_memory = 0, cpu_memory = 0;
  int64_t self_device_memory = 0, device_memory = 0;
  int64_t flops = 0;
  /// A kernel or copy, in place of something of the host.
  bool on_device = false;
  /// A span on the timeline of the device: its time is that of the kernels in it.
  bool is_annotation = false;

  double cpu_average() const { return calls ? static_cast<double>(cpu_total) / static_cast<double>(calls) : 0; }
  double device_average() const { return calls ? static_cast<double>(device_total) / static_cast<double>(calls) : 0; }
};

namespace detail {
class UnitCalls;
class EventStacks;
}  // namespace detail

/// The rows of a recording, in the order in which they were first seen. `units` tells of which unit an operator of
/// backward is, `stacks` where it was called.
std::vector<KeyAverage> key_averages(const torch::autograd::profiler::ProfilerResult& result,
                                     const KeyGrouping& grouping = {},
                                     const std::vector<std::shared_ptr<detail::UnitCalls>>& units = {},
                                     const detail::EventStacks* stacks = nullptr);

struct KeyTableOptions {
  /// A column by torch's name ("self_cpu_time_total", "cuda_time_total", "cpu_memory_usage", "flops", "count", ...).
  /// Defaults to "cuda_time_total" where there are kernels, else "cpu_time_total".
  std::string sort_by = {};
  /// Rows that are shown; -1 for all.
  int64_t row_limit = 20;
  /// Longer names are cut.
  int64_t max_name_width = 55;
};

/// The words that `sort_by` takes.
std::vector<std::string> key_table_columns();

/// The rows as torch prints them: columns of the device, of memory, shapes, units and FLOPs only where there are any.
std::string key_table(std::vector<KeyAverage> rows, const KeyTableOptions& options = {});

}  // namespace levin
