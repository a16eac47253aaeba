#include "levin/distributed/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/distributed/single.h"
#include "levin/testing/error_of.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

using levin::testing::errors_of;
using levin::testing::run_ranks;
using ::testing::Each;
using testing::error_of;
using ::testing::HasSubstr;

std::shared_ptr<Collective> borrow(Collective& group) {
  return {&group, [](auto*) {}};
}

TEST(Mesh, GroupsAlongNamedAxes) {
  run_ranks(4, [](Collective& group) {
    Mesh mesh(borrow(group), {{"data", -1}, {"tensor", 2}});
    EXPECT_EQ(mesh.size("data"), 2);
    EXPECT_EQ(mesh.coordinate("data"), group.rank() / 2);
    EXPECT_EQ(mesh.coordinate("tensor"), group.rank() % 2);
    EXPECT_EQ(mesh.group("tensor").rank(), mesh.coordinate("tensor"));
    auto x = at::scalar_tensor(1 << group.rank());
    auto y = x.clone();
    mesh.group("tensor").all_reduce(x);
    mesh.group("data").all_reduce(y);
    EXPECT_EQ(x.item<float>(), group.rank() < 2 ? 3 : 12);
    EXPECT_EQ(y.item<float>(), group.rank() % 2 ? 10 : 5);
  });
}

TEST(Mesh, FailureInASubgroupEndsTheWholeGroup) {
  levin::testing::RanksOptions options;
  options.errors_expected = true;
  const auto results = run_ranks(
      3,
      [](Collective& group) {
        auto part = split_group(group, {{0, 1}, {2}}, "part");
        EXPECT_EQ(part->size(), group.rank() == 2 ? 1 : 2);
        if (group.rank() == 2) {
          group.barrier("all");
          return;
        }
        auto x = at::ones({2 + group.rank()});
        part->all_reduce(x);
      },
      options);
  EXPECT_THAT(
      errors_of(results),
      Each("[all_reduce] ranks disagree: rank 0 calls all_reduce float32 [2], rank 1 calls all_reduce float32 [3]"));
}

TEST(Mesh, RanksOutsideAllGroupsGetNone) {
  run_ranks(3, [](Collective& group) {
    auto some = split_group(group, {{2, 0}}, "some");
    EXPECT_EQ(some == nullptr, group.rank() == 1);
    if (some) {
      EXPECT_EQ(some->rank(), group.rank() == 2 ? 0 : 1);
    }
    auto again = split_group(group, {{2, 0}}, "some");
    EXPECT_EQ(again == nullptr, group.rank() == 1);
  });
}

TEST(Mesh, ListsMustAgree) {
  levin::testing::RanksOptions options;
  options.errors_expected = true;
  const auto results = run_ranks(
      2,
      [](Collective& group) {
        if (group.rank() == 0)
          split_group(group, {{0, 1}}, "a");
        else
          split_group(group, {{0}, {1}}, "a");
      },
      options);
  EXPECT_THAT(
      errors_of(results),
      Each(HasSubstr("[split_group] ranks disagree: rank 0 asks for \"a [[0, 1]]\", rank 1 for \"a [[0], [1]]\"")));
}

TEST(Mesh, SizesAreChecked) {
  auto one = std::make_shared<SingleCollective>();
  const auto error = [&](std::vector<std::pair<std::string, int>> axes) -> std::string {
    return error_of([&] { Mesh mesh(one, axes); });
  };
  EXPECT_EQ(error({{"data", 2}, {"tensor", 2}}), "[mesh] data 2 x tensor 2 = 4, and there is 1 rank");
  EXPECT_THAT(error({{"data", 1}, {"data", 1}}), HasSubstr("\"data\" stands twice"));
  EXPECT_THAT(error({{"data", 0}}), HasSubstr("size 0"));
  EXPECT_THAT(error({{"data", -1}, {"tensor", -1}}), HasSubstr("only one axis may be -1"));
  EXPECT_THAT(error({}), HasSubstr("at least one axis"));
  Mesh mesh(one, {{"data", -1}});
  EXPECT_EQ(mesh.size("data"), 1);
  EXPECT_THROW(mesh.group("dat"), Error);
  EXPECT_THROW(split_group(*one, {{0}, {0}}, "x"), Error);
}

TEST(Mesh, ParallelAxesNestAndFold) {
  run_ranks(8, [](Collective& group) {
    const Mesh mesh(borrow(group), ParallelSizes{.pp = 1, .dp_replicate = 2, .dp_shard = -1, .tp = 2, .ep = 2});
    const int rank = group.rank();
    EXPECT_EQ(mesh.coordinate("dp_replicate"), rank / 4);
    EXPECT_EQ(mesh.coordinate("dp_shard"), rank / 2 % 2);
    EXPECT_EQ(mesh.coordinate("tp"), rank % 2);
    EXPECT_EQ(mesh.coordinate("batch"), rank / 2);
    EXPECT_EQ(mesh.size("loss"), 4);
    EXPECT_EQ(mesh.size("expert_shard"), 1);
    EXPECT_EQ(mesh.size("expert_loss"), 2);
    EXPECT_EQ(&mesh.group("fsdp"), &mesh.group("dp_shard"));
    EXPECT_EQ(&mesh.group("fsdp"), &mesh.group("ep"));
    EXPECT_EQ(mesh.rank_at("dp_shard", 1), rank | 2);
    const auto sum_over = [&](const char* axis) {
      auto sum = at::scalar_tensor(1 << rank);
      mesh.group(axis).all_reduce(sum);
      return sum.item<int>();
    };
    EXPECT_EQ(sum_over("fsdp"), (rank % 2 ? 0b1010 : 0b101) << rank / 4 * 4);
    EXPECT_EQ(sum_over("loss"), rank % 2 ? 0b10101010 : 0b1010101);
    EXPECT_EQ(sum_over("dp_replicate"), 0b10001 << rank % 4);
    EXPECT_EQ(sum_over("pp"), 1 << rank);
  });
}

TEST(Mesh, ParallelSizesSayTheirProduct) {
  const auto error = [](const ParallelSizes& sizes, int ranks) { return error_of([&] { (void)sizes.over(ranks); }); };
  EXPECT_EQ(error({.pp = 2, .dp_shard = 3, .tp = 2}, 8), "[mesh] pp 2 x dp_shard 3 x tp 2 = 12, and there are 8 ranks");
  EXPECT_EQ(error({.dp_shard = -1, .tp = 3}, 8),
            "[mesh] dp_shard -1 x tp 3 needs a multiple of 3 ranks, and there are 8 ranks");
  EXPECT_EQ(error({.dp_shard = 2, .cp = 2, .ep = 3}, 4),
            "[mesh] ep 3 does not divide dp_shard 2 x cp 2 = 4, over which experts are spread");
  EXPECT_THAT(error({.tp = 0}, 4), HasSubstr("axis \"tp\" has size 0"));
  const auto sizes = ParallelSizes{.pp = 2, .dp_shard = -1, .cp = 2, .tp = 2, .ep = -1}.over(16);
  EXPECT_EQ(sizes.dp_shard, 2);
  EXPECT_EQ(sizes.ep, 4);
  EXPECT_EQ(sizes.product(), 16);
  EXPECT_EQ(sizes.text(), "pp 2 x dp_shard 2 x cp 2 x tp 2 x ep 4");
}

}  // namespace
}  // namespace levin
