#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levin/cli/train_program.h"
#include "levin/models/folder.h"
#include "levin/text/tokenizer.h"
#include "levin/trainer/data_module.h"
#include "levin/trainer/train_module.h"

namespace levin::cli {

/// Adapters of low rank, by flags.
struct LoraFields {
  int64_t rank = 0;
  double alpha = 16;
  double dropout = 0;
  bool rslora = false;
  std::vector<std::string> target_modules = {"all-linear"};
  std::vector<std::string> modules_to_save = {};
  std::filesystem::path adapter = {};

  bool used() const { return rank > 0 || !adapter.empty(); }
  void fields(auto f) {
    f("rank", rank, "train adapters of this rank (LoRA) instead of the model; 0: the model");
    f("alpha", alpha, "adapters are multiplied by alpha / rank");
    f("dropout", dropout, "dropout of the inputs of adapters");
    f("rslora", rslora, "multiply by alpha / sqrt(rank) instead");
    f("target_modules", target_modules, "layers that get adapters, as transformers calls them: q_proj,v_proj");
    f("modules_to_save", modules_to_save, "modules that are trained whole beside adapters: embed_tokens,lm_head");
    f("adapter", adapter, "folder of PEFT with adapters to begin from");
  }
};

struct TextModelOptions {
  std::filesystem::path folder = {};
  std::string save = {};
  std::string activations = "kept";
  std::string quantize = {};
  LoraFields lora = {};

  void fields(auto f) {
    f("folder", folder, "model folder in the layout of transformers, with its tokenizer");
    f("save", save, "where the trained model is written; default: model/ in the folder of the run; none: nowhere");
    f("activations", activations,
      "activations of blocks between forward and backward: recomputed and offloaded save memory",
      {"kept", "recomputed", "offloaded"});
    f("quantize", quantize, "frozen weights in 4 or 8 bits below the adapters (QLoRA): nf4, nf4-double, int8, ...");
    f("lora", lora, "");
  }
};

/// What the data must know of a model folder: its tokenizer, and what its config allows. Weights are not read.
struct TextFolder {
  /// A folder without a tokenizer, or with one that has more tokens than the model, is an Error.
  explicit TextFolder(const std::filesystem::path& folder);

  std::filesystem::path path;
  text::Tokenizer tokenizer;
  bool is_decoder = false;
  /// The most tokens of a row.
  int64_t max_length = 0;
  /// What fills up rows.
  int64_t pad_token = 0;
  /// -1: the tokenizer has none.
  int64_t eos_token = -1;
};

/// For metrics of an epoch that are equal on all ranks.
inline constexpr LogOptions kShown{.prog_bar = true, .sync_dist = true};

/// A TrainModule around the model of a folder.
class TextModule : public TrainModule {
 public:
  TextModule(const TextModelOptions& options, models::OpenModelOptions open);

  /// Writes the trained weights as a folder of transformers, adapters merged, or as adapters of PEFT. Every rank must
  /// call.
  void save(Trainer& trainer) const;
  /// Before anything is trained: an Error where the place is taken.
  void check_save() const;

 protected:
  /// Whether adapters are saved as such rather than merged.
  virtual bool saves_adapter() const { return false; }

  models::LanguageModel& model() { return model_; }

 private:
  TextModelOptions options_;
  models::OpenModelOptions open_;
  models::LanguageModel model_;
};

/// A TextModule that is built once its data is known, and saved after training.
template <class Model, class Data>
class TextProgram final : public TrainProgram {
 public:
  void add_fields(std::vector<config::Field>& into) override {
    config::add_fields(into, model_options_, "model.");
    config::add_fields(into, data_options_, "data.");
  }
  void build(Configure configure) override {
    data_ = std::make_shared<Data>(data_options_, TextFolder(model_options_.folder));
    module_ = std::make_shared<detail::Configured<Model>>(model_options_, *data_);
    module_->configure = std::move(configure);
  }
  TrainModuleBase& module() override { return *module_; }
  DataModuleBase* data() override { return data_.get(); }

  void fit(Trainer& trainer, const FitOptions& options) override {
    module_->check_save();
    trainer.fit(*module_, *data_, options);
    module_->save(trainer);
  }
  void validate(Trainer& trainer, const EvaluateOptions& options) override {
    trainer.validate(*module_, *data_, options);
  }
  void test(Trainer& trainer, const EvaluateOptions& options) override { trainer.test(*module_, *data_, options); }
  std::vector<std::vector<StepOutput>> predict(Trainer& trainer, const PredictOptions& options) override {
    return trainer.predict(*module_, *data_, options);
  }

 private:
  typename Model::Options model_options_;
  typename Data::Options data_options_;
  std::shared_ptr<detail::Configured<Model>> module_;
  std::shared_ptr<Data> data_;
};

}  // namespace levin::cli
