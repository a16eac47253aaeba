// fuzz-sources: levin/report/trace/trace_events.cpp levin/report/trace/trace_reader.cpp
// fuzz-sources: levin/report/trace/event_reader.cpp levin/report/trace/json_cutter.cpp levin/report/json_text.cpp
// fuzz-sources: levin/report/trace/op_tree.cpp levin/report/trace/ranges.cpp levin/report/views/steps.cpp
// fuzz-sources: levin/report/views/tensor_cores.cpp levin/report/views/device_view.cpp
// fuzz-sources: levin/report/views/operator_view.cpp levin/report/views/flops.cpp levin/report/trace/span_index.cpp
// fuzz-sources: levin/report/views/memory_view.cpp levin/report/views/module_view.cpp levin/report/trace/lanes.cpp
// fuzz-sources: levin/report/views/idle.cpp levin/report/views/critical_path.cpp
// fuzz-sources: levin/report/views/distributed_view.cpp levin/core/error.cpp levin/core/words.cpp
// fuzz-seeds: tests/report/fixtures/*.json
// fuzz-count: 4000

#include <string_view>

#include "fuzz.h"
#include "levin/report/report.h"
#include "levin/report/trace/trace_reader.h"

namespace {

void check(bool holds, const char* what) {
  if (!holds) levin::fuzz::complain(what);
}

// All views of what was read, and what must hold of any trace.
void view(const levin::report::TraceEvents& trace) {
  using namespace levin::report;
  const auto tree = build_op_tree(trace);
  const auto steps = view_steps(trace);
  for (const auto& step : steps.steps) {
    Ns sum = 0;
    for (const Ns part : step.parts) sum += part;
    check(sum == step.total() || step.total() < 0, "the parts of a step are not the step");
  }
  summarize_gpus(trace, tree, steps);
  tensor_core_times(trace, tree);
  Ns by_name = 0, by_properties = 0;
  for (const auto& row : view_kernels(trace, tree, false)) by_name += row.total;
  for (const auto& row : view_kernels(trace, tree, true)) by_properties += row.total;
  check(by_name == by_properties, "the kernel views differ");
  view_operators(trace, tree, true);
  view_memory(trace, tree);
  view_modules(trace, tree);
  view_lanes(trace, steps, 20);
  const auto idle = view_idle(trace, steps);
  Ns causes = 0;
  for (const Ns cause : idle.causes) causes += cause;
  check(causes == idle.total, "the causes of idle time are not the idle time");
  Ns path = 0;
  const auto critical = find_critical_path(trace, steps);
  for (const auto& segment : critical.segments) path += segment.duration;
  check(path == critical.total || critical.total < 0, "the critical path is not the step");
  collectives_of(trace, steps);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  levin::fuzz::taken([&] { view(levin::report::read_trace_text(text, "fuzz.json")); });
  // In blocks of a few bytes it must be the same.
  if (size > 5000) return 0;
  const bool whole = levin::fuzz::taken([&] { levin::report::read_trace_text(text, "fuzz.json"); });
  const bool in_blocks = levin::fuzz::taken([&] {
    levin::report::read_trace_blocks("fuzz.json", [&](const auto& add) {
      for (size_t at = 0; at < size; at += 3) add(text.substr(at, 3));
    });
  });
  check(whole == in_blocks, "a text in blocks is read differently");
  return 0;
}
