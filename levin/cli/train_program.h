#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/config/fields.h"
#include "levin/trainer/trainer.h"

namespace levin::cli {

/// Optimizers that were asked for by name, in place of the model's own.
using Configure = std::function<Optimizers(TrainModuleBase&)>;

/// A model and its data, as a command line describes, builds and runs them.
class TrainProgram {
 public:
  virtual ~TrainProgram() = default;

  /// Adds "model." and "data." fields, bound to this object.
  virtual void add_fields(std::vector<config::Field>& into) = 0;
  /// Makes both from their options. `configure` may be empty.
  virtual void build(Configure configure) = 0;
  virtual TrainModuleBase& module() = 0;
  /// Null when the model has its own loaders.
  virtual DataModuleBase* data() = 0;

  virtual void fit(Trainer& trainer, const FitOptions& options) = 0;
  virtual void validate(Trainer& trainer, const EvaluateOptions& options) = 0;
  virtual void test(Trainer& trainer, const EvaluateOptions& options) = 0;
  virtual std::vector<std::vector<StepOutput>> predict(Trainer& trainer, const PredictOptions& options) = 0;
};

/// The data of a model that has its own loaders.
struct NoData {};

namespace detail {

struct NoOptions {
  void fields(auto) {}
};

template <class T>
struct OptionsOf {
  using type = NoOptions;
};
template <class T>
requires requires {
  typename T::Options;
}
struct OptionsOf<T> {
  using type = typename T::Options;
};

/// The model with the optimizers that were asked for, if any were.
template <class Model>
class Configured final : public Model {
 public:
  using Model::Model;
  Optimizers configure_optimizers() override { return configure ? configure(*this) : Model::configure_optimizers(); }
  Configure configure;
};

template <class T, class Options>
std::shared_ptr<T> make(const Options& options) {
  if constexpr (std::same_as<Options, NoOptions>) {
    static_assert(std::default_initializable<T>,
                  "levin: a model or data module without `struct Options` needs a constructor without arguments");
    return std::make_shared<T>();
  } else {
    static_assert(std::constructible_from<T, const Options&>,
                  "levin: a model or data module with `struct Options` needs a constructor that takes them: "
                  "explicit MyModel(const Options& options)");
    return std::make_shared<T>(options);
  }
}

}  // namespace detail

template <class Model, class Data = NoData>
class TrainProgramOf final : public TrainProgram {
  static_assert(std::derived_from<Model, TrainModuleBase>, "levin: the model must derive from levin::TrainModule");
  static_assert(std::same_as<Data, NoData> || std::derived_from<Data, DataModuleBase>,
                "levin: the data must derive from levin::DataModule");
  static_assert(!std::is_final_v<Model>,
                "levin: the model must not be final: optimizers chosen by name override its own");
  static constexpr bool kHasData = !std::same_as<Data, NoData>;
  using Net = detail::Configured<Model>;
  using ModelOptions = typename detail::OptionsOf<Model>::type;
  using DataOptions = typename detail::OptionsOf<Data>::type;

 public:
  void add_fields(std::vector<config::Field>& into) override {
    config::add_fields(into, model_options_, "model.");
    config::add_fields(into, data_options_, "data.");
  }
  void build(Configure configure) override {
    module_ = detail::make<Net>(model_options_);
    module_->configure = std::move(configure);
    if constexpr (kHasData) data_ = detail::make<Data>(data_options_);
    // A model that must know its data: the size of a vocabulary.
    if constexpr (kHasData && requires { module_->use_data(data_); }) module_->use_data(data_);
  }
  TrainModuleBase& module() override { return *module_; }
  DataModuleBase* data() override {
    if constexpr (kHasData)
      return data_.get();
    else
      return nullptr;
  }

  void fit(Trainer& trainer, const FitOptions& options) override {
    if constexpr (kHasData)
      trainer.fit(*module_, *data_, options);
    else
      trainer.fit(*module_, {}, {}, options);
  }
  void validate(Trainer& trainer, const EvaluateOptions& options) override {
    if constexpr (kHasData)
      trainer.validate(*module_, *data_, options);
    else
      trainer.validate(*module_, {}, options);
  }
  void test(Trainer& trainer, const EvaluateOptions& options) override {
    if constexpr (kHasData)
      trainer.test(*module_, *data_, options);
    else
      trainer.test(*module_, {}, options);
  }
  std::vector<std::vector<StepOutput>> predict(Trainer& trainer, const PredictOptions& options) override {
    if constexpr (kHasData)
      return trainer.predict(*module_, *data_, options);
    else
      return trainer.predict(*module_, {}, options);
  }

 private:
  ModelOptions model_options_;
  DataOptions data_options_;
  std::shared_ptr<Net> module_;
  std::shared_ptr<Data> data_;
};

}  // namespace levin::cli
