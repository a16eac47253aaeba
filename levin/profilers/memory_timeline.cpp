#include "levin/profilers/memory_timeline.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/memory_counter.h"
#include "levin/nn/unit.h"
#include "levin/plots/drawing.h"

namespace levin {

const char* to_string(StepPart part) {
  return part == StepPart::kForward ? "forward" : part == StepPart::kBackward ? "backward" : "optimizer step";
}

const MemoryPoint* MemoryTimeline::highest() const {
  const MemoryPoint* best = nullptr;
  for (const auto& point : points)
    if (!best || point.peak > best->peak) best = &point;
  return best;
}

int64_t MemoryTimeline::peak() const {
  const auto* best = highest();
  return best ? best->peak : 0;
}

std::string MemoryTimeline::csv() const {
  std::string out = "part,unit,event,bytes,peak\n";
  for (const auto& point : points)
    out += fmt::format("{},{},{},{},{}\n", to_string(point.part), point.unit, point.begins ? "begin" : "end",
                       point.bytes, point.peak);
  return out;
}

void write_memory_timeline(const std::filesystem::path& path, const MemoryTimeline& measured,
                           const MemoryTimeline* predicted) {
  const auto with = [&](const char* end) { return std::filesystem::path(path.string() + end); };
  write_file(with(".csv"), measured.csv());
  if (predicted) write_file(with("_predicted.csv"), predicted->csv());
  const auto picture = picture_of(measured, predicted);
  for (const auto* end : {".svg", ".png"}) write_drawing(with(end), picture);
}

namespace detail {

std::vector<SelectedUnit> repeated_units(torch::nn::Module& root) {
  return policy::has_repeated(root) ? select_units(root, policy::repeated()) : std::vector<SelectedUnit>();
}

struct UnitWatch::State {
  Mark mark;
  std::optional<size_t> open;

  void begin(size_t unit) {
    if (open == unit) return;
    end();
    open = unit;
    mark(StepPart::kBackward, unit, true);
  }
  void end() {
    if (!open) return;
    const auto unit = *open;
    open.reset();
    mark(StepPart::kBackward, unit, false);
  }
};

struct UnitWatch::Watcher : Interceptor {
  Watcher(std::shared_ptr<State> to, size_t index) : state(std::move(to)), unit(index) {}

  void around(Call& call) override {
    if (call.phase() == Phase::kRecompute) return call.proceed();
    state->mark(StepPart::kForward, unit, true);
    const bool training = c10::GradMode::is_enabled();
    if (training)
      call.each_input([&](Tensor& input) {
        if (!input.requires_grad() || input.is_leaf()) return;
        input.register_hook([to = state, me = unit](const Tensor&) {
          if (to->open == me) to->end();
        });
      });
    call.proceed();
    if (training)
      call.each_output([&](Tensor& output) {
        if (output.requires_grad() && !output.is_leaf())
          output.register_hook([to = state, me = unit](const Tensor&) { to->begin(me); });
      });
    state->mark(StepPart::kForward, unit, false);
  }
  bool sees_result() const override { return false; }

  std::shared_ptr<State> state;
  size_t unit;
};

UnitWatch::UnitWatch(std::span<const SelectedUnit> units, Mark mark, Order order) : state_(std::make_shared<State>()) {
  state_->mark = std::move(mark);
  for (size_t i = 0; i < units.size(); ++i)
    attachments_.push_back(units[i].unit->attach(std::make_shared<Watcher>(state_, i), order));
}

UnitWatch::~UnitWatch() {
  state_->mark = [](StepPart, size_t, bool) {};  // graphs that still live may call
}

void UnitWatch::end_backward() {
  state_->end();
}

}  // namespace detail

struct MemoryRecorder::State {
  c10::Device device = at::kCPU;
  std::unique_ptr<MemoryCounter> own;
  MemoryCounter* counter = nullptr;
  std::vector<SelectedUnit> units;
  std::unique_ptr<detail::UnitWatch> watch;
  MemoryTimeline timeline;
  bool recording = false;

  void reset_peak() {
    if (counter)
      counter->reset_peak();
    else
      accelerator_of(device).reset_peak_memory(device);
  }
  void add(StepPart part, std::string unit, bool begins) {
    if (!recording) return;
    MemoryPoint point{.part = part, .unit = std::move(unit), .begins = begins};
    if (counter) {
      point.bytes = counter->allocated(), point.peak = counter->peak();
    } else {
      const auto stats = accelerator_of(device).memory(device);
      point.bytes = stats.allocated, point.peak = stats.peak_allocated;
    }
    timeline.points.push_back(std::move(point));
    reset_peak();
  }
};

MemoryRecorder::MemoryRecorder(torch::nn::Module& module, c10::Device device)
    : MemoryRecorder(module, device, Options()) {}

MemoryRecorder::MemoryRecorder(torch::nn::Module& module, c10::Device device, Options options)
    : state_(std::make_shared<State>()) {
  state_->device = device;
  state_->counter = options.counter;
  if (device.is_cpu() && !options.counter) {
    state_->own = std::make_unique<MemoryCounter>();
    state_->counter = state_->own.get();
  }
  LEVIN_CHECK(device.is_cpu() || !options.counter, "[MemoryRecorder] a MemoryCounter counts memory of the CPU, not of ",
              device.str());
  state_->units = options.units ? select_units(module, *options.units) : detail::repeated_units(module);
  state_->watch = std::make_unique<detail::UnitWatch>(state_->units,
                                                      [state = state_.get()](StepPart part, size_t unit, bool begins) {
                                                        state->add(part, state->units[unit].name, begins);
                                                      });
}

MemoryRecorder::~MemoryRecorder() = default;

void MemoryRecorder::begin_step() {
  state_->timeline.points.clear();
  state_->recording = true;
  state_->reset_peak();
  state_->add(StepPart::kForward, "", true);
}
void MemoryRecorder::begin_forward() {
  state_->watch->end_backward();
  state_->add(StepPart::kForward, "", true);
}
void MemoryRecorder::begin_backward() {
  state_->add(StepPart::kBackward, "", true);
}
void MemoryRecorder::begin_optimizer() {
  state_->watch->end_backward();
  state_->add(StepPart::kOptimizer, "", true);
}
void MemoryRecorder::end_step() {
  state_->add(StepPart::kOptimizer, "", false);
  state_->recording = false;
}
const MemoryTimeline& MemoryRecorder::timeline() const {
  return state_->timeline;
}

}  // namespace levin
