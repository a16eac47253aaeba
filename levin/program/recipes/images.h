#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/data/fashion_mnist.h"
#include "levin/trainer/data_module.h"
#include "levin/trainer/train_module.h"

namespace levin::cli {

/// Images in memory: the last of the training set are kept for validation.
class MemoryImages : public DataModule {
 public:
  /// Options of all image datasets.
  struct Sizes {
    int64_t batch_size = 128;
    int64_t eval_batch_size = 500;
    int64_t val_size = 4000;
    /// Only the first N images of the training set; 0: all that are not kept for validation.
    int64_t train_size = 0;
    /// Repetitions of each training image in an epoch, for small training sets.
    int64_t repeats = 1;
    /// Only images of these classes; none: all. Labels stay what they are.
    std::vector<int64_t> classes = {};

    void fields(auto f) {
      f("batch_size", batch_size, "training batch size per rank");
      f("eval_batch_size", eval_batch_size, "batch size of validation, test and predict, per rank");
      f("val_size", val_size, "validation images, taken from the end of the training set");
      f("train_size", train_size, "training images; 0: all that remain");
      f("repeats", repeats, "repetitions of each training image in an epoch");
      f("classes", classes, "keep only these labels (0,2,4); default: all");
    }
  };

  explicit MemoryImages(Sizes sizes) : sizes_(std::move(sizes)) {}

  void setup(std::string_view stage) override;
  Loaders<Batch> train_dataloader() override;
  Loaders<Batch> val_dataloader() override;
  Loaders<Batch> test_dataloader() override;
  Loaders<Batch> predict_dataloader() override { return test_dataloader(); }

  const Sizes& sizes() const { return sizes_; }
  /// For people: "Fashion-MNIST". Known once it is set up.
  const std::string& name() const { return name_; }

 protected:
  virtual ImageData load() const = 0;

 private:
  Sizes sizes_;
  std::string name_;
  TensorDataset train_, val_, test_;
};

/// Normalization of uint8 images, and the augmentation of training.
struct ImageInput {
  /// Of each channel, between 0 and 1.
  std::vector<double> mean = {};
  std::vector<double> std = {};
  /// Maximum random shift of training images, in pixels.
  int64_t shift = 0;
  /// Probability of a horizontal flip in training.
  double flip = 0;
  double label_smoothing = 0;
  /// Memory format of the images.
  bool channels_last = false;
};

/// Learns the label of "image" by cross entropy; logs train_loss, val_loss, val_acc, test_loss and test_acc.
class ImageClassifier : public TrainModule {
 public:
  explicit ImageClassifier(ImageInput input) : input_(std::move(input)) {}

  /// Images [B, C, H, W], normalized, to logits [B, classes].
  virtual Tensor logits(const Tensor& images) = 0;

  StepOutput training_step(const Batch& batch, const StepInfo& at) override;
  StepOutput validation_step(const Batch& batch, const StepInfo&) override { return evaluate(batch, "val"); }
  StepOutput test_step(const Batch& batch, const StepInfo&) override { return evaluate(batch, "test"); }
  /// The probabilities of the classes, [B, classes].
  StepOutput predict_step(const Batch& batch, const StepInfo&) override;
  std::vector<CallbackRef> configure_callbacks() override { return callbacks; }

  /// Stands before the names of metrics.
  std::string prefix;
  std::vector<CallbackRef> callbacks;

 private:
  Tensor input(const Batch& batch, const StepInfo* training = nullptr) const;
  StepOutput evaluate(const Batch& batch, std::string_view stage);

  ImageInput input_;
};

}  // namespace levin::cli
