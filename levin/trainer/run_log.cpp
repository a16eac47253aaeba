// What callbacks may ask of a run, and the way of metrics to the loggers.
#include <algorithm>
#include <cmath>

#include "levin/checkpoint/reader.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/trainer/defaults.h"
#include "levin/trainer/run.h"

namespace levin::detail {

void Run::collect_loggers() {
  loggers_ = make_loggers(asked_, plan_);
}

void Run::reopen_logs() {
  has_old_logs_ = false;
  if (!ckpt_path_.empty() && fabric_->is_global_zero()) {
    log_dir_.clear();
    StateList positions;
    try {
      const CheckpointReader reader(ckpt_path_);
      if (reader.contains("loggers")) positions = reader.read("loggers").to_list();
    } catch (const std::exception&) {  // the load says what is wrong with it
    }
    std::filesystem::path folder;
    bool there = true;
    for (size_t i = 0; i < std::min(positions.size(), loggers_.size()); ++i) {
      const auto& position = positions[i].to_dict();
      const auto* named = position.find("folder");
      if (!named) continue;
      if (folder.empty()) folder = named->to_string();
      there = there && loggers_[i]->has_log(position);
    }
    has_old_logs_ = there;
    if (!folder.empty() && there)
      for (const auto& logger : loggers_) logger->reopen(folder);
    if (!there)
      log_warning(concat("[trainer] the checkpoint's log is not in \"", folder.string(),
                         "\" any more: this run starts a new one in \"", log_dir().string(), "\""));
  }
  log_dir_ = fabric_->broadcast(log_dir().string());
}

std::filesystem::path Run::log_dir() const {
  if (!log_dir_.empty()) return log_dir_;
  for (const auto& logger : loggers_)
    if (auto folder = logger->log_dir(); !folder.empty()) return folder;
  return plan_.root_dir;
}

std::optional<int64_t> Run::num_training_batches() const {
  return train_data_.batches.empty() ? std::nullopt : train_data_.batches.front();
}

std::vector<std::optional<int64_t>> Run::num_eval_batches() const {
  const auto& data = stage_ == Stage::kTest ? test_data_ : stage_ == Stage::kPredict ? predict_data_ : val_data_;
  return data.batches;
}

std::optional<int64_t> Run::estimated_stepping_batches() const {
  // A scheduler wants to know in configure_optimizers, before the loader is needed for anything else.
  if (fitting_ && !train_data_.ready && !plan_.limit_train.is_zero()) const_cast<Run*>(this)->load_train_data();
  const auto batches = num_training_batches();
  std::optional<int64_t> steps;
  if (batches && plan_.max_epochs >= 0)
    steps = (*batches + accumulate_ - 1) / accumulate_ * std::max<int64_t>(plan_.max_epochs, 1);
  if (plan_.max_steps >= 0) steps = steps ? std::min(*steps, plan_.max_steps) : plan_.max_steps;
  return steps;
}

bool Run::can_stop_early() const {
  // Inside the closing of an epoch that epoch counts.
  const int64_t epochs = progress_.epoch + (progress_.closing_epoch ? 1 : 0);
  return epochs >= plan_.min_epochs && progress_.global_step >= plan_.min_steps;
}

void Run::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  log_value(name, value, options);
}
void Run::log(std::string_view name, double value, const LogOptions& options) {
  log_value(name, value, options);
}

void Run::log_value(std::string_view name, const LoggedValue& value, const LogOptions& options) {
  if (plan_.barebones) {
    warn_once("[trainer] barebones: what is logged goes nowhere");
    return;
  }
  metric_log(stage_).log({site_, &batch_, dataloader_idx_, fabric_.get()}, name, value, options);
}

void Run::publish(bool epoch) {
  if (stage_ != Stage::kTrain) return;  // an evaluation publishes at its end
  train_log_.publish_step(published_);
  if (epoch) train_log_.publish_epoch(published_, *fabric_);
}

std::optional<double> Run::metric(std::string_view name) {
  publish(in_epoch_end_);
  const auto found = published_.callback.find(std::string(name));
  if (found == published_.callback.end()) return {};
  return metric_number(found->second);
}
MetricMap Run::callback_metrics() {
  publish(in_epoch_end_);
  return published_.callback;
}
MetricMap Run::logged_metrics() {
  publish(in_epoch_end_);
  return published_.log;
}
MetricMap Run::progress_bar_metrics() {
  publish(in_epoch_end_);
  return published_.bar;
}

int64_t Run::row_step() const {
  // What follows a batch, up to the end of its epoch, stands at the step of that batch.
  const bool follows_step = in_epoch_end_ || (!inside_batch_ && batch_stepped_ && progress_.batch > 0);
  return follows_step ? std::max<int64_t>(0, progress_.stepped_batches - 1) : progress_.stepped_batches;
}

bool Run::row_is_due() const {
  if (loggers_.empty()) return false;
  return (plan_.log_every_n_steps > 0 && (progress_.stepped_batches + 1) % plan_.log_every_n_steps == 0) ||
         should_stop_;
}

void Run::send_row(const MetricMap& metrics, int64_t step, bool with_epoch) {
  if (metrics.empty() || loggers_.empty() || !fabric_->is_global_zero()) return;
  Metrics row;
  bool has_epoch = false;
  for (const auto& [name, value] : metrics) {
    if (name == "step") {
      step = static_cast<int64_t>(metric_number(value));
      continue;
    }
    has_epoch |= name == "epoch";
    if (const auto* number = std::get_if<double>(&value))
      row.emplace_back(name, *number);
    else
      row.emplace_back(name, std::get<Tensor>(value));
  }
  if (with_epoch && !has_epoch) row.emplace_back("epoch", progress_.epoch);
  for (const auto& logger : loggers_) logger->log_metrics(row, step);
}

void Run::log_row(const Metrics& metrics) {
  MetricMap map;
  for (const auto& [name, value] : metrics)
    std::visit(
        [&, &key = name]<class V>(const V& v) {
          if constexpr (std::same_as<V, int64_t>)
            map[key] = static_cast<double>(v);
          else
            map[key] = v;
        },
        value);
  for (const auto& [name, value] : map) published_.callback[name] = value;
  send_row(map, row_step(), /*with_epoch=*/false);
}

void Run::log_step_row() {
  if (!row_is_due() || !train_log_.has_step_values()) return;
  MetricLog::Published values;
  train_log_.publish_step(values);
  for (auto& [name, value] : values.log) published_.log[name] = value;
  send_row(values.log, row_step());
}

void Run::log_epoch_row() {
  if (plan_.barebones) return;
  publish(/*epoch=*/true);
  MetricLog::Published values;
  train_log_.publish_epoch(values, *fabric_);
  send_row(values.log, row_step());
}

void Run::stop(std::string_view reason) {
  if (should_stop_) return;
  should_stop_ = true;
  if (!can_stop_early() && !plan_.barebones)
    log_info(concat("[trainer] asked to stop (", reason, "), which waits for min_epochs ", plan_.min_epochs,
                    " and min_steps ", plan_.min_steps));
}
void Run::request_stop(std::string_view reason) {
  if (fabric_->world_size() == 1)
    stop(reason);
  else
    stop_requested_ = true;
}

void Run::set_accumulate_grad_batches(int64_t k) {
  LEVIN_CHECK(k >= 1, "[trainer] accumulate_grad_batches ", k, " is not allowed (1 or more)");
  accumulate_ = k;
}

void Run::check_stop_requests() {
  if (window_open_) return;
  if (fabric_->world_size() == 1 || !fitting_) {
    if (const int signal = SignalFlags::pending(); signal != 0 && signals_) [[unlikely]]
      end_by_signal(signal);
    return;
  }
  auto& vote = stage_ == Stage::kTrain ? train_vote_ : eval_vote_;
  if (--vote.batches_left > 0) return;
  // A vote costs a collective, so it is taken about twice a second. How many batches that is, the slowest rank says; it
  // at most doubles each time, since first batches say little.
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(vote.last, now)).count();
  const double wanted = 0.5 * static_cast<double>(vote.period) / std::max(seconds, 1e-9);
  const auto period = std::clamp<int64_t>(static_cast<int64_t>(std::min(wanted, 1e6)), 1, 2 * vote.period);
  auto votes =
      at::tensor({static_cast<int64_t>(stop_requested_), static_cast<int64_t>(SignalFlags::pending()), -period},
                 at::kLong)
          .to(fabric_->device());
  votes = fabric_->all_reduce(votes, "max").cpu();
  const auto* results = votes.const_data_ptr<int64_t>();
  if (results[1] != 0) end_by_signal(static_cast<int>(results[1]));
  if (results[0] != 0) stop("asked for by a rank");
  vote.period = vote.batches_left = -results[2];
}

void Run::print_line(const std::string& line) {
  if (!fabric_->is_global_zero()) return;
  print_above_bar(callbacks_, line);
}

std::optional<int64_t> Run::train_batch_size() const {
  return train_data_.loaders.empty() ? std::nullopt : train_data_.loaders.front()->batch_size();
}

void Run::set_train_batch_size(int64_t batch_size) {
  load_train_data();
  const auto source = asked_train_.empty() ? train_data_.loaders.front() : asked_train_.front();
  const auto changed = source->with_batch_size(batch_size);
  LEVIN_CHECK(changed, "[trainer] the batch size of this loader cannot be changed: it is not a levin::DataLoader");
  asked_train_ = {changed};
  train_data_.ready = false;
  load_train_data();
}

}  // namespace levin::detail
