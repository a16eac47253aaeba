// Schedules of pipelines: what each rank does, played by the simulator and compared with the formulas.
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/strategies/pipeline/drawing.h"
#include "levin/strategies/pipeline/simulation.h"
#include "levin/strategies/pipeline/theory.h"
#include "levin/testing/paths.h"

namespace levin {
namespace {

using Kind = PipelineAction::Kind;

std::string words(const std::vector<PipelineAction>& actions) {
  std::string line;
  for (const PipelineAction& action : actions) line += (line.empty() ? "" : " ") + to_string(action);
  return line;
}

template <class Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The bubble by the papers, for at least as many micro-batches as ranks; costs of a whole rank, not of a chunk.
struct Paper {
  double forward, input, weight;
  double bubble(const std::string& name, int p, int v) const {
    if (name == "zbv") return 0;
    if (name == "zb1p") return (p - 1) * (forward + input - weight);
    return (p - 1) * (forward + input + weight) / v;
  }
};

/// Peak activations by the papers, in chunks of one micro-batch.
int paper_peak(const std::string& name, int p, int v, int m, int r) {
  if (name == "gpipe") return m;
  if (name == "1f1b") return std::min(m, p - r);
  if (name == "zb1p") return p;
  if (name == "zbv") return 2 * p;
  return std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1);
}

struct Case {
  std::string name;
  int chunks;
};
const std::vector<Case> kCases = {{"gpipe", 1},       {"1f1b", 1}, {"interleaved", 2}, {"interleaved", 3},
                                  {"interleaved", 4}, {"zb1p", 1}, {"zbv", 2}};

bool is_taken(const Case& each, int p, int m) {
  return each.name != "interleaved" || m % std::max(1, m / p) == 0;
}

TEST(PipelineSchedule, BubbleAndPeakEqualThePapers) {
  int played = 0;
  for (const Case& each : kCases) {
    for (int p = 2; p <= 16; ++p) {
      for (int m = p; m <= 64; ++m) {
        // In the papers interleaved runs groups of p micro-batches, and the V has filled up after 2p - 1.
        if (each.name == "interleaved" && m % p != 0) continue;
        if (each.name == "zbv" && m < 2 * p - 1) continue;
        SCOPED_TRACE(each.name + " p=" + std::to_string(p) + " v=" + std::to_string(each.chunks) +
                     " m=" + std::to_string(m));
        const auto schedule = make_pipeline_schedule(each.name, p, m, each.chunks);
        // Equal costs for the V; otherwise a backward that is longer than two forwards.
        const Paper paper = each.name == "zbv" ? Paper{12, 12, 12} : Paper{12, 36, 12};
        const double v = each.chunks;
        const auto found = simulate(
            schedule,
            {.forward = paper.forward / v, .backward_input = paper.input / v, .backward_weight = paper.weight / v});
        ASSERT_DOUBLE_EQ(found.bubble, paper.bubble(each.name, p, each.chunks));
        const double compute = m * (paper.forward + paper.input + paper.weight);
        ASSERT_DOUBLE_EQ(found.window, compute + found.bubble);
        ASSERT_NEAR(found.bubble_fraction(), found.bubble / found.window, 1e-12);
        if (each.name == "gpipe" || each.name == "1f1b") {
          ASSERT_NEAR(found.bubble_fraction(), (p - 1.0) / (m + p - 1), 1e-12);
        }
        for (int r = 0; r < p; ++r) ASSERT_EQ(found.peak_activations[r], paper_peak(each.name, p, each.chunks, m, r));
        ++played;
      }
    }
  }
  EXPECT_EQ(played, 3681);
}

TEST(PipelineSchedule, TheoryHoldsForAnyNumberOfMicroBatches) {
  const std::vector<PipelineCosts> all_costs = {{.forward = 1, .backward_input = 1, .backward_weight = 1},
                                                {.forward = 3, .backward_input = 5, .backward_weight = 2},
                                                {.forward = 2, .backward_input = 3, .backward_weight = 4}};
  for (const Case& each : kCases) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 20; ++m) {
        if (!is_taken(each, p, m)) continue;
        SCOPED_TRACE(each.name + " p=" + std::to_string(p) + " v=" + std::to_string(each.chunks) +
                     " m=" + std::to_string(m));
        const auto schedule = make_pipeline_schedule(each.name, p, m, each.chunks);
        for (const PipelineCosts& costs : all_costs) {
          const auto theory = theory_of(schedule, costs);
          const auto found = simulate(schedule, costs);
          ASSERT_EQ(theory.bubble.has_value(), each.name != "zbv" || costs.forward == costs.backward_weight);
          if (theory.bubble) {
            ASSERT_DOUBLE_EQ(found.bubble, *theory.bubble);
          }
          ASSERT_EQ(found.peak_activations, theory.peak_activations);
        }
      }
    }
  }
}

TEST(PipelineSchedule, IsCompleteAndCannotDeadlock) {
  int taken = 0, refused = 0;
  for (const Case& each : kCases) {
    for (int p = 2; p <= 8; ++p) {
      for (int m = 1; m <= 12; ++m) {
        SCOPED_TRACE(each.name + " p=" + std::to_string(p) + " v=" + std::to_string(each.chunks) +
                     " m=" + std::to_string(m));
        if (!is_taken(each, p, m)) {
          EXPECT_NE(error_of([&] { make_pipeline_schedule(each.name, p, m, each.chunks); }).find("do not divide"),
                    std::string::npos);
          ++refused;
          continue;
        }
        const auto schedule = make_pipeline_schedule(each.name, p, m, each.chunks);
        ASSERT_NO_THROW(check_pipeline_schedule(schedule));
        // Transfers in order on a stream cost nothing where they take no time; those that block may cost time, but
        // never the step.
        const double total = simulate(schedule).total;
        ASSERT_DOUBLE_EQ(simulate(schedule, {}, PipelineTransfers::kStream).total, total);
        ASSERT_GE(simulate(schedule, {}, PipelineTransfers::kRendezvous).total, total);
        ++taken;
      }
    }
  }
  EXPECT_GT(taken, 500);
  EXPECT_GT(refused, 10);
}

TEST(PipelineSchedule, OneFOneBReadsAsExpected) {
  const auto schedule = make_pipeline_schedule("1F1B", 2, 3);
  EXPECT_EQ(words(schedule.actions[0]),
            "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2");
  EXPECT_EQ(words(schedule.actions[1]),
            "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1RECV_F2 1SEND_B1 1F2 1B2 1SEND_B2");
}

TEST(PipelineSchedule, BatchesASendWithTheReceiveOfTheOtherDirection) {
  const auto schedule = make_pipeline_schedule("1f1b", 4, 8);
  int together = 0;
  for (const auto& actions : schedule.actions) {
    for (size_t i = 1; i < actions.size(); ++i) {
      if (actions[i].is_compute() || actions[i].group != actions[i - 1].group) continue;
      together += actions[i].is_send() != actions[i - 1].is_send() && actions[i].peer == actions[i - 1].peer;
    }
  }
  EXPECT_GE(together, 12);
}

TEST(PipelineSchedule, AVHandsOverOnTheSameRankWithoutATransfer) {
  const auto schedule = make_pipeline_schedule("zbv", 3, 5);
  EXPECT_EQ(schedule.stages_of(0), (std::vector<int>{0, 5}));
  EXPECT_EQ(schedule.stages_of(2), (std::vector<int>{2, 3}));
  for (const PipelineAction& action : schedule.actions[2]) {
    EXPECT_TRUE(action.is_compute() || action.peer == 1) << to_string(action);
    EXPECT_FALSE(action.kind == Kind::kSendForward && action.stage == 2) << to_string(action);
  }
  EXPECT_EQ(make_pipeline_schedule("interleaved", 3, 6).stages_of(1), (std::vector<int>{1, 4}));
}

TEST(PipelineSchedule, TransfersAndUnevenStagesTakeTime) {
  const auto schedule = make_pipeline_schedule("1f1b", 4, 8);
  EXPECT_DOUBLE_EQ(simulate(schedule).total, 8 * 3 + 3 * 3);
  // One micro-batch passes three boundaries down and three up.
  EXPECT_DOUBLE_EQ(simulate(make_pipeline_schedule("1f1b", 4, 1), {.transfer = 0.5}).total, 12 + 6 * 0.5);
  // On a stream a receive begins where it stands in the list, behind the compute before it: nothing is hidden here.
  const auto two = make_pipeline_schedule("gpipe", 2, 2);
  EXPECT_DOUBLE_EQ(simulate(two, {.transfer = 4}).total, 2 + 4 + 1 + 2 + 2 + 4 + 2);
  EXPECT_DOUBLE_EQ(simulate(two, {.transfer = 4}, PipelineTransfers::kStream).total,
                   1 + 4 + 1 + 4 + 1 + 2 + 4 + 2 + 4 + 2);
  // The slow stage sets the pace: 1 until it starts, 8 times 6, 2 of waiting for its first gradient, 2 after its end.
  const auto uneven = simulate(schedule, {.stage_factors = {1, 2, 1, 1}});
  EXPECT_DOUBLE_EQ(uneven.total, 1 + 8 * 6 + 2 + 2);
  EXPECT_FALSE(theory_of(schedule, {.transfer = 0.5}).bubble.has_value());
}

TEST(PipelineSchedule, PicturesOfTheDocsAreWhatIsDrawnNow) {
  for (const std::string& name : pipeline_schedule_names()) {
    const auto schedule = make_pipeline_schedule(name, 4, 8);
    const double share = 1.0 / schedule.chunks;
    const auto played =
        simulate(schedule, {.forward = share, .backward_input = share, .backward_weight = share, .transfer = 0});
    const std::string file = "docs/images/pipeline_" + name + ".svg";
    EXPECT_EQ(to_svg(picture_of(timeline_of(schedule, played))), read_file(testing::source_dir() + "/" + file))
        << "levin pipeline --schedule " << name << " --svg " << file;
  }
}

TEST(PipelineSchedule, BadSizesAreRefusedWithTheArithmetic) {
  const auto refusal = [](const char* name, int p, int m, int v) {
    return error_of([&] { make_pipeline_schedule(name, p, m, v); });
  };
  EXPECT_EQ(
      refusal("interleaved", 4, 9, 2),
      "[pipeline] schedule \"interleaved\" with 4 ranks runs 9 micro-batches in 2 rounds (9 / 4), and they do not "
      "divide: 9 % 2 = 1; use a multiple of 4");
  EXPECT_EQ(refusal("gpipe", 4, 0, 0), "[pipeline] a step needs at least one micro-batch, not 0");
  EXPECT_EQ(refusal("gpipe", 0, 1, 0), "[pipeline] a pipeline needs at least one rank, not 0");
  EXPECT_EQ(refusal("zb1p", 4, 8, 2),
            "[pipeline] schedule \"zb1p\" has 1 chunk a rank, not 2; only \"interleaved\" takes a number");
  EXPECT_EQ(refusal("interleaved", 4, 8, 1),
            "[pipeline] schedule \"interleaved\" needs at least 2 chunks a rank, not 1; with 1 it is \"1f1b\"");
  EXPECT_NE(refusal("interleave", 4, 8, 2).find("did you mean \"interleaved\"?"), std::string::npos);
}

/// Rank 1 of two begins with a backward, or leaves something out.
TEST(PipelineSchedule, ADeadlockSaysWhoWaitsForWhat) {
  PipelineSchedule crossed{.name = "own", .ranks = 2, .microbatches = 1, .actions = {}};
  crossed.actions = {{{Kind::kForward, 0, 0}, {Kind::kBackward, 0, 0}},
                     {{Kind::kBackward, 1, 0}, {Kind::kForward, 1, 0}}};
  EXPECT_EQ(error_of([&] { with_transfers(crossed); }),
            "[pipeline] schedule \"own\" deadlocks: rank 0 is at 0B0 and waits for 1B0 of rank 1, which never comes");

  // Both ranks send first: fine where sends are buffered, a deadlock where they block.
  PipelineSchedule exchange = make_pipeline_schedule("gpipe", 2, 2);
  exchange.actions[0] = {{Kind::kForward, 0, 0},
                         {Kind::kSendForward, 0, 0, 1, 0},
                         {Kind::kForward, 0, 1},
                         {Kind::kSendForward, 0, 1, 1, 1},
                         {Kind::kReceiveBackward, 0, 0, 1, 2},
                         {Kind::kBackward, 0, 0},
                         {Kind::kReceiveBackward, 0, 1, 1, 3},
                         {Kind::kBackward, 0, 1}};
  exchange.actions[1] = {{Kind::kReceiveForward, 1, 0, 0, 0},
                         {Kind::kForward, 1, 0},
                         {Kind::kBackward, 1, 0},
                         {Kind::kSendBackward, 1, 0, 0, 1},
                         {Kind::kReceiveForward, 1, 1, 0, 2},
                         {Kind::kForward, 1, 1},
                         {Kind::kBackward, 1, 1},
                         {Kind::kSendBackward, 1, 1, 0, 3}};
  EXPECT_NO_THROW(simulate(exchange));
  EXPECT_EQ(error_of([&] { check_pipeline_schedule(exchange); }),
            "[pipeline] schedule \"gpipe\" deadlocks: rank 0 waits at 0SEND_F1, which needs 1RECV_F1 of rank 1; rank 1 "
            "waits at 1SEND_B0, which needs 0RECV_B0 of rank 0");
  // Posted together they pass.
  exchange.actions[0][3].group = exchange.actions[0][4].group = 1;
  exchange.actions[1][3].group = exchange.actions[1][4].group = 1;
  EXPECT_NO_THROW(check_pipeline_schedule(exchange));
}

TEST(PipelineSchedule, ChecksFindWhatIsWrong) {
  const auto good = make_pipeline_schedule("1f1b", 2, 3);
  EXPECT_NO_THROW(check_pipeline_schedule(good));
  const auto wrong = [&](const auto& change) {
    PipelineSchedule schedule = good;
    change(schedule.actions);
    return error_of([&] { check_pipeline_schedule(schedule); });
  };
  EXPECT_EQ(wrong([](auto& lists) { lists[0].pop_back(); }),
            "[pipeline] stage 0 has 1 forwards, 0 backwards, 0 of the input and 0 of the weights for micro-batch 2");
  // 1RECV_F0 and 1RECV_F1 change places.
  EXPECT_EQ(wrong([](auto& lists) { std::swap(lists[1][0].microbatch, lists[1][2].microbatch); }),
            "[pipeline] message 0 from rank 0 to rank 1: 0SEND_F0 is sent, what 0SEND_F1 sends is received");
  EXPECT_EQ(wrong([](auto& lists) { lists[0][3].group = lists[0][1].group; }),
            "[pipeline] group 0 of rank 0 is torn at 0SEND_F1");
  EXPECT_EQ(wrong([](auto& lists) { lists[1][1].stage = 0; }), "[pipeline] rank 1 has 0F0, but no stage 0");
  EXPECT_EQ(wrong([](auto& lists) { lists[1][1].microbatch = 3; }),
            "[pipeline] rank 1 has 1F3, but a step has 3 micro-batches");
  // A receive after the forward that needs it.
  EXPECT_NE(wrong([](auto& lists) { std::swap(lists[1][0], lists[1][1]); }).find("rank 1 waits at 1F0"),
            std::string::npos);
}

TEST(PipelineSchedule, ARecordOfWhatWasDoneIsComparedWithThePlan) {
  const auto schedule = make_pipeline_schedule("1f1b", 2, 3);
  auto done = schedule.actions[1];
  EXPECT_EQ(difference_from_plan(schedule, 1, done), "");
  std::swap(done[1], done[2]);
  EXPECT_EQ(difference_from_plan(schedule, 1, done), "rank 1, action 1: planned 1F0, done 1RECV_F1");
  done = schedule.actions[1];
  done.pop_back();
  EXPECT_EQ(difference_from_plan(schedule, 1, done), "rank 1, action 11: planned 1SEND_B2, done nothing");
}

}  // namespace
}  // namespace levin
