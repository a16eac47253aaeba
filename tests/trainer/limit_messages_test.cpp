// What is said of a limit that leaves no batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/error_of.h"
#include "levin/trainer/trainer.h"
#include "tests/trainer/boring.h"

namespace levin::trainer_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

template <class L>
std::string refusal(TrainerOptions options, const L& loader) {
  options.accelerator = "cpu";
  options.max_epochs = 1;
  options.logger = false;
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  Boring module;
  return error_of([&] { Trainer(options).fit(module, loader, loader); });
}

std::string refusal_of(const TrainerOptions& options, int64_t samples) {
  return refusal(options, boring_loader(samples));
}

TEST(LimitMessages, TellTheLeastFractionThatWorks) {
  EXPECT_EQ(
      refusal_of({.limit_train_batches = 0.01}, 30),
      "[trainer] limit_train_batches 0.01 of 30 batches is less than one batch; write 0.0334 or more, or a number "
      "of batches such as 1");
  EXPECT_EQ(refusal_of({.limit_train_batches = 0.0334, .limit_val_batches = 1}, 30), "no error");
  EXPECT_THAT(refusal_of({.limit_val_batches = 0.2}, 3),
              HasSubstr("limit_val_batches 0.2 of 3 batches is less than one"));
  EXPECT_EQ(refusal_of({.limit_val_batches = 0.334}, 3), "no error");
  EXPECT_THAT(refusal_of({.overfit_batches = 0.1}, 3), HasSubstr("overfit_batches 0.1 of 3 batches"));
}

TEST(LimitMessages, AnEmptyLoaderIsNamedAsSuch) {
  // Levin's own loaders refuse to be empty; a range of the user's does not.
  const std::vector<Batch> none;
  EXPECT_THAT(refusal({}, none), AllOf(HasSubstr("has no batches"), HasSubstr("drop_last"), Not(HasSubstr("inf"))));
  EXPECT_THAT(refusal({.limit_train_batches = 0.5, .limit_val_batches = 0}, none),
              AllOf(HasSubstr("limit_train_batches 0.5"), HasSubstr("has no batches"), Not(HasSubstr("inf"))));
}

}  // namespace
}  // namespace levin::trainer_test
