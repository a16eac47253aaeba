#include "levin/devices/graphs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/graph_task.h>

namespace levin::detail {
namespace {

constexpr size_t kChunk = 4096;
constexpr size_t kChunks = 16;
constexpr int64_t kMostChecks = 64;
constexpr size_t kAlign = 16;

std::atomic<const StepScope*> step_now = nullptr;
std::atomic<std::thread::id> step_thread;

}  // namespace

// Made before a capture: memory that a capture allocates may be that of something which its graph computes earlier.
RefreshedValues::RefreshedValues(c10::Device device)
    : memory_(at::empty({static_cast<int64_t>(kChunks), static_cast<int64_t>(kChunk)},
                        at::TensorOptions(device).dtype(at::kByte))) {}

const void* RefreshedValues::add(size_t bytes, Fill fill) {
  LEVIN_CHECK(bytes > 0 && bytes <= kChunk, "[compile] a refreshed value of ", bytes, " bytes; 1 to ", kChunk,
              " are allowed");
  const size_t rounded = (bytes + kAlign - 1) / kAlign * kAlign;
  if (chunks_.empty() || chunks_.back().used + rounded > kChunk) {
    LEVIN_CHECK(chunks_.size() < kChunks, "[compile] a step has more than ", kChunks * kChunk,
                " bytes of values that change between replays");
    chunks_.push_back(
        {.memory = memory_[static_cast<int64_t>(chunks_.size())], .host = std::vector<std::byte>(kChunk), .sent = {}});
  }
  auto& chunk = chunks_.back();
  const size_t offset = chunk.used;
  chunk.used += rounded;
  chunk.sent.clear();
  values_.push_back({chunks_.size() - 1, offset, std::move(fill)});
  return static_cast<const std::byte*>(chunk.memory.const_data_ptr()) + offset;
}

void RefreshedValues::refresh(GraphDevice& device) {
  for (auto& value : values_) value.fill(chunks_[value.chunk].host.data() + value.offset);
  for (auto& chunk : chunks_) {
    if (chunk.sent.size() == chunk.used && std::memcmp(chunk.sent.data(), chunk.host.data(), chunk.used) == 0) continue;
    device.upload(chunk.memory, chunk.host.data(), chunk.used);
    chunk.sent.assign(chunk.host.begin(), chunk.host.begin() + static_cast<std::ptrdiff_t>(chunk.used));
    ++uploads_;
  }
}

DeferredChecks::DeferredChecks(c10::Device device)
    : failed_(at::zeros({kMostChecks}, at::TensorOptions(device).dtype(at::kBool))) {}

void DeferredChecks::add(const Tensor& failed, std::string line) {
  const at::NoGradGuard no_grad;
  const auto index = static_cast<int64_t>(lines_.size());
  LEVIN_CHECK(index < kMostChecks, "[compile] a step has more than ", kMostChecks, " checks");
  // Once failed it stays so, since not every replay is looked at.
  failed_[index].logical_or_(failed.reshape({}));
  lines_.push_back(std::move(line));
}

void DeferredChecks::start() {
  failed_.zero_();
}

void DeferredChecks::look() {
  if (lines_.empty() || (arrived_ && !arrived_->query())) return;
  if (host_.defined()) {
    const auto* failed = host_.const_data_ptr<bool>();
    for (size_t i = 0; i < lines_.size(); ++i) LEVIN_CHECK(!failed[i], lines_[i]);
  }
  const at::NoGradGuard no_grad;
  const auto& now = failed_;
  if (!host_.defined())
    host_ = at::empty(now.sizes(), at::TensorOptions().dtype(at::kBool).pinned_memory(now.is_cuda()));
  host_.copy_(now, /*non_blocking=*/true);
  if (now.is_cpu()) return;
  if (!arrived_) arrived_.emplace(now.device().type());
  arrived_->record(c10::impl::VirtualGuardImpl(now.device().type()).getStream(now.device()));
}

EnterStep::EnterStep(const StepScope& scope)
    : outer_(step_now.exchange(&scope)), outer_thread_(step_thread.exchange(std::this_thread::get_id())) {}

EnterStep::~EnterStep() {
  step_now = outer_;
  step_thread = outer_thread_;
}

const StepScope* current_step() {
  const auto* step = step_now.load();
  if (!step) [[likely]]
    return nullptr;
  const bool is_inside =
      step_thread.load() == std::this_thread::get_id() || torch::autograd::get_current_graph_task_id() >= 0;
  return is_inside ? step : nullptr;
}

bool is_capturing() {
  const auto* step = current_step();
  return step && step->values;
}

bool keeps_gradients() {
  const auto* step = current_step();
  return step && step->keeps_gradients;
}

void refuse_capture(const std::string& reason) {
  if (is_capturing()) throw CaptureRefused("[compile] " + reason);
}

const void* refreshed(size_t bytes, RefreshedValues::Fill fill) {
  return is_capturing() ? current_step()->values->add(bytes, std::move(fill)) : nullptr;
}

}  // namespace levin::detail
