#include "levin/cli/recipes/fashion_mnist.h"

#include "levin/core/error.h"
#include "levin/data/loader.h"
#include "levin/nn/functional.h"

namespace levin::cli {
namespace {

TensorDataset rows(const TensorDataset& data, int64_t begin, int64_t count) {
  Batch part;
  for (const auto& [name, tensor] : data.tensors()) part[name] = tensor.narrow(0, begin, count);
  return TensorDataset(std::move(part));
}

}  // namespace

void FashionMnist::setup(std::string_view) {
  if (train_.size() > 0) return;
  const auto data = load_fashion_mnist_or_drawn(options_.folder);
  const auto all = data.train.size();
  LEVIN_CHECK(options_.val_size >= 0 && options_.val_size < all, "[recipe] data.val_size ", options_.val_size,
              " must leave some of the ", all, " training images");
  train_ = rows(data.train, 0, all - options_.val_size);
  val_ = rows(data.train, all - options_.val_size, options_.val_size);
  test_ = data.test;
}

Loaders<Batch> FashionMnist::train_dataloader() {
  return make_loader(train_, {.batch_size = options_.batch_size, .shuffle = true, .drop_last = true});
}
Loaders<Batch> FashionMnist::val_dataloader() {
  if (val_.size() == 0) return {};
  return make_loader(val_, {.batch_size = options_.eval_batch_size});
}
Loaders<Batch> FashionMnist::test_dataloader() {
  return make_loader(test_, {.batch_size = options_.eval_batch_size});
}
Loaders<Batch> FashionMnist::predict_dataloader() {
  return test_dataloader();
}

Tensor normalized(const Tensor& image) {
  return image.to(at::kFloat).div(255).sub(0.2860).div(0.3530);
}

StepOutput ImageClassifier::training_step(const Batch& batch, const StepInfo&) {
  auto loss = cross_entropy(logits(normalized(batch["image"])), batch["label"]);
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

StepOutput ImageClassifier::evaluate(const Batch& batch, std::string_view stage) {
  const auto scores = logits(normalized(batch["image"]));
  auto loss = cross_entropy(scores, batch["label"]);
  const std::string name(stage);
  log(name + "_loss", loss, {.prog_bar = true, .sync_dist = true});
  log(name + "_acc", accuracy(scores, batch["label"]), {.prog_bar = true, .sync_dist = true});
  return loss;
}

StepOutput ImageClassifier::predict_step(const Batch& batch, const StepInfo&) {
  return logits(normalized(batch["image"])).softmax(1);
}

}  // namespace levin::cli
