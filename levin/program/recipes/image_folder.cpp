#include "levin/program/recipes/image_folder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/data/cifar.h"
#include "levin/data/loader.h"
#include "levin/data/transforms/transforms.h"
#include "levin/io/images/image.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

// About the size of a photograph in ImageNet.
constexpr int64_t kDrawnHeight = 375, kDrawnWidth = 500;

// Written beside its place and moved there whole: a run that was stopped leaves no folder that looks complete.
void draw_images(const fs::path& folder, int64_t count) {
  auto part = folder;
  part += ".part";
  fs::remove_all(part);
  const auto drawn = draw_color_shapes(count, 0).train;
  const auto& classes = color_shape_classes();
  // Grain, so that a file is as long as that of a photograph and takes as long to decode.
  const auto grain =
      at::randint(-12, 13, {3, kDrawnHeight, kDrawnWidth}, at::detail::createCPUGenerator(0), at::kFloat);
  for (const auto& name : classes) make_folder(part / name);
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto sample = drawn.get(i);
      const auto large = at::upsample_bilinear2d(sample["image"].to(at::kFloat).unsqueeze(0),
                                                 {kDrawnHeight, kDrawnWidth}, /*align_corners=*/false)
                             .squeeze(0);
      const auto image = (large + grain.roll(i, 2)).clamp(0, 255).to(at::kByte);
      const auto& name = classes[static_cast<size_t>(sample["label"].item<int64_t>())];
      write_image(part / name / (std::to_string(i) + ".jpg"), image, {.quality = 90});
    }
  });
  fs::rename(part, folder);
}

}  // namespace

bool ImageFolder::is_to_be_drawn() const {
  return options_.drawn > 0 && !fs::exists(options_.folder);
}

void ImageFolder::prepare_data() {
  if (is_to_be_drawn()) draw_images(options_.folder, options_.drawn);
}

int64_t ImageFolder::num_classes() const {
  LEVIN_CHECK(!options_.folder.empty(),
              "[recipe] data.folder must name the training images: a folder for each class, or a packed file; with "
              "--data.drawn 1000 images are generated there");
  // With fewer a class may have none.
  LEVIN_CHECK(options_.drawn == 0 || options_.drawn >= 100, "[recipe] data.drawn must be 0 or at least 100, got ",
              options_.drawn);
  if (is_to_be_drawn()) return static_cast<int64_t>(color_shape_classes().size());
  const auto classes = ImageDataset(options_.folder.string()).classes();
  LEVIN_CHECK(!classes.empty(), "[recipe] data.folder ", options_.folder, " does not say what its classes are");
  return static_cast<int64_t>(classes.size());
}

Loaders<Batch> ImageFolder::train_dataloader() {
  const auto transform = transforms::compose(
      {transforms::RandomResizedCrop{.size = options_.image_size}, transforms::RandomHorizontalFlip{}});
  return make_loader(ImageDataset(options_.folder.string(), {.transform = transform}),
                     {.batch_size = options_.batch_size,
                      .shuffle = true,
                      .drop_last = true,
                      .num_workers = std::string_view(options_.num_workers),
                      .pin_memory = options_.pin_memory,
                      .decode = options_.decode});
}

Loaders<Batch> ImageFolder::val_dataloader() {
  if (options_.val.empty()) return {};
  const auto transform = transforms::compose(
      {transforms::Resize{.size = options_.image_size * 8 / 7}, transforms::CenterCrop{.size = options_.image_size}});
  return make_loader(ImageDataset(options_.val.string(), {.transform = transform}),
                     {.batch_size = options_.eval_batch_size,
                      .num_workers = std::string_view(options_.num_workers),
                      .pin_memory = options_.pin_memory,
                      .decode = options_.decode});
}

}  // namespace levin::cli
