#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "levin/core/compile/step_watch.h"
#include "levin/kernels/fused_step/adam.h"

namespace levin::optim::detail {

using at::Tensor;

/// The lists of tensors that a fused step works on, in an order of its own.
using StepLists = std::vector<std::vector<Tensor>>;
struct ToldList {
  const std::vector<Tensor>* tensors;
  bool is_written;
};

/// A fused step of an optimizer, which is no operator of the dispatcher: whoever watches the step is told of it.
/// `step(lists, numbers, scale, replay)` does it.
template <class Numbers, class F>
void tell_step(const char* name, const std::vector<ToldList>& lists, const Numbers& numbers,
               const kernels::StepScale& scale, const kernels::StepReplay<Numbers>& replay, c10::Device device,
               F step) {
  if (!levin::detail::is_step_watched()) {
    StepLists all;
    for (const auto& list : lists) all.push_back(*list.tensors);
    return step(all, numbers, scale, replay);
  }
  levin::detail::ToldWork told{.name = name};
  std::vector<std::vector<bool>> defined;
  for (const auto& list : lists) {
    auto& here = defined.emplace_back();
    for (const auto& tensor : *list.tensors) {
      here.push_back(tensor.defined());
      if (!tensor.defined()) continue;
      told.reads.push_back(tensor);
      if (list.is_written) told.writes.push_back(tensor);
    }
  }
  for (const auto& number : {scale.scale, scale.found_inf})
    if (number) told.reads.push_back(*number);
  told.work = [=, has_scale = scale.scale.has_value(), has_found = scale.found_inf.has_value(),
               calls = std::make_shared<int>(0)](std::span<const Tensor> reads, std::span<const Tensor>) {
    StepLists all;
    size_t next = 0;
    for (const auto& list : defined) {
      auto& tensors = all.emplace_back();
      for (const bool is : list) tensors.push_back(is ? reads[next++] : Tensor());
    }
    kernels::StepScale now;
    if (has_scale) now.scale = reads[next++];
    if (has_found) now.found_inf = reads[next++];
    // Kernels of CUDA read refreshed numbers when they run; on the CPU they are read here, from the second time on.
    const bool from_host = device.is_cpu() && replay.refreshed && (*calls)++ > 0;
    step(all, from_host ? *replay.refreshed : numbers, now, replay);
  };
  levin::detail::tell_work(std::move(told));
}

}  // namespace levin::optim::detail
