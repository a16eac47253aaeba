#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "levin/cli/train_program.h"

namespace levin {

struct TrainMainOptions {
  /// What runs of this program are unless told otherwise, as a config file would say it:
  /// "trainer: {max_epochs: 10}\noptimizer: {class: AdamW, lr: 1e-3}".
  std::string defaults = {};
  /// The same as options: what words cannot say, loggers and callbacks among it.
  TrainerOptions trainer = {};
};

namespace cli {
int train_main(int argc, char** argv, const TrainMainOptions& options,
               const std::function<std::unique_ptr<TrainProgram>()>& make) noexcept;
}  // namespace cli

/// The main of a program that trains one kind of model on one kind of data: `fit`, `validate`, `test` and `predict`
/// with config files, flags, help and completion (docs/config.md).
///
///     int main(int argc, char** argv) { return levin::train_main<Classifier, Digits>(argc, argv); }
///
/// Options of the two are what their `struct Options` describes (levin/config/fields.h); it goes to the constructor.
template <class Model, class Data = cli::NoData>
int train_main(int argc, char** argv, const TrainMainOptions& options = {}) noexcept {
  return cli::train_main(argc, argv, options, [] { return std::make_unique<cli::TrainProgramOf<Model, Data>>(); });
}

}  // namespace levin
