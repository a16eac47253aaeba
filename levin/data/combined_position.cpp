#include "levin/data/combined_position.h"

#include <algorithm>
#include <array>
#include <utility>

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
  set_epoch(0);
}

size_t CombinedPosition::longest() const {
  return static_cast<size_t>(std::max_element(sizes_.begin(), sizes_.end()) - sizes_.begin());
}

void CombinedPosition::count_size() {
  int64_t least = left(0), most = 0, sum = 0;
  for (size_t i = 0; i < origin_.size(); ++i) {
    least = std::min(least, left(i));
    most = std::max(most, left(i));
    sum += left(i);
  }
  switch (mode_) {
    case CombineMode::kMinSize:
      size_ = first_ + least;
      break;
    case CombineMode::kMaxSize:
      size_ = first_ + most;
      break;
    case CombineMode::kMaxSizeCycle:
      size_ = first_ + left(longest());
      break;
    case CombineMode::kSequential:
      size_ = first_ + sum;
      break;
  }
}

void CombinedPosition::set_epoch(int64_t epoch) {
  epoch_ = epoch;
  batch_ = first_ = 0;
  inside_ = false;
  whole_ = true;
  origin_.clear();
  // A member that is cycled uses up several of its epochs in one of ours, so that no order comes twice.
  for (size_t i = 0; i < sizes_.size(); ++i) origin_.push_back({{epoch * cycles(i), 0}, sizes_[i]});
  count_size();
}

void CombinedPosition::seek(int64_t epoch, int64_t batch) {
  if (epoch != epoch_ || batch < first_) set_epoch(epoch);
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

void CombinedPosition::resume(int64_t epoch, std::vector<Standing> standing) {
  set_epoch(epoch);
  whole_ = false;
  origin_ = std::move(standing);
  // All members go through a pass at one pace, and the longest never starts again.
  if (mode_ == CombineMode::kSequential)
    for (const auto& member : origin_) first_ += member.place.batch;
  else
    first_ = origin_[longest()].place.batch;
  batch_ = first_;
  count_size();
}

int64_t CombinedPosition::offset(size_t member) const {
  if (mode_ != CombineMode::kSequential) return 0;
  int64_t before = 0;
  for (size_t i = 0; i < member; ++i) before += left(i);
  return before;
}

int64_t CombinedPosition::cycles(size_t member) const {
  if (mode_ != CombineMode::kMaxSizeCycle || sizes_[member] == 0) return 1;
  return (sizes_[longest()] + sizes_[member] - 1) / sizes_[member];
}

std::optional<CombinedPosition::Place> CombinedPosition::giving(size_t member) const {
  const auto& place = origin_[member].place;
  const int64_t index = batch_ - 1 - first_ - offset(member);
  if (index < 0) return std::nullopt;
  if (index < left(member)) return Place{place.epoch, place.batch + index};
  if (mode_ != CombineMode::kMaxSizeCycle || sizes_[member] == 0) return std::nullopt;
  const int64_t beyond = index - left(member);
  return Place{place.epoch + 1 + beyond / sizes_[member], beyond % sizes_[member]};
}

CombinedPosition::Place CombinedPosition::standing(size_t member) const {
  const auto& [place, size] = origin_[member];
  const int64_t given = std::max<int64_t>(batch_ - first_ - offset(member), 0);
  if (given <= left(member)) return {place.epoch, place.batch + given};
  if (mode_ != CombineMode::kMaxSizeCycle || sizes_[member] == 0) return {place.epoch, size};
  const int64_t beyond = given - left(member) - 1;
  return {place.epoch + 1 + beyond / sizes_[member], beyond % sizes_[member] + 1};
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
