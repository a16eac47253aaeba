#include "levin/strategies/pipeline/simulation.h"

#include <algorithm>
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
        blocks_(transfers == PipelineTransfers::kRendezvous),
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
    finish_transfers();
    measure();
    return std::move(result_);
  }

 private:
  /// What is made of a stage and micro-batch in one direction: when it was computed, and its way to the next stage.
  struct Product {
    double computed = kNever, sent = kNever, received = kNever;
  };
  struct Rank {
    size_t next = 0;
    double free_at = 0;
    /// Sends and receives from `next` on are posted; the rank waits for them.
    bool posted = false;
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
  double arrival(const Product& moved) const {
    if (moved.sent == kNever || moved.received == kNever) return kNever;
    return blocks_ ? std::max(moved.sent, moved.received) + costs_.transfer
                   : std::max(moved.sent + costs_.transfer, moved.received);
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
      default:
        return action.is_send() ? moved_by(action).computed : 0;
    }
  }

  /// The end of the group that begins at the next action.
  size_t end_of_group(int rank) const {
    const auto& actions = schedule_.actions[rank];
    size_t end = ranks_[rank].next + 1;
    while (end < actions.size() && !actions[end].is_compute() && actions[end].group == actions[end - 1].group) ++end;
    return end;
  }

  /// Does the next action of a rank, or says that it has to wait.
  bool step(int rank) {
    Rank& state = ranks_[rank];
    if (state.next == schedule_.actions[rank].size()) return false;
    const PipelineAction& action = schedule_.actions[rank][state.next];
    return action.is_compute() ? compute(rank, action) : transfer(rank);
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

  bool transfer(int rank) {
    Rank& state = ranks_[rank];
    const auto& actions = schedule_.actions[rank];
    const size_t end = end_of_group(rank);
    if (!state.posted) {
      for (size_t i = state.next; i < end; ++i) {
        if (ready_at(rank, actions[i]) == kNever) return false;
      }
      for (size_t i = state.next; i < end; ++i) {
        (actions[i].is_send() ? moved_by(actions[i]).sent : moved_by(actions[i]).received) = state.free_at;
        result_.spans[rank].push_back({actions[i], state.free_at, state.free_at});
      }
      state.posted = true;
    }
    if (blocks_) {
      double complete = state.free_at;
      for (size_t i = state.next; i < end; ++i) complete = std::max(complete, arrival(moved_by(actions[i])));
      if (complete == kNever) return false;
      state.free_at = complete;
    }
    state.posted = false;
    state.next = end;
    return true;
  }

  /// What a rank that goes no further waits for: of its own, or of another rank.
  std::string awaited(int rank) {
    const auto& actions = schedule_.actions[rank];
    for (size_t i = ranks_[rank].next; i < (ranks_[rank].posted ? end_of_group(rank) : ranks_[rank].next + 1); ++i) {
      const PipelineAction& action = actions[i];
      if (action.is_compute() || !ranks_[rank].posted)
        return to_string(action) + ", which needs " + missing(rank, action);
      if (arrival(moved_by(action)) != kNever) continue;
      PipelineAction other = action;
      const bool forward = is_forward_transfer(action.kind);
      other.kind = forward ? (action.is_send() ? Kind::kReceiveForward : Kind::kSendForward)
                           : (action.is_send() ? Kind::kReceiveBackward : Kind::kSendBackward);
      other.stage += action.is_send() == forward ? 1 : -1;
      return to_string(action) + ", which needs " + to_string(other) + " of rank " + std::to_string(action.peer);
    }
    return to_string(actions[ranks_[rank].next]);
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
      if (ranks_[rank].next == schedule_.actions[rank].size() || ++count > 4) continue;
      waits += (waits.empty() ? "rank " : "; rank ") + std::to_string(rank) + " waits at " + awaited(rank);
    }
    LEVIN_CHECK(count == 0, "[pipeline] schedule \"", schedule_.name, "\" deadlocks: ", waits,
                count > 4 ? "; and others" : "");
  }

  void finish_transfers() {
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
  bool blocks_;
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
    default:
      return transfer;
  }
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
