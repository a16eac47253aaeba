#include "levin/trainer/callbacks/tuning/batch_size_finder.h"

#include <algorithm>
#include <new>
#include <string_view>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/trainer/context.h"

namespace levin {

bool detail::is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) || dynamic_cast<const std::bad_alloc*>(&error)) return true;
  const std::string_view text = error.what();
  // Allocators that say so in plain words only: the host's, cuBLAS and cuDNN.
  for (const std::string_view words :
       {"can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"})
    if (text.find(words) != std::string_view::npos) return true;
  return false;
}

BatchSizeFinder::BatchSizeFinder(BatchSizeFinderOptions options) : options_(std::move(options)) {
  constexpr auto kWhat = "[BatchSizeFinder] ";
  static const std::vector<std::string> known{"power", "binsearch"};
  if (std::ranges::find(known, options_.mode) == known.end())
    fail_unknown("BatchSizeFinder", "mode", options_.mode, known);
  LEVIN_CHECK(options_.steps_per_trial >= 1, kWhat, "steps_per_trial=", options_.steps_per_trial,
              " must be at least 1");
  LEVIN_CHECK(options_.init_val >= 1, kWhat, "init_val=", options_.init_val, " must be at least 1");
  LEVIN_CHECK(options_.max_trials >= 1, kWhat, "max_trials=", options_.max_trials, " must be at least 1");
  LEVIN_CHECK(options_.margin >= 0 && options_.margin < 1, kWhat, "margin=", options_.margin, " must be in [0, 1)");
  LEVIN_CHECK(options_.max_val >= options_.init_val, kWhat, "max_val=", options_.max_val,
              " must be at least init_val=", options_.init_val);
}

void BatchSizeFinder::on_fit_start(TrainerContext& run) {
  if (run.plan().fast_dev_run > 0 || !run.ckpt_path().empty()) {
    log_info(run.ckpt_path().empty() ? "BatchSizeFinder: skipped, as fast_dev_run is on"
                                     : "BatchSizeFinder: skipped, as the run resumes from a checkpoint");
    return;
  }
  LEVIN_CHECK(run.fabric().world_size() == 1, "[BatchSizeFinder] it works with one process, not with ",
              run.fabric().world_size(), "; search with devices=1 and give the size to the loader");
  attempts_.clear();
  all_in_one_ = false;
  too_large_ = 0;

  int64_t best = double_until_full(run);
  LEVIN_CHECK(best > 0, "[BatchSizeFinder] even a batch of ", too_large_, " does not fit into memory");
  if (options_.mode == "binsearch") {
    while (too_large_ - best > 1 && std::ssize(attempts_) < options_.max_trials) {
      const int64_t middle = best + (too_large_ - best) / 2;
      if (fits(run, middle))
        best = middle;
      else
        too_large_ = middle;
    }
    best = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(best) * (1 - options_.margin)));
  }
  run.fabric().accelerator().empty_cache(run.fabric().device());
  run.tuning().set_train_batch_size(best);
  optimal_ = best;
  const char* why = too_large_ > 0 ? "" : all_in_one_ ? " (all of the data)" : " (the limit of the search)";
  run.print("batch size search: ", attempts_.size(), " trials; batch size ", best, why);
}

// The largest power that fits; 0 when none does. Goes down first when the very first is too large.
int64_t BatchSizeFinder::double_until_full(TrainerContext& run) {
  int64_t best = 0;
  for (int64_t size = options_.init_val; std::ssize(attempts_) < options_.max_trials;) {
    if (fits(run, size)) {
      best = size;
      if (too_large_ > 0 || all_in_one_ || size >= options_.max_val) break;
      size = std::min(2 * size, options_.max_val);
    } else {
      too_large_ = size;
      if (best > 0 || size == 1) break;
      size /= 2;
    }
  }
  return best;
}

bool BatchSizeFinder::fits(TrainerContext& run, int64_t batch_size) {
  const auto& fabric = run.fabric();
  fabric.accelerator().empty_cache(fabric.device());
  int64_t steps = 0;
  bool fits = true;
  try {
    run.tuning().run_trial(
        {.steps = options_.steps_per_trial, .batch_size = batch_size, .after_step = [&](int64_t, double) {
           ++steps;
           if (run.plan().limit_train.is_all() && run.num_training_batches().value_or(2) <= 1) all_in_one_ = true;
           return true;
         }});
    // Not even one batch of that size can be made.
    if (steps == 0) fits = false;
  } catch (const std::exception& error) {
    if (!detail::is_out_of_memory(error)) throw;
    fits = false;
  }
  attempts_.push_back({batch_size, fits});
  return fits;
}

}  // namespace levin
