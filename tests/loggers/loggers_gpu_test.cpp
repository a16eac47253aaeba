#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "folder.h"
#include "levin/loggers/csv.h"
#include "levin/loggers/tensorboard.h"
#include "levin/testing/gpu.h"

namespace levin {
namespace {

using LoggersGpu = testing::GpuTest;

// Whoever waits for the device while this lives throws.
struct NoWaiting {
  NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
};

TEST_F(LoggersGpu, DoNotWaitForTheDeviceBeforeRowsAreWritten) {
  const testing::LogFolder folder;
  CsvLogger logger(folder.path);
  auto running = torch::zeros({}, torch::kCUDA);
  const auto count = torch::tensor(3, torch::kCUDA);
  {
    const NoWaiting guard;
    for (int step = 0; step < 3; ++step) {
      running.add_(0.5);  // in place: a row has the value that it was given
      logger.log_metrics({{"loss", running}, {"count", count}}, step);
    }
  }
  logger.save();
  EXPECT_EQ(read_file(logger.log_dir() / "metrics.csv"), "count,loss,step\r\n3,0.5,0\r\n3,1.0,1\r\n3,1.5,2\r\n");
}

TEST_F(LoggersGpu, CountHistogramsOnTheDevice) {
  const testing::LogFolder folder;
  const TensorBoardOptions board{.clock = [] { return 1.0; }};
  const auto values = torch::arange(-300, 301).to(torch::kDouble) / 8;
  const auto image = torch::rand({3, 4, 5});
  TensorBoardLogger host(folder.path / "host", {}, board), device(folder.path / "device", {}, board);
  host.log_histogram("w", values, 1);
  host.log_image("i", image, 1);
  device.log_histogram("w", values.cuda(), 1);
  device.log_image("i", image.cuda(), 1);
  EXPECT_EQ(read_file(testing::event_file(host.log_dir())), read_file(testing::event_file(device.log_dir())));
}

}  // namespace
}  // namespace levin
