#include "levin/strategies/pipeline/simulation.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "levin/core/error.h"

namespace levin {

namespace {

using Kind = PipelineAction::Kind;

constexpr double kNever = std::numeric_limits<double>::infinity();

bool is_forward_transfer(Kind kind) {
  return kind == Kind::kSendForward || kind == Kind::kReceiveForward;
}

class Simulator {
 public:
  Simulator(const PipelineSchedule& schedule, const PipelineCosts& costs, PipelineTransfers transfers)
      : schedule_(schedule),
        costs_(costs),
        transfers_(transfers),
        forward_(size()),
        backward_(size()),
        ranks_(schedule.ranks) {
    result_.spans.resize(schedule.ranks);
  }

  PipelineSimulation run() {
    for (bool progressed = true; progressed;) {
      progressed = false;
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        while (step(rank)) progressed = true;
      }
    }
    check_no_deadlock();
    if (transfers_ == PipelineTransfers::kBuffered) end_buffered_transfers();
    measure();
    return std::move(result_);
  }

 private:
  /// What is made of a stage and micro-batch in one direction: when it was computed, and its way to the next stage.
  struct Product {
    /// When the send and the receive began.
    double computed = kNever, sent = kNever, received = kNever;
    /// When the group of the receive was complete.
    double arrived = kNever;
  };
  /// A group that was posted: actions [begin, end) of the rank, whose spans begin at `span`.
  struct Posted {
    size_t begin, end, span;
    double at;
    bool is_started = false;
  };
  struct Rank {
    size_t next = 0;
    double free_at = 0;
    /// Groups that are not complete. They run one after the other; the first may have begun.
    std::deque<Posted> posted = {};
    double lane_free_at = 0;
  };

  size_t size() const { return static_cast<size_t>(schedule_.stages()) * schedule_.microbatches; }

  Product& product(bool forward, int stage, int microbatch) {
    return (forward ? forward_ : backward_)[static_cast<size_t>(stage) * schedule_.microbatches + microbatch];
  }
  /// What a send or receive moves.
  Product& moved_by(const PipelineAction& action) {
    const bool forward = is_forward_transfer(action.kind);
    const int from = action.is_send() ? action.stage : forward ? action.stage - 1 : action.stage + 1;
    return product(forward, from, action.microbatch);
  }
  /// Both sides have begun.
  static bool is_met(const Product& moved) { return moved.sent != kNever && moved.received != kNever; }

  double arrival(const Product& moved) const {
    if (transfers_ != PipelineTransfers::kBuffered) return moved.arrived;
    return is_met(moved) ? std::max(moved.sent + costs_.transfer, moved.received) : kNever;
  }

  /// When the product of a neighbour stage is here.
  double here_at(int rank, bool forward, int stage, int microbatch) {
    const Product& made = product(forward, stage, microbatch);
    return schedule_.rank_of(stage) == rank ? made.computed : arrival(made);
  }
  double ready_at(int rank, const PipelineAction& action) {
    const int stage = action.stage, microbatch = action.microbatch;
    switch (action.kind) {
      case Kind::kForward:
        return stage == 0 ? 0 : here_at(rank, true, stage - 1, microbatch);
      case Kind::kBackwardWeight:
        return product(false, stage, microbatch).computed;
      case Kind::kBackward:
      case Kind::kBackwardInput: {
        const double own = product(true, stage, microbatch).computed;
        return stage + 1 == schedule_.stages() ? own : std::max(own, here_at(rank, false, stage + 1, microbatch));
      }
      case Kind::kSendForward:
      case Kind::kSendBackward:
        return moved_by(action).computed;
      case Kind::kReceiveForward:
      case Kind::kReceiveBackward:
        return 0;
    }
    return 0;
  }

  /// The end of the group that begins at the next action.
  size_t end_of_group(int rank) const {
    const auto& actions = schedule_.actions[rank];
    size_t end = ranks_[rank].next + 1;
    while (end < actions.size() && !actions[end].is_compute() && actions[end].group == actions[end - 1].group) ++end;
    return end;
  }

  /// Does something on a rank, or says that it has to wait.
  bool step(int rank) {
    Rank& state = ranks_[rank];
    if (!state.posted.empty() && advance_lane(rank)) return true;
    if (state.next == schedule_.actions[rank].size()) return false;
    if (transfers_ == PipelineTransfers::kRendezvous) {
      if (!state.posted.empty()) return false;
      state.free_at = std::max(state.free_at, state.lane_free_at);
    }
    const PipelineAction& action = schedule_.actions[rank][state.next];
    return action.is_compute() ? compute(rank, action) : post(rank);
  }

  bool compute(int rank, const PipelineAction& action) {
    Rank& state = ranks_[rank];
    const double ready = ready_at(rank, action);
    if (ready == kNever) return false;
    const double start = std::max(state.free_at, ready), end = start + costs_.of(action);
    if (action.kind != Kind::kBackwardWeight) {
      product(action.kind == Kind::kForward, action.stage, action.microbatch).computed = end;
    }
    result_.spans[rank].push_back({action, start, end});
    state.free_at = end;
    ++state.next;
    return true;
  }

  bool post(int rank) {
    Rank& state = ranks_[rank];
    const auto& actions = schedule_.actions[rank];
    const size_t end = end_of_group(rank);
    for (size_t i = state.next; i < end; ++i) {
      if (ready_at(rank, actions[i]) == kNever) return false;
    }
    Posted group{state.next, end, result_.spans[rank].size(), state.free_at};
    for (size_t i = state.next; i < end; ++i) result_.spans[rank].push_back({actions[i], state.free_at, state.free_at});
    if (transfers_ == PipelineTransfers::kBuffered) {
      begin_group(rank, group);
    } else {
      state.posted.push_back(group);
    }
    state.next = end;
    return true;
  }
  void begin_group(int rank, Posted& group) {
    group.is_started = true;
    for (size_t i = group.begin; i < group.end; ++i) {
      const PipelineAction& action = schedule_.actions[rank][i];
      (action.is_send() ? moved_by(action).sent : moved_by(action).received) = group.at;
    }
  }

  /// Begins the first posted group of a rank, or completes it.
  bool advance_lane(int rank) {
    Rank& state = ranks_[rank];
    Posted& group = state.posted.front();
    const bool begins = !group.is_started;
    if (begins) {
      group.at = std::max(group.at, state.lane_free_at);
      begin_group(rank, group);
    }
    double complete = group.at;
    for (size_t i = group.begin; i < group.end; ++i) {
      const Product& moved = moved_by(schedule_.actions[rank][i]);
      if (!is_met(moved)) return begins;
      complete = std::max(complete, std::max(moved.sent, moved.received) + costs_.transfer);
    }
    complete_group(rank, group, complete);
    state.posted.pop_front();
    return true;
  }
  void complete_group(int rank, const Posted& group, double at) {
    for (size_t i = group.begin; i < group.end; ++i) {
      const PipelineAction& action = schedule_.actions[rank][i];
      if (action.is_receive()) moved_by(action).arrived = at;
      PipelineSpan& span = result_.spans[rank][group.span + i - group.begin];
      span.start = group.at;
      span.end = at;
    }
    ranks_[rank].lane_free_at = at;
  }

  bool is_done(int rank) const {
    return ranks_[rank].posted.empty() && ranks_[rank].next == schedule_.actions[rank].size();
  }
  /// What a rank that is stuck waits for: of its own, or of another rank.
  std::string awaited(int rank) {
    const auto& actions = schedule_.actions[rank];
    const Rank& state = ranks_[rank];
    if (!state.posted.empty()) {
      for (size_t i = state.posted.front().begin; i < state.posted.front().end; ++i) {
        if (!is_met(moved_by(actions[i]))) return to_string(actions[i]) + ", which needs " + counterpart(actions[i]);
      }
    }
    return to_string(actions[state.next]) + ", which needs " + missing(rank, actions[state.next]);
  }
  static std::string counterpart(const PipelineAction& action) {
    PipelineAction other = action;
    const bool forward = is_forward_transfer(action.kind);
    other.kind = forward ? (action.is_send() ? Kind::kReceiveForward : Kind::kSendForward)
                         : (action.is_send() ? Kind::kReceiveBackward : Kind::kSendBackward);
    other.stage += action.is_send() == forward ? 1 : -1;
    return to_string(other) + " of rank " + std::to_string(action.peer);
  }
  std::string missing(int rank, const PipelineAction& action) {
    PipelineAction need{.kind = Kind::kForward, .stage = action.stage, .microbatch = action.microbatch};
    if (action.kind == Kind::kBackwardWeight || action.kind == Kind::kSendBackward) {
      need.kind = Kind::kBackwardInput;
    } else if (action.kind == Kind::kForward) {
      need.stage -= 1;
    } else if (action.kind != Kind::kSendForward && product(true, action.stage, action.microbatch).computed != kNever) {
      need.kind = Kind::kBackward;
      need.stage += 1;
    }
    const int maker = schedule_.rank_of(need.stage);
    if (maker != rank && product(need.kind == Kind::kForward, need.stage, need.microbatch).sent != kNever) {
      need.kind = need.kind == Kind::kForward ? Kind::kReceiveForward : Kind::kReceiveBackward;
      need.stage = action.stage;
      return to_string(need) + " before it";
    }
    return to_string(need) + " of rank " + std::to_string(maker);
  }

  void check_no_deadlock() {
    std::string waits;
    int count = 0;
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      if (is_done(rank) || ++count > 4) continue;
      waits += (waits.empty() ? "rank " : "; rank ") + std::to_string(rank) + " waits at " + awaited(rank);
    }
    LEVIN_CHECK(count == 0, "[pipeline] schedule \"", schedule_.name, "\" deadlocks: ", waits,
                count > 4 ? "; and others" : "");
  }

  void end_buffered_transfers() {
    for (auto& spans : result_.spans) {
      for (PipelineSpan& span : spans) {
        if (!span.action.is_compute()) span.end = std::max(span.start, arrival(moved_by(span.action)));
      }
    }
  }

  void measure() {
    for (const auto& spans : result_.spans) {
      double first = kNever, last = 0, busy = 0;
      int live = 0, peak = 0;
      for (const PipelineSpan& span : spans) {
        if (!span.action.is_compute()) continue;
        first = std::min(first, span.start);
        last = span.end;
        busy += span.end - span.start;
        if (span.action.kind == Kind::kForward) peak = std::max(peak, ++live);
        if (span.action.kind == Kind::kBackward || span.action.kind == Kind::kBackwardWeight) --live;
      }
      result_.peak_activations.push_back(peak);
      if (first == kNever) continue;
      result_.total = std::max(result_.total, last);
      result_.window = std::max(result_.window, last - first);
      const double idle = last - first - busy;
      if (idle > result_.bubble) {
        result_.bubble = idle;
        result_.bubble_to_compute = idle / busy;
      }
    }
  }

  const PipelineSchedule& schedule_;
  const PipelineCosts& costs_;
  PipelineTransfers transfers_;
  std::vector<Product> forward_, backward_;
  std::vector<Rank> ranks_;
  PipelineSimulation result_;
};

}  // namespace

double PipelineCosts::of(const PipelineAction& action) const {
  const double factor = stage_factors.empty() ? 1 : stage_factors.at(action.stage);
  switch (action.kind) {
    case Kind::kForward:
      return factor * forward;
    case Kind::kBackward:
      return factor * whole_backward();
    case Kind::kBackwardInput:
      return factor * backward_input;
    case Kind::kBackwardWeight:
      return factor * backward_weight;
    case Kind::kSendForward:
    case Kind::kReceiveForward:
    case Kind::kSendBackward:
    case Kind::kReceiveBackward:
      return transfer;
  }
  return transfer;
}

PipelineSimulation simulate(const PipelineSchedule& schedule, const PipelineCosts& costs, PipelineTransfers transfers) {
  for (const double cost :
       {costs.forward, costs.backward_input, costs.backward_weight, costs.whole_backward(), costs.transfer}) {
    LEVIN_CHECK(cost >= 0 && cost < kNever, "[pipeline] a cost of ", cost, " is not allowed");
  }
  LEVIN_CHECK(costs.stage_factors.empty() || static_cast<int>(costs.stage_factors.size()) == schedule.stages(),
              "[pipeline] ", costs.stage_factors.size(), " factors for ", schedule.stages(), " stages");
  return Simulator(schedule, costs, transfers).run();
}

}  // namespace levin
