#include "levin/strategies/gemini/residency.h"

namespace levin::detail {

GeminiResidency::GeminiResidency(Groups groups, std::vector<ChunkResidence> chunks, PlacementOptions options,
                                 std::unique_ptr<MemorySource> source)
    : groups_(std::move(groups)), placement_(std::move(options), std::move(chunks), std::move(source)) {
  for (size_t i = 0; i < groups_.size(); ++i) index_[groups_[i]] = static_cast<int>(i);
}

std::vector<int> GeminiResidency::indices(const Groups& groups) const {
  std::vector<int> result;
  for (const auto* group : groups) result.push_back(index_.at(group));
  return result;
}

// Others release chunks, too (the end of a pass does), so that the groups themselves are asked.
void GeminiResidency::look() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    auto& chunk = placement_.chunks()[i];
    switch (groups_[i]->state()) {
      case ScheduledGroup::State::kSharded:
        chunk.where = ChunkResidence::Where::kAway;
        break;
      case ScheduledGroup::State::kGathering:
        chunk.where = ChunkResidence::Where::kComing;
        break;
      case ScheduledGroup::State::kGathered:
        chunk.where = ChunkResidence::Where::kHere;
        break;
    }
  }
}

void GeminiResidency::release(int chunk) {
  groups_[static_cast<size_t>(chunk)]->release();
}

void GeminiResidency::begin_pass(Pass pass, bool training) {
  look();
  placement_.begin_pass(pass, training);
}

void GeminiResidency::before_use(const Groups& needed) {
  look();
  for (const auto chunk : placement_.make_room(indices(needed))) release(chunk);
}

Residency::Groups GeminiResidency::ahead(const Groups& needed) {
  if (placement_.recording()) {
    // What is measured from here on is the unit's own work.
    for (auto* group : needed) group->finish_gather();
    look();
    placement_.layout_changed();
    return {};
  }
  look();
  const auto plan = placement_.ahead(indices(needed));
  for (const auto chunk : plan.leave) release(chunk);
  Groups bring;
  for (const auto chunk : plan.bring) bring.push_back(groups_[static_cast<size_t>(chunk)]);
  return bring;
}

bool GeminiResidency::release_after_use(ScheduledGroup& group, Pass pass) {
  if (placement_.keeps(index_.at(&group), pass)) return false;
  placement_.layout_changing();
  group.release();
  look();
  placement_.layout_changed();
  return true;
}

void GeminiResidency::after_reduce(ScheduledGroup& group) {
  placement_.reduced(index_.at(&group));
}

void GeminiResidency::end_pass(Pass pass) {
  placement_.end_pass(pass);
}

void GeminiResidency::abandon_pass(Pass) {
  placement_.abandon();
}

}  // namespace levin::detail
