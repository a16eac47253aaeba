#pragma once

#include <cstdint>
#include <filesystem>

#include "levin/data/fashion_mnist.h"
#include "levin/trainer/data_module.h"
#include "levin/trainer/train_module.h"

namespace levin::cli {

/// Fashion-MNIST, or drawn shapes where it is not; the last images of the training set are kept for validation.
class FashionMnist : public DataModule {
 public:
  struct Options {
    std::filesystem::path folder = {};
    int64_t batch_size = 128;
    int64_t eval_batch_size = 500;
    int64_t val_size = 4000;

    void fields(auto f) {
      f("folder", folder, "the four IDX files; by itself the system's, else drawn shapes");
      f("batch_size", batch_size, "images of a training batch, on each rank");
      f("eval_batch_size", eval_batch_size, "images of any other batch, on each rank");
      f("val_size", val_size, "images kept for validation, from the end of the training set");
    }
  };

  explicit FashionMnist(const Options& options) : options_(options) {}

  void setup(std::string_view stage) override;
  Loaders<Batch> train_dataloader() override;
  Loaders<Batch> val_dataloader() override;
  Loaders<Batch> test_dataloader() override;
  Loaders<Batch> predict_dataloader() override;

 private:
  Options options_;
  TensorDataset train_, val_, test_;
};

/// uint8 [B, 1, 28, 28] to floats around 0.
Tensor normalized(const Tensor& image);

/// Learns the label of "image" by cross entropy; logs train_loss, val_loss, val_acc, test_loss and test_acc.
class ImageClassifier : public TrainModule {
 public:
  /// Images [B, 1, 28, 28], normalized, to logits [B, 10].
  virtual Tensor logits(const Tensor& images) = 0;

  StepOutput training_step(const Batch& batch, const StepInfo&) override;
  StepOutput validation_step(const Batch& batch, const StepInfo&) override { return evaluate(batch, "val"); }
  StepOutput test_step(const Batch& batch, const StepInfo&) override { return evaluate(batch, "test"); }
  /// The probabilities of the classes, [B, 10].
  StepOutput predict_step(const Batch& batch, const StepInfo&) override;

 private:
  StepOutput evaluate(const Batch& batch, std::string_view stage);
};

}  // namespace levin::cli
