#include "levin/profilers/memory.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/trace_span.h"
#include "levin/core/words.h"
#include "levin/profilers/profile.h"

namespace levin {
namespace {

/// A search for the largest batch runs out of memory on purpose, again and again.
constexpr int kMostDumps = 3;

std::string size_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

}  // namespace

std::string memory_table(const std::vector<MemoryHolder>& holders, int64_t row_limit) {
  int64_t all = 0;
  for (const auto& holder : holders) all += holder.bytes;
  auto text = fmt::format("{:>12}  {:>7}  {:>7}  {}\n", "memory", "%", "blocks", "held by");
  int64_t row = 0, rest = 0;
  for (const auto& holder : holders) {
    if (row_limit >= 0 && row++ >= row_limit) {
      rest += holder.bytes;
      continue;
    }
    text += fmt::format("{:>12}  {:>6.2f}%  {:>7}  {}\n", size_text(holder.bytes),
                        100.0 * static_cast<double>(holder.bytes) / static_cast<double>(std::max<int64_t>(all, 1)),
                        holder.blocks, holder.name);
  }
  if (rest > 0) text += fmt::format("{:>12}  {:>7}  {:>7}  others\n", size_text(rest), "", "");
  return text;
}

MemoryProfiler::MemoryProfiler(MemoryProfilerOptions options)
    : Profiler({.dirpath = options.dirpath, .filename = options.filename}), options_(std::move(options)) {
  LEVIN_CHECK(options_.max_entries > 0, "[profiler] max_entries ", options_.max_entries, " is not allowed (1 or more)");
}

MemoryProfiler::~MemoryProfiler() = default;

ActionId MemoryProfiler::register_action(std::string name) {
  const auto [found, is_new] = index_.try_emplace(std::move(name), static_cast<int32_t>(actions_.size()));
  if (is_new) actions_.push_back(found->first);
  return ActionId{found->second};
}

void MemoryProfiler::start(ActionId action) {
  const auto index = static_cast<size_t>(action);
  LEVIN_CHECK(index < actions_.size(), "[profiler.start] action ", static_cast<int32_t>(action),
              " is not known; register_action() gives ids");
  const auto& name = actions_[index];
  // What encloses whole steps says nothing of who holds memory.
  if (!history_ || name.starts_with("run_training_") || name.ends_with(".optimizer_step")) return;
  open_.push_back({action, std::make_unique<TraceSpan>(name)});
}

void MemoryProfiler::stop(ActionId action) {
  const auto found =
      std::find_if(open_.rbegin(), open_.rend(), [&](const Open& open) { return open.action == action; });
  if (found != open_.rend()) open_.erase(std::next(found).base());
}

void MemoryProfiler::begin_loop(const ProfiledRun& run) {
  rank_of_run_ = run.rank;
  history_ = std::make_unique<MemoryHistory>(
      run.device.value_or(at::kCPU),
      MemoryHistoryOptions{.max_entries = options_.max_entries, .with_stack = options_.with_stack});
  history_->set_on_out_of_memory([this](const std::string& line) { out_of_memory(line); });
  if (run.module) history_->watch(*run.module);
}

void MemoryProfiler::step() {
  if (history_) history_->end_step();
}

void MemoryProfiler::end_loop() {
  if (!history_) return;
  while (!open_.empty()) open_.pop_back();
  peak_ = history_->peak();
  at_peak_ = history_->holders_at_peak();
  write("snapshot");
  history_.reset();
}

void MemoryProfiler::write(const char* what) {
  const auto name = fmt::format("{}-{}-{}{}.pickle", options_.filename.empty() ? "memory" : options_.filename, what,
                                rank_of_run_, written_.empty() ? "" : fmt::format("-{}", written_.size()));
  const auto path = dirpath() / name;
  history_->write_snapshot(path);
  written_.push_back(path);
  set_files(written_);
}

void MemoryProfiler::out_of_memory(const std::string& line) {
  if (dumps_++ >= kMostDumps) return;
  const auto holders = history_->holders();
  write("out_of_memory");
  log_warning(detail::concat("[profiler] out of memory: ", line, "; the history is in \"", written_.back().string(),
                             "\". Who holds memory:\n", memory_table(holders, options_.row_limit)));
}

std::string MemoryProfiler::summary() const {
  if (at_peak_.empty()) return {};
  auto text = fmt::format("{}Memory Report\n\npeak {} (what was allocated during the loop, and parameters)\n", title(),
                          size_text(peak_));
  text += memory_table(at_peak_, options_.row_limit);
  for (const auto& file : files()) text += "Snapshot: " + file.string() + "\n";
  return text;
}

}  // namespace levin
