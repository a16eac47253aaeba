#include "levin/memory/groups.h"

#include <algorithm>
#include <utility>

namespace levin::detail {

bool GroupRules::whole() const {
  return ranks == 1 && replicas == 1 && !offload && computed == kept && gradient == kept;
}

GroupPlay::GroupPlay(const GroupRules& rules, const std::vector<GroupSizes>& groups,
                     std::vector<std::vector<int>> needs, const std::vector<int>& order, std::function<void()> note)
    : rules_(rules), needs_(std::move(needs)), note_(std::move(note)) {
  for (const auto& sizes : groups)
    groups_.push_back({.sizes = sizes, .has_memory = rules.keeps_whole, .stale = rules.renews});
  before_.push_back(root());
  before_.insert(before_.end(), order.begin(), order.end());
  std::erase_if(before_, [&](int unit) { return this->needs(unit).empty(); });
  for (const int unit : before_)
    for (const int group : this->needs(unit)) ++at(group).to_come;
  to_come_ = before_;
  cursor_ = to_come_.size();
}

bool GroupPlay::is_needed(int group, int unit) const {
  return std::find(needs(unit).begin(), needs(unit).end(), group) != needs(unit).end();
}

int64_t GroupPlay::arrived_bytes(const Group& group) const {
  return bytes(rules_.ranks * group.sizes.shard, rules_.computed);
}

/// Each of Gloo's threads gathers into a buffer of its own and copies from there.
void GroupPlay::give_to_gloo() {
  if (!rules_.gloo) return;
  for (const int next : waiting_) {
    if (busy_ == kGlooThreads) return;
    auto& group = at(next);
    if (group.state != State::kGathering || group.at_gloo) continue;
    group.at_gloo = true;
    ++busy_;
    arrived_ += arrived_bytes(group);
  }
}

// ---- parameters

void GroupPlay::begin_forward() {
  now_ = 0;
  use(root(), true);
}

void GroupPlay::leave_forward(int unit) {
  if (rules_.keeps_whole || rules_.keeps_gathered || rules_.keeps_to_end) return;
  for (const int group : needs(unit)) {
    const bool goes_on = rules_.keeps_for_next && now_ < before_.size() && is_needed(group, before_[now_]);
    if (!goes_on && !is_needed(group, root())) release(at(group));
  }
}

void GroupPlay::use(int unit, bool forward) {
  if (needs(unit).empty()) return;
  if (forward)
    ++now_;
  else if (!is_first(unit))
    for (size_t i = cursor_; i-- > 0;)
      if (to_come_[i] == unit) {
        cursor_ = i;
        break;
      }
  for (const int group : needs(unit)) begin_gather(group);
  for (const int group : needs(unit)) finish_gather(at(group));
  for (const int group : ahead(unit, forward)) begin_gather(group);
  note_();
}

std::vector<int> GroupPlay::ahead(int unit, bool forward) {
  std::vector<int> uses;
  if (forward) {
    if (now_ > 0 && now_ <= before_.size() && before_[now_ - 1] == unit)
      for (size_t i = now_; i < before_.size() && static_cast<int>(uses.size()) < rules_.forward_ahead; ++i)
        uses.push_back(before_[i]);
  } else if (cursor_ < to_come_.size() ? to_come_[cursor_] == unit : is_first(unit)) {
    for (size_t i = cursor_; i-- > 0 && static_cast<int>(uses.size()) < rules_.backward_ahead;)
      uses.push_back(to_come_[i]);
  }
  std::vector<int> groups;
  int64_t live = 0, elements = 0;
  for (const int group : needs(unit)) live += at(group).sizes.full;
  for (size_t i = 0; i < uses.size(); ++i) {
    for (const int group : needs(uses[i]))
      if (at(group).state != State::kGathered) elements += at(group).sizes.full;
    if ((i > 0 && rules_.most_ahead > 0 && elements > rules_.most_ahead) ||
        (rules_.most_live > 0 && live + elements > rules_.most_live))
      break;
    for (const int group : needs(uses[i]))
      if (at(group).state == State::kSharded) groups.push_back(group);
  }
  return groups;
}

void GroupPlay::begin_gather(int index) {
  auto& group = at(index);
  if (group.state != State::kSharded) return;
  if (group.has_memory && !group.stale) {
    group.state = State::kGathered;
    return;
  }
  group.state = State::kGathering;
  if (rules_.ranks == 1) {
    if (!std::exchange(group.has_memory, true)) gathered_ += full_bytes(group);
    return;
  }
  arrived_ += arrived_bytes(group);
  waiting_.push_back(index);
  give_to_gloo();
  note_();
}

void GroupPlay::finish_gather(Group& group) {
  if (group.state != State::kGathering) return;
  group.state = State::kGathered;
  group.stale = false;
  if (rules_.ranks == 1) return;
  // Gloo's own buffer has gone when it has done its work, and the thread takes on the next.
  if (std::exchange(group.at_gloo, false)) {
    --busy_;
    arrived_ -= arrived_bytes(group);
  }
  std::erase_if(waiting_, [&](int each) { return &at(each) == &group; });
  give_to_gloo();
  if (!std::exchange(group.has_memory, true)) gathered_ += full_bytes(group);
  note_();
  arrived_ -= arrived_bytes(group);
}

void GroupPlay::release(Group& group) {
  finish_gather(group);
  group.state = State::kSharded;
  if (std::exchange(group.has_memory, false)) gathered_ -= full_bytes(group);
  group.stale = true;
}

// ---- gradients

void GroupPlay::begin_with_gradients() {
  for (const auto& group : groups_) keep_reduced(group);
  adds_ = true;
}

void GroupPlay::add_gradient(int group, int64_t size) {
  auto& of = at(group);
  if (!std::exchange(of.has_gradient, true)) settle();
  of.whole_gradients += size;
  whole_gradients_ += size;
}

void GroupPlay::leave_backward(int unit) {
  for (const int group : needs(unit)) {
    auto& of = at(group);
    if (of.to_come > 0 && --of.to_come > 0) continue;
    if (!rules_.keeps_whole && !rules_.keeps_to_end) release(of);
    if (!rules_.reduces_at_end) reduce(group);
  }
}

void GroupPlay::reduce(int group) {
  auto& of = at(group);
  if (of.reduced || of.sizes.grad == 0) return;
  of.reduced = true;
  settle();
  reducing_ = group;
  if (rules_.ranks * rules_.replicas == 1) {
    // Cast, or brought to the host; the wholes are held until that is done.
    keep_reduced(of);
    sent_ += of.whole_gradients;
  } else {
    sent_ += bytes(rules_.ranks * of.sizes.grad, rules_.reduced);
    note_();
    // Over NCCL the part has a place of its own, and is widened as soon as it is known when it will be there.
    if (!rules_.gloo && rules_.ranks > 1) {
      sent_ += bytes(of.sizes.grad, rules_.reduced);
      if (rules_.gradient != rules_.reduced) keep_reduced(of);
    }
  }
  whole_gradients_ -= std::exchange(of.whole_gradients, 0);
  note_();
}

void GroupPlay::settle() {
  if (reducing_ < 0) return;
  auto& of = at(std::exchange(reducing_, -1));
  if (rules_.ranks * rules_.replicas > 1) {
    const bool widened = rules_.gradient != rules_.reduced && !rules_.offload;
    if (rules_.gloo || rules_.ranks == 1) {
      // The part is copied out of the buffer, which goes then, and widened.
      sent_ += rules_.ranks > 1 ? bytes(of.sizes.grad, rules_.reduced) : 0;
      note_();
      if (rules_.ranks > 1) sent_ = bytes(of.sizes.grad, rules_.reduced);
      if (widened) {
        keep_reduced(of);
        note_();
      }
    }
    if (!widened) keep_reduced(of);
    if (rules_.offload) note_();
  }
  sent_ = 0;
  note_();
  if (rules_.steps_in_backward) gradients_ = host_gradients_ = 0;
}

void GroupPlay::keep_reduced(const Group& group) {
  // What is there already is added to.
  auto& place = rules_.offload ? host_gradients_ : adds_ ? sent_ : gradients_;
  if (!rules_.offload || !adds_) place += bytes(group.sizes.grad, rules_.gradient);
}

void GroupPlay::end_backward() {
  for (int group = static_cast<int>(groups_.size()) - 1; group >= 0; --group) {
    if (at(group).reduced) continue;
    if (!rules_.keeps_whole) release(at(group));
    reduce(group);
  }
  settle();
  for (auto& group : groups_) {
    if (!rules_.keeps_whole) release(group);
    group.state = State::kSharded;
  }
}

}  // namespace levin::detail
