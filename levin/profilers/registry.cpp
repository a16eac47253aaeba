#include "levin/profilers/registry.h"

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/profilers/memory.h"
#include "levin/profilers/pytorch.h"
#include "levin/profilers/simple.h"

namespace levin {

void fields(SimpleProfilerOptions& o, auto f) {
  f("dirpath", o.dirpath, "folder of the report; default: that of the run's log");
  f("filename", o.filename, "write the report to STAGE-filename-RANK.txt; default: stdout");
  f("extended", o.extended, "add the columns of calls and of percentage");
}

void fields(ProfilerSchedule& o, auto f) {
  f("wait", o.wait, "steps of a cycle that are not recorded");
  f("warmup", o.warmup, "steps whose record is thrown away");
  f("active", o.active, "steps that are recorded");
  f("repeat", o.repeat, "cycles; 0 repeats until the end");
  f("skip_first", o.skip_first, "steps before the first cycle");
  f("skip_first_wait", o.skip_first_wait, "begin the first cycle without its wait");
}

void fields(PyTorchProfilerOptions& o, auto f) {
  if (!o.schedule) o.schedule.emplace();
  f("schedule", *o.schedule, "which steps are recorded");
  f("record_shapes", o.record_shapes, "record the sizes of the inputs of operators");
  f("profile_memory", o.profile_memory, "record allocations and frees");
  f("with_flops", o.with_flops, "count FLOPs of matrix products and convolutions");
  f("with_modules", o.with_modules, "spans of the units of the model");
  f("with_stack", o.with_stack, "call stacks of operators: functions of the program, and lines where it has -g");
  f("sync_events", o.sync_events, "spans of calls that wait for the device");
  f("dirpath", o.dirpath, "folder of traces and report; default: that of the run's log");
  f("filename", o.filename, "name of traces and of the report; default: host and process, and stdout");
  f("gzip", o.gzip, "compress traces");
  f("ranks", o.ranks, "ranks that record; default: all");
  f("row_limit", o.row_limit, "rows of the table; -1 for all");
  f("sort_by", o.sort_by, "column that orders the table; default: cuda_time_total or cpu_time_total",
    key_table_columns());
  f("group_by_input_shape", o.group_by_input_shape, "a row for each shape of the inputs; needs record_shapes");
  f("group_by_unit", o.group_by_unit, "a row for each unit of the model");
  f("group_by_stack_n", o.group_by_stack_n, "a row for each place in the program, by N frames; needs with_stack");
  f("export_to_flame_graph", o.export_to_flame_graph, "write the stacks for flame graphs beside a trace");
  f("nvtx", o.nvtx, "NVTX ranges for Nsight Systems in place of a trace");
}

void fields(MemoryProfilerOptions& o, auto f) {
  f("dirpath", o.dirpath, "folder of snapshots and report; default: that of the run's log");
  f("filename", o.filename, "name of snapshots and of the report; default: memory, and stdout");
  f("max_entries", o.max_entries, "allocations and frees that a snapshot shows");
  f("row_limit", o.row_limit, "rows of the report; -1 for all");
  f("with_stack", o.with_stack, "functions of the program in snapshots, and lines where it has -g");
}

namespace {

template <class T, class Options>
ProfilerClass profiler(const char* name, const char* help) {
  return {name, help, [] { return config::AnyOptions(Options{}); },
          [](const config::AnyOptions& options) -> std::shared_ptr<Profiler> {
            return std::make_shared<T>(options.get<Options>());
          }};
}

}  // namespace

const std::vector<ProfilerClass>& profiler_classes() {
  static const std::vector<ProfilerClass> classes{
      profiler<SimpleProfiler, SimpleProfilerOptions>("simple", "times each action of the loop"),
      profiler<PyTorchProfiler, PyTorchProfilerOptions>("pytorch", "records operators and kernels of some steps"),
      profiler<MemoryProfiler, MemoryProfilerOptions>("memory", "records allocations, and who holds memory"),
  };
  return classes;
}

std::vector<std::string> profiler_names() {
  std::vector<std::string> names;
  for (const auto& profiler : profiler_classes()) names.push_back(profiler.name);
  return names;
}

std::shared_ptr<Profiler> make_profiler(const std::string& name) {
  for (const auto& profiler : profiler_classes())
    if (name == profiler.name) return profiler.make(profiler.options());
  LEVIN_CHECK(name != "advanced",
              "[make_profiler] profiler \"advanced\" reports the functions of a Python program, and "
              "there are none here (known: ",
              join(profiler_names()), ")");
  fail_unknown("make_profiler", "profiler", name, profiler_names());
}

}  // namespace levin
