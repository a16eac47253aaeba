#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "levin/nn/policy.h"

namespace levin {

class Drawing;
class MemoryCounter;

/// A part of a training step.
enum class StepPart : uint8_t { kForward, kBackward, kOptimizer };
/// "forward", "backward", "optimizer step"
const char* to_string(StepPart part);

/// How much memory is in use at a point of a step.
struct MemoryPoint {
  StepPart part = StepPart::kForward;
  /// A unit that begins or ends here; empty: the part itself begins, or the step ends.
  std::string unit = {};
  bool begins = true;
  /// Bytes in use now, and the most since the point before.
  int64_t bytes = 0;
  int64_t peak = 0;
};

/// The memory of one training step, from point to point.
struct MemoryTimeline {
  std::vector<MemoryPoint> points = {};

  /// The highest peak, and the point that it came before; null when there are no points.
  const MemoryPoint* highest() const;
  int64_t peak() const;
  /// part,unit,event,bytes,peak
  std::string csv() const;
};

/// The curve as a picture, forward and backward apart; `predicted` stands beside it when it is given.
Drawing picture_of(const MemoryTimeline& measured, const MemoryTimeline* predicted = nullptr,
                   const std::string& title = "memory over a training step");
std::string to_svg(const MemoryTimeline& measured, const MemoryTimeline* predicted = nullptr,
                   const std::string& title = "memory over a training step");
/// Writes `path`.csv, `path`.svg and `path`.png.
void write_memory_timeline(const std::filesystem::path& path, const MemoryTimeline& measured,
                           const MemoryTimeline* predicted = nullptr);

/// Measures the memory of a device over one training step, at the boundaries of units and parts.
///
///     levin::MemoryRecorder recorder(*model, device);
///     recorder.begin_step();
///     auto loss = step();
///     recorder.begin_backward();
///     loss.backward();
///     recorder.begin_optimizer();
///     optimizer.step();
///     recorder.end_step();
///     levin::write_memory_timeline("memory", recorder.timeline());
class MemoryRecorder {
 public:
  struct Options {
    /// Units to look at; none: the blocks that repeat.
    std::optional<UnitPolicy> units = {};
    /// For the CPU: a counter that was made before the model; its peak is reset at every point. None: the recorder has
    /// its own, which knows only what is allocated after it was made.
    MemoryCounter* counter = nullptr;
  };

  MemoryRecorder(torch::nn::Module& module, c10::Device device);
  MemoryRecorder(torch::nn::Module& module, c10::Device device, Options options);
  ~MemoryRecorder();
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;

  /// Forgets the step before.
  void begin_step();
  /// Of a further batch of the same step.
  void begin_forward();
  void begin_backward();
  void begin_optimizer();
  void end_step();
  const MemoryTimeline& timeline() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

namespace detail {

/// The units of policy::repeated(); empty when there are none.
std::vector<SelectedUnit> repeated_units(torch::nn::Module& root);

/// Calls `mark(part, unit, begins)` when a unit begins and ends, in forward and (by the gradients of what goes in and
/// comes out) in backward. In backward a unit ends at the latest when another one begins.
class UnitWatch {
 public:
  using Mark = std::function<void(StepPart part, size_t unit, bool begins)>;
  /// `order`: where it stands among what is attached to units.
  UnitWatch(std::span<const SelectedUnit> units, Mark mark, Order order = Order::kProfiler);
  ~UnitWatch();
  /// Backward is over: a unit that is still open ends.
  void end_backward();

 private:
  struct State;
  struct Watcher;
  std::shared_ptr<State> state_;
  std::vector<Attachment> attachments_;
};

}  // namespace detail

}  // namespace levin
