#include <algorithm>
#include <array>
#include <set>

#include "levin/core/error.h"
#include "levin/strategies/pipeline/simulation.h"

namespace levin {

namespace {

using Kind = PipelineAction::Kind;

void check_sizes(const PipelineSchedule& schedule) {
  LEVIN_CHECK(static_cast<int>(schedule.actions.size()) == schedule.ranks, "[pipeline] a schedule of ", schedule.ranks,
              " ranks has ", schedule.actions.size(), " lists of actions");
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (const PipelineAction& action : schedule.actions[rank]) {
      LEVIN_CHECK(action.stage >= 0 && action.stage < schedule.stages() && schedule.rank_of(action.stage) == rank,
                  "[pipeline] rank ", rank, " has ", to_string(action), ", but no stage ", action.stage);
      LEVIN_CHECK(action.microbatch >= 0 && action.microbatch < schedule.microbatches, "[pipeline] rank ", rank,
                  " has ", to_string(action), ", but a step has ", schedule.microbatches, " micro-batches");
    }
  }
}

/// Every stage and micro-batch: one forward, and one backward or one of each half.
void check_complete(const PipelineSchedule& schedule) {
  std::vector<std::array<int, 4>> counts(static_cast<size_t>(schedule.stages()) * schedule.microbatches);
  for (const auto& actions : schedule.actions) {
    for (const PipelineAction& action : actions) {
      if (!action.is_compute()) continue;
      ++counts[static_cast<size_t>(action.stage) * schedule.microbatches + action.microbatch]
              [static_cast<size_t>(action.kind)];
    }
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto [forward, backward, input, weight] = counts[i];
    const bool whole = backward == 1 && input == 0 && weight == 0, split = backward == 0 && input == 1 && weight == 1;
    LEVIN_CHECK(forward == 1 && (whole || split), "[pipeline] stage ", i / schedule.microbatches, " has ", forward,
                " forwards, ", backward, " backwards, ", input, " of the input and ", weight,
                " of the weights for micro-batch ", i % schedule.microbatches);
  }
}

void check_groups(const PipelineSchedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::set<int> ended;
    int current = -1;
    for (const PipelineAction& action : schedule.actions[rank]) {
      LEVIN_CHECK(action.is_compute() == (action.group < 0), "[pipeline] ", to_string(action), " of rank ", rank,
                  " has group ", action.group);
      if (action.group != current) {
        ended.insert(current);
        LEVIN_CHECK(action.group < 0 || !ended.contains(action.group), "[pipeline] group ", action.group, " of rank ",
                    rank, " is torn at ", to_string(action));
      }
      current = action.group;
    }
  }
}

/// Messages of one kind between two ranks carry no number on some backends: they are matched by their order.
void check_pairs(const PipelineSchedule& schedule) {
  const auto messages = [&](int rank, bool sends, int peer) {
    std::vector<PipelineAction> found;
    for (PipelineAction action : schedule.actions[rank]) {
      if (action.is_compute() || action.is_send() != sends || action.peer != peer) continue;
      const bool forward = action.kind == Kind::kSendForward || action.kind == Kind::kReceiveForward;
      if (!sends) action.stage += forward ? -1 : 1;  // the stage that sends
      found.push_back({.kind = forward ? Kind::kSendForward : Kind::kSendBackward,
                       .stage = action.stage,
                       .microbatch = action.microbatch});
    }
    return found;
  };
  for (int from = 0; from < schedule.ranks; ++from) {
    for (int to = 0; to < schedule.ranks; ++to) {
      const auto sent = messages(from, true, to), received = messages(to, false, from);
      const auto [a, b] = std::ranges::mismatch(sent, received);
      LEVIN_CHECK(a == sent.end() && b == received.end(), "[pipeline] message ", a - sent.begin(), " from rank ", from,
                  " to rank ", to, ": ", a == sent.end() ? "nothing" : to_string(*a), " is sent, ",
                  b == received.end() ? "nothing" : "what " + to_string(*b) + " sends", " is received");
    }
  }
}

}  // namespace

void check_pipeline_schedule(const PipelineSchedule& schedule) {
  check_sizes(schedule);
  check_complete(schedule);
  check_groups(schedule);
  check_pairs(schedule);
  (void)simulate(schedule, {}, PipelineTransfers::kRendezvous);
}

std::string difference_from_plan(const PipelineSchedule& schedule, int rank, const std::vector<PipelineAction>& done) {
  const auto& planned = schedule.actions.at(rank);
  const auto [a, b] = std::ranges::mismatch(planned, done);
  if (a == planned.end() && b == done.end()) return {};
  return "rank " + std::to_string(rank) + ", action " + std::to_string(a - planned.begin()) + ": planned " +
         (a == planned.end() ? "nothing" : to_string(*a)) + ", done " + (b == done.end() ? "nothing" : to_string(*b));
}

}  // namespace levin
