#include "levin/core/dispatch.h"

#include <array>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/digamma.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using levin::detail::kBelowAutogradKey;

std::vector<int> called;

template <int number>
void noting_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  called.push_back(number);
  levin::detail::pass_on(kBelowAutogradKey, op, keys, stack);
}

template <int... numbers>
void take_by(std::integer_sequence<int, numbers...>) {
  const auto is_digamma = [](const c10::OperatorHandle& op) { return op.schema().name() == "aten::digamma"; };
  (levin::detail::take_operators(kBelowAutogradKey, is_digamma,
                                 c10::BoxedKernel::makeFromFunction<&noting_kernel<numbers>>()),
   ...);
}

TEST(Dispatch, AnyNumberTakesAnOperatorAndEachPassesItOn) {
  const auto x = at::ones({3});
  const auto expected = at::digamma(x);
  take_by(std::make_integer_sequence<int, 9>());
  EXPECT_TRUE(at::digamma(x).equal(expected));
  EXPECT_THAT(called, testing::IsEmpty());
  const c10::impl::IncludeDispatchKeyGuard guard(kBelowAutogradKey);
  EXPECT_TRUE(at::digamma(x).equal(expected));
  EXPECT_THAT(called, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  at::digamma(x);
  EXPECT_EQ(called.size(), 18u);
}

}  // namespace
