#include "levin/trainer/defaults.h"

#include <algorithm>
#include <charconv>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/loggers/logger_names.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/newest_checkpoint.h"
#include "levin/trainer/callbacks/model_summary.h"
#include "levin/trainer/callbacks/progress_bar.h"
#include "levin/trainer/callbacks/timer.h"
#include "levin/trainer/context.h"

namespace levin::detail {
namespace {

namespace fs = std::filesystem;

/// What a cluster's signal has made a run write.
constexpr std::string_view kHpcStart = "hpc_ckpt_";

template <class C>
int64_t count_of(const std::vector<CallbackRef>& callbacks) {
  return std::count_if(callbacks.begin(), callbacks.end(),
                       [](const CallbackRef& c) { return dynamic_cast<const C*>(c.get().get()) != nullptr; });
}

template <class C>
C* first_of(const std::vector<CallbackRef>& callbacks) {
  for (const auto& callback : callbacks)
    if (auto* found = dynamic_cast<C*>(callback.get().get())) return found;
  return nullptr;
}

/// version_N, N-1, ... of the folder that a run's logs are in.
std::vector<fs::path> earlier_versions(const fs::path& log_dir) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(log_dir.parent_path(), error)) {
    const auto name = entry.path().filename().string();
    int64_t number = 0;
    if (name.starts_with("version_") &&
        std::from_chars(name.data() + 8, name.data() + name.size(), number).ec == std::errc())
      found.emplace_back(number, entry.path());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> folders;
  for (auto& [number, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

}  // namespace

void add_default_callbacks(const TrainerOptions& asked, TrainerPlan& plan, std::vector<CallbackRef>& callbacks) {
  LEVIN_CHECK(count_of<TrainerProgressBar>(callbacks) <= 1, "[trainer] more than one progress bar among the callbacks");
  const auto conflict = [](bool off, int64_t given, const char* option, const char* what) {
    LEVIN_CHECK(!off || given == 0, "[trainer] ", option, " is false, but the callbacks have a ", what);
  };
  conflict(asked.enable_checkpointing == false, count_of<ModelCheckpoint>(callbacks), "enable_checkpointing",
           "ModelCheckpoint");
  conflict(asked.enable_progress_bar == false, count_of<TrainerProgressBar>(callbacks), "enable_progress_bar",
           "progress bar");
  LEVIN_CHECK(
      !plan.barebones || count_of<ModelCheckpoint>(callbacks) + count_of<TrainerProgressBar>(callbacks) == 0,
      "[trainer] barebones measures the loop alone: no ModelCheckpoint and no progress bar among the callbacks");

  if (auto* timer = first_of<Timer>(callbacks)) {
    if (plan.max_time) log_info("[trainer] max_time is ignored: a Timer is among the callbacks");
    if (plan.max_epochs_is_default && timer->time_remaining()) {
      plan.max_epochs = -1;
      plan.max_epochs_is_default = false;
    }
  } else if (plan.max_time && plan.fast_dev_run == 0) {
    callbacks.emplace_back(Timer({.duration = plan.max_time}));
  }
  if (plan.progress_bar && count_of<TrainerProgressBar>(callbacks) == 0) callbacks.emplace_back(TrainerProgressBar());
  if (plan.model_summary && count_of<ModelSummary>(callbacks) == 0) callbacks.emplace_back(ModelSummary());
  if (plan.checkpoints && count_of<ModelCheckpoint>(callbacks) == 0) callbacks.emplace_back(ModelCheckpoint());
}

std::vector<std::shared_ptr<Logger>> make_loggers(const TrainerOptions& asked, const TrainerPlan& plan) {
  const auto& choice = asked.logger;
  const bool refused = choice.is_set() && choice.is_off();
  auto names = choice.names();
  if (!choice.is_set() || names == "true" || (names.empty() && !refused && choice.loggers().empty()))
    names = "tensorboard,csv";
  const bool off = plan.barebones || plan.fast_dev_run > 0 || names == "false" || refused;
  std::vector<std::shared_ptr<Logger>> loggers;
  if (!asked.logger.loggers().empty()) {
    loggers = asked.logger.loggers();
    for (const auto& logger : loggers) LEVIN_CHECK(logger, "[trainer] a logger is empty");
    names.clear();
  }
  const LoggerOptions options{.version = next_version(plan.root_dir), .version_of_new_run = true};
  for (size_t at = 0; at < names.size();) {
    const auto comma = std::min(names.find(',', at), names.size());
    const auto name = names.substr(at, comma - at);
    at = comma + 1;
    if (name == "false") continue;
    loggers.push_back(make_logger(name, plan.root_dir, options));
    if (!loggers.back()) fail_unknown("trainer", "logger", name, LoggerChoice::known());
  }
  return off ? std::vector<std::shared_ptr<Logger>>{} : loggers;
}

void tell_totals(const std::vector<std::shared_ptr<Logger>>& loggers, int64_t epochs, int64_t batches) {
  for (const auto& logger : loggers) logger->set_totals(epochs, batches);
}

void print_above_bar(const std::vector<CallbackRef>& callbacks, const std::string& line) {
  if (auto* bar = first_of<TrainerProgressBar>(callbacks)) {
    bar->print_line(line);
    return;
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::optional<fs::path> best_checkpoint(const std::vector<CallbackRef>& callbacks) {
  for (const auto& callback : callbacks)
    if (auto* keeper = dynamic_cast<ModelCheckpoint*>(callback.get().get());
        keeper && !keeper->best_model_path().empty())
      return keeper->best_model_path();
  return {};
}

LastCheckpoint last_checkpoint(const std::vector<CallbackRef>& callbacks, TrainerContext& run, bool resumes) {
  const auto* format = run.fabric().checkpoint_format();
  size_t refused = 0;
  fs::path first_refused;
  std::optional<CheckpointSearch> best;
  std::vector<std::pair<fs::path, CheckpointProgress>> behind;
  const auto look = [&](const fs::path& folder, std::string_view prefix = {}) {
    auto search = search_checkpoints(folder, format, resumes, prefix);
    if (!search.refused.empty() && refused == 0) first_refused = folder;
    refused += search.refused.size();
    if (search.furthest.empty()) return;
    behind.insert(behind.end(), search.behind.begin(), search.behind.end());
    if (best && best->progress >= search.progress) {
      behind.emplace_back(search.furthest, search.progress);
      return;
    }
    if (best) behind.emplace_back(best->furthest, best->progress);
    best = std::move(search);
  };
  const auto own = run.log_dir() / "checkpoints";
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& folder) {
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
  };
  for (const auto& callback : callbacks)
    if (auto* keeper = dynamic_cast<ModelCheckpoint*>(callback.get().get())) add(keeper->dirpath());
  add(own);
  for (const auto& folder : folders) look(folder);
  // A run that starts again has a new folder for its logs: what it resumes from is in that of an earlier one.
  if (!best && !run.loggers().empty())
    for (const auto& version : earlier_versions(run.log_dir()))
      if (!best) look(version / "checkpoints");
  look(run.plan().root_dir, kHpcStart);
  LEVIN_CHECK(best || refused == 0, "[trainer] ckpt_path \"last\": none of the ", refused, " checkpoints in \"",
              first_refused.string(),
              "\" can be loaded, and the lines above say why; without ckpt_path the run starts from the beginning");
  if (!best) return {};
  for (const auto& [path, progress] : behind)
    log_info(concat("[trainer] ckpt_path \"last\": passed over ", path.string(), ", which is at ", progress.to_string(),
                    "; ", best->furthest.filename().string(), " is at ", best->progress.to_string()));
  LastCheckpoint last{.path = best->furthest, .interrupted = best->furthest.parent_path() / kInterruptedName};
  if (!fs::exists(last.interrupted)) last.interrupted.clear();
  return last;
}

fs::path interrupted_path(const std::vector<CallbackRef>& callbacks, TrainerContext& run) {
  const auto* keeper = first_of<ModelCheckpoint>(callbacks);
  return (keeper ? keeper->dirpath() : run.log_dir() / "checkpoints") / kInterruptedName;
}

std::optional<int64_t> newest_hpc_number(const fs::path& folder) {
  std::optional<int64_t> newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto name = entry.path().filename().string();
    constexpr std::string_view kEnd = ".ckpt";
    if (!name.starts_with(kHpcStart) || !name.ends_with(kEnd)) continue;
    const auto* first = name.data() + kHpcStart.size();
    const auto* last = name.data() + name.size() - kEnd.size();
    int64_t number = 0;
    if (std::from_chars(first, last, number).ptr == last && last != first)
      newest = std::max(newest.value_or(0), number);
  }
  return newest;
}

}  // namespace levin::detail
