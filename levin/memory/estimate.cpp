#include "levin/memory/estimate.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/memory/account.h"
#include "levin/memory/optimizers.h"
#include "levin/memory/step.h"
#include "levin/memory/widths.h"

namespace levin {

StateLayout state_layout(const StrategyChoice& choice, int ranks, bool offload) {
  LEVIN_CHECK(ranks >= 1, "[estimate_memory] world_size ", ranks, " is not allowed (1 or more)");
  const auto strategy = make_strategy(choice, ranks, offload);
  LEVIN_CHECK(!strategy->traits().one_process || ranks == 1, "[estimate_memory] strategy \"", strategy->name(),
              "\" is for one process, not for ", ranks, " (ddp, fsdp, ... are for more)");
  return strategy->layout_over(ranks);
}

MemoryEstimate estimate_memory(const MakeTrainingStep& make, const Batch& batch, const MemoryQuestion& asked_for) {
  auto question = asked_for;
  LEVIN_CHECK(question.accumulate >= 1, "[estimate_memory] accumulate ", question.accumulate,
              " is not allowed (1 or more)");
  auto layout =
      question.layout ? *question.layout : state_layout(question.strategy, question.world_size, question.offload);
  if (question.pipeline_rank) {
    const int ranks = layout.pipeline ? layout.pipeline->ranks : 1, rank = *question.pipeline_rank;
    LEVIN_CHECK(rank >= 0 && rank < ranks, "[estimate_memory] pipeline_rank ", rank, " is not one of ", ranks,
                ranks == 1 ? " rank of a pipeline" : " ranks of a pipeline");
    if (layout.pipeline) layout.pipeline->rank = rank;
  }
  if (!question.units) question.units = layout.units;
  if (!question.checkpointing && !question.checkpoint_blocks) question.checkpointing = layout.checkpointing;
  question.offload_activations = question.offload_activations || layout.offload_activations;
  LEVIN_CHECK(!question.offload_activations || question.checkpoint_blocks || question.checkpointing,
              "[estimate_memory] offload_activations moves what checkpointed units keep; choose units to checkpoint");
  LEVIN_CHECK(question.accumulate == 1 || !layout.optimizer_in_backward,
              "[estimate_memory] optimizer_in_backward uses gradients as they come and cannot accumulate them; set "
              "accumulate 1");
  if (!question.optimizer_traits)
    question.optimizer_traits = detail::optimizer_traits(question.optimizer, question.moments_dtype);
  const auto asked = resolve_precision(question.precision, question.device);
  detail::check_possible(question.strategy, layout, asked, question.optimizer, *question.optimizer_traits);
  auto plan = asked;
  plan.params = detail::computed_dtype(layout, asked);
  // Alone, gradients are reduced in every micro-batch, and none is full when the next one begins.
  auto traced = question;
  traced.layout = layout;
  const bool sharded = detail::is_sharded(layout, asked);
  if (sharded && layout.ranks * layout.replicas == 1) traced.accumulate = 1;
  const auto trace = detail::trace_step(make, batch, traced, plan);
  return detail::account_for(trace, layout, asked, question);
}

MemoryEstimate estimate_memory(const Strategy& strategy, const MakeTrainingStep& make, const Batch& batch,
                               MemoryQuestion question) {
  question.strategy = strategy.name();
  question.layout = strategy.layout();
  question.world_size = strategy.group().size();
  question.device = strategy.device().type();
  return estimate_memory(make, batch, question);
}

}  // namespace levin
