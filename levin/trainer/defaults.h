#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "levin/trainer/options.h"

namespace levin::detail {

/// Adds what the plan wants and the user has not given: a checkpoint, a progress bar, a summary, a timer. Refuses what
/// contradicts the options.
void add_default_callbacks(const TrainerOptions& asked, TrainerPlan& plan, std::vector<CallbackRef>& callbacks);

/// The loggers that were chosen.
std::vector<std::shared_ptr<Logger>> make_loggers(const TrainerOptions& asked, const TrainerPlan& plan);

/// Tells the loggers that count how long the run will be; 0: not known.
void tell_totals(const std::vector<std::shared_ptr<Logger>>& loggers, int64_t epochs, int64_t batches);
void print_above_bar(const std::vector<CallbackRef>& callbacks, const std::string& line);

/// Where the checkpoints of these callbacks are: the best one, the furthest one (in folders of earlier runs when this
/// run has none yet), and where one goes that Ctrl-C asks for.
std::optional<std::filesystem::path> best_checkpoint(const std::vector<CallbackRef>& callbacks);
struct LastCheckpoint {
  /// Empty: there is none. It is an Error when there are some and none can be loaded.
  std::filesystem::path path;
  /// What Ctrl-C left in its folder, of the run that it is of, and which is done with when the run has gone further.
  std::filesystem::path interrupted;
};
LastCheckpoint last_checkpoint(const std::vector<CallbackRef>& callbacks, TrainerContext& run, bool resumes);
inline constexpr const char* kInterruptedName = "interrupted.ckpt";
std::filesystem::path interrupted_path(const std::vector<CallbackRef>& callbacks, TrainerContext& run);
/// The largest N of the hpc_ckpt_N.ckpt in a folder.
std::optional<int64_t> newest_hpc_number(const std::filesystem::path& folder);

}  // namespace levin::detail
