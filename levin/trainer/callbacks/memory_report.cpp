#include "levin/trainer/callbacks/memory_report.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/memory_counter.h"
#include "levin/memory/step.h"
#include "levin/profilers/table.h"
#include "levin/trainer/callbacks/tuning/memory_question.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin {
namespace {

/// Bytes of storages, each once, on the device of the run and in host memory.
class StorageBytes {
 public:
  explicit StorageBytes(c10::Device on) : device_(on) {}

  void add(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    if (!seen_.insert(storage).second) return;
    const auto bytes = static_cast<int64_t>(storage->nbytes());
    if (tensor.device().type() == device_.type())
      device += bytes;
    else if (tensor.is_cpu())
      host += bytes;
  }
  void add(const StateValue& value) {
    if (value.is_tensor()) add(value.to_tensor());
    if (value.is_dict())
      for (const auto& [name, each] : value.to_dict()) add(each);
    if (value.is_list())
      for (const auto& each : value.to_list()) add(each);
  }

  int64_t device = 0, host = 0;

 private:
  c10::Device device_;
  std::set<const void*> seen_;
};

std::vector<Tensor> state_tensors(const torch::nn::Module& module) {
  auto tensors = module.parameters();
  for (const auto& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

/// The most that came and went between two points.
int64_t passing(const MemoryTimeline& timeline) {
  int64_t most = 0;
  for (size_t i = 1; i < timeline.points.size(); ++i) {
    const auto &before = timeline.points[i - 1], &point = timeline.points[i];
    most = std::max(most, point.peak - std::max(before.bytes, point.bytes));
  }
  return most;
}

/// What is there besides the state when a step begins, and what passes in it: as it can be seen from outside.
int64_t seen_temporary(const MemoryTimeline& timeline, int64_t state) {
  return timeline.points.empty() ? 0 : std::max<int64_t>(timeline.points.front().bytes - state, 0) + passing(timeline);
}

int64_t bytes_of_batch(TrainerContext& run, const AnyBatch& batch) {
  StorageBytes bytes(run.fabric().device());
  if (dynamic_cast<TrainModule*>(&run.module()))
    for (const auto& [name, tensor] : batch.get<Batch>()) bytes.add(tensor);
  return bytes.device;
}

}  // namespace

struct MemoryReport::Measuring {
  c10::Device device = at::kCPU;
  std::unique_ptr<MemoryCounter> own;
  MemoryCounter* counter = nullptr;
  /// What the counter of the callback's own does not know of.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> older;
  /// What was in use besides the model.
  int64_t base = 0;
  /// global_step() before the step.
  int64_t at = 0;
  int64_t batch_bytes = 0;
  std::unique_ptr<MemoryRecorder> recorder;
  bool in_forward = false;
  MemoryEstimate found;
  /// Of the pass under way.
  int64_t forward_bytes = 0, forward_gradients = 0;
  int64_t gradients_at_start = 0;

  int64_t gradients_of(TrainerContext& run, int64_t* on_host = nullptr) const {
    StorageBytes bytes(device);
    for (const auto& parameter : run.module().parameters()) bytes.add(parameter.grad());
    if (on_host) *on_host = bytes.host;
    return bytes.device;
  }
  int64_t now() const { return recorder->timeline().points.back().bytes; }
};

MemoryReport::MemoryReport(MemoryReportOptions options) : options_(std::move(options)), predicted_(options_.predicted) {
  LEVIN_CHECK(options_.step >= 1, "[MemoryReport] step=", options_.step, " must be at least 1");
}

void MemoryReport::setup(TrainerContext& run, std::string_view stage) {
  if (stage != "fit" || !run.fabric().is_global_zero()) return;
  const auto device = run.fabric().device();
  LEVIN_CHECK(device.is_cpu() || !options_.counter, "[MemoryReport] a MemoryCounter counts memory of the CPU, not of ",
              device.str());
  measured_.reset();
  predicted_ = options_.predicted;
  measuring_ = std::make_shared<Measuring>();
  measuring_->device = device;
  measuring_->counter = options_.counter;
  StorageBytes model(device);
  for (const auto& tensor : state_tensors(run.module())) {
    model.add(tensor);
    model.add(tensor.grad());
  }
  if (!device.is_cpu()) {
    measuring_->base = accelerator_of(device).memory(device).allocated - model.device;
  } else if (options_.counter) {
    measuring_->base = options_.counter->allocated() - model.device;
  } else {
    for (const auto& tensor : state_tensors(run.module()))
      for (const auto& each : {tensor, tensor.grad()})
        if (each.defined() && each.has_storage()) measuring_->older.push_back(each.storage().getWeakStorageImpl());
    measuring_->own = std::make_unique<MemoryCounter>();
    measuring_->counter = measuring_->own.get();
  }
}

void MemoryReport::teardown(TrainerContext&, std::string_view) {
  measuring_.reset();
}

void MemoryReport::on_train_start(TrainerContext& run) {
  if (!measuring_) return;
  std::set<const void*> seen;
  for (const auto& each : measuring_->older)
    if (const auto storage = each.lock(); storage && seen.insert(storage.get()).second)
      measuring_->base -= static_cast<int64_t>(storage->nbytes());
  measuring_->older.clear();
  measuring_->at = run.global_step() + options_.step - 1;
  // A run that is shorter than that is measured in its last step.
  if (const auto all = run.estimated_stepping_batches())
    measuring_->at = std::max(run.global_step(), std::min(measuring_->at, *all - 1));
}

void MemoryReport::on_train_end(TrainerContext&) {
  if (measuring_) log_warning("[MemoryReport] the run ended before its step was measured; a smaller step would do");
  measuring_.reset();
}

void MemoryReport::on_train_batch_start(TrainerContext& run, const AnyBatch& batch, int64_t) {
  if (!measuring_ || run.global_step() < measuring_->at) return;
  auto& m = *measuring_;
  if (m.recorder) {
    m.recorder->begin_forward();
  } else {
    predict(run, batch);
    m.batch_bytes = bytes_of_batch(run, batch);
    m.recorder =
        std::make_unique<MemoryRecorder>(run.module(), m.device, MemoryRecorder::Options{.counter = m.counter});
    m.gradients_at_start = m.gradients_of(run);
    m.recorder->begin_step();
  }
  m.in_forward = true;
  m.forward_bytes = m.now();
  // Whoever steps optimizers himself lets go of gradients when he likes.
  m.forward_gradients = run.module().automatic_optimization ? 0 : m.gradients_of(run);
}

void MemoryReport::begin_backward(TrainerContext& run) {
  if (!measuring_ || !measuring_->in_forward) return;
  auto& m = *measuring_;
  m.in_forward = false;
  m.recorder->begin_backward();
  const auto freed = run.module().automatic_optimization ? 0 : m.forward_gradients - m.gradients_of(run);
  m.found.activations = std::max(m.found.activations, m.now() - m.forward_bytes + freed);
}

// Gradients of the step before live until here: what forward has added is what is kept for backward.
void MemoryReport::on_before_zero_grad(TrainerContext& run, Optimizer&) {
  begin_backward(run);
}
void MemoryReport::on_before_backward(TrainerContext& run, const Tensor&) {
  begin_backward(run);
}

void MemoryReport::on_before_optimizer_step(TrainerContext& run, Optimizer&) {
  if (!measuring_ || !measuring_->recorder) return;
  measuring_->recorder->begin_optimizer();
  int64_t on_host = 0;
  measuring_->found.gradients = std::max(measuring_->found.gradients, measuring_->gradients_of(run, &on_host));
  measuring_->found.host = std::max(measuring_->found.host, on_host);
}

void MemoryReport::on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) {
  if (!measuring_ || !measuring_->recorder || run.global_step() == measuring_->at) return;
  measuring_->recorder->end_step();
  finish(run);
  // The counter goes while threads of the loader may allocate: they find the one allocator or the other, and both work.
  measuring_.reset();
  report(run);
}

void MemoryReport::predict(TrainerContext& run, const AnyBatch& batch) {
  if (predicted_) return;
  try {
    predicted_ = detail::predict_memory(run, batch, options_.make_step);
    if (!predicted_) return;
    auto& p = *predicted_;
    p.temporary = seen_temporary(p.timeline,
                                 p.parameters + p.optimizer + (run.module().automatic_optimization ? p.gradients : 0));
  } catch (const std::exception& error) {
    log_warning(detail::concat("[MemoryReport] nothing is predicted: ", one_line(error)));
  }
}

void MemoryReport::finish(TrainerContext& run) {
  auto& m = *measuring_;
  auto timeline = m.recorder->timeline();
  m.recorder.reset();
  for (auto& point : timeline.points) point.bytes -= m.base, point.peak -= m.base;

  StorageBytes model(m.device), optimizer(m.device);
  for (const auto& tensor : state_tensors(run.module())) model.add(tensor);
  for (const auto& each : run.optimizers()) optimizer.add(StateValue(each.state_dict()));
  m.found.parameters = model.device;
  m.found.optimizer = optimizer.device;
  m.found.host += model.host + optimizer.host;
  if (m.device.is_cpu()) m.found.host = 0;

  // What is there when the step begins, besides the state: the batch, and what a strategy and libraries hold.
  auto rest = timeline.points.front().bytes - model.device - optimizer.device - m.gradients_at_start;
  const auto layout = detail::memory_layout(run);
  if (layout && layout->master_weights && layout->ranks > 1) {
    // The parameters that one sees are this rank's shard, in full precision; those to compute with are the strategy's.
    m.found.optimizer += model.device;
    m.found.parameters = std::max<int64_t>(rest - m.batch_bytes, 0);
    rest = std::min(rest, m.batch_bytes);
  }
  for (size_t i = 1; i < timeline.points.size(); ++i) {
    const auto &before = timeline.points[i - 1], &point = timeline.points[i];
    // What came before a part began was in the part before.
    if (point.peak > m.found.device_peak) m.found.device_peak = point.peak, m.found.peak_part = before.part;
  }
  m.found.temporary = std::max<int64_t>(rest, 0) + passing(timeline);
  m.found.timeline = std::move(timeline);
  measured_ = std::move(m.found);
}

void MemoryReport::report(TrainerContext& run) const {
  const auto& m = *measured_;
  const auto* predicted = predicted_ ? &*predicted_ : nullptr;
  Metrics metrics;
  const auto add = [&](const char* name, int64_t bytes) { metrics.emplace_back(name, static_cast<double>(bytes)); };
  add("memory/parameters", m.parameters);
  add("memory/gradients", m.gradients);
  add("memory/optimizer", m.optimizer);
  add("memory/activations", m.activations);
  add("memory/temporary", m.temporary);
  add("memory/peak", m.device_peak);
  if (m.host > 0) add("memory/host", m.host);
  if (predicted) add("memory/predicted_peak", predicted->device_peak);
  run.log_row(metrics);
  run.print(memory_table(m, predicted, fmt::format("memory of step {}", run.global_step())));
  if (!options_.picture || run.plan().fast_dev_run > 0) return;
  try {
    const auto folder = run.log_dir().empty() ? std::filesystem::path(".") : run.log_dir();
    make_folder(folder);
    write_memory_timeline(folder / "memory", m.timeline, predicted ? &predicted->timeline : nullptr);
    run.print("memory over the step: ", (folder / "memory.png").string());
  } catch (const std::exception& error) {
    // Training continues without a picture.
    log_warning(detail::concat("[MemoryReport] ", one_line(error)));
  }
}

std::string memory_table(const MemoryEstimate& measured, const MemoryEstimate* predicted, const std::string& title) {
  using Row = std::pair<const char*, int64_t MemoryEstimate::*>;
  constexpr Row kRows[] = {{"parameters", &MemoryEstimate::parameters}, {"gradients", &MemoryEstimate::gradients},
                           {"optimizer", &MemoryEstimate::optimizer},   {"activations", &MemoryEstimate::activations},
                           {"temporary", &MemoryEstimate::temporary},   {"host", &MemoryEstimate::host},
                           {"peak", &MemoryEstimate::device_peak}};
  const auto bytes_text = [](int64_t bytes) { return bytes > 0 ? format_bytes(static_cast<double>(bytes)) : "-"; };
  detail::ReportTable table(std::max<size_t>(title.size(), 20));
  std::vector<std::string> head{title};
  if (predicted) head.emplace_back("predicted");
  head.emplace_back("measured");
  if (predicted) head.emplace_back("measured / predicted");
  table.header(head);
  for (const auto& [name, field] : kRows) {
    const auto real = measured.*field, estimated = predicted ? predicted->*field : 0;
    const bool is_peak = field == &MemoryEstimate::device_peak;
    if (field == &MemoryEstimate::host && real == 0 && estimated == 0) continue;
    if (is_peak) table.rule();
    std::vector<std::string> cells{is_peak ? fmt::format("peak, in {}", to_string(measured.peak_part)) : name};
    if (predicted) cells.push_back(bytes_text(estimated));
    cells.push_back(bytes_text(real));
    if (predicted)
      cells.push_back(real > 0 && estimated > 0
                          ? fmt::format("{:.2f}", static_cast<double>(real) / static_cast<double>(estimated))
                          : "");
    table.row(cells);
  }
  table.rule();
  return table.text();
}

}  // namespace levin
