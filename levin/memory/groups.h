#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "levin/memory/meter.h"

namespace levin::detail {

/// How parameters that are divided come and go: ShardGroup and OrderedResidency, in numbers.
struct GroupRules {
  int ranks = 1;
  int replicas = 1;
  /// Whole parameters keep their memory between steps; else from forward to backward, or not even that.
  bool keeps_whole = false;
  bool keeps_gathered = false;
  /// ... and to the end of backward.
  bool keeps_to_end = false;
  /// What the next unit needs as well stays for it.
  bool keeps_for_next = false;
  /// This rank's part of parameters and gradients is not on the device.
  bool offload = false;
  bool reduces_at_end = false;
  /// Whole parameters that stay are out of date when the step begins.
  bool renews = true;
  /// Gradients are used, and given up, as they are reduced.
  bool steps_in_backward = false;
  /// Collectives are Gloo's.
  bool gloo = false;
  int forward_ahead = 1;
  int backward_ahead = 1;
  /// Elements that are gathered ahead (but one group always), and whole in all; 0: no limit.
  int64_t most_ahead = 0;
  int64_t most_live = 0;
  /// Bytes of an element: of the part, gathered, on its way to be summed, and of a gradient that stays.
  int64_t kept = 4, computed = 4, reduced = 4, gradient = 4;
  Rounding rounding = Rounding::kNone;

  /// One rank, on its device, in its dtype: nothing has to be done.
  bool whole() const;
};

/// Elements of a group: this rank's part, the whole, and this rank's part of its gradients.
struct GroupSizes {
  int64_t shard = 0;
  int64_t full = 0;
  int64_t grad = 0;
};

/// What divided parameters and their gradients take on the device, over one step.
class GroupPlay {
 public:
  /// `needs` are the groups of each unit, those of the root last; `order` the units as a forward comes to them.
  GroupPlay(const GroupRules& rules, const std::vector<GroupSizes>& groups, std::vector<std::vector<int>> needs,
            const std::vector<int>& order, std::function<void()> note);

  void begin_forward();
  void enter_forward(int unit) { use(unit, true); }
  void leave_forward(int unit);
  void begin_backward() { use(root(), false); }
  void enter_backward(int unit) { use(unit, false); }
  void leave_backward(int unit);
  /// A whole gradient of a parameter of the group is there.
  void add_gradient(int group, int64_t bytes);
  /// Reduced gradients of passes before this one are there.
  void begin_with_gradients();
  void end_backward();

  /// Whole parameters that do not stay, and what is on its way to them or to the reduction.
  int64_t parameters() const { return gathered_ + arrived_ + sent_; }
  /// Whole gradients, and reduced ones.
  int64_t gradients() const { return whole_gradients_ + gradients_; }
  int64_t whole_gradients() const { return whole_gradients_; }
  /// Reduced gradients in host memory.
  int64_t host_gradients() const { return host_gradients_; }

 private:
  enum class State : uint8_t { kSharded, kGathering, kGathered };
  struct Group {
    GroupSizes sizes;
    State state = State::kSharded;
    bool has_memory = false;
    bool stale = true;
    bool at_gloo = false;
    bool has_gradient = false;
    bool reduced = false;
    /// Uses whose backward has not ended.
    int to_come = 0;
    int64_t whole_gradients = 0;
  };

  int root() const { return static_cast<int>(needs_.size()) - 1; }
  const std::vector<int>& needs(int unit) const { return needs_[static_cast<size_t>(unit)]; }
  bool is_needed(int group, int unit) const;
  Group& at(int group) { return groups_[static_cast<size_t>(group)]; }
  int64_t bytes(int64_t elements, int64_t width) const { return round_allocation(elements * width, rules_.rounding); }
  int64_t full_bytes(const Group& group) const { return bytes(group.sizes.full, rules_.computed); }
  int64_t arrived_bytes(const Group& group) const;

  bool is_first(int unit) const { return !to_come_.empty() && to_come_.front() == unit; }
  void use(int unit, bool forward);
  std::vector<int> ahead(int unit, bool forward);
  void begin_gather(int index);
  void give_to_gloo();
  void finish_gather(Group& group);
  void release(Group& group);
  void reduce(int group);
  void settle();
  void keep_reduced(const Group& group);

  GroupRules rules_;
  std::vector<Group> groups_;
  std::vector<std::vector<int>> needs_;
  std::function<void()> note_;
  /// Units, the root first.
  std::vector<int> before_, to_come_;
  size_t now_ = 0, cursor_ = 0;
  static constexpr int kGlooThreads = 2;
  std::vector<int> waiting_;  // groups that are being gathered
  int busy_ = 0;              // threads of Gloo that gather
  int reducing_ = -1;
  bool adds_ = false;
  int64_t gathered_ = 0, arrived_ = 0, sent_ = 0, whole_gradients_ = 0, gradients_ = 0, host_gradients_ = 0;
};

}  // namespace levin::detail
