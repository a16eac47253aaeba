#include "levin/distributed/nccl.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "levin/core/error.h"
#include "levin/testing/gpu.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

using levin::testing::run_ranks;

TEST(Nccl, SaysWhyItIsMissingOrWorks) {
  if (!detail::why_no_nccl().empty()) {
    EXPECT_THROW(detail::make_nccl({}, 0, 1, at::kCPU, std::chrono::seconds(1)), Error);
    return;
  }
  if (!testing::has_gpu()) GTEST_SKIP() << "no GPU";
  run_ranks(1, [](Collective&) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    auto nccl = detail::make_nccl(store, 0, 1, c10::Device(at::kCUDA, 0), std::chrono::seconds(20));
    std::vector<at::Tensor> x{at::ones({4}, at::kCUDA)};
    nccl->allreduce(x)->wait();
    EXPECT_EQ(x[0].sum().item<float>(), 4);
    nccl->shutdown();
  });
}

TEST(Nccl, NeedsACudaDevice) {
  levin::testing::RanksOptions options;
  options.errors_expected = true;
  options.collective.backend = "nccl";
  for (const auto& error : levin::testing::errors_of(run_ranks(
           2, [](Collective&) {}, options)))
    EXPECT_EQ(error,
              "[join] backend \"nccl\" needs a CUDA device, and this rank is on cpu; \"gloo\" or \"auto\" can be used");
}

}  // namespace
}  // namespace levin
