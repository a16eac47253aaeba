#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "levin/data/image_dataset.h"
#include "levin/trainer/data_module.h"

namespace levin::cli {

/// Images of any size with their classes: a folder for each class, or a packed file. Training images are cut at random
/// and mirrored, others resized and cut in the middle; they leave the loader as bytes [C, size, size].
class ImageFolder : public DataModule {
 public:
  struct Options {
    std::filesystem::path folder = {};
    std::filesystem::path val = {};
    int64_t drawn = 0;
    int64_t image_size = 224;
    int64_t batch_size = 64;
    int64_t eval_batch_size = 256;
    std::string num_workers = "auto";
    std::optional<bool> pin_memory = {};
    std::string decode = "cpu";

    void fields(auto f) {
      f("folder", folder, "training images: a folder for each class, or a packed file");
      f("val", val, "validation images, in the same form; default: none");
      f("drawn", drawn, "first write N generated JPEG images into data.folder, if it is not there");
      f("image_size", image_size, "side of the images that the model gets");
      f("batch_size", batch_size, "training batch size per rank");
      f("eval_batch_size", eval_batch_size, "batch size of validation, test and predict, per rank");
      f("num_workers", num_workers, "threads that decode images; 0: the training thread does; auto: one for each core");
      f("pin_memory", pin_memory, "batches in pinned memory; default: where they go to a GPU");
      f("decode", decode, "where JPEG images are decoded: cpu, gpu or auto");
    }
  };

  explicit ImageFolder(Options options) : options_(std::move(options)) {}

  void prepare_data() override;
  Loaders<Batch> train_dataloader() override;
  Loaders<Batch> val_dataloader() override;
  Loaders<Batch> test_dataloader() override { return val_dataloader(); }
  Loaders<Batch> predict_dataloader() override { return val_dataloader(); }

  /// How many classes the training images have. Every rank; before prepare_data.
  int64_t num_classes() const;

 private:
  bool is_to_be_drawn() const;

  Options options_;
};

}  // namespace levin::cli
