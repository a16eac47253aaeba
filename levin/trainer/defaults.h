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

/// Where the checkpoints of these callbacks are: the best one, the newest one (in folders of earlier runs when this run
/// has none yet), and where one goes that Ctrl-C asks for.
std::optional<std::filesystem::path> best_checkpoint(const std::vector<CallbackRef>& callbacks);
std::optional<std::filesystem::path> last_checkpoint(const std::vector<CallbackRef>& callbacks, TrainerContext& run);
std::filesystem::path interrupted_path(const std::vector<CallbackRef>& callbacks, TrainerContext& run);
/// The largest N of the hpc_ckpt_N.ckpt in a folder.
std::optional<int64_t> newest_hpc_number(const std::filesystem::path& folder);

}  // namespace levin::detail
