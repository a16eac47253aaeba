#include "levin/trainer/defaults.h"

#include <charconv>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/loggers/csv.h"
#include "levin/loggers/json_lines.h"
#include "levin/trainer/context.h"

namespace levin::detail {

void add_default_callbacks(const TrainerOptions&, TrainerPlan&, std::vector<CallbackRef>&) {}

std::vector<std::shared_ptr<Logger>> make_loggers(const TrainerOptions& asked, const TrainerPlan& plan) {
  if (plan.barebones || plan.fast_dev_run > 0) return {};
  if (!asked.logger.loggers().empty()) return asked.logger.loggers();
  if (asked.logger.is_set() && asked.logger.is_off()) return {};
  return {std::make_shared<CsvLogger>(plan.root_dir)};
}

std::optional<std::filesystem::path> best_checkpoint(const std::vector<CallbackRef>&) {
  return {};
}
std::optional<std::filesystem::path> last_checkpoint(const std::vector<CallbackRef>&, TrainerContext&) {
  return {};
}
std::filesystem::path interrupted_path(const std::vector<CallbackRef>&, TrainerContext& run) {
  return run.log_dir() / "checkpoints" / "interrupted.ckpt";
}
std::optional<int64_t> newest_hpc_number(const std::filesystem::path& folder) {
  std::optional<int64_t> newest;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto name = entry.path().filename().string();
    int64_t number = 0;
    constexpr std::string_view kStart = "hpc_ckpt_", kEnd = ".ckpt";
    if (!name.starts_with(kStart) || !name.ends_with(kEnd)) continue;
    const auto* first = name.data() + kStart.size();
    const auto* last = name.data() + name.size() - kEnd.size();
    if (std::from_chars(first, last, number).ptr == last && last != first) newest = std::max(newest.value_or(0), number);
  }
  return newest;
}

}  // namespace levin::detail
