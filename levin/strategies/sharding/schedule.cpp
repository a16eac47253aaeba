#include "levin/strategies/sharding/schedule.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace levin::detail {
namespace {

bool contains(const Schedule::Groups& groups, const ScheduledGroup* group) {
  return std::ranges::find(groups, group) != groups.end();
}

}  // namespace

Schedule::Schedule(Groups groups, std::vector<Groups> units, std::unique_ptr<Residency> residency,
                   ScheduleOptions options)
    : groups_(std::move(groups)),
      units_(std::move(units)),
      residency_(std::move(residency)),
      options_(std::move(options)),
      gather_order_(groups_) {
  // The root is used first, and done with last.
  std::ranges::stable_partition(gather_order_, [&](auto* group) { return contains(units_.back(), group); });
  reduce_order_.assign(gather_order_.rbegin(), gather_order_.rend());
}

// ---- forward

void Schedule::begin_forward(bool training) {
  training_ = training;
  next_gather_ = 0;
  residency_->begin_pass(Pass::kForward, training);
  use_root();
  for (auto* group : units_.back()) {
    ++group->progress.computing;
    if (!training) continue;
    group->progress.used = true;
    ++group->progress.to_come;  // until the end of backward: units that share the group must not be done with it before
  }
}

void Schedule::enter_forward(size_t unit) {
  use(unit);
  for (auto* group : units_[unit]) ++group->progress.computing;
}

void Schedule::expect_backward(size_t unit) {
  for (auto* group : units_[unit]) {
    group->progress.used = true;
    ++group->progress.to_come;
  }
}

void Schedule::drop_backward(size_t unit) {
  for (auto* group : units_[unit])
    if (group->progress.to_come > 0) --group->progress.to_come;
}

void Schedule::leave_forward(size_t unit) {
  for (auto* group : units_[unit])
    if (--group->progress.computing == 0 && residency_->release_after_use(*group, Pass::kForward)) group->release();
}

void Schedule::end_forward() {
  for (auto* group : units_.back()) --group->progress.computing;
  if (!training_)
    for (auto* group : groups_) group->release(options_.keeps_full);
  residency_->end_pass(Pass::kForward);
}

void Schedule::use(size_t unit) {
  const auto& needed = units_[unit];
  if (needed.empty()) return;
  if (options_.own_order) return use_in_order(needed);
  residency_->before_use(needed);
  for (auto* group : needed) group->begin_gather();
  for (auto* group : needed) group->finish_gather();
  // Only then: the gathered shards and what they are copied to are both in memory until here.
  for (auto* group : residency_->ahead(needed)) group->begin_gather();
}

/// Other ranks may call units in other orders, or not all of them: each gathers what comes before, too.
void Schedule::use_in_order(const Groups& needed) {
  if (!order_adopted_) seen_uses_.insert(seen_uses_.end(), needed.begin(), needed.end());
  size_t end = next_gather_;
  for (size_t i = next_gather_; i < gather_order_.size(); ++i)
    if (contains(needed, gather_order_[i])) end = i + 1;
  for (; next_gather_ < end; ++next_gather_) {
    gather_order_[next_gather_]->begin_gather();
    if (options_.gathers_ahead && next_gather_ + 1 < end) gather_order_[next_gather_ + 1]->begin_gather();
    gather_order_[next_gather_]->finish_gather();
  }
  for (auto* group : needed) group->finish_gather();
  if (options_.gathers_ahead && end < gather_order_.size()) gather_order_[end]->begin_gather();
}

void Schedule::gather_rest(bool keeps) {
  if (!options_.own_order) return;
  for (; next_gather_ < gather_order_.size(); ++next_gather_) {
    auto& group = *gather_order_[next_gather_];
    group.finish_gather();
    if (!keeps && !training_) group.release(/*keep_memory=*/true);
  }
}

// ---- backward

void Schedule::begin_backward(bool reduces, std::optional<int64_t> room) {
  reduces_ = reduces;
  if (room) residency_->set_room(*room);
  for (auto* group : groups_) group->progress.reduced = false;
  // Also in a backward that another one came before since the forward (stages of a pipeline).
  for (auto* group : units_.back()) group->progress.used = true;
  gather_rest(/*keeps=*/true);
  next_reduce_ = 0;
  residency_->begin_pass(Pass::kBackward, true);
}

void Schedule::enter_backward(size_t unit) {
  for (auto* group : units_[unit]) group->progress.used = true;
  use(unit);
}

void Schedule::leave_backward(size_t unit) {
  for (auto* group : units_[unit]) {
    auto& progress = group->progress;
    // A use that nobody counted (its forward was before another backward) may not be the last.
    const bool counted = progress.to_come > 0;
    if (counted) --progress.to_come;
    if (progress.to_come == 0 && (counted || !options_.own_order)) done_with(*group);
  }
}

void Schedule::done_with(ScheduledGroup& group) {
  if (holds_) return;
  const bool now = reduces_ && !options_.reduces_at_end;
  const bool frees = residency_->release_after_use(group, Pass::kBackward);
  if (frees && !(now && group.updates_in_place())) group.release();
  if (!now) return;
  if (!options_.own_order) return reduce(group, frees);
  group.progress.ready = true;
  if (!order_adopted_) seen_ready_.push_back(&group);
  reduce_ready();
}

/// As far as the order allows: groups that are ready before their turn wait.
void Schedule::reduce_ready() {
  for (; next_reduce_ < reduce_order_.size(); ++next_reduce_) {
    auto& group = *reduce_order_[next_reduce_];
    if (!group.progress.ready && group.trained()) return;
    reduce(group);
  }
}

void Schedule::reduce(ScheduledGroup& group, bool frees) {
  if (!group.trained()) return;
  settle_reduction();
  group.begin_reduce();
  group.progress.reduced = true;
  reducing_ = &group;
  frees_reduced_ = frees && group.updates_in_place() && !residency_->stays(group);
  residency_->after_reduce(group);
}

/// The one before has had the time of a unit.
void Schedule::settle_reduction() {
  auto* group = std::exchange(reducing_, nullptr);
  if (!group) return;
  group->finish_reduce();
  if (std::exchange(frees_reduced_, false)) group->release();
  if (options_.on_reduced) options_.on_reduced(*group);
}

void Schedule::settle_early() {
  if (reducing_ && !reducing_->updates_in_place()) settle_reduction();
}

void Schedule::end_reductions(bool used) {
  if (used && options_.own_order && reduces_)
    for (; next_reduce_ < reduce_order_.size(); ++next_reduce_) reduce(*reduce_order_[next_reduce_]);
  if (used && !options_.own_order)
    for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
      auto& each = **group;
      if (!each.progress.used || each.progress.reduced) continue;
      const bool frees = !options_.keeps_full;
      if (frees && !(reduces_ && each.updates_in_place())) each.release();
      if (reduces_) reduce(each, frees);
    }
  settle_reduction();
}

void Schedule::end_backward() {
  for (auto* group : groups_) {
    const bool stays = group->progress.reduced && group->updates_in_place() && residency_->stays(*group);
    if (!stays) group->release(options_.keeps_full);
    group->progress = {};
  }
  residency_->end_pass(Pass::kBackward);
}

void Schedule::abandon(Pass pass) {
  reducing_ = nullptr;
  frees_reduced_ = false;
  next_gather_ = gather_order_.size();  // there is no forward whose rest others could wait for
  for (auto* group : groups_) group->progress = {};
  residency_->abandon_pass(pass);
}

// ---- an order of their own

std::string Schedule::numbers_of(const Groups& seen) const {
  std::string text;
  for (const auto* group : seen) text += std::to_string(std::ranges::find(groups_, group) - groups_.begin()) + " ";
  return text;
}

std::string Schedule::seen_order() const {
  return numbers_of(seen_uses_) + "\n" + numbers_of(seen_ready_);
}

void Schedule::reorder(Groups& order, const std::string& numbers) const {
  Groups now;
  for (const char* at = numbers.c_str(); *at;) {
    char* end = nullptr;
    auto* group = groups_[std::strtoul(at, &end, 10)];
    at = end + 1;
    if (!contains(now, group)) now.push_back(group);
  }
  for (auto* group : order)
    if (!contains(now, group)) now.push_back(group);
  order = std::move(now);
}

void Schedule::adopt_order(const std::string& seen) {
  order_adopted_ = true;
  reorder(gather_order_, seen.substr(0, seen.find('\n')));
  reorder(reduce_order_, seen.substr(seen.find('\n') + 1));
  seen_uses_.clear();
  seen_ready_.clear();
}

}  // namespace levin::detail
