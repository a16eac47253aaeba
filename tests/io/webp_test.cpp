// WebP images: Pillow's pixels, and files that are no good.
#include <ATen/ops/empty_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/data/image_dataset.h"
#include "levin/io/images/image.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/images/webp_codec.h"
#include "levin/io/records/records.h"
#include "levin/io/weights/safetensors.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

class Webp : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!detail::has_webp()) GTEST_SKIP() << "this build has no libwebp";
  }

  static fs::path folder() { return fs::path(levin::testing::source_dir()) / "tests/io/fixtures/webp"; }
  static std::string fixture(const std::string& name) { return read_file(folder() / name); }
  static Tensor decode(const std::string& file, const ImageOptions& options = {}) {
    return decode_image(std::as_bytes(std::span(file)), options);
  }
  static std::string refusal(const std::string& file, const ImageOptions& options = {}) {
    return error_of([&] { decode(file, options); });
  }
};

TEST_F(Webp, GivesPillowsPixels) {
  SafetensorsFile expected(folder() / "expected.safetensors");
  int compared = 0;
  for (const auto& entry : expected.entries()) {
    const auto slash = entry.name.find('/');
    const auto name = entry.name.substr(0, slash), how = entry.name.substr(slash + 1);
    const auto mode = how == "L" ? ImageMode::kGray : how == "RGBA" ? ImageMode::kRgba : ImageMode::kRgb;
    const auto got = decode(fixture(name), {.mode = mode, .apply_exif = name.starts_with("turned")});
    const auto pixels = expected.read(entry.name).permute({2, 0, 1});
    ASSERT_EQ(got.sizes(), pixels.sizes()) << entry.name;
    EXPECT_TRUE(got.equal(pixels)) << entry.name << " differs by "
                                   << (got.to(at::kInt) - pixels.to(at::kInt)).abs().max().item<int>();
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

TEST_F(Webp, HeadsSayWhatTheFileIs) {
  const auto info = [](const std::string& file) { return image_info(std::as_bytes(std::span(file))); };
  const auto plain = info(fixture("lossy.webp"));
  EXPECT_EQ(plain.format, "webp");
  EXPECT_EQ(plain.height, 45);
  EXPECT_EQ(plain.width, 59);
  EXPECT_EQ(plain.channels, 3);
  EXPECT_EQ(info(fixture("lossy_alpha.webp")).channels, 4);
  EXPECT_EQ(info(fixture("turned_6.webp")).orientation, 6);
  EXPECT_EQ(decode(fixture("lossless_alpha.webp"), {.mode = ImageMode::kUnchanged}).size(0), 4);
}

TEST_F(Webp, ARegionHasThePixelsOfTheFullImage) {
  for (const char* name : {"lossy.webp", "lossless_alpha.webp", "odd.webp"})
    for (const auto mode : {ImageMode::kGray, ImageMode::kRgb, ImageMode::kRgba}) {
      const auto file = fixture(name);
      const auto whole = decode(file, {.mode = mode});
      const ImageRegion region{.top = 3, .left = 5, .height = 7, .width = 9};
      const auto part = decode(file, {.mode = mode, .region = region});
      EXPECT_TRUE(part.equal(whole.slice(1, 3, 10).slice(2, 5, 14))) << name;
    }
}

TEST_F(Webp, EveryCutIsAnError) {
  for (const char* name : {"lossless.webp", "lossy_alpha.webp", "turned_3.webp", "tiny.webp"}) {
    const auto file = fixture(name);
    for (size_t size = 0; size < file.size(); ++size)
      ASSERT_NE(refusal(file.substr(0, size)), "no error") << name << " cut at " << size;
    // What is there can be had all the same.
    const auto half = decode(file.substr(0, std::max<size_t>(file.size() * 3 / 4, 34)), {.allow_truncated = true});
    EXPECT_EQ(half.size(0), 3);
  }
}

TEST_F(Webp, RefusesWhatItCannotRead) {
  EXPECT_THAT(refusal(fixture("animation.webp")), HasSubstr("[image] the WebP file is an animation"));
  EXPECT_THAT(refusal(fixture("lossy.webp"), {.max_pixels = 1000}), HasSubstr("more than max_pixels"));
  EXPECT_THAT(refusal("RIFF\x10\0\0\0WEBPVP8 "), HasSubstr("neither PNG nor JPEG nor WebP"));
  EXPECT_THAT(refusal(std::string("RIFF\4\0\0\0WEBP", 12)), HasSubstr("bad head"));
  // Any changed byte gives pixels or one line.
  for (const char* name : {"lossless_alpha.webp", "lossy_alpha.webp"}) {
    const auto file = fixture(name);
    for (size_t at = 0; at < file.size(); at += 3) {
      auto changed = file;
      changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
      const auto line = refusal(changed, {.max_pixels = 1 << 20});
      EXPECT_TRUE(line == "no error" || line.starts_with("[image] ")) << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
  }
}

TEST_F(Webp, IsAnImageEverywhere) {
  EXPECT_EQ(detail::image_codec_by_path("a/B.WEBP")->name, "webp");
  EXPECT_EQ(detail::image_codec_by_path("a.b/webp"), nullptr);
  EXPECT_THAT(detail::image_extensions(), HasSubstr(".webp"));
  const testing::TemporaryFolder root;
  fs::create_directories(root / "photos/cat");
  fs::copy(folder() / "lossless.webp", root / "photos/cat/a.webp");
  fs::copy(folder() / "odd.webp", root / "photos/cat/b.WEBP");
  const auto source = open_records((root / "photos").string());
  ASSERT_EQ(source->size(), 2);
  // Into every format and back: the bytes stay as they are.
  for (const std::string end : {"copy", "copy.tar", "copy.tfrecord", "copy.csv"}) {
    const auto writer = create_records((root / end).string(), {.classes = source->classes()});
    for (int64_t i = 0; i < 2; ++i) writer->write(source->read(i));
    writer->close();
    const ImageDataset back((root / end).string());
    Random random(0, 0, 0);
    EXPECT_TRUE(back.get(0, random)["image"].equal(decode(fixture("lossless.webp")))) << end;
    EXPECT_EQ(std::get<std::string>(*back.records().read(1).find("image")), fixture("odd.webp")) << end;
  }
  EXPECT_THROW(write_image(root / "x.webp", decode(fixture("lossy.webp"))), Error);
}

}  // namespace
}  // namespace levin
