#include "levin/profilers/profile.h"

#include <algorithm>
#include <map>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/host.h"
#include "levin/core/log.h"
#include "levin/core/trace_span.h"
#include "levin/core/version.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/loggers/json.h"
#include "levin/profilers/graph_units.h"
#include "levin/profilers/kineto_session.h"
#include "levin/profilers/stacks/stacks.h"
#include "levin/profilers/trace_file.h"
#include "levin/profilers/unit_spans.h"

namespace levin::profilers {
namespace {

using levin::detail::json_string;

/// As Python's torch.profiler writes it.
std::string distributed_info(const ProfiledRun& run) {
  std::string groups;
  for (const auto& group : run.groups)
    groups +=
        fmt::format("{}{{\"pg_name\": {}, \"pg_desc\": {}, \"backend_config\": {}, \"pg_size\": {}, \"ranks\": [{}]}}",
                    groups.empty() ? "" : ", ", json_string(group.name), json_string(group.description),
                    json_string(group.backend), group.ranks.size(), fmt::join(group.ranks, ", "));
  return fmt::format("{{\"backend\": {}, \"rank\": {}, \"world_size\": {}, \"pg_count\": {}, \"pg_config\": [{}]}}",
                     json_string(run.backend), run.rank, run.world_size, run.groups.size(), groups);
}

std::string levin_facts(const ProfiledRun& run) {
  auto text = fmt::format("{{\"version\": \"{}\"", kVersion);
  for (const auto& [key, value] : run.facts) text += fmt::format(", {}: {}", json_string(key), value);
  return text + "}";
}

bool has_kernels(const torch::autograd::profiler::ProfilerResult& result) {
  const auto& events = result.events();
  return std::any_of(events.begin(), events.end(), [](const auto& event) {
    return static_cast<libkineto::ActivityType>(event.activityType()) == libkineto::ActivityType::CONCURRENT_KERNEL;
  });
}

std::string host_and_process() {
  return fmt::format("{}_{}", host_name(), ::getpid());
}

}  // namespace

struct Profile::State {
  PyTorchProfilerOptions options;
  std::optional<levin::detail::WantsGraphUnits> wants_graph_units;
  ProfiledRun run;
  std::filesystem::path folder;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<torch::nn::Module*> watched;
  std::vector<levin::detail::UnitSpans> units;
  /// Of the recording that is under way, and of `result`.
  levin::detail::AllUnitCalls calls, result_calls;
  std::function<void()> before_end;

  bool running = false;
  std::thread::id thread;
  int64_t step = 0;
  ProfilerAction action = ProfilerAction::kNone;
  std::unique_ptr<levin::detail::KinetoSession> session;
  std::unique_ptr<levin::detail::StackRecorder> recorder;
  levin::detail::EventStacks stacks;
  std::unique_ptr<TraceSpan> step_span;

  std::unique_ptr<torch::autograd::profiler::ProfilerResult> result;
  /// Where the trace of `result` was written: Kineto writes it once only.
  std::filesystem::path written;
  int64_t recordings = 0;
  std::vector<std::filesystem::path> files;

  /// Torch's profiler belongs to a thread: on another one it would be left half open.
  void check_thread() const {
    LEVIN_CHECK(std::this_thread::get_id() == thread,
                "[profiler] a profile is started, stepped and stopped by one thread");
  }

  bool takes_part() const {
    return options.ranks.empty() ||
           std::find(options.ranks.begin(), options.ranks.end(), run.rank) != options.ranks.end();
  }

  ProfilerAction action_at(int64_t number) const {
    if (!takes_part()) return ProfilerAction::kNone;
    return options.schedule ? options.schedule->action(number) : ProfilerAction::kRecord;
  }

  bool records_cuda() const {
    if (run.device && run.device->is_cuda()) return true;
    return !run.device && levin::detail::cuda_accelerator().device_count() > 0;
  }

  void prepare() {
    if (session) return;
    session = std::make_unique<levin::detail::KinetoSession>(
        levin::detail::SessionOptions{.shapes = options.record_shapes || options.with_flops,
                                      .memory = options.profile_memory,
                                      .flops = options.with_flops,
                                      .sync_events = options.sync_events,
                                      .cuda = records_cuda(),
                                      .nvtx = options.nvtx});
  }

  void record() {
    prepare();
    if (session->is_recording()) return;
    if (options.with_stack && !options.nvtx) recorder = std::make_unique<levin::detail::StackRecorder>();
    session->start();
    if (options.with_modules)
      for (auto* model : watched) attach(*model);
  }

  void attach(torch::nn::Module& model) {
    units.emplace_back(model);
    if (units.back().calls()) calls.push_back(units.back().calls());
  }

  void open_step() {
    if (options.schedule && session && session->is_recording())
      step_span = std::make_unique<TraceSpan>([&] { return fmt::format("ProfilerStep#{}", step); });
  }

  void write_metadata() const {
    levin::detail::add_trace_metadata("distributedInfo", distributed_info(run));
    levin::detail::add_trace_metadata("levin", levin_facts(run));
    for (const auto& [key, value] : metadata) levin::detail::add_trace_metadata(key, value);
  }

  /// Ends a recording; false when it was only prepared, or for NVTX.
  bool finish() {
    step_span.reset();
    if (before_end) before_end();
    units.clear();
    const auto ending = std::move(session);
    if (!ending || !ending->is_recording()) return false;
    if (!options.nvtx && run.world_size > 0) write_metadata();
    auto recorded = ending->stop();
    const auto ending_recorder = std::move(recorder);
    if (!recorded) return false;
    result = std::move(recorded);
    stacks = ending_recorder ? ending_recorder->finish(*result) : levin::detail::EventStacks();
    result_calls = std::exchange(calls, {});
    written.clear();
    ++recordings;
    if (records_cuda() && levin::detail::uses_cuda() && !has_kernels(*result))
      log_warning(
          "[profiler] this recording has no kernels of the GPU: CUPTI gave none. Its library must be on the library "
          "path and fit the driver, and no other profiler (nsys, ncu) may be at work");
    return true;
  }
};

Profile::Profile(PyTorchProfilerOptions options) : state_(std::make_unique<State>()) {
  if (options.schedule) options.schedule->check();
  state_->folder = options.dirpath;
  if (options.with_modules && !options.nvtx) state_->wants_graph_units.emplace();
  state_->options = std::move(options);
}

Profile::~Profile() {
  try {
    stop();
  } catch (const std::exception& error) {
    log_warning(levin::detail::concat("[profiler] ", error.what()));
  }
}

const PyTorchProfilerOptions& Profile::options() const {
  return state_->options;
}
void Profile::set_default_folder(const std::filesystem::path& folder) {
  if (state_->folder.empty()) state_->folder = folder;
}
void Profile::describe(ProfiledRun run) {
  LEVIN_CHECK(!state_->running, "[profiler.describe] comes before start()");
  state_->run = std::move(run);
  state_->watched.clear();
  if (state_->run.module) watch(*state_->run.module);
}
void Profile::watch(torch::nn::Module& model) {
  state_->watched.push_back(&model);
  if (state_->options.with_modules && is_recording()) state_->attach(model);
}
void Profile::add_metadata(std::string key, std::string json) {
  state_->metadata.emplace_back(std::move(key), std::move(json));
}
void Profile::set_before_end(std::function<void()> close) {
  state_->before_end = std::move(close);
}

void Profile::start() {
  auto& state = *state_;
  LEVIN_CHECK(!state.running, "[profiler.start] this profile is running already");
  state.step = 0;
  state.action = state.action_at(0);
  if (state.action == ProfilerAction::kWarmup) state.prepare();
  if (state.action >= ProfilerAction::kRecord) state.record();
  state.running = true;
  state.thread = std::this_thread::get_id();
  state.open_step();
}

void Profile::step() {
  auto& state = *state_;
  LEVIN_CHECK(state.running, "[profiler.step] comes after start()");
  state.check_thread();
  state.step_span.reset();
  const auto before = std::exchange(state.action, state.action_at(++state.step));
  if (before == ProfilerAction::kRecordAndSave && state.finish()) trace_ready();
  if (state.action == ProfilerAction::kWarmup) state.prepare();
  if (state.action >= ProfilerAction::kRecord) state.record();
  state.open_step();
}

void Profile::end_step() {
  state_->step_span.reset();
}

void Profile::stop() {
  auto& state = *state_;
  if (!state.running) return;
  state.check_thread();
  state.running = false;
  if (state.finish()) {
    trace_ready();
  } else if (state.recordings == 0 && state.takes_part() && !state.options.nvtx) {
    log_warning(levin::detail::concat("[profiler] nothing was recorded: the run ended after ", state.step,
                                      " steps, before the first recording of the schedule was done"));
  }
}

void Profile::trace_ready() {
  auto& state = *state_;
  if (state.options.on_trace_ready) return state.options.on_trace_ready(*this);
  auto worker = state.options.filename;
  if (!worker.empty() && state.run.world_size > 1) worker += fmt::format("_{}", state.run.rank);
  tensorboard_trace_handler(state.folder, worker, state.options.gzip)(*this);
  if (!state.options.export_to_flame_graph) return;
  auto name = state.files.back().filename().string();
  name = name.substr(0, name.rfind(".pt.trace.json"));
  export_stacks(state.files.back().parent_path() / (name + ".stacks"));
}

void Profile::export_stacks(const std::filesystem::path& path, const std::string& metric) const {
  LEVIN_CHECK(state_->options.with_stack, "[profiler.export_stacks] no stacks were recorded: set with_stack = true");
  const bool of_device = metric == "self_cuda_time_total";
  if (!of_device && metric != "self_cpu_time_total") {
    static const std::vector<std::string> known{"self_cpu_time_total", "self_cuda_time_total"};
    fail_unknown("profiler.export_stacks", "metric", metric, known);
  }
  constexpr int64_t kAllFrames = 1000;
  std::map<std::string, int64_t> times;
  for (const auto& row : key_averages({.by_stack = kAllFrames}))
    if (!row.stack.empty() && !row.on_device) times[row.stack] += of_device ? row.self_device : row.self_cpu;
  std::vector<std::pair<int64_t, std::string>> lines;
  for (const auto& [stack, time] : times) {
    if (time < 1000) continue;  // the format has whole microseconds
    auto text = levin::detail::folded_stack(stack);
    lines.emplace_back(time / 1000, std::move(text));
  }
  std::ranges::stable_sort(lines, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [time, line] : lines) text += fmt::format("{} {}\n", line, time);
  levin::make_folder(path.parent_path());
  levin::write_file(path, text);
}

int64_t Profile::step_number() const {
  return state_->step;
}
bool Profile::is_recording() const {
  return state_->session && state_->session->is_recording();
}
int64_t Profile::recordings() const {
  return state_->recordings;
}

std::vector<KeyAverage> Profile::key_averages(const KeyGrouping& grouping) const {
  LEVIN_CHECK(state_->result, "[profiler] nothing has been recorded yet");
  return levin::key_averages(*state_->result, grouping, state_->result_calls, &state_->stacks);
}

std::string Profile::table() const {
  const auto& options = state_->options;
  return key_table(key_averages({.by_input_shape = options.group_by_input_shape,
                                 .by_unit = options.group_by_unit,
                                 .by_stack = options.group_by_stack_n}),
                   {.sort_by = options.sort_by, .row_limit = options.row_limit});
}

void Profile::export_trace(const std::filesystem::path& path) {
  auto& state = *state_;
  LEVIN_CHECK(state.result, "[profiler.export_trace] nothing has been recorded yet");
  LEVIN_CHECK(state.written.empty(), "[profiler.export_trace] this recording was written to \"", state.written.string(),
              "\" already; copy that file");
  levin::detail::write_trace(*state.result, state.result_calls, state.stacks, path);
  state.written = path;
  state.files.push_back(path);
}

const std::vector<std::filesystem::path>& Profile::files() const {
  return state_->files;
}

std::function<void(Profile&)> tensorboard_trace_handler(std::filesystem::path folder, std::string worker, bool gzip) {
  return [folder = std::move(folder), worker = std::move(worker), gzip](Profile& profile) {
    profile.export_trace(folder / levin::detail::trace_file_name(worker.empty() ? host_and_process() : worker, gzip));
  };
}

}  // namespace levin::profilers
