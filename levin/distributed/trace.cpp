#include "levin/distributed/trace.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/distributed/failure.h"

namespace levin::detail {
namespace {

using Operation = GroupSnapshot::Operation;
using Clock = std::chrono::steady_clock;

thread_local std::string_view label;

double age_of(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

const GroupSnapshot* group_of(const RankSnapshot& rank, const std::string& name) {
  for (const auto& group : rank.groups)
    if (group.name == name) return &group;
  return nullptr;
}

/// Members that have not begun what is a checked operation or not.
std::vector<int> missing_in(std::span<const std::optional<RankSnapshot>> ranks, const GroupSnapshot& group,
                            const Operation& operation, bool checked, int self) {
  std::vector<int> missing;
  for (const int member : group.members) {
    if (member == self || member < 0 || static_cast<size_t>(member) >= ranks.size()) continue;
    const auto& other = ranks[static_cast<size_t>(member)];
    const auto* theirs = other ? group_of(*other, group.name) : nullptr;
    if (!theirs) {
      missing.push_back(member);
      continue;
    }
    if (checked ? theirs->checked < operation.index : theirs->begun < operation.index) {
      missing.push_back(member);
      continue;
    }
    // It has begun something, but not this.
    if (!checked)
      for (const auto& pending : theirs->pending)
        if (pending.index == operation.index &&
            GroupTrace::unlabelled(pending.what) != GroupTrace::unlabelled(operation.what))
          missing.push_back(member);
  }
  return missing;
}

struct Wait {
  std::string what;
  std::vector<int> missing;
};

/// What a rank waits for, among operations of that age; nothing when all have come.
std::optional<Wait> wait_of(std::span<const std::optional<RankSnapshot>> ranks, int self, double least) {
  std::optional<Wait> found;
  double oldest = -1;
  const auto look = [&](const GroupSnapshot& group, const Operation& operation, bool checked) {
    if (operation.age < least || operation.age <= oldest) return;
    auto missing = missing_in(ranks, group, operation, checked, self);
    if (missing.empty()) return;
    oldest = operation.age;
    found = Wait{operation.what, std::move(missing)};
  };
  for (const auto& group : ranks[static_cast<size_t>(self)]->groups) {
    if (group.meeting) look(group, *group.meeting, true);
    for (const auto& operation : group.pending) look(group, operation, false);
  }
  return found;
}

nlohmann::json json_of(const Operation& operation) {
  return {operation.index, operation.age, operation.what};
}

Operation operation_of(const nlohmann::json& json) {
  return {json.at(0), json.at(1), json.at(2)};
}

}  // namespace

std::string RankSnapshot::to_text() const {
  auto all = nlohmann::json::array();
  for (const auto& group : groups) {
    auto pending = nlohmann::json::array();
    for (const auto& operation : group.pending) pending.push_back(json_of(operation));
    all.push_back({group.name, group.members, group.checked,
                   group.meeting ? json_of(*group.meeting) : nlohmann::json(nullptr), group.begun, pending});
  }
  const nlohmann::json json{tick, place, place_age, doing, doing_age, last, last_age, all};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<RankSnapshot> RankSnapshot::from_text(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    RankSnapshot rank{json.at(0), json.at(1), json.at(3), json.at(2), json.at(4), json.at(5), json.at(6)};
    for (const auto& each : json.at(7)) {
      GroupSnapshot group{each.at(0), each.at(1).get<std::vector<int>>(), each.at(2)};
      if (!each.at(3).is_null()) group.meeting = operation_of(each.at(3));
      group.begun = each.at(4);
      for (const auto& operation : each.at(5)) group.pending.push_back(operation_of(operation));
      rank.groups.push_back(std::move(group));
    }
    return rank;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

const Operation* RankSnapshot::longest_wait() const {
  const Operation* longest = nullptr;
  const auto look = [&](const Operation& operation) {
    if (!longest || operation.age > longest->age) longest = &operation;
  };
  for (const auto& group : groups) {
    if (group.meeting) look(*group.meeting);
    for (const auto& operation : group.pending) look(operation);
  }
  return longest;
}

std::string find_deadlock(std::span<const std::optional<RankSnapshot>> ranks, double least) {
  std::vector<std::optional<Wait>> waits(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i]) waits[i] = wait_of(ranks, static_cast<int>(i), least);
  // Whoever waits only for ranks that are on their way is not stuck; what stays after all of those are taken out is.
  for (bool changed = true; changed;) {
    changed = false;
    for (auto& wait : waits) {
      if (!wait) continue;
      const bool stuck = std::any_of(wait->missing.begin(), wait->missing.end(), [&](int rank) {
        return static_cast<size_t>(rank) < waits.size() && waits[static_cast<size_t>(rank)].has_value();
      });
      if (stuck) continue;
      wait.reset();
      changed = true;
    }
  }
  std::vector<std::pair<std::string, std::vector<int>>> places;
  std::string operation;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (!waits[i]) continue;
    if (operation.empty()) operation = waits[i]->what.substr(0, waits[i]->what.find_first_of(": "));
    const auto& place = ranks[i]->place;
    auto text = fmt::format("in {}{}", waits[i]->what, place.empty() ? "" : fmt::format(" ({})", place));
    auto it = std::find_if(places.begin(), places.end(), [&](const auto& entry) { return entry.first == text; });
    if (it == places.end()) it = places.insert(it, {std::move(text), {}});
    it->second.push_back(static_cast<int>(i));
  }
  if (places.empty()) return {};
  constexpr size_t kShown = 6;
  std::string list;
  for (size_t i = 0; i < places.size() && i < kShown; ++i)
    list += fmt::format("{}{} {}", i ? ", " : "", rank_list(places[i].second), places[i].first);
  if (places.size() > kShown) list += fmt::format(" and {} more", places.size() - kShown);
  return fmt::format("[{}] the ranks wait for each other: {}", operation, list);
}

std::vector<int> missing_in_longest_wait(std::span<const std::optional<RankSnapshot>> ranks, int rank) {
  if (!ranks[static_cast<size_t>(rank)]) return {};
  const auto wait = wait_of(ranks, rank, 0);
  return wait ? wait->missing : std::vector<int>{};
}

void GroupTrace::begin_meeting(std::string_view operation) {
  std::lock_guard lock(mutex_);
  meeting_ = Entry{++checked_, std::string(operation), Clock::now()};
}

void GroupTrace::end_meeting() {
  std::lock_guard lock(mutex_);
  if (!meeting_) return;
  last_ = std::move(meeting_->what);
  last_at_ = Clock::now();
  meeting_.reset();
}

GroupTrace::Label::Label(std::string_view operation) : before_(label) {
  label = operation;
}

GroupTrace::Label::~Label() {
  label = before_;
}

std::string GroupTrace::labelled(std::string what) {
  return label.empty() ? what : fmt::format("{}: {}", label, what);
}

std::string_view GroupTrace::unlabelled(std::string_view what) {
  const auto at = what.rfind(": ");
  return at == std::string_view::npos ? what : what.substr(at + 2);
}

int64_t GroupTrace::begin(std::string what) {
  std::lock_guard lock(mutex_);
  pending_.push_back({++begun_, std::move(what), Clock::now()});
  return begun_;
}

void GroupTrace::end(int64_t index) {
  std::lock_guard lock(mutex_);
  const auto it = std::find_if(pending_.begin(), pending_.end(), [&](const Entry& e) { return e.index == index; });
  if (it == pending_.end()) return;
  last_ = std::move(it->what);
  last_at_ = Clock::now();
  pending_.erase(it);
}

GroupSnapshot GroupTrace::snapshot() const {
  std::lock_guard lock(mutex_);
  GroupSnapshot group{name_, members_, checked_};
  if (meeting_) group.meeting = Operation{meeting_->index, age_of(meeting_->since), meeting_->what};
  group.begun = begun_;
  constexpr size_t kTold = 4;
  for (size_t i = 0; i < pending_.size() && i < kTold; ++i)
    group.pending.push_back({pending_[i].index, age_of(pending_[i].since), pending_[i].what});
  return group;
}

std::pair<std::string, Clock::time_point> GroupTrace::last() const {
  std::lock_guard lock(mutex_);
  return {last_, last_at_};
}

}  // namespace levin::detail
