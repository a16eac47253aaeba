#pragma once

#include <memory>
#include <vector>

#include "levin/strategies/gemini/chunk_plan.h"
#include "levin/strategies/gemini/placement.h"
#include "levin/strategies/sharding/strategy.h"
#include "levin/strategies/sharding_options.h"

namespace levin {

/// "colossalai": parameters lie in chunks that are divided over the ranks and live in host memory or on the device, and
/// are whole on the device as far as there is room (docs/strategies.md).
///
///     Fabric fabric({.strategy = GeminiOptions{.placement_policy = "auto"}, .precision = "bf16-mixed"});
class GeminiStrategy : public detail::ShardedStrategy {
 public:
  explicit GeminiStrategy(const GeminiOptions& options);

  Optimizer setup_optimizer(Optimizer optimizer) override;
  StateLayout layout() const override;

  /// How the parameters of the last module that was set up lie in chunks.
  const detail::ChunkPlan& chunks() const { return chunks_; }

 protected:
  Divided divide(torch::nn::Module& module, const std::vector<SelectedUnit>& units) override;
  std::unique_ptr<detail::Residency> make_residency(const Divided& divided) override;
  void check_host_memory(const torch::nn::Module& module) const override;

 private:
  struct Optimizers;

  /// Of gathered parameters; none: each has its own ("32-true").
  std::optional<c10::ScalarType> compute_dtype() const;
  /// In which a parameter of this dtype is stepped.
  c10::ScalarType kept_dtype(c10::ScalarType own) const;
  double host_share() const;

  GeminiOptions options_;
  detail::PlacementPolicy policy_;
  detail::ChunkPlan chunks_;
  bool keep_gathered_ = false;
  std::shared_ptr<Optimizers> optimizers_;
};

namespace detail {
/// What the options ask for; an Error, one line, for what cannot be.
ShardingPlan plan_of(const GeminiOptions& options);

/// Which chunks belong to a part of all, the first ones first: true for as many as come nearest to it.
std::vector<bool> first_part(const std::vector<int64_t>& bytes, double part);
/// Which chunks' states return to the device when so many bytes are free; `bytes` are of the states of each.
std::vector<bool> returning(const std::vector<int64_t>& bytes, int64_t free_bytes);
}  // namespace detail

}  // namespace levin
