// Callbacks whose type says little about what they override: every override is called.
#include "levin/trainer/callbacks/lambda.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

using Told = std::vector<std::string>;

/// A base of callbacks that has no hooks of its own.
struct Named : Callback {
  Told told;
};

struct Counter : Named {
  void on_train_start(TrainerContext&) override { told.push_back("start"); }
  void on_train_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, int64_t) override {
    told.push_back("batch");
  }
  void on_train_epoch_end(TrainerContext&) override { told.push_back("epoch"); }
  void on_validation_batch_start(TrainerContext&, const AnyBatch&, const StepInfo&) override { told.push_back("val"); }
  void on_exception(TrainerContext&, const std::exception&) override { told.push_back("exception"); }
};

TEST(CallbackTypes, ASharedPointerToABaseCallsWhatTheObjectOverrides) {
  const std::shared_ptr<Named> callback = std::make_shared<Counter>();
  Net net;
  Trainer(quiet({callback}, 1)).fit(net, loader(4, 2), loader(2, 2, "x_val"));
  EXPECT_EQ(callback->told, (Told{"val", "start", "batch", "batch", "val", "epoch"}));
}

TEST(CallbackTypes, APointerToCallbackToo) {
  const auto counter = std::make_shared<Counter>();
  Net net;
  Trainer(quiet({std::static_pointer_cast<Callback>(counter)}, 1)).fit(net, loader(4, 2));
  EXPECT_EQ(counter->told, (Told{"start", "batch", "batch", "epoch"}));
}

class Private : public Callback {
 public:
  explicit Private(std::shared_ptr<Told> told) : told_(std::move(told)) {}

 private:
  void on_train_start(TrainerContext&) override { told_->push_back("start"); }
  std::shared_ptr<Told> told_;
};

struct Overloaded : Callback {
  explicit Overloaded(std::shared_ptr<Told> told_here) : told(std::move(told_here)) {}
  using Callback::on_fit_start;
  void on_fit_start(int) {}
  void on_train_start(TrainerContext&) override { told->push_back("start"); }
  void on_train_start(int times) { told->push_back(std::to_string(times)); }
  std::shared_ptr<Told> told;
};

/// What it inherits is overridden, although the name is that of the base of all.
struct Unhidden : Overloaded {
  using Callback::on_train_start;
  using Overloaded::Overloaded;
};

TEST(CallbackTypes, OverridesThatArePrivateOrOverloadedCompileAndAreCalled) {
  const auto told = std::make_shared<Told>();
  Net net;
  Trainer(quiet({Private(told), Overloaded(told), std::make_shared<Private>(told), Unhidden(told)}, 1))
      .fit(net, loader(4, 2));
  EXPECT_EQ(*told, (Told{"start", "start", "start", "start"}));
}

TEST(CallbackTypes, AProfileHasRowsForWhatMayBeOverridden) {
  EXPECT_TRUE(CallbackRef(Counter{}).overrides(Hook::on_train_start));
  EXPECT_FALSE(CallbackRef(Counter{}).overrides(Hook::on_fit_start));
  EXPECT_FALSE(CallbackRef(std::make_shared<Counter>()).overrides(Hook::on_fit_start));
  EXPECT_TRUE(CallbackRef(std::shared_ptr<Named>(std::make_shared<Counter>())).overrides(Hook::on_train_start));
  EXPECT_TRUE(CallbackRef(Private(nullptr)).overrides(Hook::on_train_start));
  EXPECT_TRUE(CallbackRef(Overloaded(nullptr)).overrides(Hook::on_train_start));
}

/// One from a module takes the place of one of its class, whatever the pointers say.
struct WithCallbacks : Net {
  std::vector<CallbackRef> configure_callbacks() override { return {own}; }
  std::shared_ptr<Named> own = std::make_shared<Counter>();
};

TEST(CallbackTypes, AModulesOwnIsCalledToo) {
  WithCallbacks net;
  Trainer(quiet({}, 1)).fit(net, loader(4, 2));
  EXPECT_EQ(net.own->told, (Told{"start", "batch", "batch", "epoch"}));
}

}  // namespace
}  // namespace levin::tuning_test
