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
  EXPECT_EQ(error({{"data", 2}, {"tensor", 2}}), "[mesh] data 2 x tensor 2 needs 4 ranks, and there is 1");
  EXPECT_THAT(error({{"data", 1}, {"data", 1}}), HasSubstr("\"data\" stands twice"));
  EXPECT_THAT(error({{"data", 0}}), HasSubstr("size 0"));
  EXPECT_THAT(error({{"data", -1}, {"tensor", -1}}), HasSubstr("only one axis may be -1"));
  EXPECT_THAT(error({}), HasSubstr("at least one axis"));
  Mesh mesh(one, {{"data", -1}});
  EXPECT_EQ(mesh.size("data"), 1);
  EXPECT_THROW(mesh.group("dat"), Error);
  EXPECT_THROW(split_group(*one, {{0}, {0}}, "x"), Error);
}

}  // namespace
}  // namespace levin
