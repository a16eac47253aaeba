#include "levin/data/image_dataset.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/data/cifar.h"
#include "levin/data/loader.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/scoped_variable.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

class ImageDatasets : public testing::FolderTest {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
};

TEST_F(ImageDatasets, AFolderGivesWhatWasDrawn) {
  const auto drawn = draw_color_shapes(40, 10, 3);
  write_image_folder(path("shapes"), drawn.train, color_shape_classes());
  const ImageDataset data(path("shapes"));
  ASSERT_EQ(data.size(), 40);
  EXPECT_EQ(data.classes(), color_shape_classes());
  const auto& images = drawn.train.tensors()["image"];
  std::set<int64_t> seen;
  for (int64_t i = 0; i < data.size(); ++i) {
    Random random(0, 0, static_cast<uint64_t>(i));
    const auto sample = data.get(i, random);
    // class/00000012
    const auto key = data.records().read(i).key;
    const auto original = std::stoll(key.substr(key.find('/') + 1));
    seen.insert(original);
    EXPECT_TRUE(at::equal(sample["image"], images[original]));
    EXPECT_TRUE(sample["image"].permute({1, 2, 0}).is_contiguous());
    EXPECT_EQ(sample["label"].scalar_type(), at::kLong);
    EXPECT_TRUE(at::equal(sample["label"], drawn.train.tensors()["label"][original]));
  }
  EXPECT_EQ(seen.size(), 40U);
}

TEST_F(ImageDatasets, ALoaderBatchesItTheSameForAnyNumberOfThreads) {
  write_image_folder(path("shapes"), draw_color_shapes(30, 10, 1).train, color_shape_classes());
  const auto noisy = [](const Tensor& image, Random& random) { return image.to(at::kFloat).add(random.uniform()); };
  const ImageDataset data(path("shapes"), {.transform = Transform(noisy)});
  const auto epoch = [&](int workers) {
    std::vector<Tensor> images, labels;
    for (auto& batch : make_loader(data, {.batch_size = 8, .shuffle = true, .seed = 5, .num_workers = workers})) {
      images.push_back(batch["image"]);
      labels.push_back(batch["label"]);
    }
    return std::pair(at::cat(images), at::cat(labels));
  };
  const auto [images, labels] = epoch(0);
  EXPECT_EQ(images.sizes(), at::IntArrayRef({30, 3, 32, 32}));
  EXPECT_EQ(images.scalar_type(), at::kFloat);
  const auto [other_images, other_labels] = epoch(3);
  EXPECT_TRUE(at::equal(images, other_images));
  EXPECT_TRUE(at::equal(labels, other_labels));
}

TEST_F(ImageDatasets, ModesAreThoseOfPillow) {
  // (19595 r + 38470 g + 7471 b + 32768) >> 16
  const auto rgb = at::tensor({200, 100, 50, 255, 255, 255}, at::kByte).view({2, 3}).t().reshape({3, 1, 2});
  const auto gray = detail::to_mode(rgb, ImageMode::kGray);
  EXPECT_TRUE(at::equal(gray, at::tensor({124, 255}, at::kByte).view({1, 1, 2})));
  EXPECT_TRUE(at::equal(detail::to_mode(gray, ImageMode::kRgb), gray.expand({3, 1, 2})));
  const auto rgba = detail::to_mode(rgb, ImageMode::kRgba);
  EXPECT_EQ(rgba.size(0), 4);
  EXPECT_TRUE(at::equal(rgba[3], at::full({1, 2}, 255, at::kByte)));
  EXPECT_TRUE(at::equal(detail::to_mode(rgba, ImageMode::kRgb), rgb));
  EXPECT_TRUE(detail::to_mode(rgb, ImageMode::kUnchanged).is_same(rgb));
}

TEST_F(ImageDatasets, RawPixelsBecomeTheModeThatIsAskedFor) {
  const ImageDataset color(levin::testing::source_dir() + "/tests/io/fixtures/plain/cifar10");
  const ImageDataset gray(levin::testing::source_dir() + "/tests/io/fixtures/plain/cifar10",
                          {.mode = ImageMode::kGray, .split = "test"});
  Random random(0, 0, 0);
  EXPECT_EQ(color.get(0, random)["image"].sizes(), at::IntArrayRef({3, 32, 32}));
  EXPECT_EQ(gray.get(1, random)["image"].sizes(), at::IntArrayRef({1, 32, 32}));
  EXPECT_EQ(color.classes().front(), "airplane");
}

TEST_F(ImageDatasets, AnErrorNamesTheFile) {
  write_image_folder(path("shapes"), draw_color_shapes(3, 1, 1).train);
  const ImageDataset data(path("shapes"));
  const auto bad = data.records().where(1);
  fs::resize_file(bad, 60);
  Random random(0, 0, 1);
  EXPECT_THAT(error_of([&] { data.get(1, random); }), AllOf(HasSubstr("[data] sample 1"), HasSubstr(bad)));
  fs::remove(bad);
  EXPECT_THAT(error_of([&] { data.get(1, random); }), AllOf(HasSubstr(bad), HasSubstr("No such file")));
  EXPECT_THAT(error_of([&] { data.get(3, random); }), HasSubstr("sample 3 was asked for, there are 3"));
  std::ofstream(path("lines.txt")) << "no image\n";
  const ImageDataset text(path("lines.txt"));
  EXPECT_THAT(error_of([&] { text.get(0, random); }), AllOf(HasSubstr("lines.txt:1"), HasSubstr("no field \"image\"")));
}

TEST_F(ImageDatasets, CifarIsFoundInItsLayouts) {
  const auto plain = levin::testing::source_dir() + "/tests/io/fixtures/plain/cifar10";
  const auto data = load_cifar10(plain);
  EXPECT_EQ(data.name, "CIFAR-10");
  EXPECT_EQ(data.train.size(), 5);
  EXPECT_EQ(data.test.size(), 2);
  EXPECT_EQ(data.train.tensors()["image"].sizes(), at::IntArrayRef({5, 3, 32, 32}));
  // The same as PNG files and as binary files, with all ten classes in the folders.
  const auto drawn = draw_color_shapes(60, 60, 2);
  write_image_folder(path("png/train"), drawn.train, color_shape_classes());
  write_image_folder(path("png/test"), drawn.test, color_shape_classes());
  const auto png = load_cifar10(path("png"));
  for (const auto* split : {"train", "test"}) {
    const auto source = open_records(path("png"), {.split = split});
    const auto writer =
        create_records(path("bin"), {.format = "cifar10", .classes = source->classes(), .split = split});
    for (int64_t i = 0; i < source->size(); ++i) writer->write(source->read(i));
    writer->close();
  }
  const auto binary = load_cifar10(path("bin"));
  EXPECT_TRUE(at::equal(png.train.tensors()["image"], binary.train.tensors()["image"]));
  EXPECT_TRUE(at::equal(png.test.tensors()["label"], binary.test.tensors()["label"]));

  const testing::ScopedVariable place("LEVIN_DATA", folder_.string());
  EXPECT_FALSE(has_cifar10(path("nowhere")));
  EXPECT_THAT(error_of([&] { load_cifar10(path("nowhere")); }), AllOf(HasSubstr("nowhere"), HasSubstr("unpack")));
  fs::rename(path("bin"), path("cifar10"));
  EXPECT_TRUE(has_cifar10());
  EXPECT_EQ(load_cifar10_or_drawn().train.size(), 60);
}

TEST_F(ImageDatasets, DrawnShapesAreTheSameForTheSameSeed) {
  const auto one = draw_color_shapes(200, 10, 7), same = draw_color_shapes(200, 10, 7),
             other = draw_color_shapes(200, 10, 8);
  EXPECT_TRUE(at::equal(one.train.tensors()["image"], same.train.tensors()["image"]));
  EXPECT_FALSE(at::equal(one.train.tensors()["image"], other.train.tensors()["image"]));
  EXPECT_EQ(one.train.tensors()["label"].min().item<int64_t>(), 0);
  EXPECT_EQ(one.train.tensors()["label"].max().item<int64_t>(), 9);
}

}  // namespace
}  // namespace levin
