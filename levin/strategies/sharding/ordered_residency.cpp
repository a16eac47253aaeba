#include "levin/strategies/sharding/ordered_residency.h"

#include <algorithm>

namespace levin::detail {
namespace {

bool is_gathered(const Residency::Groups& groups) {
  return std::ranges::all_of(groups,
                             [](const auto* group) { return group->state() == ScheduledGroup::State::kGathered; });
}

}  // namespace

void OrderedResidency::begin_pass(Pass pass, bool training) {
  pass_ = pass;
  training_ = training;
  if (pass == Pass::kForward) {
    now_.clear();
    stayed_ = 0;
    for (size_t i = 2; i < before_.size(); ++i) stayed_ += !before_[i].empty() && is_gathered(before_[i]);
  }
  cursor_ = to_come_.size();
}

void OrderedResidency::before_use(const Groups& needed) {
  if (pass_ == Pass::kForward) {
    now_.push_back(needed);
    if (training_) to_come_.push_back(needed);
    return;
  }
  // The root's use came first, and is there all through backward: it says nothing of how far that has come.
  if (is_root(needed)) return;
  for (size_t i = cursor_; i-- > 0;)
    if (to_come_[i] == needed) {
      cursor_ = i;
      return;
    }
}

bool OrderedResidency::is_root(const Groups& needed) const {
  return !to_come_.empty() && to_come_.front() == needed;
}

Residency::Groups OrderedResidency::ahead(const Groups& needed) {
  std::vector<const Groups*> uses;
  if (pass_ == Pass::kForward) {
    const size_t at = now_.size(), all = before_.size();
    if (at <= all && at > 0 && before_[at - 1] == needed) {
      // Others come in the place of units that stayed and have been used, until activations need it; one less, so that
      // forward stays below the peak of backward.
      const auto replaced = static_cast<size_t>(stayed_) * (all - at) / all;
      const auto most =
          static_cast<size_t>(options_.forward_prefetch + (stayed_ + 1) / 2) + std::max<size_t>(replaced, 1) - 1;
      for (size_t i = at; i < std::min(all, at + most); ++i) uses.push_back(&before_[i]);
    }
  } else if (cursor_ < to_come_.size() ? to_come_[cursor_] == needed : is_root(needed)) {
    size_t end = cursor_;
    // What forward has kept needs no copy: the one before it does.
    if (options_.keeps_last && end == to_come_.size() && end > 1 && is_gathered(to_come_[end - 1])) --end;
    for (size_t i = end; i-- > 0 && static_cast<int>(uses.size()) < options_.backward_prefetch;)
      uses.push_back(&to_come_[i]);
  }
  Groups groups;
  int64_t live = 0, ahead = 0;
  for (const auto* group : needed) live += group->full_numel();
  for (const auto* use : uses) {
    for (auto* group : *use)
      if (group->state() != ScheduledGroup::State::kGathered) ahead += group->full_numel();  // being gathered, or to be
    // A unit that is larger than the limit is gathered ahead all the same: computation would wait for it.
    const bool first = use == uses.front();
    if ((!first && options_.most_ahead > 0 && ahead > options_.most_ahead) ||
        (options_.most_live > 0 && live + ahead > options_.most_live))
      break;
    for (auto* group : *use)
      if (group->state() == ScheduledGroup::State::kSharded && std::ranges::find(groups, group) == groups.end())
        groups.push_back(group);
  }
  return groups;
}

/// By the forward before.
bool OrderedResidency::is_last(const ScheduledGroup& group) const {
  return now_.size() == before_.size() && !now_.empty() && now_.back() == before_.back() &&
         std::ranges::find(now_.back(), &group) != now_.back().end();
}

bool OrderedResidency::release_after_use(ScheduledGroup& group, Pass pass) {
  if (pass == Pass::kBackward) return options_.releases_after_backward;
  if (!training_) return options_.releases_after_forward || options_.releases_after_backward;
  return options_.releases_after_forward && !(options_.keeps_last && is_last(group));
}

bool OrderedResidency::stays(const ScheduledGroup& group) const {
  // The root comes first, and the first unit after it.
  const auto end = std::min(before_.size(), static_cast<size_t>(2 + options_.keeps_first));
  int64_t kept = 0;
  for (size_t i = 2; i < end; ++i) {
    for (const auto* each : before_[i]) kept += each->full_numel();
    if (kept > room_) return false;
    if (std::ranges::find(before_[i], &group) != before_[i].end()) return true;
  }
  return false;
}

void OrderedResidency::end_pass(Pass pass) {
  if (pass == Pass::kForward)
    before_ = now_;
  else
    to_come_.clear();
  // Forwards that nobody differentiates must not pile up.
  constexpr size_t kMany = 100'000;
  if (to_come_.size() > kMany) to_come_.clear();
}

}  // namespace levin::detail
