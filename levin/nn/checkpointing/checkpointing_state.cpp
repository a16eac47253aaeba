#include "levin/nn/checkpointing/checkpointing_state.h"

#include <algorithm>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/autocast_mode.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/devices/accelerator.h"
#include "levin/nn/forward_dtype.h"
#include "levin/nn/module_access.h"

namespace levin::detail {

// ---- RngStates

namespace {

/// Of the CPU, for its only argument, while nobody else draws.
template <class F>
auto with_cpu_generator(const F& f) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return f(*at::check_generator<at::CPUGeneratorImpl>(generator));
}

}  // namespace

RngStates::RngStates(std::span<const c10::Device> devices)
    : cpu_(with_cpu_generator([](at::CPUGeneratorImpl& now) {
        return Cpu{now.engine(), now.next_float_normal_sample(), now.next_double_normal_sample()};
      })) {
  for (const auto device : devices)
    if (device.is_cuda() &&
        std::none_of(others_.begin(), others_.end(), [&](const auto& each) { return each.first == device; }))
      others_.emplace_back(device, accelerator_of(device).rng_state(device));
}

void RngStates::apply() const {
  with_cpu_generator([this](at::CPUGeneratorImpl& now) {
    now.set_engine(cpu_.engine);
    now.set_next_float_normal_sample(cpu_.next_float);
    now.set_next_double_normal_sample(cpu_.next_double);
  });
  for (const auto& [device, state] : others_) accelerator_of(device).set_rng_state(device, state);
}

std::vector<c10::Device> RngStates::others() const {
  std::vector<c10::Device> all;
  for (const auto& [device, state] : others_) all.push_back(device);
  return all;
}

// ---- autocast, default dtype

AutocastState AutocastState::now() {
  AutocastState state;
  state.cache = at::autocast::is_autocast_cache_enabled();
  for (const auto device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES)
    state.entries.push_back(
        {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)});
  return state;
}

void AutocastState::apply() const {
  at::autocast::set_autocast_cache_enabled(cache);
  for (const auto& entry : entries) {
    at::autocast::set_autocast_enabled(entry.device, entry.enabled);
    at::autocast::set_autocast_dtype(entry.device, entry.dtype);
  }
}

ForwardState::ForwardState(std::span<const c10::Device> rng_devices)
    : default_dtype(c10::typeMetaToScalarType(c10::get_default_dtype())), made_dtype(forward_dtype()) {
  if (!rng_devices.empty()) rng.emplace(rng_devices);
}

ForwardStateScope::ForwardStateScope(const ForwardState& state)
    : autocast_(AutocastState::now()),
      fp8_(state.fp8),
      default_dtype_(c10::typeMetaToScalarType(c10::get_default_dtype())),
      made_dtype_(set_forward_dtype(state.made_dtype)) {
  if (state.rng) {
    rng_.emplace(state.rng->others());
    state.rng->apply();
  }
  at::autocast::increment_nesting();
  state.autocast.apply();
  if (state.default_dtype != default_dtype_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(state.default_dtype));
}

ForwardStateScope::~ForwardStateScope() {
  if (c10::typeMetaToScalarType(c10::get_default_dtype()) != default_dtype_)
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_dtype_));
  set_forward_dtype(made_dtype_);
  // The casts of parameters that were cached belong to a graph that is thrown away.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  autocast_.apply();
  try {
    if (rng_) rng_->apply();
  } catch (const std::exception& error) {  // a device that has failed fails what comes next, too
    log_warning(concat("[checkpointing] the random generators could not be put back: ", one_line(error)));
  }
}

// ---- buffers

std::vector<Tensor> buffers_of(const torch::nn::Module& module) {
  std::vector<Tensor> found;
  each_buffer(module, [&](const Tensor& buffer) {
    if (!buffer.is_inference() && at::has_internal_overlap(buffer) != at::MemOverlap::Yes) found.push_back(buffer);
  });
  return found;
}

UnchangedScope::UnchangedScope(const std::vector<Tensor>& tensors) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& tensor : tensors) saved_.push_back({tensor, tensor.detach().clone(), tensor._version()});
}

UnchangedScope::~UnchangedScope() {
  const c10::AutoGradMode no_grad(false);
  for (auto& [tensor, value, version] : saved_) try {
      tensor.copy_(value);
      auto counter = tensor.unsafeGetTensorImpl()->version_counter();
      counter.set_version(version);
    } catch (const std::exception& error) {
      log_warning(concat("[checkpointing] a buffer could not be put back: ", one_line(error)));
    }
}

}  // namespace levin::detail
