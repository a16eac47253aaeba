// EMAWeightAveraging and WeightAveraging beside Lightning's, in checkpoints, and resumed.
#include "levin/checkpoint/checkpoint.h"
#include "levin/trainer/callbacks/weight_averaging.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

EMAWeightAveragingOptions options_of(const Json& spec) {
  EMAWeightAveragingOptions options;
  options.decay = spec.at("decay");
  options.use_buffers = spec.value("use_buffers", true);
  options.update_every_n_steps = spec.value("update_every_n_steps", int64_t{1});
  if (spec.contains("update_starting_at_step"))
    options.update_starting_at_step = spec["update_starting_at_step"].get<int64_t>();
  if (spec.contains("update_starting_at_epoch"))
    options.update_starting_at_epoch = spec["update_starting_at_epoch"].get<int64_t>();
  return options;
}

struct SaveAtEnd : Callback {
  explicit SaveAtEnd(std::filesystem::path where) : path(std::move(where)) {}
  void on_train_end(TrainerContext& run) override { run.save_checkpoint(path); }
  std::filesystem::path path;
};

void expect_state(const StateDict& state, const Json& expected, const std::string& where,
                  const std::vector<std::string>& but) {
  for (const auto& [name, value] : expected.items())
    if (std::ranges::find(but, name) == but.end()) expect_near(state.at(name).to_tensor(), value, where + " " + name);
}

TEST(Ema, EqualsLightning) {
  for (const auto& expected : cases_of("ema.json")) {
    const std::string name = expected.at("name");
    TemporaryFolder folder;
    Net net(expected.at("model") == "NormNet");
    const auto rows = std::make_shared<Rows>(folder.path());
    const auto average = std::make_shared<EMAWeightAveraging>(options_of(expected.at("options")));
    // Before the average takes the place of the weights.
    auto options =
        quiet({SaveAtEnd(folder.path() / "kept"), average}, expected.at("trainer").at("max_epochs"), folder.path());
    options.accumulate_grad_batches = expected.at("trainer").value("accumulate_grad_batches", 1);
    options.logger = rows;
    Trainer trainer(options);
    trainer.fit(net, loader(32, 4), loader(16, 4, "x_val"));

    // Integers are copied here; Lightning averages them and cuts the fraction off.
    const std::vector<std::string> but{"layer.1.num_batches_tracked"};
    expect_weights(net, expected.at("final"), name, but);
    EXPECT_EQ(trainer.global_step(), expected.at("global_step")) << name;
    const auto& saved = expected.at("checkpoint");
    const auto checkpoint = load_checkpoint((folder.path() / "kept").string());
    expect_state(checkpoint.at("model").to_dict(), saved.at("state_dict"), name + " model", but);
    expect_state(checkpoint.at("current_model_state").to_dict(), saved.at("current_model_state"), name + " current",
                 but);
    EXPECT_EQ(checkpoint.at("averaging_state").to_dict().at("n_averaged").to_int(),
              saved.at("averaging_state").at("n_averaged"))
        << name;
    const auto found = rows->with({"val_loss"});
    ASSERT_EQ(found.size(), expected.at("rows").size()) << name;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, expected.at("rows")[i].at("step")) << name;
      EXPECT_NEAR(found[i].second.at("val_loss"), expected.at("rows")[i].at("metrics").at("val_loss").get<double>(),
                  2e-6)
          << name;
    }
  }
}

TEST(Ema, ResumesExactly) {
  for (const bool norm : {false, true})
    for (const int64_t save_after : {1, 5, 8, 13}) {
      TemporaryFolder folder;
      const auto callback = [] { return EMAWeightAveraging({.decay = 0.9, .update_starting_at_step = 2}); };
      Net whole(norm), resumed(norm);
      whole.momentum = resumed.momentum = 0.5;
      Trainer first(quiet({callback(), SaveAt(folder.path() / "kept", save_after)}, 2, folder.path()));
      first.fit(whole, loader(32, 4), loader(16, 4, "x_val"));
      Trainer second(quiet({callback()}, 2, folder.path()));
      second.fit(resumed, loader(32, 4), loader(16, 4, "x_val"), {.ckpt_path = (folder.path() / "kept").string()});
      const auto where = "norm " + std::to_string(norm) + " after " + std::to_string(save_after);
      EXPECT_EQ(resumed.losses.back(), whole.losses.back()) << where;
      expect_equal(whole, resumed, where);
    }
}

// What is saved after the run still has the weights, so that more epochs resume from them.
TEST(Ema, ARunResumesFromACheckpointMadeAfterIt) {
  TemporaryFolder folder;
  const auto path = (folder.path() / "kept").string();
  const auto callback = [] { return EMAWeightAveraging({.decay = 0.5}); };
  Net whole, half;
  Trainer(quiet({callback()}, 2, folder.path())).fit(whole, loader(32, 4));
  Trainer first(quiet({callback()}, 1, folder.path()));
  first.fit(half, loader(32, 4));
  first.save_checkpoint(path);
  Net resumed;
  Trainer(quiet({callback()}, 2, folder.path())).fit(resumed, loader(32, 4), {}, {.ckpt_path = path});
  expect_equal(whole, resumed, "resumed");

  // Without the callback the file gives the average.
  Net plain;
  Trainer evaluate(quiet({}, 1, folder.path()));
  evaluate.validate(plain, loader(16, 4, "x_val"), {.ckpt_path = path, .verbose = false});
  expect_equal(half, plain, "average");
}

TEST(Ema, LeavesTheWeightsAloneUntilThereIsAnAverage) {
  const auto validated = [](std::vector<CallbackRef> callbacks) {
    TemporaryFolder folder;
    const auto rows = std::make_shared<Rows>(folder.path());
    auto options = quiet(std::move(callbacks), 1, folder.path());
    options.logger = rows;
    Net net;
    Trainer(options).fit(net, loader(32, 4), loader(16, 4, "x_val"));
    return std::pair(rows->with({"val_loss"}).at(0).second.at("val_loss"), weights_of(net));
  };
  const auto plain = validated({});
  const auto late = validated({EMAWeightAveraging({.update_starting_at_step = 1000})});
  EXPECT_EQ(plain.first, late.first);
  EXPECT_TRUE(at::equal(plain.second.at("layer.weight"), late.second.at("layer.weight")));
}

TEST(WeightAveraging, IsTheMeanOfAllSteps) {
  struct Collect : Callback {
    explicit Collect(std::vector<Tensor>& into) : all(into) {}
    void on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) override {
      all.push_back(static_cast<Net&>(run.module()).plain->bias.detach().clone());
    }
    std::vector<Tensor>& all;
  };
  std::vector<Tensor> seen;
  Net net;
  Trainer(quiet({Collect(seen), WeightAveraging()}, 2)).fit(net, loader(32, 4));
  ASSERT_EQ(seen.size(), 16u);
  EXPECT_TRUE(at::allclose(net.plain->bias, at::stack(seen).mean(0), 1e-6, 1e-6));
}

TEST(WeightAveraging, AsksWhenToUpdate) {
  struct EveryEpoch : WeightAveraging {
    bool should_update(std::optional<int64_t>, std::optional<int64_t> epoch) const override {
      return epoch.has_value();
    }
  };
  const auto average = std::make_shared<EveryEpoch>();
  Net net;
  Trainer(quiet({average}, 3)).fit(net, loader(32, 4));
  EXPECT_EQ(average->average()->count(), 3);
}

TEST(Ema, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { EMAWeightAveraging({.decay = 1.5}); }), HasSubstr("decay=1.5"));
  EXPECT_THAT(error_of([] { EMAWeightAveraging({.update_every_n_steps = -1}); }), HasSubstr("update_every_n_steps=-1"));
  EXPECT_THAT(error_of([] { EMAWeightAveraging({.update_every_n_steps = 0}); }), HasSubstr("never update"));
}

}  // namespace
}  // namespace levin::tuning_test
