#pragma once

#include <memory>
#include <vector>

#include "levin/strategies/gemini/chunk_plan.h"
#include "levin/strategies/gemini/placement.h"
#include "levin/strategies/sharding/strategy.h"

namespace levin {

/// "colossalai": parameters lie in chunks that are sharded over the ranks and live in host memory or on the device, and
/// are gathered on the device as far as there is room (docs/strategies.md).
///
///     Fabric fabric({.strategy = GeminiOptions{.placement_policy = "auto"}, .precision = "bf16-mixed"});
class GeminiStrategy : public detail::ShardedStrategy {
 public:
  explicit GeminiStrategy(const GeminiOptions& options);
  static std::vector<NamedStrategy> names();

  Optimizer setup_optimizer(Optimizer optimizer) override;
  StateLayout layout_over(int ranks) const override;
  std::string why_not_captured() const override { return "the host decides in every step where chunks are"; }

  /// How the parameters of the last module that was set up lie in chunks.
  const detail::ChunkPlan& chunks() const { return chunks_; }

 protected:
  c10::ScalarType shard_dtype(c10::ScalarType own) const override;
  detail::GroupPlan plan_groups(const std::vector<detail::GroupedParam>& params, size_t units) override;
  detail::GroupOptions options_of_group(const detail::GroupPlan& plan, size_t group) const override;
  std::unique_ptr<detail::Residency> make_residency(const Sharded& sharded) override;
  void check_host_memory(const torch::nn::Module& module) const override;

 private:
  struct Optimizers;

  /// Of gathered parameters; none: each has its own ("32-true").
  std::optional<c10::ScalarType> compute_dtype() const;
  /// Fraction of the state that lives in host memory.
  double host_fraction() const;

  GeminiOptions options_;
  detail::PlacementPolicy policy_;
  detail::ChunkPlan chunks_;
  std::vector<bool> on_host_;  // by chunk
  bool keep_gathered_ = false;
  std::shared_ptr<Optimizers> optimizers_;
};

namespace detail {
/// Which chunks belong to a fraction of all, the first ones first: true for as many as come nearest to it.
std::vector<bool> first_part(const std::vector<int64_t>& bytes, double fraction);
/// Which chunks' states return to the device when this many bytes are free; `bytes` are of the states of each.
std::vector<bool> returning(const std::vector<int64_t>& bytes, int64_t free_bytes);
}  // namespace detail

}  // namespace levin
