// A long run takes no more memory than a short one: nothing is kept from step to step, and the Trainer allocates
// nothing of its own between two rows of the log.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include "levin/levin.h"
#include "levin/testing/folder_test.h"
#include "levin/trainer/callbacks/progress_bar.h"
#include "levin/trainer/trainer.h"
#include "tests/trainer/boring.h"

namespace {
std::atomic<int64_t> allocations = 0;
}

void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace levin {
namespace {

namespace fs = std::filesystem;

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

constexpr int64_t kWarmUp = 100;
constexpr int64_t kSteps = 10'000;

/// Logs what a user logs, and looks at the memory on the way.
struct Watched : trainer_test::Boring {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    if (at.batch_idx == kWarmUp) {
      ::malloc_trim(0);
      first_resident = resident_bytes();
      first_used = static_cast<int64_t>(::mallinfo2().uordblks);
    }
    const int64_t before = allocations;
    auto loss = loss_of(batch);
    own_allocations += allocations - before;
    log("train_loss", loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    log("batch", static_cast<double>(at.batch_idx));
    return loss;
  }
  void on_train_end() override {
    ::malloc_trim(0);
    last_resident = resident_bytes();
    last_used = static_cast<int64_t>(::mallinfo2().uordblks);
  }
  int64_t first_resident = 0, first_used = 0, last_resident = 0, last_used = 0, own_allocations = 0;
};

class Memory : public testing::FolderTest {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    quiet_ = std::fopen("/dev/null", "w");
  }
  void TearDown() override { std::fclose(quiet_); }
  TrainerOptions options() {
    return {.accelerator = "cpu",
            .logger = std::make_shared<CsvLogger>(folder_),
            .callbacks = {TrainerProgressBar({.file = quiet_, .live = true})},
            .max_epochs = 1,
            .enable_checkpointing = false,
            .enable_model_summary = false,
            .default_root_dir = folder_,
            .on_nonfinite = "warn"};  // nobody asks whether this loss stays finite
  }
  std::FILE* quiet_ = nullptr;
};

TEST_F(Memory, TenThousandStepsGrowNothing) {
  Watched module;
  Trainer trainer(options());
  // The same samples again and again: the data itself is no part of the question.
  trainer.fit(module, make_loader(TensorDataset({{"x", torch::randn({kSteps, 32})}}), {.batch_size = 1}));
  EXPECT_EQ(trainer.global_step(), kSteps);
  EXPECT_LT(module.last_used - module.first_used, 64 << 10);
  EXPECT_LT(module.last_resident - module.first_resident, 1 << 20);
}

/// Counts the allocations of a hand-written step, and of the same step in the Trainer.
struct Counted : trainer_test::Boring {
  explicit Counted(bool l) : logs(l) {}
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    if (at.batch_idx == kWarmUp) first = allocations;
    if (at.batch_idx == kWarmUp + 40) last = allocations;
    auto loss = loss_of(batch);
    if (logs) log("train_loss", loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    return loss;
  }
  double per_step() const { return static_cast<double>(last - first) / 40; }
  bool logs;
  int64_t first = 0, last = 0;
};

TEST_F(Memory, BetweenTwoRowsTheTrainerAllocatesNothing) {
  const auto loader = [] { return make_loader(TensorDataset({{"x", torch::randn({200, 32})}}), {.batch_size = 1}); };
  Counted bare(false), full(true), by_hand(false);
  Trainer({.accelerator = "cpu", .max_epochs = 1, .barebones = true}).fit(bare, loader());
  auto with_all = options();
  with_all.log_every_n_steps = 1000;  // no row between the two looks
  Trainer(with_all).fit(full, loader());

  optim::SGD sgd(by_hand.parameters(), {.lr = 0.1});
  int64_t batch_idx = 0;
  for (auto& batch : loader()) {
    auto output = by_hand.training_step(batch, {batch_idx++, 0});
    sgd.zero_grad();
    output.loss.backward();
    sgd.step();
  }
  EXPECT_GT(by_hand.per_step(), 10);  // the counter counts
  EXPECT_LE(bare.per_step(), by_hand.per_step() + 0.5);
  EXPECT_LE(full.per_step(), by_hand.per_step() + 0.5);
}

}  // namespace
}  // namespace levin
