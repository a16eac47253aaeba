#include <algorithm>
#include <array>
#include <tuple>

#include "levin/core/error.h"
#include "levin/strategies/pipeline/schedule.h"

namespace levin {

namespace {

using Kind = PipelineAction::Kind;

/// An action and its place in the global order: a transfer happens at the end of the compute that made its data, before
/// the computes that start then.
struct Placed {
  int64_t time;
  bool is_compute;
  PipelineAction action;
  /// The order of transfers of the same time, equal on both sides.
  int from_stage = 0;

  auto key() const { return std::tuple(time, is_compute, from_stage, action.microbatch); }
};

/// Plays the compute of all ranks, each in its order, with a forward of one unit and a backward of two.
class NominalRun {
 public:
  explicit NominalRun(const PipelineSchedule& schedule)
      : schedule_(schedule),
        forward_end_(size(), kNever),
        backward_end_(size(), kNever),
        next_(schedule.actions.size(), 0),
        free_at_(schedule.actions.size(), 0) {}

  /// `done(rank, action, start, end)` for every action, in an order in which each rank's come in theirs.
  template <class Done>
  void play(const Done& done) {
    for (bool progressed = true; progressed;) {
      progressed = false;
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        while (has_next(rank)) {
          const PipelineAction& action = next(rank);
          const int64_t ready = ready_at(action);
          if (ready == kNever) break;
          const int64_t start = std::max(free_at_[rank], ready);
          const int64_t end = start + (action.kind == Kind::kBackward ? 2 : 1);
          if (action.kind == Kind::kForward) forward_end_[index(action.stage, action.microbatch)] = end;
          if (action.kind == Kind::kBackward || action.kind == Kind::kBackwardInput) {
            backward_end_[index(action.stage, action.microbatch)] = end;
          }
          done(rank, action, start, end);
          free_at_[rank] = end;
          ++next_[rank];
          progressed = true;
        }
      }
    }
    check_all_done();
  }

 private:
  static constexpr int64_t kNever = -1;

  size_t size() const { return static_cast<size_t>(schedule_.stages()) * schedule_.microbatches; }
  size_t index(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * schedule_.microbatches + microbatch;
  }
  bool has_next(int rank) const { return next_[rank] < schedule_.actions[rank].size(); }
  const PipelineAction& next(int rank) const { return schedule_.actions[rank][next_[rank]]; }

  /// What has to be done before: of this stage, and of its neighbour.
  struct Needs {
    std::array<PipelineAction, 2> actions;
    int count = 0;

    void add(Kind kind, int stage, int microbatch) {
      actions[count++] = {.kind = kind, .stage = stage, .microbatch = microbatch};
    }
    auto begin() const { return actions.begin(); }
    auto end() const { return actions.begin() + count; }
  };
  Needs needs(const PipelineAction& action) const {
    const auto [kind, stage, microbatch, peer, group] = action;
    Needs found;
    if (kind == Kind::kForward && stage > 0) found.add(Kind::kForward, stage - 1, microbatch);
    if (kind == Kind::kBackward || kind == Kind::kBackwardInput) {
      found.add(Kind::kForward, stage, microbatch);
      if (stage + 1 < schedule_.stages()) found.add(Kind::kBackward, stage + 1, microbatch);
    }
    if (kind == Kind::kBackwardWeight) found.add(Kind::kBackward, stage, microbatch);
    return found;
  }
  int64_t end_of(const PipelineAction& need) const {
    const auto& ends = need.kind == Kind::kForward ? forward_end_ : backward_end_;
    return ends[index(need.stage, need.microbatch)];
  }
  int64_t ready_at(const PipelineAction& action) const {
    int64_t ready = 0;
    for (const PipelineAction& need : needs(action)) {
      if (end_of(need) == kNever) return kNever;
      ready = std::max(ready, end_of(need));
    }
    return ready;
  }

  void check_all_done() const {
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      if (!has_next(rank)) continue;
      for (const PipelineAction& need : needs(next(rank))) {
        LEVIN_CHECK(end_of(need) != kNever, "[pipeline] schedule \"", schedule_.name, "\" deadlocks: rank ", rank,
                    " is at ", to_string(next(rank)), " and waits for ", to_string(need), " of rank ",
                    schedule_.rank_of(need.stage), ", which never comes");
      }
    }
  }

  const PipelineSchedule& schedule_;
  std::vector<int64_t> forward_end_, backward_end_;
  std::vector<size_t> next_;
  std::vector<int64_t> free_at_;
};

void check_compute(const PipelineSchedule& schedule) {
  LEVIN_CHECK(static_cast<int>(schedule.actions.size()) == schedule.ranks, "[pipeline] a schedule of ", schedule.ranks,
              " ranks has ", schedule.actions.size(), " lists of actions");
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (const PipelineAction& action : schedule.actions[rank]) {
      LEVIN_CHECK(action.is_compute(), "[pipeline] rank ", rank, " has ", to_string(action),
                  " already; transfers are put into lists of compute only");
      LEVIN_CHECK(action.stage >= 0 && action.stage < schedule.stages() && schedule.rank_of(action.stage) == rank,
                  "[pipeline] rank ", rank, " has ", to_string(action), ", but no stage ", action.stage);
      LEVIN_CHECK(action.microbatch >= 0 && action.microbatch < schedule.microbatches, "[pipeline] rank ", rank,
                  " has ", to_string(action), ", but a step has ", schedule.microbatches, " micro-batches");
    }
  }
}

}  // namespace

PipelineSchedule with_transfers(PipelineSchedule schedule) {
  check_compute(schedule);
  std::vector<std::vector<Placed>> placed(schedule.ranks);
  const auto transfer = [&](const PipelineAction& made, int64_t time, int to_stage) {
    const int from = schedule.rank_of(made.stage), to = schedule.rank_of(to_stage);
    if (from == to) return;  // the next stage of the same rank takes it from memory
    const bool forward = made.kind == Kind::kForward;
    PipelineAction send{.kind = forward ? Kind::kSendForward : Kind::kSendBackward,
                        .stage = made.stage,
                        .microbatch = made.microbatch,
                        .peer = to};
    PipelineAction receive{.kind = forward ? Kind::kReceiveForward : Kind::kReceiveBackward,
                           .stage = to_stage,
                           .microbatch = made.microbatch,
                           .peer = from};
    placed[from].push_back({time, false, send, made.stage});
    placed[to].push_back({time, false, receive, made.stage});
  };
  NominalRun(schedule).play([&](int rank, const PipelineAction& action, int64_t start, int64_t end) {
    placed[rank].push_back({start, true, action});
    if (action.kind == Kind::kForward) {
      if (action.stage + 1 < schedule.stages()) transfer(action, end, action.stage + 1);
    } else if (action.kind != Kind::kBackwardWeight && action.stage > 0) {
      transfer(action, end, action.stage - 1);
    }
  });
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::ranges::stable_sort(placed[rank], {}, &Placed::key);
    std::vector<PipelineAction>& actions = schedule.actions[rank];
    actions.clear();
    int group = -1;
    bool in_group = false;
    for (Placed& each : placed[rank]) {
      if (!each.is_compute) {
        if (!in_group) ++group;
        each.action.group = group;
      }
      in_group = !each.is_compute;
      actions.push_back(each.action);
    }
  }
  return schedule;
}

}  // namespace levin
