#include "levin/devices/devices.h"

#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using testing::error_of;

constexpr auto kCpu = c10::DeviceType::CPU;
constexpr auto kCuda = c10::DeviceType::CUDA;

std::string message(const Devices& asked, c10::DeviceType type, int available) {
  return error_of([&] { resolve_devices(asked, type, available); });
}

std::vector<int> ids(const Devices& asked, int available) {
  std::vector<int> result;
  for (const auto& device : resolve_devices(asked, kCuda, available)) result.push_back(device.index());
  return result;
}

TEST(Devices, AcceptsTheFormsOfLightning) {
  EXPECT_EQ(ids(2, 4), (std::vector{0, 1}));
  EXPECT_EQ(ids(-1, 3), (std::vector{0, 1, 2}));
  EXPECT_EQ(ids("-1", 2), (std::vector{0, 1}));
  EXPECT_EQ(ids("auto", 2), (std::vector{0, 1}));
  EXPECT_EQ(ids({0, 2}, 4), (std::vector{0, 2}));
  EXPECT_EQ(ids("1,3", 4), (std::vector{1, 3}));
  EXPECT_EQ(ids("3,", 4), (std::vector{3}));
  EXPECT_EQ(resolve_devices("auto", kCpu, 0).size(), 1u);
  EXPECT_EQ(resolve_devices(4, kCpu, 0).size(), 4u);
}

TEST(Devices, RefusesWithWhatThereIs) {
  EXPECT_EQ(message(0, kCpu, 0), "[fabric] devices 0 leaves nothing to run on; ask for at least 1");
  EXPECT_EQ(message("0", kCuda, 1), "[fabric] devices 0 leaves nothing to run on; ask for at least 1");
  EXPECT_EQ(message(std::vector<int>{}, kCuda, 1), "[fabric] devices is an empty list; ask for at least one");
  EXPECT_EQ(message(2, kCuda, 1), "[fabric] devices 2 asks for more than the 1 there is");
  EXPECT_EQ(message({0, 5}, kCuda, 2), "[fabric] devices \"0,5\" names device 5, but there are only devices 0 to 1");
  EXPECT_EQ(message({1, 1}, kCuda, 2), "[fabric] devices \"1,1\" names device 1 twice");
  EXPECT_EQ(message(-2, kCuda, 2), "[fabric] devices -2 is not allowed (a count of 1 or more, or -1 for all)");
  EXPECT_NE(message("two", kCpu, 0).find("\"two\" is not understood"), std::string::npos);
}

TEST(Accelerator, NamesAreChecked) {
  EXPECT_EQ(accelerator("cpu").name(), "cpu");
  EXPECT_EQ(error_of([&] { accelerator("cdua"); }),
            "[fabric] accelerator \"cdua\" is not known; did you mean \"cuda\"? (known: auto, cpu, cuda, gpu)");
  if (detail::cuda_accelerator().device_count() == 0) {
    EXPECT_THROW(accelerator("gpu"), Error);
  }
}

TEST(Accelerator, CpuCountsMemoryAndKeepsItsRng) {
  const auto& cpu = accelerator("cpu");
  EXPECT_GT(cpu.memory(at::kCPU).allocated, 1 << 20);
  const auto state = cpu.rng_state(at::kCPU);
  const auto first = torch::rand({4});
  cpu.set_rng_state(at::kCPU, state);
  EXPECT_TRUE(torch::equal(first, torch::rand({4})));
}

}  // namespace
}  // namespace levin
