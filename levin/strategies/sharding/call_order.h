#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/core/worker_thread.h"
#include "levin/distributed/collective.h"

namespace levin::detail {

/// Sees to it that data of different units never meet: all ranks must start the same collectives in the same order.
///
/// What follows what is learned. A call that is the only one ever seen at this place of a step starts at once, and
/// nothing is exchanged. Where nothing is known, or several things are, all ranks meet on the host and compare. A rank
/// that departs from the only known order waits before it starts, until every other rank has said what it calls there;
/// a rank that is past that place, or blocked there, is asked through the store and answers from a thread of its own.
/// So no rank starts a collective whose counterpart is another one, and a difference is one line on every rank.
class CallOrder {
 public:
  /// `group`: all ranks that start the same collectives.
  CallOrder(std::shared_ptr<Collective> group, std::string strategy);
  ~CallOrder();
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;

  /// A unit that takes part; the same on every rank. Returns its number.
  int add(std::string name, int64_t elements);
  /// Before a collective of that unit is started. Throws the same line on every rank when they disagree.
  void next(std::string_view operation, int unit);
  /// The next call is the first of a step.
  void begin_step() { begins_ = true; }
  /// A pass has failed here; where the other ranks are is not known.
  void lose() { lost_ = true; }
  /// Parts of the group, which end with it.
  void add_part(std::shared_ptr<Collective> part) { parts_.push_back(std::move(part)); }

  /// How often ranks have met to compare, for tests.
  int64_t comparisons() const { return comparisons_; }

 private:
  struct Call {
    uint64_t label = 0;
    size_t place = 0;  // in the tree; kLost: unknown
    std::string_view operation;
    int unit = 0;
    bool begins = false;
  };
  struct Unit {
    std::string name;
    int64_t elements;
  };
  /// A place in a step: what came next here before, and where that leads.
  struct Place {
    std::vector<std::pair<uint64_t, size_t>> next;
  };

  std::string describe(const Call& call) const;
  std::string posted(const Call& call) const;
  void announce(const Call& call);
  void compare_through_store(const Call& call);
  [[noreturn]] void fail(std::string_view operation, const std::string& line);
  std::string line_of(const std::vector<std::string>& calls) const;
  void follow(const Call& call, size_t from);
  struct Watcher;
  void watch(Watcher& watcher);
  void answer(int64_t position, int departed);
  void end_parts(const std::string& line);

  const std::shared_ptr<Collective> group_;
  const std::string strategy_;
  const c10::intrusive_ptr<c10d::Store> store_;  // of this instance alone
  std::vector<std::shared_ptr<Collective>> parts_;
  std::vector<Unit> units_;
  std::vector<Place> places_ = std::vector<Place>(1);  // the first is the start of a step
  size_t at_ = 0;
  size_t steps_from_start_ = 0;
  bool begins_ = true;
  bool lost_ = false;
  int64_t comparisons_ = 0;

  std::mutex mutex_;  // of what the watcher reads
  std::vector<Call> log_;
  int64_t announced_ = 0;  // calls that were started, or are about to be
  detail::ProcessBound<Watcher> watcher_;
};

}  // namespace levin::detail
