#include "levin/distributed/collective.h"

#include <csignal>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"
#include "levin/distributed/failure.h"
#include "levin/distributed/mesh.h"
#include "levin/distributed/store.h"
#include "levin/distributed/traffic.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

using levin::testing::errors_of;
using levin::testing::RanksOptions;
using levin::testing::run_ranks;
using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

RanksOptions failing(milliseconds timeout = std::chrono::seconds(60)) {
  RanksOptions options;
  options.errors_expected = true;
  options.collective.timeout = timeout;
  return options;
}

TEST(Collective, ReduceOpByWord) {
  EXPECT_EQ(reduce_op("mean"), ReduceOp::kMean);
  EXPECT_EQ(reduce_op("avg"), ReduceOp::kMean);
  EXPECT_THAT(error_of([] { reduce_op("maxx"); }), HasSubstr("did you mean \"max\"?"));
}

TEST(Collective, ReducesEveryTypeInPlace) {
  run_ranks(2, [](Collective& group) {
    const int r = group.rank();
    for (const auto dtype :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
      const auto start = at::tensor({1 + r, 2 + r, 5 - r}, at::kLong).to(dtype);
      const auto check = [&](ReduceOp op, std::array<int64_t, 3> expected) {
        auto x = start.clone();
        group.all_reduce(x, op);
        EXPECT_EQ(x.scalar_type(), dtype);
        EXPECT_TRUE(at::equal(x.to(at::kLong), at::tensor({expected[0], expected[1], expected[2]}, at::kLong))) << x;
      };
      check(ReduceOp::kSum, {3, 5, 9});
      check(ReduceOp::kMax, {2, 3, 5});
      check(ReduceOp::kMin, {1, 2, 4});
      check(ReduceOp::kProduct, {2, 6, 20});
    }
    auto truth = r == 0 ? torch::tensor({true, true, false}) : torch::tensor({true, false, false});
    auto any = truth.clone();
    group.all_reduce(any, ReduceOp::kSum);
    EXPECT_TRUE(at::equal(any, torch::tensor({true, true, false})));
    group.all_reduce(truth, ReduceOp::kMin);
    EXPECT_TRUE(at::equal(truth, torch::tensor({true, false, false})));
    auto z = at::complex(at::full({2}, 1.f + r), at::full({2}, 2.f));
    group.all_reduce(z, ReduceOp::kMean);
    EXPECT_TRUE(at::allclose(at::view_as_real(z), at::tensor({1.5f, 2.f, 1.5f, 2.f}).view({2, 2})));
  });
}

TEST(Collective, MeanOf16BitsIsRoundedOnce) {
  run_ranks(2, [](Collective& group) {
    auto half = at::full({3}, 60000, at::kHalf);  // the sum would overflow
    group.all_reduce(half, ReduceOp::kMean);
    EXPECT_EQ(half[0].item<float>(), 60000.f);
    auto bf16 = at::full({3}, group.rank() ? 1.0078125 : 1.0, at::kBFloat16);
    group.all_reduce(bf16, ReduceOp::kSum);
    EXPECT_EQ(bf16.to(at::kFloat)[0].item<float>(),
              at::tensor({2.0078125f}).to(at::kBFloat16).to(at::kFloat).item<float>());
  });
}

TEST(Collective, ViewsEmptyTensorsAndParameters) {
  run_ranks(3, [](Collective& group) {
    auto base = at::zeros({4, 3});
    auto column = base.select(1, 1);
    column.fill_(group.rank() + 1);
    group.all_reduce(column);
    EXPECT_TRUE(at::equal(base.select(1, 1), at::full({4}, 6.f)));
    EXPECT_EQ(base.select(1, 0).abs().sum().item<float>(), 0);
    group.broadcast(column = base.t().select(0, 2).fill_(group.rank()), 2);
    EXPECT_TRUE(at::equal(base.select(1, 2), at::full({4}, 2.f)));

    auto empty = at::empty({0, 5});
    group.all_reduce(empty);
    group.broadcast(empty);
    EXPECT_EQ(group.all_gather(empty).sizes(), (at::IntArrayRef{3, 0, 5}));
    EXPECT_EQ(group.reduce_scatter(empty).sizes(), (at::IntArrayRef{0, 5}));

    auto parameter = at::full({2}, 1.f).requires_grad_();
    group.all_reduce(parameter);
    EXPECT_TRUE(parameter.is_leaf() && parameter.requires_grad());
    EXPECT_EQ(parameter[0].item<float>(), 3);
    auto scalar = at::scalar_tensor(group.rank());
    EXPECT_TRUE(at::equal(group.all_gather(scalar), at::tensor({0.f, 1.f, 2.f})));
    group.broadcast(scalar, 1);
    EXPECT_EQ(scalar.item<float>(), 1);
  });
}

TEST(Collective, GathersAndScatters) {
  run_ranks(2, [](Collective& group) {
    const auto r = static_cast<float>(group.rank());
    auto gathered = group.all_gather(at::arange(6, at::kLong).view({2, 3}).t() * (group.rank() + 1));
    EXPECT_EQ(gathered.sizes(), (at::IntArrayRef{2, 3, 2}));
    EXPECT_TRUE(at::equal(gathered[1], at::arange(6, at::kLong).view({2, 3}).t() * 2));
    EXPECT_TRUE(
        at::equal(group.all_gather(torch::tensor({group.rank() == 0})), torch::tensor({true, false}).view({2, 1})));

    auto input = at::arange(8).to(at::kFloat).view({4, 2}) + r;
    EXPECT_TRUE(at::equal(group.reduce_scatter(input),
                          (at::arange(8).view({4, 2}) * 2 + 1).narrow(0, 2 * group.rank(), 2).to(at::kFloat)));
    EXPECT_TRUE(at::allclose(group.reduce_scatter(input.to(at::kBFloat16), ReduceOp::kMean).to(at::kFloat),
                             (at::arange(8).view({4, 2}) + 0.5).narrow(0, 2 * group.rank(), 2).to(at::kFloat)));

    EXPECT_EQ(broadcast_string(group, group.rank() ? "longer, and not used" : "text", 0), "text");
    EXPECT_EQ(broadcast_string(group, group.rank() ? std::string() : "x", 1), "");
    EXPECT_THAT(gather_strings(group, group.rank() ? std::string("b\0c", 3) : std::string()),
                ElementsAre("", std::string("b\0c", 3)));
  });
}

TEST(Collective, RefusesAlikeOnEveryRankAndStaysUsable) {
  run_ranks(2, [](Collective& group) {
    auto whole = at::ones({3}, at::kLong);
    EXPECT_THAT(error_of([&] { group.all_reduce(whole, ReduceOp::kMean); }),
                HasSubstr("a tensor of int64 has no mean"));
    EXPECT_THAT(error_of([&] { group.reduce_scatter(whole); }), HasSubstr("int64 [3] cannot be split over 2 ranks"));
    EXPECT_THAT(error_of([&] { group.broadcast(whole, 2); }), HasSubstr("source rank 2 is not in the group: 0 to 1"));
    group.all_reduce(whole);
    EXPECT_EQ(whole[0].item<int64_t>(), 2);
  });
}

TEST(Collective, CountsWhatItSends) {
  run_ranks(4, [](Collective& group) {
    const auto sent_by = [&](const std::function<void()>& call) {
      const auto before = traffic(group);
      call();
      return traffic(group) - before;
    };
    auto x = torch::ones({1000});
    const auto reduced = sent_by([&] { group.all_reduce(x); });
    ASSERT_EQ(reduced.operations.size(), 1u);
    EXPECT_EQ(reduced.operations.at("all_reduce").calls, 1);
    EXPECT_EQ(reduced.operations.at("all_reduce").bytes, 4000);
    EXPECT_EQ(reduced.sent(), 2 * 4000 * 3 / 4);
    EXPECT_EQ(sent_by([&] { (void)group.all_gather(x); }).sent(), 3 * 4000);
    // Gloo reduces everything everywhere.
    EXPECT_EQ(sent_by([&] { (void)group.reduce_scatter(x); }).sent(), 2 * 4000 * 3 / 4);
    EXPECT_EQ(sent_by([&] { group.broadcast(x); }).sent(), 4000 * 3 / 4);
    // This rank sends rows 0 to 3 to the ranks of that number: one stays.
    const std::vector<int64_t> sent{1, 2, 3, 4}, received(4, group.rank() + 1);
    const auto rows = sent_by([&] { (void)all_to_all(group, torch::ones({10, 5}), sent, received); });
    EXPECT_EQ(rows.operations.at("all_to_all").sent, (10 - (group.rank() + 1)) * 5 * 4);
    const auto message = sent_by([&] {
      auto to = torch::ones({25}), from = torch::empty({25});
      group
          .start("message", {{.tensor = to, .peer = (group.rank() + 1) % 4},
                             {.tensor = from, .peer = (group.rank() + 3) % 4, .receives = true}})
          ->wait();
    });
    EXPECT_EQ(message.operations.at("send").sent, 100);
    // Meeting and agreeing is not data, and what parts of the group send counts with it.
    EXPECT_EQ(sent_by([&] { group.barrier(); }).sent(), 0);
    const auto pair = split_group(group, {{0, 1}, {2, 3}}, "pairs");
    EXPECT_EQ(sent_by([&] { pair->all_reduce(x); }).sent(), 4000);
  });
  EXPECT_EQ(traffic(*join_group({}, at::kCPU)).sent(), 0);
}

TEST(Collective, OneProcess) {
  auto group = join_group({}, at::kCPU);
  EXPECT_EQ(group->size(), 1);
  auto x = at::ones({2});
  group->all_reduce(x, ReduceOp::kMean);
  EXPECT_TRUE(at::equal(group->all_gather(x), at::ones({1, 2})));
  EXPECT_TRUE(at::equal(group->reduce_scatter(x), x));
  EXPECT_THAT(gather_strings(*group, "a"), ElementsAre("a"));
  EXPECT_EQ(broadcast_string(*group, "a"), "a");
  EXPECT_FALSE(group->process_group());
  auto whole = at::ones({3}, at::kLong);
  EXPECT_THAT(error_of([&] { group->all_reduce(whole, ReduceOp::kMean); }), HasSubstr("has no mean"));
  EXPECT_THAT(error_of([] { join_group({}, at::kCPU, {.backend = "glooo"}); }), HasSubstr("did you mean \"gloo\"?"));
}

TEST(Collective, DifferentShapesAreShownOnEveryRank) {
  const auto results = run_ranks(
      2,
      [](Collective& group) {
        auto x = at::ones({4 + group.rank()});
        group.all_reduce(x);
      },
      failing());
  EXPECT_THAT(
      errors_of(results),
      Each("[all_reduce] ranks disagree: rank 0 calls all_reduce float32 [4], rank 1 calls all_reduce float32 [5]"));
}

TEST(Collective, DifferentOperationsAreShownOnEveryRank) {
  const auto results = run_ranks(
      3,
      [](Collective& group) {
        auto x = at::ones({4}, group.rank() == 1 ? at::kHalf : at::kFloat);
        if (group.rank() == 2)
          group.barrier("epoch");
        else
          group.all_reduce(x, ReduceOp::kMax);
      },
      failing());
  EXPECT_THAT(
      errors_of(results),
      Each("[all_reduce] ranks disagree: rank 0 calls all_reduce float32 [4] max, rank 1 calls all_reduce float16 "
           "[4] max, rank 2 calls barrier \"epoch\""));
}

TEST(Collective, LateRankIsNamed) {
  const auto results = run_ranks(
      3,
      [](Collective& group) {
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(2500));
        group.barrier("x");
      },
      failing(milliseconds(1000)));
  EXPECT_THAT(errors_of(results), Each("[barrier \"x\"] rank 1 did not arrive within 1 s"));
}

TEST(Collective, DeadRankIsNamed) {
  const auto results = run_ranks(
      3,
      [](Collective& group) {
        group.barrier();
        if (group.rank() == 1) ::raise(SIGKILL);
        auto x = at::ones({4});
        group.all_reduce(x);
      },
      failing());
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].error, "[all_reduce] rank 1 died: the connection was lost");
    EXPECT_LT(results[rank].seconds, 50);
  }
}

TEST(Collective, RankThatThrewIsNamedWithItsReason) {
  const auto results = run_ranks(
      3,
      [](Collective& group) {
        if (group.rank() == 2) throw Error("[data] no such file");
        auto x = at::ones({4});
        group.all_reduce(x);
      },
      failing());
  EXPECT_THAT(errors_of(results),
              ElementsAre("[all_reduce] rank 2 failed: [data] no such file",
                          "[all_reduce] rank 2 failed: [data] no such file", "[data] no such file"));
}

TEST(Collective, RankThatIsDoneIsNamed) {
  const auto results = run_ranks(
      2,
      [](Collective& group) {
        if (group.rank() == 0) group.barrier();
      },
      failing());
  EXPECT_EQ(results[0].error, "[barrier] rank 1 has left the group already");
  EXPECT_EQ(results[1].error, "");
}

TEST(Collective, GroupIsOverAfterAnError) {
  const auto results = run_ranks(
      2,
      [](Collective& group) {
        auto x = at::ones({4 + group.rank()});
        EXPECT_THROW(group.all_reduce(x), Error);
        group.barrier("next");
      },
      failing());
  EXPECT_THAT(errors_of(results),
              Each(HasSubstr("[barrier \"next\"] the group of ranks has ended: [all_reduce] ranks disagree")));
}

TEST(Collective, UncheckedOperationsFailWithTheGroupsError) {
  const auto results = run_ranks(
      2,
      [](Collective& group) {
        std::vector<Tensor> x{at::ones({4})};
        group.run("mine", [&](c10d::ProcessGroup& pg) { pg.allreduce(x)->wait(); });
        EXPECT_EQ(x[0][0].item<float>(), 2);
        if (group.rank() == 1) throw Error("stop");
        group.run("mine", [&](c10d::ProcessGroup& pg) { pg.allreduce(x)->wait(); });
      },
      failing());
  EXPECT_EQ(results[0].error, "[mine] rank 1 failed: stop");
}

TEST(Collective, RanksThatDoNotJoinAreNamed) {
  const auto hosted = host_store("127.0.0.1", 0, milliseconds(20000));
  const CollectiveOptions options{.join_timeout = milliseconds(200)};
  const Placement placement{.global_rank = 2, .world_size = 4, .master_port = hosted.port, .store_is_hosted = true};
  EXPECT_EQ(error_of([&] { join_group(placement, at::kCPU, options); }),
            "[join] ranks 0, 1 and 3 of 4 did not arrive within 0.2 s");
}

TEST(Collective, PlacesMustFitTogether) {
  auto options = failing();
  options.collective.join_timeout = milliseconds(2000);
  options.edit_placement = [](Placement& placement) { placement.world_size += placement.global_rank; };
  EXPECT_THAT(errors_of(run_ranks(
                  2, [](Collective&) {}, options)),
              ::testing::Contains(HasSubstr("but another rank with WORLD_SIZE=")));
  options.edit_placement = [](Placement& placement) { placement.global_rank = 0; };
  EXPECT_THAT(errors_of(run_ranks(
                  2, [](Collective&) {}, options)),
              ::testing::Contains("[join] rank 0 joined twice: two processes have RANK=0"));
}

TEST(Collective, EndsOrderlyByExitWithRankZeroServingTheStore) {
  RanksOptions options;
  options.exit_normally = true;
  options.rank_0_serves_store = true;
  const auto said = testing::captured_stderr([&] {
    run_ranks(
        3,
        [](Collective& group) {
          auto x = at::ones({1000});
          group.all_reduce(x);
          EXPECT_EQ(x[999].item<float>(), 3);
          auto half = split_group(group, {{0, 1}, {2}}, "half");
          half->barrier();
        },
        options);
  });
  EXPECT_EQ(said, "");
}

TEST(FailureWatcher, ReactsToAPostedFailure) {
  const auto results = run_ranks(
      2,
      [](Collective& group) {
        if (group.rank() == 1) {
          report_failure(group, "gone");
          return;
        }
        std::promise<void> reacted;
        std::shared_ptr<FailureExchange> failures(group.failures(), [](auto*) {});
        FailureWatcher watcher(
            failures, [&] { reacted.set_value(); }, milliseconds(5));
        EXPECT_EQ(reacted.get_future().wait_for(std::chrono::seconds(50)), std::future_status::ready);
      },
      failing());
}

TEST(FailureReports, AddUpToOneLine) {
  using Kind = FailureReport::Kind;
  using Reports = std::vector<std::optional<FailureReport>>;
  const std::vector<int> names{0, 1, 2}, none;
  const auto explain = [&](const Reports& reports, std::vector<int> closed) {
    return explain_failure("op", reports, closed, names, "cause");
  };
  EXPECT_EQ(
      explain({{{Kind::kShared, "[x] no {ranks}"}}, {{Kind::kWaiting, "op"}}, {{Kind::kShared, "[x] no {ranks}"}}}, {}),
      "[x] no ranks 0 and 2");
  EXPECT_EQ(explain(Reports(3, FailureReport{Kind::kShared, "[x] no {ranks}"}), {}), "[x] no every rank");
  EXPECT_EQ(explain({{{Kind::kTimedOut, "a within 1 s"}}, {{Kind::kWaiting, "b"}}, {{Kind::kWaiting, "b"}}}, {}),
            "[op] the ranks wait for each other: rank 0 in a, rank 1 in b, rank 2 in b");
  EXPECT_EQ(explain({{{Kind::kWaiting, "op"}}, std::nullopt, std::nullopt}, {2}),
            "[op] rank 2 died: the connection was lost");
  EXPECT_EQ(explain({{{Kind::kWaiting, "op"}}, std::nullopt, std::nullopt}, {}), "[op] communication failed: cause");
}

}  // namespace
}  // namespace levin
