#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "levin/strategies/gemini/placement.h"
#include "levin/strategies/sharding/residency.h"

namespace levin::detail {

/// Lets a placement decide which chunks are gathered, of groups that are chunks.
class GeminiResidency final : public Residency {
 public:
  /// `chunks` says of each group what the placement has to know. `source` as Placement takes it.
  GeminiResidency(Groups groups, std::vector<ChunkResidence> chunks, PlacementOptions options,
                  std::unique_ptr<MemorySource> source);

  void begin_pass(Pass pass, bool training) override;
  void before_use(const Groups& needed) override;
  Groups ahead(const Groups& needed) override;
  bool release_after_use(ScheduledGroup& group, Pass pass) override;
  void after_reduce(ScheduledGroup& group) override;
  void end_pass(Pass pass) override;
  void abandon_pass(Pass pass) override;

  const Placement& placement() const { return placement_; }

 private:
  std::vector<int> indices(const Groups& groups) const;
  void look();
  void release(int chunk);

  Groups groups_;
  std::unordered_map<const ScheduledGroup*, int> index_;
  Placement placement_;
};

}  // namespace levin::detail
