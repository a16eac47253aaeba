#include "levin/program/commands/read_model.h"

#include "levin/core/log.h"
#include "levin/core/progress_bar.h"
#include "levin/io/weights/weights.h"

namespace levin::cli {
namespace {

/// A bar for the time in which a model is read.
class LoadingBar {
 public:
  explicit LoadingBar(int64_t total) {
    if (total >= kShown) bar_.emplace("Reading", total / kUnit, ProgressOptions{.unit = "MB"});
  }
  /// One thread at a time.
  void read(int64_t bytes) {
    const auto before = read_ / kUnit;
    read_ += bytes;
    if (bar_) bar_->advance(read_ / kUnit - before);
  }

 private:
  /// A smaller model is there at once.
  static constexpr int64_t kUnit = 1'000'000, kShown = 500 * kUnit;
  int64_t read_ = 0;
  std::optional<ProgressBar> bar_;
};

models::LanguageModel open_with_bar(const std::string& command, const std::string& folder,
                                    models::OpenModelOptions asked, const PlacementFlags& flags,
                                    const std::optional<WeightPlacement>& placement) {
  const bool first = !asked.ranks || asked.ranks->rank() == 0;
  LoadingBar bar(first ? static_cast<int64_t>(WeightFile(folder).bytes()) : 0);
  asked.on_read = [&](int64_t bytes) { bar.read(bytes); };
  if (!placement) return models::open_model(folder, asked);
  return flags.open(command, folder, asked, *placement);
}

}  // namespace

models::LanguageModel read_model(const std::string& command, const std::string& folder, models::OpenModelOptions asked,
                                 const PlacementFlags& flags, const std::optional<WeightPlacement>& placement) {
  auto model = open_with_bar(command, folder, std::move(asked), flags, placement);
  for (const auto& note : model.notes) log_info(note);
  return model;
}

}  // namespace levin::cli
