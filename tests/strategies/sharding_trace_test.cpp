// What PyTorch's profiler sees of a sharded step: collectives and copies overlap with the computation.
// LEVIN_TRACE_DIR=folder keeps the traces, for chrome://tracing or Perfetto.
#include <cstdlib>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include "levin/devices/accelerator.h"
#include "levin/testing/gpu.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

struct Span {
  uint64_t begin = 0, end = 0;
};

/// The same time without what is counted twice.
std::vector<Span> united(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> result;
  for (const auto& span : spans) {
    if (!result.empty() && span.begin <= result.back().end)
      result.back().end = std::max(result.back().end, span.end);
    else
      result.push_back(span);
  }
  return result;
}

double length(const std::vector<Span>& spans) {
  double sum = 0;
  for (const auto& span : spans) sum += static_cast<double>(span.end - span.begin);
  return sum;
}

double common_length(const std::vector<Span>& a, const std::vector<Span>& b) {
  double sum = 0;
  for (const auto& one : a)
    for (const auto& other : b) {
      const auto begin = std::max(one.begin, other.begin), end = std::min(one.end, other.end);
      if (begin < end) sum += static_cast<double>(end - begin);
    }
  return sum;
}

struct Overlap {
  /// Seconds in which there was communication (or a copy), in which there was computation, and in which both were.
  double communication = 0;
  double compute = 0;
  double both = 0;
  int operations = 0;
  /// Of what could be hidden at all: the shorter of the two.
  double share() const { return both > 0 ? both / std::min(communication, compute) : 0; }
  /// Of the whole time, in which there was nothing but communication.
  double exposed() const { return (communication - both) / (communication + compute - both); }
};

Overlap overlap_of(const std::vector<profiler::KinetoEvent>& events, c10::Device device) {
  // Compute is the stream that has most to do; what else is on the device came over the lanes.
  std::map<int64_t, uint64_t> busy;
  for (const auto& event : events)
    if (event.deviceType() == at::kCUDA) busy[event.deviceResourceId()] += event.durationNs();
  const auto main = std::max_element(busy.begin(), busy.end(), [](auto& a, auto& b) { return a.second < b.second; });
  std::vector<Span> compute, communication;
  Overlap overlap;
  for (const auto& event : events) {
    const auto name = event.name();
    const Span span{event.startNs(), event.endNs()};
    const bool over_gloo = name.starts_with("gloo:");
    const bool on_device = event.deviceType() == at::kCUDA;
    const bool on_lane = on_device && event.deviceResourceId() != main->first;
    if (over_gloo || on_lane) {
      communication.push_back(span);
      ++overlap.operations;
    } else if (device.is_cuda() ? on_device : name == "aten::addmm" || name == "aten::mm") {
      compute.push_back(span);
    }
  }
  compute = united(std::move(compute));
  communication = united(std::move(communication));
  overlap.communication = length(communication) / 1e9;
  overlap.compute = length(compute) / 1e9;
  overlap.both = common_length(communication, compute) / 1e9;
  return overlap;
}

/// Some steps under the profiler, after some without.
Overlap trace(Collective& group, const StrategyChoice& choice, c10::Device device, const std::string& name) {
  const ShardNetOptions options = device.is_cuda() ? ShardNetOptions{.width = 2048, .hidden = 8192, .blocks = 6}
                                                   : ShardNetOptions{.width = 256, .hidden = 1024, .blocks = 4};
  ShardNet net(options);
  Trainee trainee(group, choice, *net, device, "bf16-mixed");
  const auto x = at::randn({device.is_cuda() ? 32768 : 64, options.width}, device);
  const auto step = [&] {
    const Autocast autocast(device.type(), at::kBFloat16);
    trainee.backward(trainee.forward([&] { return net(x); }).to(at::kFloat).square().mean());
    for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
  };
  const auto& accelerator = accelerator_of(device);
  for (int i = 0; i < 3; ++i) step();
  accelerator.synchronize(device);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  for (int i = 0; i < 2; ++i) step();
  accelerator.synchronize(device);
  const auto result = profiler::disableProfiler();
  if (const char* folder = std::getenv("LEVIN_TRACE_DIR"))
    result->save(std::string(folder) + "/" + name + "_rank" + std::to_string(group.rank()) + ".json");
  const auto overlap = overlap_of(result->events(), device);
  if (group.rank() == 0)
    std::fprintf(stderr,
                 "[ TRACE    ] %s: %d operations, %.2f ms, beside %.2f ms of compute: %.2f ms, %.0f %%; alone %.1f %% "
                 "of the time\n",
                 name.c_str(), overlap.operations, overlap.communication * 1e3, overlap.compute * 1e3,
                 overlap.both * 1e3, overlap.share() * 100, overlap.exposed() * 100);
  return overlap;
}

FsdpOptions sharded_blocks(bool offload = false) {
  return {.auto_wrap_policy = policy::by_class<ShardBlock>(), .cpu_offload = offload};
}

RanksOptions on_gpu() {
  RanksOptions options;
  options.device = c10::Device(at::kCUDA, 0);
  return options;
}

TEST(ShardingTrace, GlooOverlapsWithCompute) {
  run_ranks(2, [](Collective& group) {
    const auto overlap = trace(group, sharded_blocks(), at::kCPU, "cpu_gloo");
    // Two steps: units are gathered for forward and, but for the last, for backward; each is reduced once.
    EXPECT_GE(overlap.operations, 2 * (4 + 4 + 4));
    EXPECT_GT(overlap.share(), 0.02);
  });
}

class ShardingTraceCuda : public GpuTest {};

TEST_F(ShardingTraceCuda, GlooOverlapsWithCompute) {
  run_ranks(
      2,
      [](Collective& group) {
        const auto overlap = trace(group, sharded_blocks(), c10::Device(at::kCUDA, 0), "gpu_gloo");
        EXPECT_GE(overlap.operations, 2 * (6 + 6 + 6));
        EXPECT_GT(overlap.share(), 0.5);
      },
      on_gpu());
}

TEST_F(ShardingTraceCuda, NcclOverlapsWithCompute) {
  run_ranks(
      1,
      [](Collective&) {
        const auto group = lone_group(c10::Device(at::kCUDA, 0), /*nccl=*/true);
        const auto overlap = trace(*group, sharded_blocks(), c10::Device(at::kCUDA, 0), "gpu_nccl");
        EXPECT_GE(overlap.operations, 2 * (6 + 6 + 6));
        // With one rank a collective is a copy in the device's memory, for which copies that compute compete.
        EXPECT_GT(overlap.share(), 0.1);
        EXPECT_LT(overlap.exposed(), 0.05);
      },
      on_gpu());
}

TEST_F(ShardingTraceCuda, OffloadOverlapsWithCompute) {
  run_ranks(
      1,
      [](Collective& group) {
        const auto overlap = trace(group, sharded_blocks(true), c10::Device(at::kCUDA, 0), "gpu_offload");
        EXPECT_GE(overlap.operations, 2 * (6 + 6 + 6));
        EXPECT_GT(overlap.share(), 0.5);
        EXPECT_LT(overlap.exposed(), 0.1);
      },
      on_gpu());
}

}  // namespace
}  // namespace levin::testing
