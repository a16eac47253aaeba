#include "levin/strategies/pipeline/pipelined_module.h"

#include <algorithm>
#include <array>

#include <ATen/core/grad_mode.h>

#include "levin/core/error.h"
#include "levin/distributed/single.h"

namespace levin::detail {
namespace {

std::vector<int> ranks_of(const PipelineSchedule& schedule) {
  std::vector<int> ranks;
  for (int stage = 0; stage < schedule.stages(); ++stage) ranks.push_back(schedule.rank_of(stage));
  return ranks;
}

}  // namespace

int microbatches_of(const PipelineOptions& options, int ranks, int64_t rows) {
  LEVIN_CHECK(rows > 0, "[pipeline] a batch without rows cannot be computed in micro-batches");
  const int64_t asked = options.microbatches > 0 ? options.microbatches : rows >= 2 * ranks ? 2 * ranks : ranks;
  int count = static_cast<int>(std::min(asked, rows));
  const bool in_rounds = pipeline_schedule_traits(options.schedule).takes_chunks;  // which must be equal
  while (in_rounds && count % std::max(1, count / ranks) != 0) --count;
  return count;
}

void check_schedule(const PipelineOptions& options, int ranks) {
  (void)make_pipeline_schedule(options.schedule, ranks, std::max(options.microbatches, 1), options.chunks);
}

PipelinedModule::PipelinedModule(torch::nn::Module& module, const PipelineOptions& options,
                                 std::shared_ptr<Collective> pipeline, Collective& all,
                                 std::shared_ptr<Collective> copies)
    : options_(options),
      group_(std::move(pipeline)),
      mapping_(make_pipeline_schedule(options_.schedule, group_->size(), 1, options_.chunks)),
      stages_(plan_stages(module, mapping_.stages(), options_), ranks_of(mapping_), group_->rank()),
      runner_(stages_, *group_),
      all_(all),
      copies_(copies ? std::move(copies) : std::make_shared<SingleCollective>()),
      reduce_(stages_, all_, *group_, *copies_) {
  for (const auto& state : stages_.cut().states) states_.emplace(state.tensor.unsafeGetTensorImpl(), &state);
}

void PipelinedModule::set_inner(std::unique_ptr<ModuleSync> inner) {
  inner_ = std::move(inner);
  if (!inner_) return;
  runner_.set_owner_of_weights(inner_.get());
  runner_.set_around([this](const PipelineAction& action, const auto& compute) { around(action, compute); });
}

void PipelinedModule::around(const PipelineAction& action, const std::function<void()>& compute) {
  if (action.kind == PipelineAction::Kind::kForward) {
    inner_->before_forward();
    {
      struct Leave {
        ModuleSync& sync;
        ~Leave() { sync.leave_forward(); }
      } leave{*inner_};
      compute();
    }
    return inner_->after_forward({});
  }
  const bool is_last = --to_come_ == 0;
  // Without a stage before it nobody waits for the gradients of inputs: all of it is computed with those of weights.
  if (action.kind == PipelineAction::Kind::kBackwardInput && action.stage == 0) return compute();
  inner_->set_sync(syncs_ && is_last);
  run_backward(std::array{inner_.get()}, {}, [&] {
    // Gradients of earlier backwards wait to be reduced. This one may have none: a frozen stage.
    if (is_last) inner_->enter_weights(-1);
    compute();
  });
}

const StageCut::State* PipelinedModule::find(const Tensor& tensor) const {
  const auto found = states_.find(tensor.unsafeGetTensorImpl());
  return found == states_.end() ? nullptr : found->second;
}

void PipelinedModule::before_forward() {
  LEVIN_CHECK(stages_.running(),
              "[model_parallel] a module that is cut into stages is run by fabric.forward_backward(module, batch, ",
              "step), not by calling it");
}

void PipelinedModule::before_backward(const Tensor&) {
  LEVIN_CHECK(false, "[model_parallel] fabric.forward_backward has run backward already");
}

void PipelinedModule::sync_buffers() {
  if (inner_) inner_->sync_buffers();
}

std::string PipelinedModule::share_text(std::string text) {
  return broadcast_string(*group_, std::move(text), stages_.rank_of(stages_.stages() - 1));
}

Tensor PipelinedModule::run_microbatches(const MicrobatchStep& step) {
  const auto count = static_cast<int>(step.rows.size());
  auto& schedule = schedules_[count];
  if (schedule.actions.empty())
    schedule = make_pipeline_schedule(options_.schedule, group_->size(), count, options_.chunks);
  const auto& own = schedule.actions[static_cast<size_t>(group_->rank())];
  to_come_ = static_cast<int>(std::ranges::count_if(own, [](const PipelineAction& action) {
    return action.is_compute() && action.kind != PipelineAction::Kind::kForward;
  }));
  if (at::GradMode::is_enabled()) reduce_.begin();
  const auto loss = runner_.run(schedule, step);
  if (syncs_ && at::GradMode::is_enabled()) reduce_.run();
  return loss;
}

}  // namespace levin::detail
