#include "levin/trainer/advice.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "levin/core/words.h"
#include "levin/precision/matmul.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

// Batches that are watched for waits on the device: after the first ones, which wait for reasons of their own.
constexpr int64_t kWatchFrom = 20, kWatchTo = 25;
// A run that was shorter says nothing about a long one.
constexpr double kShortestRun = 5;

}  // namespace

/// Counts, while it lives, the operations for which the host waited for the device.
class Advice::SyncCount : public c10::WarningHandler {
 public:
  explicit SyncCount(Run& run) : run_(run), guard_(this) { run.fabric->accelerator().set_sync_warnings(true); }
  ~SyncCount() override { run_.fabric->accelerator().set_sync_warnings(false); }
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronizing") != std::string::npos)
      ++count;
    else
      c10::WarningHandler::process(warning);
  }
  int64_t count = 0;

 private:
  Run& run_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

Advice::Advice() = default;
Advice::~Advice() = default;

void Advice::start(Run& run) {
  is_on_ = !run.plan.barebones;
  batches_ = 0;
  waited_ = {};
  syncs_per_batch_ = 0;
  counting_.reset();
  start_ = Clock::now();
}

void Advice::begin_fetch(Run& run) {
  if (++batches_ == kWatchFrom && run.fabric->device().is_cuda()) {
    counting_ = std::make_unique<SyncCount>(run);
  } else if (batches_ == kWatchTo && counting_) {
    syncs_per_batch_ = static_cast<double>(counting_->count) / static_cast<double>(kWatchTo - kWatchFrom);
    counting_.reset();
  }
  fetch_ = Clock::now();
}

std::vector<std::string> Advice::hints(Run& run) {
  std::vector<std::string> hints;
  counting_.reset();
  const double total = std::chrono::duration<double>(Clock::now() - start_).count();
  if (!is_on_ || total < kShortestRun || batches_ < kWatchTo) return hints;
  const double fraction = std::chrono::duration<double>(waited_).count() / total;
  if (fraction > 0.2)
    hints.push_back(
        fmt::format("hint: {:.0f}% of the time went into waiting for the training loader; make its samples "
                    "cheaper, or keep the data in memory",
                    100 * fraction));
  const auto device = run.fabric->device();
  if (!device.is_cuda()) return hints;
  if (syncs_per_batch_ >= 1)
    hints.push_back(
        fmt::format("hint: about {:.0f} operations of each step made the host wait for the GPU (item(), "
                    "nonzero, copies to the host); log tensors in place of numbers",
                    syncs_per_batch_));
  const auto& accelerator = run.fabric->accelerator();
  const auto info = accelerator.info(device);
  const auto peak = accelerator.memory(device).peak_reserved;
  if (info.total_memory > 0 && peak > 0 && static_cast<double>(peak) < 0.4 * static_cast<double>(info.total_memory))
    hints.push_back(
        fmt::format("hint: the run used {} of the GPU's {}; a larger batch size would use it better "
                    "(BatchSizeFinder finds it)",
                    format_bytes(static_cast<double>(peak)), format_bytes(static_cast<double>(info.total_memory))));
  if (info.has_tf32 && run.fabric->plan().precision.name == "32-true" && float32_matmul_precision() == "highest")
    hints.push_back(
        "hint: matrix products ran in float32 without tensor cores; precision \"bf16-mixed\", or "
        "set_float32_matmul_precision(\"high\"), uses them");
  return hints;
}

}  // namespace levin::detail
