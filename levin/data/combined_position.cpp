#include "levin/data/combined_position.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace {

CombineMode mode_of(std::string_view word) {
  static const std::array<std::string, 4> kWords{"min_size", "max_size", "max_size_cycle", "sequential"};
  const auto found = std::find(kWords.begin(), kWords.end(), word);
  if (found == kWords.end()) fail_unknown("data", "mode", word, kWords);
  return static_cast<CombineMode>(found - kWords.begin());
}

}  // namespace

CombinedPosition::CombinedPosition(const CombineOptions& options, std::span<const std::string> names,
                                   std::vector<int64_t> sizes)
    : mode_(mode_of(options.mode)), sizes_(std::move(sizes)) {
  LEVIN_CHECK(!sizes_.empty(), "[data] there is no loader to combine");
  for (size_t i = 0; i < names.size(); ++i)
    LEVIN_CHECK(std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) ==
                    names.begin() + static_cast<std::ptrdiff_t>(i),
                "[data] two of the combined loaders have the name \"", names[i], "\"");
  switch (mode_) {
    case CombineMode::kMinSize:
      size_ = *std::min_element(sizes_.begin(), sizes_.end());
      break;
    case CombineMode::kMaxSize:
    case CombineMode::kMaxSizeCycle:
      size_ = *std::max_element(sizes_.begin(), sizes_.end());
      break;
    case CombineMode::kSequential:
      size_ = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
      break;
  }
}

void CombinedPosition::seek(int64_t epoch, int64_t batch) {
  epoch_ = epoch;
  batch_ = batch;
  inside_ = false;
}

void CombinedPosition::begin() {
  if (inside_) set_epoch(epoch_ + 1);  // the pass before was left early
  inside_ = true;
}

bool CombinedPosition::next() {
  if (batch_ >= size_) {
    set_epoch(epoch_ + 1);
    return false;
  }
  ++batch_;
  return true;
}

void CombinedPosition::resume(int64_t epoch, std::span<const int64_t> member_batches) {
  set_epoch(epoch);
  // All members go through a pass at one pace, and the longest never starts again.
  if (mode_ == CombineMode::kSequential)
    batch_ = std::accumulate(member_batches.begin(), member_batches.end(), int64_t{0});
  else
    batch_ = member_batches[static_cast<size_t>(std::max_element(sizes_.begin(), sizes_.end()) - sizes_.begin())];
}

int64_t CombinedPosition::offset(size_t member) const {
  return std::accumulate(sizes_.begin(), sizes_.begin() + static_cast<std::ptrdiff_t>(member), int64_t{0});
}

int64_t CombinedPosition::cycles(size_t member) const {
  return (size_ + sizes_[member] - 1) / sizes_[member];
}

std::optional<CombinedPosition::Place> CombinedPosition::giving(size_t member) const {
  const int64_t size = sizes_[member];
  int64_t index = batch_ - 1;
  // A member that is cycled uses up several of its epochs in one of ours, so that no order comes twice.
  if (mode_ == CombineMode::kMaxSizeCycle && size > 0)
    return Place{epoch_ * cycles(member) + index / size, index % size};
  if (mode_ == CombineMode::kSequential) index -= offset(member);
  if (index < 0 || index >= size) return std::nullopt;
  return Place{epoch_, index};
}

CombinedPosition::Place CombinedPosition::standing(size_t member) const {
  const int64_t size = sizes_[member];
  if (mode_ == CombineMode::kMaxSizeCycle && size > 0) {
    const int64_t first = epoch_ * cycles(member);
    return batch_ == 0 ? Place{first, 0} : Place{first + (batch_ - 1) / size, (batch_ - 1) % size + 1};
  }
  const int64_t before = mode_ == CombineMode::kSequential ? offset(member) : 0;
  return {epoch_, std::clamp(batch_ - before, int64_t{0}, size)};
}

const StateDict& checked_members(const StateDict& state, std::string_view mode, std::span<const std::string> names) {
  LEVIN_CHECK(state.at("mode").to_string() == mode, "[data] the state is of loaders combined by \"",
              state.at("mode").to_string(), "\", these are by \"", mode, "\"");
  const StateDict& members = state.at("members").to_dict();
  std::vector<std::string> saved;
  for (const auto& member : members) saved.push_back(member.first);
  LEVIN_CHECK(std::equal(saved.begin(), saved.end(), names.begin(), names.end()),
              "[data] the state is of the combined loaders ", join(saved), ", these are ", join(names));
  return members;
}

void fail_no_batch(std::string_view name) {
  fail(concat("[data] loader \"", name, "\" has no batch here: it is through, or not yet its turn; ask contains(\"",
              name, "\") first"));
}

void fail_no_loader(std::string_view name, std::span<const std::string> known) {
  fail_unknown("data", "loader", name, known);
}

}  // namespace levin::detail
