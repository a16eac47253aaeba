// When groups are gathered, released and reduced: without ranks, tensors or memory.
#include "levin/strategies/sharding/schedule.h"

#include <deque>

#include <gtest/gtest.h>

#include "levin/core/words.h"
#include "levin/strategies/sharding/group_memory.h"
#include "levin/strategies/sharding/ordered_residency.h"

namespace levin::detail {
namespace {

class NotedGroup final : public ScheduledGroup {
 public:
  NotedGroup(std::string name, std::vector<std::string>& notes) : name_(std::move(name)), notes_(notes) {}
  bool updates = false;
  bool updates_in_place() const override { return updates; }

  int64_t full_numel() const override { return 1; }
  bool trained() const override { return true; }
  void begin_gather() override {
    if (state_ != State::kSharded) return;
    state_ = State::kGathering;
    note("gather");
  }
  void finish_gather() override {
    begin_gather();
    state_ = State::kGathered;
  }
  void release(bool keep_memory) override {
    if (state_ != State::kSharded) note(keep_memory ? "keep" : "free");
    state_ = State::kSharded;
  }
  void begin_reduce() override { note("reduce"); }
  void finish_reduce() override { note("reduced"); }

 private:
  void note(const std::string& what) { notes_.push_back(what + " " + name_); }
  std::string name_;
  std::vector<std::string>& notes_;
};

/// Units a and b, and the root r.
class TwoUnits {
 public:
  explicit TwoUnits(const ScheduleOptions& options = {}, const ResidencyOptions& residency = {})
      : schedule({&a_, &b_, &r_}, {{&a_}, {&b_}, {&r_}}, std::make_unique<OrderedResidency>(residency), options) {}

  /// What is done in a forward that comes to the units in this order.
  std::string forward(const std::vector<size_t>& units) {
    notes_.clear();
    schedule.begin_forward(/*training=*/true);
    for (const auto unit : units) {
      schedule.enter_forward(unit);
      schedule.expect_backward(unit);
      schedule.leave_forward(unit);
    }
    schedule.end_forward();
    return join(notes_);
  }
  void update_in_place() { a_.updates = b_.updates = r_.updates = true; }
  std::string backward(const std::vector<size_t>& units, bool reduces = true, std::optional<int64_t> room = {}) {
    notes_.clear();
    schedule.begin_backward(reduces, room);
    schedule.use_root();
    for (const auto unit : units) {
      schedule.enter_backward(unit);
      schedule.settle_early();
      schedule.leave_backward(unit);
    }
    schedule.end_reductions(/*used=*/true);
    schedule.end_backward();
    return join(notes_);
  }

 private:
  std::vector<std::string> notes_;
  NotedGroup a_{"a", notes_}, b_{"b", notes_}, r_{"r", notes_};

 public:
  Schedule schedule;
};

constexpr auto kBackward =
    "gather b, gather a, free b, reduce b, reduced b, free a, reduce a, free r, reduced a, reduce r, reduced r";

TEST(Schedule, GathersAheadWhatCameNextInTheStepBefore) {
  TwoUnits units;
  EXPECT_EQ(units.forward({0, 1}), "gather r, gather a, free a, gather b, free b");
  EXPECT_EQ(units.backward({1, 0}), kBackward);
  EXPECT_EQ(units.forward({0, 1}), "gather r, gather a, gather b, free a, free b");
  EXPECT_EQ(units.backward({1, 0}), kBackward);
}

TEST(Schedule, KeepsWhatForwardUsedLastForBackward) {
  TwoUnits units({}, {.keeps_last = true});
  EXPECT_EQ(units.forward({0, 1}), "gather r, gather a, free a, gather b, free b");  // which is the last is not known
  EXPECT_EQ(units.backward({1, 0}), kBackward);
  EXPECT_EQ(units.forward({0, 1}), "gather r, gather a, gather b, free a");
  EXPECT_EQ(units.backward({1, 0}),
            "gather a, free b, reduce b, reduced b, free a, reduce a, free r, reduced a, reduce r, reduced r");
  EXPECT_EQ(units.forward({1, 0}), "gather r, gather a, gather b, free b, free a");  // another order than before
  EXPECT_EQ(
      units.backward({0, 1}),
      "gather a, gather b, free a, reduce a, reduced a, free b, reduce b, free r, reduced b, reduce r, reduced r");
}

TEST(Schedule, WhatIsSteppedOnTheDeviceKeepsItsMemoryForTheTimeOfAUnit) {
  TwoUnits units;
  units.update_in_place();
  units.forward({0, 1});
  EXPECT_EQ(
      units.backward({1, 0}),
      "gather b, gather a, reduce b, reduced b, free b, reduce a, reduced a, free a, reduce r, reduced r, free r");
  units.forward({0, 1});
  EXPECT_EQ(units.backward({1, 0}, /*reduces=*/false), "gather b, gather a, free b, free a, free r");
}

TEST(Schedule, WhatForwardUsesFirstStaysAfterItWasSteppedOnTheDevice) {
  TwoUnits units({}, {.keeps_first = 2});
  units.update_in_place();
  for (int step = 0; step < 2; ++step) {
    // The first unit is not kept: its step ends with backward.
    EXPECT_EQ(units.forward({0, 1}),
              step == 0 ? "gather r, gather a, free a, gather b, free b" : "gather r, gather a, free a, free b");
    EXPECT_EQ(units.backward({1, 0}),
              "gather b, gather a, reduce b, reduced b, reduce a, reduced a, free a, reduce r, reduced r, free r");
  }
}

/// As far as the activations that backward has freed made room for them.
TEST(Schedule, WhatForwardUsesFirstStaysWhereThereIsRoom) {
  for (const int64_t room : {0, 1, 1000}) {
    SCOPED_TRACE(room);
    TwoUnits units({}, {.keeps_first = 2});
    units.update_in_place();
    units.forward({0, 1});
    const auto backward = units.backward({1, 0}, /*reduces=*/true, room);
    EXPECT_EQ(backward.find("free b") == std::string::npos, room >= 1) << backward;
  }
}

TEST(Schedule, OthersComeInThePlaceOfWhatStayedAndHasBeenUsed) {
  constexpr int kUnits = 12;
  std::vector<std::string> notes;
  std::deque<NotedGroup> groups;
  for (int i = 0; i <= kUnits; ++i) groups.emplace_back(std::to_string(i), notes);  // the root is 0
  for (const bool stays : {false, true}) {
    OrderedResidency residency({.keeps_first = 4});
    const auto forward = [&] {
      residency.begin_pass(Pass::kForward, true);
      notes.clear();
      for (auto& group : groups) {
        group.finish_gather();
        residency.before_use({&group});
        notes.push_back("use");
        for (auto* next : residency.ahead({&group})) next->begin_gather();
        group.release(/*keep_memory=*/false);
      }
      residency.end_pass(Pass::kForward);
      std::erase_if(notes, [](const auto& note) { return note.starts_with("free"); });
      return join(notes);
    };
    forward();
    if (stays)
      for (size_t i = 2; i < 6; ++i) groups[i].finish_gather();
    EXPECT_EQ(forward(),
              stays
                  ? "gather 0, use, gather 1, use, gather 6, use, gather 7, use, use, gather 8, use, gather 9, use, "
                    "use, gather 10, use, gather 11, use, gather 12, use, use, use"
                  : "gather 0, use, gather 1, use, gather 2, use, gather 3, use, gather 4, use, gather 5, use, gather "
                    "6, use, gather 7, use, gather 8, use, gather 9, use, gather 10, use, gather 11, use, gather 12, "
                    "use");
  }
}

TEST(Schedule, HalfOfWhatHasLeftIsThereWhenAUnitEnds) {
  const auto arrived = [](std::vector<int64_t> bytes) { return arrived_with_unit(bytes); };
  EXPECT_EQ(arrived({}), 0);
  EXPECT_EQ(arrived({5}), 0);  // the last one has only begun
  EXPECT_EQ(arrived({8, 8}), 1);
  EXPECT_EQ(arrived({1, 9}), 1);
  EXPECT_EQ(arrived({13, 13, 3, 10}), 2);
}

TEST(Schedule, ReducesNothingWhileGradientsAreAccumulated) {
  TwoUnits units;
  units.forward({0, 1});
  EXPECT_EQ(units.backward({1, 0}, /*reduces=*/false), "gather b, gather a, free b, free a, free r");
}

TEST(Schedule, ReducesAtTheEnd) {
  TwoUnits units({.reduces_at_end = true});
  units.forward({0, 1});
  EXPECT_EQ(
      units.backward({1, 0}),
      "gather b, gather a, free b, free a, free r, reduce r, reduced r, reduce b, reduced b, reduce a, reduced a");
}

TEST(Schedule, KeepsGroupsWhoseUsesNobodyAnnounces) {
  TwoUnits units;
  units.schedule.hold_groups();
  units.forward({0, 1});
  EXPECT_EQ(
      units.backward({1, 0}),
      "gather b, gather a, free r, reduce r, free b, reduced r, reduce b, free a, reduced b, reduce a, reduced a");
}

TEST(Schedule, AnOrderOfItsOwnIsThatOfTheFirstStep) {
  const ResidencyOptions stays{.releases_after_forward = false, .releases_after_backward = false};
  TwoUnits units({.keeps_full = true, .own_order = true}, stays);
  // Groups are gathered in the order of definition, and reduced in its reverse, whatever this rank does.
  EXPECT_EQ(units.forward({1, 0}), "gather r, gather a, gather b");
  EXPECT_EQ(units.backward({0, 1}),
            "reduce b, reduced b, reduce a, reduced a, reduce r, reduced r, keep a, keep b, keep r");
  ASSERT_TRUE(units.schedule.learns_order());
  units.schedule.adopt_order(units.schedule.seen_order());
  EXPECT_FALSE(units.schedule.learns_order());
  EXPECT_EQ(units.forward({1, 0}), "gather r, gather b, gather a");
  EXPECT_EQ(units.backward({0, 1}),
            "reduce a, reduced a, reduce b, reduced b, reduce r, reduced r, keep a, keep b, keep r");
}

}  // namespace
}  // namespace levin::detail
