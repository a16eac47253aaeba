#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin::detail {

/// What one rank has under way in one group, at one moment. Ages are seconds.
struct GroupSnapshot {
  struct Operation {
    int64_t index = 0;
    double age = 0;
    std::string what;
  };
  std::string name;
  /// Ranks of the run, by rank of the group.
  std::vector<int> members;
  /// Checked operations that were begun, and the one that still waits for the others.
  int64_t checked = 0;
  std::optional<Operation> meeting = {};
  /// Operations that carry data: how many were begun, and those that are not at their end, oldest first.
  int64_t begun = 0;
  std::vector<Operation> pending = {};
};

/// What one rank does, as it tells the others.
struct RankSnapshot {
  /// Grows while the rank is alive.
  int64_t tick = 0;
  /// Where in the program it is ("epoch 0, batch 3 of training") and what it does there ("forward of block3").
  std::string place, doing;
  double place_age = 0, doing_age = 0;
  /// The operation that ended last; empty: none has.
  std::string last;
  double last_age = 0;
  std::vector<GroupSnapshot> groups = {};

  std::string to_text() const;
  static std::optional<RankSnapshot> from_text(const std::string& text);
  /// The operation that has waited longest; null when there is none.
  const GroupSnapshot::Operation* longest_wait() const;
};

/// Ranks that wait in different operations, each for another that will never come: one line, or nothing. `ranks` are by
/// rank of the run; an operation counts when it is `least` seconds old.
std::string find_deadlock(std::span<const std::optional<RankSnapshot>> ranks, double least);

/// The ranks that have not begun the operation in which `rank` has waited longest.
std::vector<int> missing_in_longest_wait(std::span<const std::optional<RankSnapshot>> ranks, int rank);

/// Records the operations of one group on this rank. Any thread may call.
class GroupTrace {
 public:
  GroupTrace(std::string name, std::vector<int> members) : name_(std::move(name)), members_(std::move(members)) {}

  /// A checked operation, from its beginning until all ranks have begun it.
  class Meeting {
   public:
    Meeting(GroupTrace& trace, std::string_view operation) : trace_(trace) { trace_.begin_meeting(operation); }
    ~Meeting() { trace_.end_meeting(); }
    Meeting(const Meeting&) = delete;
    Meeting& operator=(const Meeting&) = delete;

   private:
    GroupTrace& trace_;
  };
  /// Operations that this thread begins until the end of the scope are named by it in front.
  class Label {
   public:
    explicit Label(std::string_view operation);
    ~Label();
    Label(const Label&) = delete;
    Label& operator=(const Label&) = delete;

   private:
    std::string_view before_;
  };
  /// "fsdp.all_gather: all_gather of 4096 bytes"
  static std::string labelled(std::string what);
  /// What an operation must have in common with that of other ranks. A rank may name it by where it stands there: one
  /// that has joined shadows what others do in backward.
  static std::string_view unlabelled(std::string_view what);
  /// Returns its index, from 1.
  int64_t begin(std::string what);
  void end(int64_t index);

  GroupSnapshot snapshot() const;
  /// What ended last, and when.
  std::pair<std::string, std::chrono::steady_clock::time_point> last() const;

 private:
  void begin_meeting(std::string_view operation);
  void end_meeting();

  using Clock = std::chrono::steady_clock;
  struct Entry {
    int64_t index;
    std::string what;
    Clock::time_point since;
  };
  const std::string name_;
  const std::vector<int> members_;
  mutable std::mutex mutex_;
  int64_t checked_ = 0;
  std::optional<Entry> meeting_;
  int64_t begun_ = 0;
  std::deque<Entry> pending_;
  std::string last_;
  Clock::time_point last_at_{};
};

}  // namespace levin::detail
