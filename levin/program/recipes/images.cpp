#include "levin/program/recipes/images.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/tensor.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/data/loader.h"
#include "levin/data/transforms/batch.h"
#include "levin/nn/functional.h"
#include "levin/trainer/context.h"

namespace levin::cli {
namespace {

TensorDataset part_of(const TensorDataset& data, const std::function<Tensor(const Tensor&)>& part) {
  Batch tensors;
  for (const auto& [name, tensor] : data.tensors()) tensors.set(name, part(tensor));
  return TensorDataset(std::move(tensors));
}

TensorDataset rows(const TensorDataset& data, int64_t begin, int64_t count) {
  return part_of(data, [&](const Tensor& tensor) { return tensor.narrow(0, begin, count); });
}

TensorDataset of_classes(const TensorDataset& data, const std::vector<int64_t>& classes) {
  if (classes.empty()) return data;
  const auto kept = at::isin(data.tensors()["label"], at::tensor(classes, at::kLong)).nonzero().squeeze(1);
  return part_of(data, [&](const Tensor& tensor) { return tensor.index_select(0, kept); });
}

}  // namespace

void MemoryImages::setup(std::string_view) {
  if (train_.size() > 0) return;
  for (const auto label : sizes_.classes)
    LEVIN_CHECK(label >= 0 && label < 10, "[recipe] data.classes: there is no label ", label, ", they are 0 to 9");
  LEVIN_CHECK(sizes_.repeats > 0, "[recipe] data.repeats must be at least 1, got ", sizes_.repeats);
  auto data = load();
  name_ = data.name;
  data.train = of_classes(data.train, sizes_.classes);
  test_ = of_classes(data.test, sizes_.classes);
  const auto all = data.train.size();
  LEVIN_CHECK(sizes_.val_size >= 0 && sizes_.val_size < all, "[recipe] data.val_size ", sizes_.val_size,
              " must leave some of the ", all, " training images");
  const auto left = all - sizes_.val_size;
  LEVIN_CHECK(sizes_.train_size >= 0 && sizes_.train_size <= left, "[recipe] data.train_size ", sizes_.train_size,
              " is more than the ", left, " training images that data.val_size leaves");
  train_ = rows(data.train, 0, sizes_.train_size > 0 ? sizes_.train_size : left);
  val_ = rows(data.train, left, sizes_.val_size);
  if (sizes_.repeats > 1)
    train_ = part_of(train_, [&](const Tensor& tensor) {
      std::vector<int64_t> times(static_cast<size_t>(tensor.dim()), 1);
      times[0] = sizes_.repeats;
      return tensor.repeat(times);
    });
  LEVIN_CHECK(train_.size() >= sizes_.batch_size, "[recipe] data.batch_size ", sizes_.batch_size, " is more than the ",
              train_.size(), " training images of an epoch");
}

Loaders<Batch> MemoryImages::train_dataloader() {
  return make_loader(train_, {.batch_size = sizes_.batch_size, .shuffle = true, .drop_last = true});
}
Loaders<Batch> MemoryImages::val_dataloader() {
  if (val_.size() == 0) return {};
  return make_loader(val_, {.batch_size = sizes_.eval_batch_size});
}
Loaders<Batch> MemoryImages::test_dataloader() {
  return make_loader(test_, {.batch_size = sizes_.eval_batch_size});
}

Tensor ImageClassifier::input(const Batch& batch, const StepInfo* training) const {
  Batch part{{"image", batch["image"]}};
  transforms::BatchNormalize normalize{.mean = input_.mean, .std = input_.std, .channels_last = input_.channels_last};
  // Images follow the weights: 16 bits where the model has them.
  normalize.dtype = parameters().front().scalar_type();
  // What draws nothing can be captured.
  if (!training || (input_.flip == 0 && input_.shift == 0)) {
    Random none(0, 0, 0);
    normalize(part, none);
    return part["image"];
  }
  normalize.flip_p = input_.flip;
  if (input_.shift > 0) {
    normalize.crop = {part["image"].size(2), part["image"].size(3)};
    normalize.padding = input_.shift;
  }
  // They belong to the batch: a resumed run draws them again.
  const auto seed = at::detail::getDefaultCPUGenerator().current_seed();
  auto& fabric = trainer().fabric();
  Random random(seed, static_cast<uint64_t>(current_epoch()),
                static_cast<uint64_t>(training->batch_idx * fabric.world_size() + fabric.global_rank()));
  normalize(part, random);
  return part["image"];
}

StepOutput ImageClassifier::training_step(const Batch& batch, const StepInfo& at) {
  auto loss = cross_entropy(logits(input(batch, &at)), batch["label"], {.label_smoothing = input_.label_smoothing});
  log(prefix + "train_loss", loss, {.prog_bar = true});
  return loss;
}

StepOutput ImageClassifier::evaluate(const Batch& batch, std::string_view stage) {
  const auto scores = logits(input(batch));
  auto loss = cross_entropy(scores, batch["label"]);
  const auto name = prefix + std::string(stage);
  log(name + "_loss", loss, {.prog_bar = true, .sync_dist = true});
  log(name + "_acc", accuracy(scores, batch["label"]), {.prog_bar = true, .sync_dist = true});
  return loss;
}

StepOutput ImageClassifier::predict_step(const Batch& batch, const StepInfo&) {
  return logits(input(batch)).to(at::kFloat).softmax(1);
}

}  // namespace levin::cli
