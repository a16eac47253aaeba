// Every hook, in the order that was recorded from Lightning: fixtures/hooks.json.
#include "tests/trainer/conformance.h"

namespace levin::conformance {
namespace {

struct Record {
  std::vector<std::string> entered, left;
};

/// A hook while it runs.
class Note {
 public:
  Note(Record& record, std::string label) : record_(record), label_(std::move(label)) {
    record_.entered.push_back(label_);
  }
  ~Note() { record_.left.push_back(label_); }
  Note(const Note&) = delete;
  Note& operator=(const Note&) = delete;

 private:
  Record& record_;
  std::string label_;
};

// clang-format off: a line for a hook.
struct HookNet : Net {
  HookNet(Record& r, bool manual)
      : Net(Json{{"schedule", {{"type", "StepLR"}, {"options", {{"step_size", 1}}}}}, {"manual", manual}}), record(r) {}

  Note note(const char* name) { return {record, std::string("module.") + name}; }
  Note note(const char* name, int64_t batch_idx) {
    return {record, detail::concat("module.", name, "(", batch_idx, ")")};
  }
  Note note(const char* name, std::string_view stage) {
    return {record, detail::concat("module.", name, "(", stage, ")")};
  }

  std::vector<CallbackRef> configure_callbacks() override {
    const auto n = note("configure_callbacks");
    return {};
  }
  void prepare_data() override { const auto n = note("prepare_data"); }
  void setup(std::string_view stage) override { const auto n = note("setup", stage); }
  void teardown(std::string_view stage) override { const auto n = note("teardown", stage); }
  void configure_model() override { const auto n = note("configure_model"); }
  Optimizers configure_optimizers() override {
    const auto n = note("configure_optimizers");
    optim::SGD sgd(parameters(), {.lr = 0.1});
    return {sgd, optim::StepLR(sgd, {.step_size = 1})};
  }
  Loaders<Batch> train_dataloader() override {
    const auto n = note("train_dataloader");
    return loader_of(64);
  }
  Loaders<Batch> val_dataloader() override {
    const auto n = note("val_dataloader");
    return loader_of(64, 1, "x_val");
  }
  Loaders<Batch> test_dataloader() override {
    const auto n = note("test_dataloader");
    return loader_of(64, 1, "x_val");
  }
  Loaders<Batch> predict_dataloader() override {
    const auto n = note("predict_dataloader");
    return loader_of(64, 1, "x_val");
  }
  void on_fit_start() override { const auto n = note("on_fit_start"); }
  void on_fit_end() override { const auto n = note("on_fit_end"); }
  void on_train_start() override { const auto n = note("on_train_start"); }
  void on_train_end() override { const auto n = note("on_train_end"); }
  void on_train_epoch_start() override { const auto n = note("on_train_epoch_start"); }
  void on_train_epoch_end() override { const auto n = note("on_train_epoch_end"); }
  bool on_train_batch_start(const Batch&, int64_t i) override {
    const auto n = note("on_train_batch_start", i);
    return true;
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t i) override {
    const auto n = note("on_train_batch_end", i);
  }
  void on_before_zero_grad(Optimizer&) override { const auto n = note("on_before_zero_grad"); }
  void on_before_backward(const Tensor&) override { const auto n = note("on_before_backward"); }
  void on_after_backward() override { const auto n = note("on_after_backward"); }
  void on_before_optimizer_step(Optimizer&) override { const auto n = note("on_before_optimizer_step"); }
  void on_validation_start() override { const auto n = note("on_validation_start"); }
  void on_validation_end() override { const auto n = note("on_validation_end"); }
  void on_validation_epoch_start() override { const auto n = note("on_validation_epoch_start"); }
  void on_validation_epoch_end() override { const auto n = note("on_validation_epoch_end"); }
  void on_validation_batch_start(const Batch&, const StepInfo& at) override {
    const auto n = note("on_validation_batch_start", at.batch_idx);
  }
  void on_validation_batch_end(const StepOutput&, const Batch&, const StepInfo& at) override {
    const auto n = note("on_validation_batch_end", at.batch_idx);
  }
  void on_test_start() override { const auto n = note("on_test_start"); }
  void on_test_end() override { const auto n = note("on_test_end"); }
  void on_test_epoch_start() override { const auto n = note("on_test_epoch_start"); }
  void on_test_epoch_end() override { const auto n = note("on_test_epoch_end"); }
  void on_test_batch_start(const Batch&, const StepInfo& at) override {
    const auto n = note("on_test_batch_start", at.batch_idx);
  }
  void on_test_batch_end(const StepOutput&, const Batch&, const StepInfo& at) override {
    const auto n = note("on_test_batch_end", at.batch_idx);
  }
  void on_predict_start() override { const auto n = note("on_predict_start"); }
  void on_predict_end() override { const auto n = note("on_predict_end"); }
  void on_predict_epoch_start() override { const auto n = note("on_predict_epoch_start"); }
  void on_predict_epoch_end() override { const auto n = note("on_predict_epoch_end"); }
  void on_predict_batch_start(const Batch&, const StepInfo& at) override {
    const auto n = note("on_predict_batch_start", at.batch_idx);
  }
  void on_predict_batch_end(const StepOutput&, const Batch&, const StepInfo& at) override {
    const auto n = note("on_predict_batch_end", at.batch_idx);
  }
  void on_validation_model_eval() override {
    const auto n = note("on_validation_model_eval");
    Net::on_validation_model_eval();
  }
  void on_validation_model_train() override {
    const auto n = note("on_validation_model_train");
    Net::on_validation_model_train();
  }
  void on_validation_model_zero_grad() override {
    const auto n = note("on_validation_model_zero_grad");
    Net::on_validation_model_zero_grad();
  }
  void on_test_model_eval() override {
    const auto n = note("on_test_model_eval");
    Net::on_test_model_eval();
  }
  void on_test_model_train() override {
    const auto n = note("on_test_model_train");
    Net::on_test_model_train();
  }
  void on_predict_model_eval() override {
    const auto n = note("on_predict_model_eval");
    Net::on_predict_model_eval();
  }
  void backward(const Tensor& loss) override {
    const auto n = note("backward");
    Net::backward(loss);
  }
  void optimizer_zero_grad(Optimizer& o) override {
    const auto n = note("optimizer_zero_grad");
    Net::optimizer_zero_grad(o);
  }
  void optimizer_step(Optimizer& o, const std::function<Tensor()>& closure) override {
    const auto n = note("optimizer_step");
    Net::optimizer_step(o, closure);
  }
  void configure_gradient_clipping(Optimizer& o, double value, std::string_view algorithm) override {
    const auto n = note("configure_gradient_clipping");
    Net::configure_gradient_clipping(o, value, algorithm);
  }
  void lr_scheduler_step(Scheduler& s, std::optional<double> metric) override {
    const auto n = note("lr_scheduler_step");
    Net::lr_scheduler_step(s, metric);
  }
  void on_save_checkpoint(StateDict&) override { const auto n = note("on_save_checkpoint"); }
  void on_load_checkpoint(StateDict&) override { const auto n = note("on_load_checkpoint"); }
  void on_before_batch_transfer(Batch&, const StepInfo&) override { const auto n = note("on_before_batch_transfer"); }
  void transfer_batch_to_device(Batch& b, c10::Device d, const StepInfo& at) override {
    const auto n = note("transfer_batch_to_device");
    Net::transfer_batch_to_device(b, d, at);
  }
  void on_after_batch_transfer(Batch&, const StepInfo&) override { const auto n = note("on_after_batch_transfer"); }
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    const auto n = note("training_step", at.batch_idx);
    auto loss = loss_of(batch);
    if (!automatic_optimization) {
      optimizer().zero_grad();
      manual_backward(loss);
      optimizer().step();
    }
    return loss;
  }
  StepOutput validation_step(const Batch& b, const StepInfo& at) override {
    const auto n = note("validation_step", at.batch_idx);
    return Net::validation_step(b, at);
  }
  StepOutput test_step(const Batch& b, const StepInfo& at) override {
    const auto n = note("test_step", at.batch_idx);
    return Net::test_step(b, at);
  }
  StepOutput predict_step(const Batch& b, const StepInfo& at) override {
    const auto n = note("predict_step", at.batch_idx);
    return Net::predict_step(b, at);
  }

  Record& record;
};

struct HookCallback : Callback {
  explicit HookCallback(Record& r) : record(r) {}

  Note note(const char* name) { return {record, std::string("callback.") + name}; }
  Note note(const char* name, int64_t batch_idx) {
    return {record, detail::concat("callback.", name, "(", batch_idx, ")")};
  }
  Note note(const char* name, std::string_view stage) {
    return {record, detail::concat("callback.", name, "(", stage, ")")};
  }

  std::string state_key() const override { return "HookCallback"; }
  StateDict state_dict() const override { return {{"seen", true}}; }
  void load_state_dict(const StateDict&) override { const auto n = note("load_state_dict"); }
  void setup(TrainerContext&, std::string_view stage) override { const auto n = note("setup", stage); }
  void teardown(TrainerContext&, std::string_view stage) override { const auto n = note("teardown", stage); }
  void on_fit_start(TrainerContext&) override { const auto n = note("on_fit_start"); }
  void on_fit_end(TrainerContext&) override { const auto n = note("on_fit_end"); }
  void on_sanity_check_start(TrainerContext&) override { const auto n = note("on_sanity_check_start"); }
  void on_sanity_check_end(TrainerContext&) override { const auto n = note("on_sanity_check_end"); }
  void on_train_start(TrainerContext&) override { const auto n = note("on_train_start"); }
  void on_train_end(TrainerContext&) override { const auto n = note("on_train_end"); }
  void on_train_epoch_start(TrainerContext&) override { const auto n = note("on_train_epoch_start"); }
  void on_train_epoch_end(TrainerContext&) override { const auto n = note("on_train_epoch_end"); }
  void on_train_batch_start(TrainerContext&, const AnyBatch&, int64_t i) override {
    const auto n = note("on_train_batch_start", i);
  }
  void on_train_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, int64_t i) override {
    const auto n = note("on_train_batch_end", i);
  }
  void on_before_zero_grad(TrainerContext&, Optimizer&) override { const auto n = note("on_before_zero_grad"); }
  void on_before_backward(TrainerContext&, const Tensor&) override { const auto n = note("on_before_backward"); }
  void on_after_backward(TrainerContext&) override { const auto n = note("on_after_backward"); }
  void on_before_optimizer_step(TrainerContext&, Optimizer&) override {
    const auto n = note("on_before_optimizer_step");
  }
  void on_validation_start(TrainerContext&) override { const auto n = note("on_validation_start"); }
  void on_validation_end(TrainerContext&) override { const auto n = note("on_validation_end"); }
  void on_validation_epoch_start(TrainerContext&) override { const auto n = note("on_validation_epoch_start"); }
  void on_validation_epoch_end(TrainerContext&) override { const auto n = note("on_validation_epoch_end"); }
  void on_validation_batch_start(TrainerContext&, const AnyBatch&, const StepInfo& at) override {
    const auto n = note("on_validation_batch_start", at.batch_idx);
  }
  void on_validation_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo& at) override {
    const auto n = note("on_validation_batch_end", at.batch_idx);
  }
  void on_test_start(TrainerContext&) override { const auto n = note("on_test_start"); }
  void on_test_end(TrainerContext&) override { const auto n = note("on_test_end"); }
  void on_test_epoch_start(TrainerContext&) override { const auto n = note("on_test_epoch_start"); }
  void on_test_epoch_end(TrainerContext&) override { const auto n = note("on_test_epoch_end"); }
  void on_test_batch_start(TrainerContext&, const AnyBatch&, const StepInfo& at) override {
    const auto n = note("on_test_batch_start", at.batch_idx);
  }
  void on_test_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo& at) override {
    const auto n = note("on_test_batch_end", at.batch_idx);
  }
  void on_predict_start(TrainerContext&) override { const auto n = note("on_predict_start"); }
  void on_predict_end(TrainerContext&) override { const auto n = note("on_predict_end"); }
  void on_predict_epoch_start(TrainerContext&) override { const auto n = note("on_predict_epoch_start"); }
  void on_predict_epoch_end(TrainerContext&) override { const auto n = note("on_predict_epoch_end"); }
  void on_predict_batch_start(TrainerContext&, const AnyBatch&, const StepInfo& at) override {
    const auto n = note("on_predict_batch_start", at.batch_idx);
  }
  void on_predict_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo& at) override {
    const auto n = note("on_predict_batch_end", at.batch_idx);
  }
  void on_save_checkpoint(TrainerContext&, StateDict&) override { const auto n = note("on_save_checkpoint"); }
  void on_load_checkpoint(TrainerContext&, StateDict&) override { const auto n = note("on_load_checkpoint"); }
  void on_exception(TrainerContext&, const std::exception&) override { const auto n = note("on_exception"); }

  Record& record;
};

// clang-format on

/// Lightning's hooks as Levin has them.
std::vector<std::string> expected_hooks(const Json& hooks) {
  std::vector<std::string> result;
  for (const auto& item : hooks) {
    auto label = item.get<std::string>();
    // The state of a callback is also asked for before the run, to see which callbacks have one.
    if (label == "callback.state_dict") continue;
    // These two are not told the batch.
    for (const std::string name : {"module.optimizer_step", "module.optimizer_zero_grad"})
      if (label.starts_with(name)) label = name;
    result.push_back(std::move(label));
  }
  return result;
}

/// A state cannot be kept while a window of accumulation is open: Levin writes it when the batch that closes it is
/// done, Lightning at once and without the gradients.
void move_save(std::vector<std::string>& hooks, const std::string& behind) {
  std::vector<std::string> save;
  for (auto it = hooks.begin(); it != hooks.end();)
    if (it->ends_with(".on_save_checkpoint")) {
      save.push_back(*it);
      it = hooks.erase(it);
    } else {
      ++it;
    }
  const auto at = std::find(hooks.begin(), hooks.end(), behind);
  ASSERT_NE(at, hooks.end());
  hooks.insert(at + 1, save.begin(), save.end());
}

/// Whether there is a sanity check depends on whether there are loaders, which only val_dataloader itself can say:
/// Levin asks first. Lightning sees whether the method is overridden.
void ask_for_loaders_first(std::vector<std::string>& hooks) {
  const auto check = std::find(hooks.begin(), hooks.end(), "callback.on_sanity_check_start");
  if (check != hooks.end() && *(check + 1) == "module.val_dataloader") std::iter_swap(check, check + 1);
}

void expect_same(const std::vector<std::string>& hooks, const std::vector<std::string>& expected) {
  for (size_t i = 0; i < std::max(hooks.size(), expected.size()); ++i)
    ASSERT_EQ(i < hooks.size() ? hooks[i] : "(nothing)", i < expected.size() ? expected[i] : "(nothing)")
        << "hook " << i << ", after " << (i > 0 ? hooks[i - 1] : "the start");
}

/// The newest *.ckpt in the folder of the default checkpoints.
std::vector<std::string> checkpoints_of(const std::filesystem::path& root) {
  std::vector<std::string> names;
  if (std::filesystem::exists(root / "checkpoints"))
    for (const auto& entry : std::filesystem::directory_iterator(root / "checkpoints"))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void run_case(const std::string& name) {
  const auto& test = fixture("hooks.json")["cases"][name];
  const Folder folder;
  Record record;
  const auto options = [&](const Json& asked) {
    auto o = options_of(asked);
    o.logger = false;
    o.enable_checkpointing = {};
    o.default_root_dir = folder.path();
    o.callbacks = {std::make_shared<HookCallback>(record)};
    return o;
  };
  HookNet net(record, test.value("manual", false));
  std::string path;
  if (test.contains("first")) {
    HookNet first(record, false);
    {
      const Quiet quiet;
      Trainer(options(test["first"])).fit(first);
    }
    ASSERT_EQ(checkpoints_of(folder.path()).size(), 1u);
    path = (folder.path() / "checkpoints" / checkpoints_of(folder.path())[0]).string();
    record = {};
  }
  auto quiet = std::make_unique<Quiet>();
  Trainer trainer(options(test["trainer"]));
  const auto verb = test["verb"].get<std::string>();
  if (verb == "fit")
    trainer.fit(net, {}, {}, {.ckpt_path = path});
  else if (verb == "validate")
    trainer.validate(net, {}, {.verbose = false});
  else if (verb == "test")
    trainer.test(net, {}, {.verbose = false});
  else
    trainer.predict(net);
  quiet.reset();

  auto entered = expected_hooks(test["entered"]);
  auto left = test["left"].is_string() ? entered : expected_hooks(test["left"]);
  ask_for_loaders_first(entered);
  ask_for_loaders_first(left);
  if (name == "fit accumulate val_check_interval") {
    move_save(entered, "module.on_train_batch_end(3)");
    move_save(left, "module.on_train_batch_end(3)");
  }
  expect_same(record.entered, entered);
  expect_same(record.left, left);
  EXPECT_EQ(trainer.global_step(), test["global_step"]);
  EXPECT_EQ(trainer.current_epoch(), test["current_epoch"]);
}

TEST(ConformanceHooks, Fit) {
  run_case("fit");
}
TEST(ConformanceHooks, FitManual) {
  run_case("fit manual");
}
TEST(ConformanceHooks, FitAccumulate) {
  run_case("fit accumulate");
}
TEST(ConformanceHooks, FitValCheckInterval) {
  run_case("fit val_check_interval");
}
TEST(ConformanceHooks, FitAccumulateValCheckInterval) {
  run_case("fit accumulate val_check_interval");
}
TEST(ConformanceHooks, ResumeByEpochs) {
  run_case("resume by epochs");
}
TEST(ConformanceHooks, ResumeBySteps) {
  run_case("resume by steps");
}
TEST(ConformanceHooks, Validate) {
  run_case("validate 2");
}
TEST(ConformanceHooks, ValidateNothing) {
  run_case("validate 0");
}
TEST(ConformanceHooks, Test) {
  run_case("test 2");
}
TEST(ConformanceHooks, TestNothing) {
  run_case("test 0");
}
TEST(ConformanceHooks, Predict) {
  run_case("predict 2");
}
TEST(ConformanceHooks, PredictNothing) {
  run_case("predict 0");
}

TEST(ConformanceHooks, EveryCaseIsRun) {
  EXPECT_EQ(fixture("hooks.json")["cases"].size(), 13u);
}

}  // namespace
}  // namespace levin::conformance
