// The way of metrics from log() to callbacks and loggers.
#include "levin/trainer/run/logging.h"

#include <algorithm>
#include <concepts>

#include "levin/checkpoint/reader.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

void publish_now(Run& run, bool epoch) {
  if (run.state.stage != Stage::kTrain) return;  // an evaluation publishes at its end
  auto& metrics = run.metrics;
  metrics.train.publish_step(metrics.published);
  if (epoch) metrics.train.publish_epoch(metrics.published, *run.fabric);
}

}  // namespace

void reopen_logs(Run& run) {
  run.logs.resumed = false;
  if (!run.checkpoints.ckpt_path.empty() && run.fabric->is_global_zero()) {
    run.logs.folder.clear();
    StateList positions;
    try {
      const CheckpointReader reader(run.checkpoints.ckpt_path);
      if (reader.contains("loggers")) positions = reader.read("loggers").to_list();
    } catch (const std::exception&) {  // the load says what is wrong with it
    }
    std::filesystem::path folder;
    bool there = true;
    for (size_t i = 0; i < std::min(positions.size(), run.logs.loggers.size()); ++i) {
      const auto& position = positions[i].to_dict();
      const auto* named = position.find("folder");
      if (!named) continue;
      if (folder.empty()) folder = named->to_string();
      there = there && run.logs.loggers[i]->has_log(position);
    }
    run.logs.resumed = there;
    if (!folder.empty() && there)
      for (const auto& logger : run.logs.loggers) logger->reopen(folder);
    if (!there)
      log_warning(concat("[trainer] the checkpoint's log is not in \"", folder.string(),
                         "\" any more: this run starts a new one in \"", log_dir(run).string(), "\""));
  }
  run.logs.folder = run.fabric->broadcast(log_dir(run).string());
}

std::filesystem::path log_dir(const Run& run) {
  if (!run.logs.folder.empty()) return run.logs.folder;
  for (const auto& logger : run.logs.loggers)
    if (auto folder = logger->log_dir(); !folder.empty()) return folder;
  return run.plan.root_dir;
}

void log_hparams(Run& run) {
  if (!run.plan.autolog_hparams || !run.fabric->is_global_zero()) return;
  auto hparams = run.model.module->hparams;
  if (run.model.data)
    for (const auto& [name, value] : run.model.data->hparams) hparams[name] = value;
  if (!hparams.empty())
    for (const auto& logger : run.logs.loggers) logger->log_hyperparams(hparams);
}

StateList log_positions(const Run& run) {
  StateList positions;
  if (run.fabric->is_global_zero())
    for (const auto& logger : run.logs.loggers) positions.emplace_back(logger->position());
  return positions;
}

void log_value(Run& run, std::string_view name, const LoggedValue& value, const LogOptions& options) {
  if (run.plan.barebones) {
    warn_once("[trainer] barebones: what is logged goes nowhere");
    return;
  }
  if (run.compiled && run.compiled->record(name, value, options)) return;
  if (run.parts && run.parts->record(name, value, options)) return;
  const auto& place = run.state.place;
  run.metrics.of(run.state.stage)
      .log({place.site, &place.batch, place.dataloader_idx, run.fabric.get()}, name, value, options);
}

const MetricLog::Published& publish(Run& run) {
  publish_now(run, run.state.in_epoch_end);
  return run.metrics.published;
}

std::optional<double> metric(Run& run, std::string_view name) {
  const auto& values = publish(run).callback;
  const auto found = values.find(std::string(name));
  if (found == values.end()) return {};
  return metric_number(found->second);
}

int64_t row_step(const Run& run) {
  const auto& state = run.state;
  // What follows a batch, up to the end of its epoch, stands at the step of that batch.
  const bool follows_step =
      state.in_epoch_end || (!state.inside_batch && state.batch_stepped && run.state.progress.batch > 0);
  return follows_step ? std::max<int64_t>(0, state.progress.stepped_batches - 1) : state.progress.stepped_batches;
}

bool row_is_due(const Run& run) {
  if (run.logs.loggers.empty()) return false;
  return (run.plan.log_every_n_steps > 0 &&
          (run.state.progress.stepped_batches + 1) % run.plan.log_every_n_steps == 0) ||
         run.state.should_stop;
}

void send_row(Run& run, const MetricMap& metrics, int64_t step, bool with_epoch) {
  if (metrics.empty() || run.logs.loggers.empty() || !run.fabric->is_global_zero()) return;
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
  if (with_epoch && !has_epoch) row.emplace_back("epoch", run.state.progress.epoch);
  for (const auto& logger : run.logs.loggers) logger->log_metrics(row, step);
}

void log_row(Run& run, const Metrics& metrics) {
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
  for (const auto& [name, value] : map) run.metrics.published.callback[name] = value;
  send_row(run, map, row_step(run), /*with_epoch=*/false);
}

void log_step_row(Run& run) {
  if (!row_is_due(run) || !run.metrics.train.has_step_values()) return;
  MetricLog::Published values;
  run.metrics.train.publish_step(values);
  for (auto& [name, value] : values.log) run.metrics.published.log[name] = value;
  send_row(run, values.log, row_step(run));
}

void log_epoch_row(Run& run) {
  if (run.plan.barebones) return;
  publish_now(run, /*epoch=*/true);
  MetricLog::Published values;
  run.metrics.train.publish_epoch(values, *run.fabric);
  send_row(run, values.log, row_step(run));
}

}  // namespace levin::detail
