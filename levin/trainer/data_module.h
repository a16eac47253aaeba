#pragma once

#include <string_view>

#include "levin/core/batch.h"
#include "levin/core/state_dict.h"
#include "levin/trainer/loaders.h"
#include "levin/trainer/step.h"

namespace levin {

/// Everything of a DataModule that does not depend on its batch type.
class DataModuleBase {
 public:
  virtual ~DataModuleBase() = default;

  /// Downloads and the like: local rank 0 alone, before setup.
  virtual void prepare_data() {}
  /// `stage`: "fit", "validate", "test" or "predict". Every rank.
  virtual void setup(std::string_view /*stage*/) {}
  virtual void teardown(std::string_view /*stage*/) {}
  /// What a checkpoint keeps of it.
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}

  /// Kept in checkpoints and given to the loggers.
  StateDict hparams;

  virtual detail::AnyLoaders any_train_dataloader() = 0;
  virtual detail::AnyLoaders any_eval_dataloader(Stage) = 0;
};

/// The data of a training, apart from the model: how it is fetched, divided and loaded.
///
///     struct Digits : levin::DataModule {
///       void setup(std::string_view) override { data = levin::TensorDataset({{"image", images}, {"label", labels}}); }
///       levin::Loaders<levin::Batch> train_dataloader() override {
///         return levin::make_loader(data, {.batch_size = 64, .shuffle = true});
///       }
///     };
template <class B>
class DataModuleOf : public DataModuleBase {
 public:
  using BatchType = B;

  virtual Loaders<B> train_dataloader() { return {}; }
  virtual Loaders<B> val_dataloader() { return {}; }
  virtual Loaders<B> test_dataloader() { return {}; }
  virtual Loaders<B> predict_dataloader() { return {}; }

  detail::AnyLoaders any_train_dataloader() final { return train_dataloader().sources(); }
  detail::AnyLoaders any_eval_dataloader(Stage stage) final {
    if (stage == Stage::kTest) return test_dataloader().sources();
    if (stage == Stage::kPredict) return predict_dataloader().sources();
    return val_dataloader().sources();
  }
};

using DataModule = DataModuleOf<Batch>;

}  // namespace levin
