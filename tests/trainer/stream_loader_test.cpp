// A loader that does not know how many batches come, in a run.
#include <gtest/gtest.h>

#include "levin/data/stream.h"
#include "levin/testing/tensors.h"
#include "levin/trainer/trainer.h"
#include "tests/trainer/boring.h"

namespace levin::trainer_test {
namespace {

struct Rows {
  Tensor rows = levin::testing::boring_data(10).first;
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<Batch> next() {
    if (at == rows.size(0)) return {};
    return Batch{{"x", rows[at++]}};
  }
};

struct Counting : Boring {
  StepOutput validation_step(const Batch& batch, const StepInfo& at) override {
    ++validated;
    return Boring::validation_step(batch, at);
  }
  int validated = 0;
};

TEST(StreamLoader, TrainsAsALoaderThatKnowsItsSize) {
  const auto run = [](auto loader) {
    torch::manual_seed(1);
    Counting module;
    TrainerOptions options;
    options.max_epochs = 2;
    options.logger = false;
    options.accumulate_grad_batches = 4;
    options.enable_checkpointing = false;
    options.enable_progress_bar = false;
    Trainer trainer(options);
    trainer.fit(module, loader, boring_loader(3));
    EXPECT_EQ(trainer.global_step(), 6);  // two windows of four batches, and the last one of two
    EXPECT_GE(module.validated, 6);       // after each epoch, and before the first one
    return module.layer->weight.detach().clone();
  };
  const auto known = run(make_loader(TensorDataset({{"x", levin::testing::boring_data(10).first}}), {.batch_size = 1}));
  EXPECT_TRUE(at::equal(run(make_loader(Rows(), {.batch_size = 1})), known));
}

}  // namespace
}  // namespace levin::trainer_test
