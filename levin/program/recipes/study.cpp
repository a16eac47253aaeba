#include "levin/program/recipes/study.h"

#include <chrono>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/seed.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"

namespace levin::cli {
namespace {

/// Remembers the losses of the steps, on the device, and what validations say.
class CurveRecorder final : public Callback {
 public:
  explicit CurveRecorder(std::string prefix) : prefix_(std::move(prefix)) {}

  void on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch&, int64_t) override {
    if (!output.loss.defined()) return;
    steps_.push_back(static_cast<double>(run.global_step()));
    losses_.push_back(output.loss.detach());
  }
  void on_validation_end(TrainerContext& run) override {
    if (run.sanity_checking()) return;
    if (const auto accuracy = run.metric(prefix_ + "val_acc")) {
      accuracies_.x.push_back(static_cast<double>(run.global_step()));
      accuracies_.y.push_back(100 * *accuracy);
    }
  }

  Curve losses() const {
    Curve curve{{}, steps_, {}};
    for (const auto& loss : losses_) curve.y.push_back(loss.item<double>());
    return curve;
  }
  const Curve& accuracies() const { return accuracies_; }

 private:
  std::string prefix_;
  std::vector<double> steps_;
  std::vector<Tensor> losses_;
  Curve accuracies_;
};

bool keeps_files(const Trainer& trainer) {
  return trainer.plan().fast_dev_run == 0 && !trainer.plan().barebones;
}

}  // namespace

void FinetuneStudy::build(Configure configure) {
  configure_ = std::move(configure);
  module_ = make_model(configure_);
  data_ = make_data();
}

void FinetuneStudy::fail_evaluation(const char* command) const {
  auto line = fmt::format("[levin {}] a study is for `levin fit` alone, which tests its models too", command);
  if (recipe_of_models())
    line +=
        fmt::format("; they are of {1}: `levin {0} {1} --ckpt_path RUN/finetuned.ckpt`", command, recipe_of_models());
  throw Error(line);
}

StudyRun FinetuneStudy::train(Trainer& trainer, const std::string& name, const std::string& prefix,
                              ImageClassifier& model, MemoryImages& data) {
  const auto recorder = std::make_shared<CurveRecorder>(prefix + "_");
  model.prefix = prefix + "_";
  model.callbacks = {CallbackRef(recorder)};
  if (model.hparams.empty()) model.hparams = module_->hparams;
  if (data.hparams.empty()) data.hparams = data_->hparams;
  auto& fabric = trainer.fabric();
  fabric.accelerator().reset_peak_memory(fabric.device());
  const auto start = std::chrono::steady_clock::now();
  trainer.fit(model, data);
  fabric.accelerator().synchronize(fabric.device());

  StudyRun run{.name = name};
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  run.steps = trainer.global_step();
  run.peak_memory = fabric.accelerator().memory(fabric.device()).peak_allocated;
  if (keeps_files(trainer)) trainer.save_checkpoint(trainer.log_dir() / (prefix + ".ckpt"), /*weights_only=*/true);
  run.train_loss = recorder->losses();
  run.val_accuracy = recorder->accuracies();
  const auto results = trainer.test(model, data, {.verbose = false});
  if (!results.empty()) {
    run.test_accuracy = results[0].at(prefix + "_test_acc");
    run.test_loss = results[0].at(prefix + "_test_loss");
  }
  run.train_loss.name = run.val_accuracy.name = name;
  return run;
}

void FinetuneStudy::fit(Trainer& trainer, const FitOptions& options) {
  LEVIN_CHECK(options.ckpt_path.empty(), "[levin fit] a study trains several models from their beginning; ckpt_path \"",
              options.ckpt_path, "\" is for one");
  prepare(trainer);
  reset_seed();
  trainer.fabric().print("\nFrom scratch");
  const auto scratch = train(trainer, "from scratch", "scratch", *module_, *data_);
  // As random as the first, and then with what was learned before.
  reset_seed();
  auto model = make_model(configure_);
  load_pretrained(*model);
  model->hparams = module_->hparams;
  module_ = std::move(model);
  reset_seed();
  trainer.fabric().print("\nFine-tuning");
  const auto finetuned = train(trainer, "fine-tuned", "finetuned", *module_, *data_);
  report(trainer, scratch, finetuned);
}

void FinetuneStudy::report(Trainer& trainer, const StudyRun& scratch, const StudyRun& finetuned) const {
  auto& fabric = trainer.fabric();
  if (!fabric.is_global_zero()) return;
  fabric.print("\n", subject(), "\n\n", study_table(scratch, finetuned));
  if (!keeps_files(trainer)) return;
  const auto window = std::max<size_t>(1, scratch.train_loss.x.size() / 60);
  const auto path = trainer.log_dir() / "curves.svg";
  const auto picture =
      curves_picture("Fine-tuned and from scratch", subject(),
                     {{.title = "training loss",
                       .x_label = "steps",
                       .curves = {smoothed(scratch.train_loss, window), smoothed(finetuned.train_loss, window)}},
                      {.title = "validation accuracy (%)",
                       .x_label = "steps",
                       .curves = {scratch.val_accuracy, finetuned.val_accuracy}}});
  for (const char* ending : {".svg", ".png"})
    write_drawing(std::filesystem::path(path).replace_extension(ending), picture);
  fabric.print("Curves: ", path.string(),
               " (and .png)\nWeights: ", (trainer.log_dir() / "{scratch,finetuned}.ckpt").string());
}

std::string study_table(const StudyRun& scratch, const StudyRun& finetuned) {
  auto text = fmt::format("{:<14}{:>7}{:>15}{:>11}{:>9}{:>13}\n", "", "steps", "test accuracy", "test loss", "time",
                          "peak memory");
  for (const auto* run : {&scratch, &finetuned})
    text +=
        fmt::format("{:<14}{:>7}{:>13.2f} %{:>11.4f}{:>9}{:>13}\n", run->name, run->steps, 100 * run->test_accuracy,
                    run->test_loss, format_duration(run->seconds), format_bytes(static_cast<double>(run->peak_memory)));
  const double gain = 100 * (finetuned.test_accuracy - scratch.test_accuracy);
  return text + fmt::format("\nFine-tuning {} {:.2f} points in {} steps.\n", gain < 0 ? "loses" : "gains",
                            std::abs(gain), finetuned.steps == scratch.steps ? "the same number of" : "these");
}

}  // namespace levin::cli
