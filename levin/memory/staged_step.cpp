#include "levin/memory/staged_step.h"

#include <algorithm>
#include <utility>

#include "levin/core/error.h"
#include "levin/distributed/single.h"

namespace levin::detail {
namespace {

int64_t rows_of(const Batch& batch) {
  for (const auto& [name, tensor] : batch)
    if (tensor.defined() && tensor.dim() > 0) return tensor.size(0);
  return 0;
}

}  // namespace

StagedStep::StagedStep(torch::nn::Module& module, const PipelineLayout& layout, const Batch& batch, Forward forward)
    : layout_(layout), forward_(std::move(forward)) {
  const auto rows = rows_of(batch);
  const int ranks = layout_.ranks, parts = layout_.microbatches(rows);
  LEVIN_CHECK(parts >= 1 && rows >= parts, "[estimate_memory] a batch of ", rows, " rows has no ", parts,
              " micro-batches");
  split(batch, parts);
  learn_shapes(module);
  all_ = std::make_shared<ImaginedCollective>(0, ranks * layout_.copies);
  const auto copies = layout_.copies > 1 ? std::make_shared<ImaginedCollective>(0, layout_.copies) : nullptr;
  pipelined_ = std::make_unique<PipelinedModule>(
      module, layout_.options, std::make_shared<ImaginedCollective>(layout_.rank, ranks), *all_, copies);
  for (const auto& [shape, stages] : shapes_)
    for (size_t stage = 0; stage < stages.size(); ++stage)
      pipelined_->runner().set_shapes(static_cast<int>(stage), shape, stages[stage]);
}

void StagedStep::split(const Batch& batch, int parts) {
  const auto rows = rows_of(batch);
  int64_t first = 0;
  for (int i = 0; i < parts; ++i) {
    const auto count = rows / parts + (i < rows % parts ? 1 : 0);
    auto& part = parts_.emplace_back();
    for (const auto& [name, tensor] : batch)
      part.set(name, tensor.defined() && tensor.dim() > 0 ? tensor.narrow(0, first, count) : tensor);
    first += count;
    step_.rows.push_back(count);
    step_.shapes.push_back("rows " + std::to_string(count));
  }
  step_.forward = [this](size_t part) { return forward_(parts_[part]); };
  step_.scale = [](const Tensor& loss) { return loss; };
}

/// One rank that has all stages runs them one after the other.
void StagedStep::learn_shapes(torch::nn::Module& module) {
  const auto& options = layout_.options;
  const auto mapping = make_pipeline_schedule(options.schedule, layout_.ranks, 1, options.chunks);
  const auto stages = static_cast<size_t>(mapping.stages());
  StageModule all(plan_stages(module, mapping.stages(), options), std::vector<int>(stages, 0), 0);
  const StageModule::Shown shown(all);
  for (size_t part = 0; part < parts_.size(); ++part) {
    auto& shapes = shapes_[step_.shapes[part]];
    if (!shapes.empty()) continue;
    shapes.resize(stages);
    std::vector<Tensor> inputs;
    for (size_t stage = 0; stage + 1 < stages; ++stage) {
      const auto output = all.run(
          static_cast<int>(stage), [&] { return step_.forward(part); }, stage > 0 ? &shapes[stage] : nullptr, inputs,
          &shapes[stage + 1]);
      inputs.clear();
      for (const auto& tensor : output.tensors) inputs.push_back(tensor.detach().requires_grad_());
    }
    for (auto& each : shapes) each.told = each.checked = true;
  }
}

void StagedStep::run(PipelineRunner::Around around, bool reduces) {
  pipelined_->runner().set_around(std::move(around));
  pipelined_->set_sync(reduces);
  (void)pipelined_->run_microbatches(step_);
}

int StagedStep::backwards() const {
  const auto& options = layout_.options;
  const auto schedule = make_pipeline_schedule(options.schedule, layout_.ranks, microbatches(), options.chunks);
  const auto& own = schedule.actions[static_cast<size_t>(layout_.rank)];
  return static_cast<int>(std::ranges::count_if(own, [](const PipelineAction& action) {
    return action.is_compute() && action.kind != PipelineAction::Kind::kForward;
  }));
}

}  // namespace levin::detail
