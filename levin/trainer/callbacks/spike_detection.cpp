#include "levin/trainer/callbacks/spike_detection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/trainer/context.h"

namespace levin {

SpikeDetection::SpikeDetection(SpikeDetectionOptions options) : options_(std::move(options)) {
  constexpr auto kWhat = "[SpikeDetection] ";
  static const std::vector<std::string> known{"min", "max"};
  if (std::ranges::find(known, options_.mode) == known.end())
    fail_unknown("SpikeDetection", "mode", options_.mode, known);
  LEVIN_CHECK(options_.window >= 1, kWhat, "window=", options_.window, " must be at least 1");
  LEVIN_CHECK(options_.warmup >= 0, kWhat, "warmup=", options_.warmup, " must be at least 0");
}

void SpikeDetection::on_fit_start(TrainerContext&) {
  pending_.clear();
  unchecked_ = 0;
  failed_ = false;
}

void SpikeDetection::on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch&,
                                        int64_t batch_idx) {
  constexpr int64_t kSeldom = 50;
  const bool finite = run.step_is_finite();
  if (!finite) pending_.emplace_back(batch_idx, at::scalar_tensor(std::numeric_limits<double>::quiet_NaN()));
  if (output.loss.defined() && finite) pending_.emplace_back(batch_idx, output.loss.detach());
  // Without a logger no row is ever due.
  const int64_t every = run.plan().log_every_n_steps > 0 ? run.plan().log_every_n_steps : kSeldom;
  if (run.fabric().device().is_cpu() || run.row_is_due() || ++unchecked_ >= every) check(run);
}

void SpikeDetection::on_train_epoch_end(TrainerContext& run) {
  check(run);
}

void SpikeDetection::on_save_checkpoint(TrainerContext& run, StateDict&) {
  if (run.fitting() && !failed_) check(run);
}

// A rank that fails alone must not wait for the others here.
void SpikeDetection::on_exception(TrainerContext&, const std::exception&) {
  failed_ = true;
}

bool SpikeDetection::is_spike(int64_t batch_idx, double loss) const {
  if (batch_idx < options_.warmup) return false;
  if (!std::isfinite(loss)) return options_.finite_only;
  if (options_.mode == "min" ? loss <= last_ : loss >= last_) return false;
  if (recent_.empty()) return false;
  const double mean = std::accumulate(recent_.begin(), recent_.end(), 0.0) / static_cast<double>(recent_.size());
  const double away = std::abs(loss - mean);
  return (!options_.atol || away >= std::abs(*options_.atol)) &&
         (!options_.rtol || away >= std::abs(*options_.rtol * mean));
}

// Every rank follows its own losses; the first spike of any rank ends all.
void SpikeDetection::check(TrainerContext& run) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t position = kNone;
  if (!pending_.empty()) {
    std::vector<Tensor> losses;
    for (const auto& [batch, loss] : pending_) losses.push_back(loss.to(at::kDouble).reshape({}));
    const auto values = at::stack(losses).cpu();
    for (size_t i = 0; i < pending_.size() && position == kNone; ++i) {
      const double loss = values.const_data_ptr<double>()[i];
      if (is_spike(pending_[i].first, loss)) {
        position = pending_[i].first;
      } else if (std::isfinite(loss)) {
        last_ = loss;
        recent_.push_back(loss);
        if (std::ssize(recent_) > options_.window) recent_.pop_front();
      }
    }
  }
  pending_.clear();
  unchecked_ = 0;
  if (run.fabric().world_size() > 1)
    position = run.fabric()
                   .all_reduce(at::scalar_tensor(position, at::kLong).to(run.fabric().device()), "min")
                   .item<int64_t>();
  if (position != kNone) fail(run, position);
}

void SpikeDetection::fail(TrainerContext& run, int64_t batch_idx) {
  // The batch itself may be bad; or the one before, which changed the weights.
  if (batch_idx > 0) bad_batches_.push_back(batch_idx - 1);
  bad_batches_.push_back(batch_idx);
  auto path = options_.exclude_batches_path.empty() ? run.plan().root_dir : options_.exclude_batches_path;
  if (path.extension() != ".json") path /= "skip_batches.json";
  if (run.fabric().is_global_zero()) {
    if (path.has_parent_path()) check_writable(path.parent_path());
    write_file(path, fmt::format("[{}]\n", fmt::join(bad_batches_, ", ")));
  }
  throw TrainingSpikeError(
      batch_idx, fmt::format("[SpikeDetection] the loss jumped in batch {} of epoch {}; the batches to leave out "
                             "are in \"{}\"",
                             batch_idx, run.current_epoch(), path.string()));
}

StateDict SpikeDetection::state_dict() const {
  return {{"last_val", last_},
          {"recent", StateList(recent_.begin(), recent_.end())},
          {"bad_batches", StateList(bad_batches_.begin(), bad_batches_.end())}};
}

void SpikeDetection::load_state_dict(const StateDict& state) {
  last_ = state.at("last_val").to_double();
  recent_.clear();
  for (const auto& value : state.at("recent").to_list()) recent_.push_back(value.to_double());
  bad_batches_.clear();
  for (const auto& value : state.at("bad_batches").to_list()) bad_batches_.push_back(value.to_int());
  pending_.clear();
}

}  // namespace levin
