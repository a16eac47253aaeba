#include "levin/trainer/callbacks/throughput_monitor.h"

#include <chrono>
#include <string>
#include <utility>

#include <ATen/Context.h>

#include "levin/devices/accelerator.h"
#include "levin/devices/peak_flops.h"
#include "levin/trainer/callbacks/monitor.h"
#include "levin/trainer/context.h"

namespace levin {

ThroughputMonitor::ThroughputMonitor(ThroughputMonitorOptions options) : options_(std::move(options)) {
  LEVIN_CHECK(options_.window_size >= 2, "[ThroughputMonitor] window_size=", options_.window_size,
              " must be at least 2");
  LEVIN_CHECK(options_.flops_per_batch.value_or(0) >= 0,
              "[ThroughputMonitor] flops_per_batch=", options_.flops_per_batch.value_or(0), " must be at least 0");
  LEVIN_CHECK(options_.available_flops.value_or(1) > 0,
              "[ThroughputMonitor] available_flops=", options_.available_flops.value_or(0), " must be positive");
  if (!options_.batch_size_fn) options_.batch_size_fn = [](const AnyBatch& batch) { return batch.size(); };
  if (!options_.clock) options_.clock = detail::monotonic_seconds;
}

void ThroughputMonitor::setup(TrainerContext& run, std::string_view) {
  LEVIN_CHECK(!run.loggers().empty() || run.plan().fast_dev_run > 0,
              "[ThroughputMonitor] there is no logger to write to; give the Trainer one, or leave the callback out");
}

double ThroughputMonitor::wait_and_read_clock(TrainerContext& run) const {
  run.fabric().accelerator().synchronize(run.fabric().device());
  return options_.clock();
}

void ThroughputMonitor::find_available_flops(TrainerContext& run) {
  const auto device = run.fabric().device();
  if (options_.available_flops) {
    available_flops_ = *options_.available_flops;
  } else if (!device.is_cpu()) {
    const auto& precision = run.fabric().plan().precision;
    const auto dtype = precision.autocast ? *precision.autocast : precision.params.value_or(at::kFloat);
    const bool tf32 = at::globalContext().float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST;
    available_flops_ = peak_flops(accelerator_of(device).info(device).name, dtype, tf32).value_or(0);
  }
}

void ThroughputMonitor::start(TrainerContext& run, Meter& meter) const {
  meter = {};
  meter.start = wait_and_read_clock(run);
}

void ThroughputMonitor::count(Meter& meter, const AnyBatch& batch) const {
  ++meter.now.batches;
  meter.now.samples += options_.batch_size_fn(batch);
  if (options_.length_fn) meter.now.lengths += options_.length_fn(batch);
}

// The oldest mark is the last one that lies a whole window back.
void ThroughputMonitor::mark(TrainerContext& run, Meter& meter) const {
  meter.now.time = wait_and_read_clock(run) - meter.start - meter.paused;
  meter.marks.push_back(meter.now);
  while (meter.marks.size() > 2 && meter.now.batches - meter.marks[1].batches >= options_.window_size)
    meter.marks.pop_front();
}

void ThroughputMonitor::log(TrainerContext& run, const Meter& meter, const char* stage) {
  if (meter.marks.empty() || !run.fabric().is_global_zero()) return;
  const auto& first = meter.marks.front();
  const auto& last = meter.marks.back();
  const auto prefix = std::string(stage) + "/";
  Metrics metrics{{prefix + "time", last.time},
                  {prefix + "batches", static_cast<double>(last.batches)},
                  {prefix + "samples", static_cast<double>(last.samples)}};
  if (options_.length_fn) metrics.emplace_back(prefix + "lengths", static_cast<double>(last.lengths));
  const double seconds = last.time - first.time;
  if (seconds > 0 && last.batches > first.batches) {
    const int world = run.fabric().world_size();
    const auto rate = [&](const char* name, double per_second) {
      metrics.emplace_back(prefix + "device/" + name, per_second);
      if (world > 1) metrics.emplace_back(prefix + name, per_second * world);
    };
    const double batches_per_sec = static_cast<double>(last.batches - first.batches) / seconds;
    rate("batches_per_sec", batches_per_sec);
    rate("samples_per_sec", static_cast<double>(last.samples - first.samples) / seconds);
    if (options_.length_fn) rate("items_per_sec", static_cast<double>(last.lengths - first.lengths) / seconds);
    // What was counted is a training batch: forward and backward.
    if (flops_per_batch_ > 0 && &meter == &train_) {
      rate("flops_per_sec", flops_per_batch_ * batches_per_sec);
      if (available_flops_ > 0)
        metrics.emplace_back(prefix + "device/mfu", flops_per_batch_ * batches_per_sec / available_flops_);
    }
  }
  run.log_row(metrics);
}

void ThroughputMonitor::on_train_start(TrainerContext& run) {
  find_available_flops(run);
  flops_per_batch_ = options_.flops_per_batch.value_or(0);
  step_ = run.global_step();
  start(run, train_);
}

void ThroughputMonitor::on_train_batch_start(TrainerContext&, const AnyBatch&, int64_t) {
  if (train_.now.batches == 0 && !options_.flops_per_batch && !counter_) counter_ = std::make_shared<FlopCounter>();
}

void ThroughputMonitor::on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch& batch, int64_t) {
  if (counter_) {
    flops_per_batch_ = counter_->flops();
    counter_.reset();
  }
  count(train_, batch);
  // The first batch warms everything up: rates begin after it.
  if (train_.now.batches == 1) mark(run, train_);
  // A row belongs to an optimizer step, whose time is then in it.
  const bool stepped = std::exchange(step_, run.global_step()) != run.global_step();
  if (!stepped || !run.row_is_due()) return;
  if (train_.now.batches > 1) mark(run, train_);
  log(run, train_, "train");
}

void ThroughputMonitor::on_validation_start(TrainerContext& run) {
  if (run.sanity_checking()) return;
  start(run, eval_);
  eval_.marks.push_back(eval_.now);
}

void ThroughputMonitor::on_validation_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch& batch,
                                                const StepInfo&) {
  if (!run.sanity_checking()) count(eval_, batch);
}

void ThroughputMonitor::on_validation_end(TrainerContext& run) {
  if (run.sanity_checking()) return;
  mark(run, eval_);
  log(run, eval_, "validate");
  train_.paused += eval_.now.time;
}

void ThroughputMonitor::on_test_start(TrainerContext& run) {
  start(run, eval_);
  eval_.marks.push_back(eval_.now);
}
void ThroughputMonitor::on_test_batch_end(TrainerContext&, const StepOutput&, const AnyBatch& batch, const StepInfo&) {
  count(eval_, batch);
}
void ThroughputMonitor::on_test_end(TrainerContext& run) {
  mark(run, eval_);
  log(run, eval_, "test");
}
void ThroughputMonitor::on_predict_start(TrainerContext& run) {
  on_test_start(run);
}
void ThroughputMonitor::on_predict_batch_end(TrainerContext&, const StepOutput&, const AnyBatch& batch,
                                             const StepInfo&) {
  count(eval_, batch);
}
void ThroughputMonitor::on_predict_end(TrainerContext& run) {
  mark(run, eval_);
  log(run, eval_, "predict");
}

}  // namespace levin
