#include "levin/strategies/sharding/lanes.h"

#include <optional>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/trace_span.h"
#include "levin/devices/graphs.h"

namespace levin::detail {

struct LaneTask::State {
  LaneWork work;
  c10::intrusive_ptr<c10d::Work> running;  // a collective that the host must wait for
  std::optional<c10::Stream> lane;         // none: the CPU
  std::optional<c10::Event> done;

  void wait_for_collective() {
    if (!running) return;
    work.group->run(work.operation, [&](c10d::ProcessGroup&) { running->wait(); });
    running.reset();
  }
  void end() {
    if (work.after) work.after();
    if (lane) {
      done.emplace(lane->device_type());
      done->record(*lane);
    }
  }
};

LaneTask::LaneTask() = default;
LaneTask::LaneTask(std::unique_ptr<State> state) : state_(std::move(state)) {}
LaneTask::LaneTask(LaneTask&&) noexcept = default;
LaneTask& LaneTask::operator=(LaneTask&&) noexcept = default;
LaneTask::~LaneTask() = default;

std::function<void()> LaneTask::finish() {
  if (!state_) return {};
  const std::shared_ptr<State> state = std::move(state_);
  if (state->running) {
    std::optional<c10::StreamGuard> guard;
    if (state->lane) guard.emplace(*state->lane);
    state->wait_for_collective();
    state->end();
  }
  if (!state->lane) return {};
  const c10::impl::VirtualGuardImpl device(state->lane->device_type());
  state->done->block(device.getStream(state->lane->device()));
  const auto done = std::make_shared<c10::Event>(std::move(*state->done));
  return [done] { done->synchronize(); };
}

struct Lanes::Streams {
  c10::Stream gather;
  c10::Stream reduce;
};

Lanes::Lanes(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  // Parameters are waited for; they go before what else is ready.
  streams_ = std::make_unique<Streams>(
      Streams{guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true), guard.getStreamFromGlobalPool(device)});
}

Lanes::~Lanes() = default;

void Lanes::synchronize() const {
  if (!streams_) return;
  const c10::impl::VirtualGuardImpl device(device_.type());
  device.synchronizeStream(streams_->gather);
  device.synchronizeStream(streams_->reduce);
}

LaneTask Lanes::run(Which which, LaneWork work) {
  // Ranks have agreed to capture, which starts nothing, or to replay, which starts what was compared before.
  if (order_ && work.unit >= 0 && !is_capturing()) order_->next(work.operation, work.unit);
  auto state = std::make_unique<LaneTask::State>();
  state->work = std::move(work);
  std::optional<c10::StreamGuard> guard;
  if (streams_) {
    const auto& lane = which == kGather ? streams_->gather : streams_->reduce;
    const c10::impl::VirtualGuardImpl device(device_.type());
    c10::Event ready(device_.type());
    ready.record(device.getStream(device_));
    ready.block(lane);
    state->lane = lane;
    guard.emplace(lane);
  }
  auto& task = state->work;
  // Copies to and from host memory, and what is started here, stand in traces under its name.
  const TraceSpan span(task.operation);
  if (task.before) task.before();
  const auto ranks = task.group && task.collective ? task.group->process_group() : nullptr;
  if (ranks)
    task.group->run(task.operation, [&](c10d::ProcessGroup& group) { state->running = task.collective(group); });
  // Over NCCL the wait is one of streams, and costs the host nothing; over Gloo the host waits, as late as it can.
  const bool on_stream = state->running && streams_ && ranks->getBackendType() == c10d::ProcessGroup::NCCL;
  if (on_stream) state->wait_for_collective();
  if (!state->running) state->end();
  return LaneTask(std::move(state));
}

}  // namespace levin::detail
