#pragma once

#include <map>
#include <memory>
#include <vector>

#include "levin/distributed/collective.h"
#include "levin/strategies/pipeline/stage.h"

namespace levin::detail {

/// What is done to gradients when all micro-batches are through: those of a parameter that several stages have are
/// summed (tied embeddings), and all are averaged over the copies of the pipeline.
class StageReduce {
 public:
  /// `all` is pipeline x copies. All must outlive it. Every rank must make one.
  StageReduce(StageModule& module, Collective& all, Collective& pipeline, Collective& copies);

  /// Before backwards that add to the gradients. Those that were summed already are left to one rank, so that they
  /// count once when they are summed again.
  void begin();
  /// Every rank must call.
  void run();
  /// The values of the first rank that has a parameter, on all that do.
  void share_values();

 private:
  using States = std::vector<const StageCut::State*>;
  void reduce(Collective& group, const States& states, bool mean) const;

  StageModule& module_;
  Collective& all_;
  Collective& copies_;
  /// Ranks that have the same parameters together, and those.
  std::vector<std::pair<std::shared_ptr<Collective>, States>> shared_;
  /// Parameters that are here.
  States held_;
  /// Gradients of `shared_` are sums.
  bool summed_ = false;
};

}  // namespace levin::detail
