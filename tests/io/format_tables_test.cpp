// The tables of formats: what a row says is what the rest of Levin does.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/io/images/image_codec.h"
#include "levin/io/records/record_formats.h"
#include "levin/io/weights/weight_formats.h"

namespace levin::detail {
namespace {

TEST(FormatTables, NamesAndEndsAreOfOneFormat) {
  std::set<std::string_view> codecs, extensions, records, ends, weights, endings;
  for (const auto& codec : image_codecs()) {
    EXPECT_TRUE(codecs.insert(codec.name).second) << codec.name;
    EXPECT_EQ(find_image_codec(codec.name), &codec);
    for (const auto extension : codec.extensions) {
      EXPECT_TRUE(extensions.insert(extension).second) << extension;
      EXPECT_EQ(image_codec_by_path("a." + std::string(extension)), &codec);
    }
  }
  for (const auto& format : all_record_formats()) {
    EXPECT_TRUE(records.insert(format.name).second) << format.name;
    EXPECT_EQ(find_record_format(format.name), &format);
    EXPECT_TRUE(format.holds_encoded || format.holds_raw) << format.name;
    for (const auto end : format.ends) {
      EXPECT_TRUE(ends.insert(end).second) << end;
      EXPECT_EQ(record_format_by_end("a" + std::string(end)), &format) << end;
    }
  }
  for (const auto& format : weight_formats()) {
    EXPECT_TRUE(weights.insert(format.word).second) << format.word;
    EXPECT_EQ(find_weight_format(format.word), &format);
    for (const auto ending : format.endings) {
      EXPECT_TRUE(endings.insert(ending).second) << ending;
      EXPECT_EQ(weight_format_by_ending("a" + std::string(ending)), &format);
    }
  }
}

TEST(FormatTables, KnowImagesThatAreNotDecoded) {
  EXPECT_EQ(image_extension("GIF89a"), "gif");
  EXPECT_EQ(image_extension("BM" + std::string(30, ' ')), "bmp");
  EXPECT_EQ(image_extension("BM"), "");
  EXPECT_TRUE(is_undecoded_image("a/B.TIFF"));
  EXPECT_FALSE(is_undecoded_image("a.png"));
  EXPECT_THAT(written_image_kinds(), ::testing::ElementsAre("png", "jpeg"));
}

TEST(FormatTables, NameTheFilesOfAFolder) {
  const auto format = safetensors_format();
  EXPECT_EQ(format.file_name(0, 1), "model.safetensors");
  EXPECT_EQ(format.file_name(1, 3), "model-00002-of-00003.safetensors");
  EXPECT_EQ(torch_format().index_name(), "pytorch_model.bin.index.json");
}

}  // namespace
}  // namespace levin::detail
