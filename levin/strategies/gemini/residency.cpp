#include "levin/strategies/gemini/residency.h"

namespace levin::detail {
namespace {

std::vector<ChunkResidence> residences(const std::vector<ShardGroup*>& groups, const std::vector<bool>& keep, int ranks,
                                       int copies) {
  std::vector<ChunkResidence> chunks;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& group = *groups[i];
    ChunkResidence chunk;
    chunk.name = group.name();
    chunk.keep = keep[i];
    chunk.states = ChunkStates(groups[i]->params().size());
    if (!group.whole()) {
      chunk.bytes = group.full_bytes();
      const auto& options = group.options();
      const auto part = group.shard_bytes() / static_cast<int64_t>(c10::elementSize(*options.dtype)) *
                        static_cast<int64_t>(c10::elementSize(*options.param_dtype));
      chunk.arriving_bytes = part * ranks * copies;
    }
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

}  // namespace

GeminiResidency::GeminiResidency(std::vector<ShardGroup*> chunks, const std::vector<bool>& keep, int ranks, int copies,
                                 PlacementOptions options, std::unique_ptr<MemorySource> source)
    : groups_(std::move(chunks)),
      placement_(std::move(options), residences(groups_, keep, ranks, copies), std::move(source)) {
  for (size_t i = 0; i < groups_.size(); ++i) index_[groups_[i]] = static_cast<int>(i);
}

std::vector<int> GeminiResidency::indices(const std::vector<ShardGroup*>& groups) const {
  std::vector<int> result;
  for (const auto* group : groups) result.push_back(index_.at(group));
  return result;
}

// Others release chunks, too (the end of a pass does), so that the groups themselves are asked.
void GeminiResidency::look() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    auto& chunk = placement_.chunks()[i];
    switch (groups_[i]->state()) {
      case ShardGroup::State::kSharded:
        chunk.where = ChunkResidence::Where::kAway;
        if (!chunk.states.computing()) chunk.states.move_all(TensorState::kFree);
        break;
      case ShardGroup::State::kGathering:
        chunk.where = ChunkResidence::Where::kComing;
        break;
      case ShardGroup::State::kGathered:
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

void GeminiResidency::before_use(const std::vector<ShardGroup*>& needed) {
  look();
  for (const auto chunk : placement_.make_room(indices(needed))) release(chunk);
}

std::vector<ShardGroup*> GeminiResidency::ahead(const std::vector<ShardGroup*>& needed) {
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
  std::vector<ShardGroup*> bring;
  for (const auto chunk : plan.bring) bring.push_back(groups_[static_cast<size_t>(chunk)]);
  return bring;
}

bool GeminiResidency::release_after_use(ShardGroup& group, Pass pass) {
  if (placement_.keeps(index_.at(&group), pass)) return false;
  placement_.layout_changing();
  group.release();
  look();
  placement_.layout_changed();
  return true;
}

void GeminiResidency::after_reduce(ShardGroup& group) {
  placement_.reduced(index_.at(&group));
}

void GeminiResidency::end_pass(Pass pass) {
  placement_.end_pass(pass);
}

void GeminiResidency::abandon_pass(Pass) {
  placement_.abandon();
}

}  // namespace levin::detail
