#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/distributed/collective.h"

namespace levin::testing {

struct RanksOptions {
  CollectiveOptions collective{
      .backend = "gloo", .timeout = std::chrono::seconds(60), .join_timeout = std::chrono::seconds(60)};
  /// The device of every rank.
  c10::Device device = at::kCPU;
  /// A rank that throws, or ends in another way, does not fail the test: the test looks at the results.
  bool errors_expected = false;
  /// Every process is killed when this is over.
  std::chrono::milliseconds limit = std::chrono::seconds(600);
  /// Ranks end by exit(), with all that runs there, and not at once.
  bool exit_normally = false;
  /// Rank 0 serves the store, and not the test.
  bool rank_0_serves_store = false;
  /// Changes the place that a rank believes to have, before it joins.
  std::function<void(Placement&)> edit_placement = {};
};

/// What became of one rank.
struct RankResult {
  /// The line of the exception that ended it; empty when there was none.
  std::string error;
  /// Messages of the expectations that did not hold in it.
  std::vector<std::string> failures;
  int exit_code = 0;
  /// The signal that ended it, or 0.
  int signal = 0;
  bool timed_out = false;
  double seconds = 0;
  /// What the function returned: tensors, or a text.
  std::vector<at::Tensor> tensors;
  std::string text;

  const at::Tensor& tensor() const { return tensors.at(0); }
};

namespace detail {
struct Returned {
  std::vector<at::Tensor> tensors;
  std::string text;
};
std::vector<RankResult> run_ranks(int world, const std::function<Returned(Collective&)>& body,
                                  const RanksOptions& options);
}  // namespace detail

/// Runs a function as every rank of a group of forked processes, joined over Gloo on the loopback interface, and
/// returns what each of them returned: nothing, a tensor, several, or a string. An exception or a failed expectation in
/// a rank is a failure of the test that says which rank it was.
///
///     auto results = run_ranks(2, [](Collective& group) {
///       auto x = at::ones({3});
///       group.all_reduce(x);
///       EXPECT_EQ(x[0].item<float>(), 2);
///       return x;
///     });
///     results[0].tensor();
template <class F>
std::vector<RankResult> run_ranks(int world, F&& body, const RanksOptions& options = {}) {
  return detail::run_ranks(
      world,
      [&](Collective& group) -> detail::Returned {
        using R = std::invoke_result_t<F, Collective&>;
        if constexpr (std::is_void_v<R>) {
          body(group);
          return {};
        } else if constexpr (std::is_same_v<R, at::Tensor>) {
          return {{body(group)}, {}};
        } else if constexpr (std::is_same_v<R, std::vector<at::Tensor>>) {
          return {body(group), {}};
        } else {
          return {{}, body(group)};
        }
      },
      options);
}

/// The error lines, by rank.
std::vector<std::string> errors_of(const std::vector<RankResult>& results);

}  // namespace levin::testing
