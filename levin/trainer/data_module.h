#pragma once

#include <string_view>

#include "levin/core/batch.h"
#include "levin/core/state_dict.h"
#include "levin/trainer/loaders.h"
#include "levin/trainer/module_hooks.h"
#include "levin/trainer/step.h"

namespace levin {

/// Everything of a DataModule that does not depend on its batch type.
class DataModuleBase : public Hyperparameters {
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

  virtual detail::AnyLoaders any_dataloader(Stage) = 0;
};

/// The data of a training, apart from the model: how it is fetched, split and loaded.
///
///     struct Digits : levin::DataModule {
///       void setup(std::string_view) override { data = levin::TensorDataset({{"image", images}, {"label", labels}}); }
///       levin::Loaders<levin::Batch> train_dataloader() override {
///         return levin::make_loader(data, {.batch_size = 64, .shuffle = true});
///       }
///     };
template <class B>
class DataModuleOf : public DataModuleBase, public DataHooks<B> {
 public:
  using BatchType = B;

 private:
  detail::AnyLoaders any_dataloader(Stage stage) final { return this->sources(stage); }
};

using DataModule = DataModuleOf<Batch>;

}  // namespace levin
