#include "levin/io/images/jpeg_head.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/io/images/image.h"
#include "levin/testing/paths.h"

namespace levin {
namespace {

std::optional<detail::JpegHead> head_of(const std::string& file) {
  return detail::jpeg_head(std::as_bytes(std::span(file)));
}

std::string jpeg_fixture(const std::string& name) {
  return read_file(std::filesystem::path(testing::source_dir()) / "tests/io/fixtures/images" / name);
}

TEST(JpegHead, SaysHowTheFileIsCoded) {
  const auto file = jpeg_fixture("baseline_420.jpg");
  const auto color = head_of(file);
  ASSERT_TRUE(color);
  EXPECT_EQ(color->frame, 0xc0);
  EXPECT_EQ(color->components, 3);
  EXPECT_EQ(color->across[0], 2);
  EXPECT_EQ(color->down[0], 2);
  EXPECT_EQ(color->across[1], 1);
  EXPECT_TRUE(color->is_interleaved && color->is_whole && !color->is_rgb);
  const auto info = image_info(std::as_bytes(std::span(file)));
  EXPECT_EQ(color->height, info.height);
  EXPECT_EQ(color->width, info.width);
  EXPECT_EQ(head_of(jpeg_fixture("progressive_444.jpg"))->frame, 0xc2);
  EXPECT_GE(head_of(jpeg_fixture("arithmetic.jpg"))->frame, 0xc9);
  EXPECT_EQ(head_of(jpeg_fixture("cmyk.jpg"))->components, 4);
  EXPECT_EQ(head_of(jpeg_fixture("grey.jpg"))->components, 1);
  EXPECT_TRUE(head_of(jpeg_fixture("adobe_rgb.jpg"))->is_rgb);
}

TEST(JpegHead, KnowsAFileThatWasCutOff) {
  const auto file = jpeg_fixture("large_420.jpg");
  EXPECT_TRUE(head_of(file)->is_whole);
  EXPECT_TRUE(head_of(file + std::string(100, '\0'))->is_whole);
  EXPECT_FALSE(head_of(file.substr(0, file.size() / 2))->is_whole);
  // Nothing is read beyond the end, wherever it is.
  for (size_t size = 0; size < std::min<size_t>(file.size(), 700); ++size)
    if (const auto head = head_of(file.substr(0, size))) {
      EXPECT_FALSE(head->is_whole) << size;
    }
  EXPECT_FALSE(head_of(""));
  EXPECT_FALSE(head_of("no image"));
}

}  // namespace
}  // namespace levin
