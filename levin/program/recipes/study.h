#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "levin/cli/train_program.h"
#include "levin/plots/curves.h"
#include "levin/program/recipes/images.h"

namespace levin::cli {

/// One training of a study, and what came of it.
struct StudyRun {
  /// "fine-tuned", "from scratch"
  std::string name;
  int64_t steps = 0;
  double seconds = 0;
  /// The most memory that the device's allocator held (on the CPU: this process), in bytes.
  int64_t peak_memory = 0;
  double test_accuracy = 0;
  double test_loss = 0;
  Curve train_loss, val_accuracy;
};

/// Compares a model that begins with what it learned elsewhere with one that begins at random: the same data, in the
/// same order, for as many steps. A recipe says what the model, the data and the beginning are; `fit` trains both, one
/// after the other, and prints the comparison; the pictures of it lie beside the logs, as do the weights.
class FinetuneStudy : public TrainProgram {
 public:
  void build(Configure configure) override;
  TrainModuleBase& module() override { return *module_; }
  DataModuleBase* data() override { return data_.get(); }

  void fit(Trainer& trainer, const FitOptions& options) override;
  void validate(Trainer&, const EvaluateOptions&) override { fail_evaluation("validate"); }
  void test(Trainer&, const EvaluateOptions&) override { fail_evaluation("test"); }
  std::vector<std::vector<StepOutput>> predict(Trainer&, const PredictOptions&) override { fail_evaluation("predict"); }

 protected:
  /// With random weights, and with the optimizers that were asked for.
  virtual std::shared_ptr<ImageClassifier> make_model(const Configure& configure) = 0;
  virtual std::shared_ptr<MemoryImages> make_data() = 0;
  /// Gets the weights to begin with, before anything else is trained: from a file, or by training here (`train`).
  virtual void prepare(Trainer& trainer) = 0;
  /// Puts them into a model, all but its head.
  virtual void load_pretrained(ImageClassifier& model) = 0;
  /// The recipe whose models these are; null: none.
  virtual const char* recipe_of_models() const = 0;
  /// What is compared, for people: "a vision transformer on ..."
  virtual std::string subject() const = 0;

  /// Trains a model and tests it. `prefix` ("scratch") is that of its metrics and the name of its weights.
  StudyRun train(Trainer& trainer, const std::string& name, const std::string& prefix, ImageClassifier& model,
                 MemoryImages& data);
  const Configure& configure() const { return configure_; }
  MemoryImages& images() { return *data_; }

 private:
  [[noreturn]] void fail_evaluation(const char* command) const;
  void report(Trainer& trainer, const StudyRun& scratch, const StudyRun& finetuned) const;

  Configure configure_;
  std::shared_ptr<ImageClassifier> module_;
  std::shared_ptr<MemoryImages> data_;
};

/// The table at the end of a study, and the line under it.
std::string study_table(const StudyRun& scratch, const StudyRun& finetuned);

}  // namespace levin::cli
