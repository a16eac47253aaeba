#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "levin/profilers/key_averages.h"
#include "levin/profilers/schedule.h"

namespace torch::nn {
class Module;
}

namespace levin {

namespace profilers {
class Profile;
}

/// How torch's profiler records, and what becomes of a recording.
struct PyTorchProfilerOptions {
  /// Which steps are recorded; none: everything from start() to stop(), as one recording.
  std::optional<ProfilerSchedule> schedule = ProfilerSchedule{};
  /// Sizes of the inputs of operators.
  bool record_shapes = false;
  /// Allocations and frees.
  bool profile_memory = false;
  /// FLOPs of matrix products and convolutions, from the sizes of their inputs.
  bool with_flops = false;
  /// Spans of the units of the model, in forward and backward.
  bool with_modules = true;
  /// Call stacks of operators: the functions of the program and their lines, where it has debug information (-g).
  bool with_stack = false;
  /// Calls that wait for the device have spans of their own.
  bool sync_events = false;
  /// Called when a recording is done, in place of writing a trace file.
  std::function<void(profilers::Profile&)> on_trace_ready = {};
  /// The folder of trace files; by default that of the run's log, or the working folder.
  std::filesystem::path dirpath = {};
  /// What trace files are named by, before ".<time>.pt.trace.json": with several ranks "_<rank>" follows. Defaults to
  /// "<host>_<process id>".
  std::string filename = {};
  /// Trace files are compressed.
  bool gzip = true;
  /// Ranks that record; empty: all of them.
  std::vector<int> ranks = {};
  /// The table: rows, order, what makes a row.
  int64_t row_limit = 20;
  std::string sort_by = {};
  bool group_by_input_shape = false;
  bool group_by_unit = false;
  /// A row for each place in the program, by this many innermost frames; 0: not. Needs with_stack.
  int64_t group_by_stack_n = 0;
  /// Writes "<trace>.stacks" beside a trace: a folded file for flame graphs. Needs with_stack.
  bool export_to_flame_graph = false;
  /// Gives every operator and span an NVTX range for Nsight Systems, in place of recording a trace.
  bool nvtx = false;
};

/// A group of ranks, as traces tell of it.
struct ProfiledGroup {
  std::string name, description, backend;
  std::vector<int> ranks;
};

/// What a run is, as traces tell of it.
struct ProfiledRun {
  /// Its units get spans, if the options say so; null: none.
  torch::nn::Module* module = nullptr;
  /// Where it runs; none: not known.
  std::optional<c10::Device> device = {};
  int rank = 0;
  int world_size = 1;
  /// "nccl", "gloo"; empty with one process.
  std::string backend = {};
  std::vector<ProfiledGroup> groups = {};
  /// Further facts, each with a JSON value, written as the object "levin" of the trace.
  std::vector<std::pair<std::string, std::string>> facts = {};
};

namespace profilers {

/// Records the operators, kernels and spans of a loop with torch's profiler (Kineto) and writes traces for TensorBoard,
/// Perfetto and `levin report`. Everything is called by one thread; other threads appear by TracedWork.
///
///     levin::profilers::Profile profile({.schedule = levin::ProfilerSchedule{.wait = 2}, .record_shapes = true});
///     profile.watch(*model);
///     profile.start();
///     for (auto& batch : loader) {
///       train(batch);
///       profile.step();
///     }
///     profile.stop();
///     std::cout << profile.table();
class Profile {
 public:
  explicit Profile(PyTorchProfilerOptions options = {});
  /// Stops; what fails is lost.
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  const PyTorchProfilerOptions& options() const;
  /// Where trace files go when the options do not say it.
  void set_default_folder(const std::filesystem::path& folder);
  /// What runs. Before start().
  void describe(ProfiledRun run);
  /// Spans for the units of a model, until it is stopped. Does nothing without `with_modules`.
  void watch(torch::nn::Module& model);
  /// A value of the trace's top level, as JSON.
  void add_metadata(std::string key, std::string json);

  /// Step 0 begins. An Error when another profile records.
  void start();
  /// The step is over and the next one begins; recordings begin and end here, as the schedule says.
  void step();
  /// The step is over; what follows until step() belongs to none.
  void end_step();
  /// The loop is over. A recording that is under way is done.
  void stop();

  int64_t step_number() const;
  bool is_recording() const;
  /// How many recordings were done.
  int64_t recordings() const;

  /// Of the last recording; an Error when there is none.
  std::vector<KeyAverage> key_averages(const KeyGrouping& grouping = {}) const;
  /// Its table, by the options.
  std::string table() const;
  /// Writes its trace; compressed when the name ends in ".gz".
  void export_trace(const std::filesystem::path& path);
  /// Writes the time of each call stack for flame graphs (flamegraph.pl, speedscope.app): lines of "main;train;forward
  /// 1234" with microseconds, the longest first. `metric` is "self_cpu_time_total" or "self_cuda_time_total"; needs
  /// with_stack.
  void export_stacks(const std::filesystem::path& path, const std::string& metric = "self_cpu_time_total") const;
  /// The trace files that were written.
  const std::vector<std::filesystem::path>& files() const;
  /// Called before a recording ends: spans that are open must be closed there.
  void set_before_end(std::function<void()> close);

 private:
  void trace_ready();

  struct State;
  std::unique_ptr<State> state_;
};

/// A handler for `on_trace_ready`: writes `<worker>.<time in ns>.pt.trace.json[.gz]` into a folder, as torch's function
/// of that name. An empty worker is "<host>_<process id>".
std::function<void(Profile&)> tensorboard_trace_handler(std::filesystem::path folder, std::string worker = {},
                                                        bool gzip = false);

}  // namespace profilers

}  // namespace levin
