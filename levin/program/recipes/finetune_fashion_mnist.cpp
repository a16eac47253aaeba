// Few-shot classification of Fashion-MNIST, fine-tuned from other classes and from scratch.
#include <algorithm>

#include <fmt/format.h>

#include "levin/checkpoint/checkpoint_format.h"
#include "levin/checkpoint/module_state.h"
#include "levin/core/error.h"
#include "levin/program/recipes.h"
#include "levin/program/recipes/study.h"
#include "levin/program/recipes/vit_fashion_mnist.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHead = "net.heads.";

/// A checkpoint, or the newest one below a folder of runs.
fs::path find_pretrained(const fs::path& path) {
  LEVIN_CHECK(fs::exists(path), "[levin fit] model.checkpoint: there is no \"", path.string(), "\"");
  fs::path newest;
  if (find_checkpoint_format(path)) return path;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!find_checkpoint_format(entry.path())) continue;
    if (newest.empty() || entry.last_write_time() > fs::last_write_time(newest)) newest = entry.path();
  }
  LEVIN_CHECK(!newest.empty(), "[levin fit] model.checkpoint: \"", path.string(),
              "\" is no checkpoint, nor has it one below it");
  return newest;
}

class FinetuneFashionMnist final : public FinetuneStudy {
 public:
  struct Options : VitClassifier::Options {
    fs::path checkpoint = {};

    void fields(auto f) {
      f("checkpoint", checkpoint, "checkpoint of vit_fashion_mnist, or a folder of runs; default: pretrain first");
      VitClassifier::Options::fields(f);
    }
  };

  FinetuneFashionMnist() {
    data_options_.classes = {1, 3, 5, 7, 9};
    data_options_.train_size = 100;
    data_options_.repeats = 64;
    data_options_.val_size = 2000;
  }

  void add_fields(std::vector<config::Field>& into) override {
    config::add_fields(into, model_options_, "model.");
    config::add_fields(into, data_options_, "data.");
  }

 protected:
  std::shared_ptr<ImageClassifier> make_model(const Configure& configure) override {
    auto model = std::make_shared<detail::Configured<VitClassifier>>(model_options_);
    model->configure = configure;
    return model;
  }
  std::shared_ptr<MemoryImages> make_data() override { return std::make_shared<FashionMnist>(data_options_); }
  const char* recipe_of_models() const override { return "vit_fashion_mnist"; }
  std::string subject() const override {
    return fmt::format("A vision transformer on {} images of {}, classes {}; learned before: {}",
                       data_options_.train_size, data_name_, fmt::join(data_options_.classes, " "), before_);
  }

  void prepare(Trainer& trainer) override {
    LEVIN_CHECK(data_options_.train_size > 0, "[levin fit] data.train_size must say how many images are learned from");
    images().setup("fit");
    data_name_ = images().name();
    if (!model_options_.checkpoint.empty()) return read(trainer, find_pretrained(model_options_.checkpoint));
    auto others = data_options_;
    others.classes.clear();
    for (int64_t label = 0; label < 10; ++label)
      if (std::find(data_options_.classes.begin(), data_options_.classes.end(), label) == data_options_.classes.end())
        others.classes.push_back(label);
    LEVIN_CHECK(!others.classes.empty() && !data_options_.classes.empty(),
                "[levin fit] data.classes must leave some classes to learn from before, or model.checkpoint be given");
    others.train_size = 0;
    others.repeats = 1;
    trainer.fabric().print("Learning classes ", fmt::format("{}", fmt::join(others.classes, " ")), " first");
    const auto model = make_model(configure());
    FashionMnist data(others);
    data.hparams = images().hparams;
    data.hparams["classes"] = StateList(others.classes.begin(), others.classes.end());
    train(trainer, "before", "pretrained", *model, data);
    for (const auto& [name, value] : module_state_dict(*model)) weights_[name] = value.to_tensor().detach().clone();
    before_ = fmt::format("classes {}", fmt::join(others.classes, " "));
  }

  void load_pretrained(ImageClassifier& model) override {
    StateDict weights;
    for (const auto& [name, value] : weights_)
      if (!name.starts_with(kHead)) weights[name] = value;
    // Its own head stays, as it began.
    for (const auto& [name, value] : module_state_dict(model))
      if (name.starts_with(kHead)) weights[name] = value;
    load_module_state_dict(model, weights);
  }

 private:
  void read(Trainer& trainer, const fs::path& path) {
    auto all = load_checkpoint(path);
    LEVIN_CHECK(all.contains("model"), "[levin fit] model.checkpoint: \"", path.string(), "\" has no model");
    weights_ = all.at("model").to_dict();
    before_ = path.string();
    std::vector<int64_t> seen;
    if (all.contains("datamodule_hyper_parameters")) {
      const auto& told = all.at("datamodule_hyper_parameters").to_dict();
      if (told.contains("classes"))
        for (const auto& label : told.at("classes").to_list()) seen.push_back(label.to_int());
    }
    const bool overlaps = seen.empty() || std::any_of(seen.begin(), seen.end(), [&](int64_t label) {
                            return data_options_.classes.empty() ||
                                   std::find(data_options_.classes.begin(), data_options_.classes.end(), label) !=
                                       data_options_.classes.end();
                          });
    trainer.fabric().print("Beginning with ", path.string());
    if (overlaps)
      trainer.fabric().print("It has learned from images of the same classes before, so it has seen more labels than ",
                             data_options_.train_size, " images have");
  }

  Options model_options_;
  FashionMnist::Options data_options_;
  StateDict weights_;
  std::string before_, data_name_;
};

}  // namespace

Recipe finetune_fashion_mnist() {
  return {"finetune_fashion_mnist", "few-shot fine-tuning on Fashion-MNIST",
          R"(trainer:
  max_epochs: 4
  gradient_clip_val: 1.0
  enable_checkpointing: false
  enable_model_summary: false
optimizer:
  class: AdamW
  lr: 2e-3
  weight_decay: 0.05
lr_scheduler:
  class: OneCycleLR
  pct_start: 0.15
)",
          []() -> std::unique_ptr<TrainProgram> { return std::make_unique<FinetuneFashionMnist>(); }};
}

}  // namespace levin::cli
