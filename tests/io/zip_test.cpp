#include <gmock/gmock.h>

#include "levin/core/files.h"
#include "levin/io/weights/zip_file.h"
#include "levin/io/weights/zip_format.h"
#include "tests/io/crafted.h"

namespace levin::zip_tests {
namespace {

namespace fs = std::filesystem;
using detail::zip_put;
using testing::error_of;
using ::testing::HasSubstr;
using namespace std::string_literals;

/// A zip archive written field by field, so that each can be wrong.
struct Crafted {
  std::string name = "a/x";
  std::string local_name = {};
  std::string data = "hello";
  uint16_t flags = 0;
  uint16_t method = 0;
  uint16_t disk = 0;
  std::optional<uint32_t> packed, size, local_size, header, crc, local_crc;
  std::string extra = {};
};

struct Ending {
  std::optional<uint32_t> offset, bytes;
  std::optional<uint16_t> count, disk;
  std::string comment = {};
  std::string between = {};  // stands between the directory and the end record
};

std::string archive(const std::vector<Crafted>& files, const Ending& ending = {}) {
  std::string text;
  std::string directory;
  for (const auto& file : files) {
    const auto crc = file.crc.value_or(detail::crc32_zip(std::as_bytes(std::span(file.data))));
    const auto header = file.header.value_or(static_cast<uint32_t>(text.size()));
    const auto size = static_cast<uint32_t>(file.data.size());
    const auto& local_name = file.local_name.empty() ? file.name : file.local_name;
    zip_put<uint32_t>(text, detail::kZipLocal);
    for (const uint16_t field : {uint16_t{20}, file.flags, file.method, uint16_t{0}, uint16_t{0}})
      zip_put<uint16_t>(text, field);
    zip_put<uint32_t>(text, file.local_crc.value_or(crc));
    zip_put<uint32_t>(text, file.local_size.value_or(size));
    zip_put<uint32_t>(text, file.local_size.value_or(size));
    zip_put<uint16_t>(text, static_cast<uint16_t>(local_name.size()));
    zip_put<uint16_t>(text, 0);
    text += local_name + file.data;
    zip_put<uint32_t>(directory, detail::kZipCentral);
    for (const uint16_t field : {uint16_t{20}, uint16_t{20}, file.flags, file.method, uint16_t{0}, uint16_t{0}})
      zip_put<uint16_t>(directory, field);
    zip_put<uint32_t>(directory, crc);
    zip_put<uint32_t>(directory, file.packed.value_or(file.size.value_or(size)));
    zip_put<uint32_t>(directory, file.size.value_or(size));
    zip_put<uint16_t>(directory, static_cast<uint16_t>(file.name.size()));
    zip_put<uint16_t>(directory, static_cast<uint16_t>(file.extra.size()));
    zip_put<uint16_t>(directory, 0);
    zip_put<uint16_t>(directory, file.disk);
    zip_put<uint16_t>(directory, 0);
    zip_put<uint32_t>(directory, 0);
    zip_put<uint32_t>(directory, header);
    directory += file.name + file.extra;
  }
  const auto offset = static_cast<uint32_t>(text.size());
  text += directory + ending.between;
  zip_put<uint32_t>(text, detail::kZipEnd);
  zip_put<uint16_t>(text, ending.disk.value_or(0));
  zip_put<uint16_t>(text, 0);
  const auto count = ending.count.value_or(static_cast<uint16_t>(files.size()));
  zip_put<uint16_t>(text, count);
  zip_put<uint16_t>(text, count);
  zip_put<uint32_t>(text, ending.bytes.value_or(static_cast<uint32_t>(directory.size())));
  zip_put<uint32_t>(text, ending.offset.value_or(offset));
  zip_put<uint16_t>(text, static_cast<uint16_t>(ending.comment.size()));
  return text + ending.comment;
}

std::string zip64_end(uint64_t at, uint64_t offset, uint64_t bytes, uint64_t count, uint64_t length = 44) {
  std::string text;
  zip_put<uint32_t>(text, detail::kZip64End);
  zip_put<uint64_t>(text, length);
  zip_put<uint32_t>(text, 0x002d002d);
  zip_put<uint64_t>(text, 0);
  for (const auto value : {count, count, bytes, offset}) zip_put<uint64_t>(text, value);
  zip_put<uint32_t>(text, detail::kZip64Locator);
  zip_put<uint32_t>(text, 0);
  zip_put<uint64_t>(text, at);
  zip_put<uint32_t>(text, 1);
  return text;
}

class ZipTest : public testing::CraftedFiles {
 protected:
  std::string refusal(const std::string& content) {
    const auto path = file("crafted.zip", content);
    return error_of([&] { ZipFile zip(path); });
  }
};

TEST_F(ZipTest, ReadsStoredFiles) {
  const ZipFile zip(
      file("crafted.zip", archive({{.data = "hello"}, {.name = "b", .data = ""}}, {.comment = "a comment"})));
  ASSERT_EQ(zip.entries().size(), 2u);
  EXPECT_EQ(zip.read(zip.at("a/x")), "hello");
  EXPECT_EQ(zip.read(zip.at("b")), "");
  std::array<std::byte, 3> part{};
  zip.read(zip.at("a/x"), 2, part);
  EXPECT_EQ(static_cast<char>(part[0]), 'l');
  zip.verify(zip.at("a/x"));
  EXPECT_THAT(error_of([&] { zip.read(zip.at("a/x"), 3, part); }), HasSubstr("has 5 bytes; asked for 3 from 3 on"));
  EXPECT_THAT(error_of([&] { zip.read(zip.at("a/x"), uint64_t{4}); }), HasSubstr("at most 4 are read"));
  EXPECT_THAT(error_of([&] { zip.at("c"); }), HasSubstr("has no file \"c\""));
}

TEST_F(ZipTest, DamagedDataAreFound) {
  const ZipFile zip(file("crafted.zip", archive({{.crc = 7u}})));
  EXPECT_THAT(error_of([&] { zip.verify(zip.at("a/x")); }), HasSubstr("is damaged"));
}

TEST_F(ZipTest, MalformedArchivesAreOneLine) {
  EXPECT_THAT(refusal(""), HasSubstr("is no zip archive: it has 0 bytes"));
  EXPECT_THAT(refusal(std::string(100, 'x')), HasSubstr("it has no end record, or was cut off"));
  const auto good = archive({{}});
  EXPECT_EQ(refusal(good), "no error");
  EXPECT_THAT(refusal(good.substr(0, good.size() - 2)), HasSubstr("cut off"));
  EXPECT_THAT(refusal(good + "tail"), HasSubstr("cut off"));
  EXPECT_THAT(refusal(archive({{}, {}})), HasSubstr("\"a/x\" stands twice"));
  for (const auto& name : {"/etc/passwd"s, "../x"s, "a/../../x"s, "a/.."s, "..\\x"s, "C:x"s, "./x"s, "a\0b"s})
    EXPECT_THAT(refusal(archive({{.name = name}})), HasSubstr("leads out of the archive")) << name;
  EXPECT_THAT(refusal(archive({{.method = 8}})), HasSubstr("is compressed (method 8)"));
  EXPECT_THAT(refusal(archive({{.flags = 1}})), HasSubstr("is encrypted"));
  EXPECT_THAT(refusal(archive({{.disk = 1}})), HasSubstr("another disk"));
  EXPECT_THAT(refusal(archive({{.packed = 4u}})), HasSubstr("its two sizes differ"));
  EXPECT_THAT(refusal(archive({{.size = 6u}})), HasSubstr("ends after the archive's files"));
  EXPECT_THAT(refusal(archive({{.size = 4u}})), HasSubstr("described otherwise"));
  EXPECT_THAT(refusal(archive({{.local_size = 4u}})), HasSubstr("described otherwise"));
  EXPECT_THAT(refusal(archive({{.local_crc = 4u}})), HasSubstr("described otherwise"));
  EXPECT_THAT(refusal(archive({{.local_name = "a/y"}})), HasSubstr("described otherwise"));
  EXPECT_THAT(refusal(archive({{.header = 1u}})), HasSubstr("does not lie where the directory says"));
  EXPECT_THAT(refusal(archive({{.header = 4'000'000'000u}})), HasSubstr("lies beyond its files"));
  EXPECT_THAT(refusal(archive({{.size = 0xffffffffu}})), HasSubstr("ends after the archive's files"));
  EXPECT_THAT(refusal(archive({{.size = 0xffffffffu, .extra = "\x01\x00\x04\x00hell"s}})),
              HasSubstr("damaged zip64 field"));
  EXPECT_THAT(refusal(archive({{.extra = "\x01\x00\x40\x00hell"s}})), HasSubstr("damaged extra field"));
  EXPECT_THAT(refusal(archive({{}, {.name = "b", .header = 0u}})), HasSubstr("overlaps the file before it"));
  EXPECT_THAT(refusal(archive({{}}, {.offset = 0u})), HasSubstr("does not lie where its end record says"));
  EXPECT_THAT(refusal(archive({{}}, {.bytes = 1u})), HasSubstr("does not lie where its end record says"));
  EXPECT_THAT(refusal(archive({{}}, {.count = 2})), HasSubstr("entry 1 of its directory is damaged"));
  EXPECT_THAT(refusal(archive({{}, {.name = "b"}}, {.count = 1})), HasSubstr("longer than its entries"));
  EXPECT_THAT(refusal(archive({{}}, {.disk = 1})), HasSubstr("split archive"));
  EXPECT_THAT(refusal(archive({{}}, {.count = 0xffff})), HasSubstr("has no zip64 record, and needs one"));
}

TEST_F(ZipTest, Zip64RecordsMustAgree) {
  const uint64_t offset = 30 + 3 + 5;
  const uint64_t bytes = 46 + 3;
  const auto ends = offset + bytes;
  const auto with = [&](const std::string& record, std::optional<uint16_t> count = 0xffff) {
    return archive({{}}, {.offset = 0xffffffffu, .bytes = 0xffffffffu, .count = count, .between = record});
  };
  EXPECT_EQ(refusal(with(zip64_end(ends, offset, bytes, 1))), "no error");
  EXPECT_THAT(refusal(with(zip64_end(ends, offset, bytes, 1), 2)), HasSubstr("its two end records differ"));
  EXPECT_THAT(refusal(with(zip64_end(ends + 1, offset, bytes, 1))), HasSubstr("where its locator says"));
  EXPECT_THAT(refusal(with(zip64_end(~uint64_t{0}, offset, bytes, 1))), HasSubstr("ends too early"));
  EXPECT_THAT(refusal(with(zip64_end(ends, offset, bytes, 1, 45))), HasSubstr("wrong length"));
  EXPECT_THAT(refusal(with(zip64_end(ends, offset, bytes, ~uint64_t{0}))), HasSubstr("announces 18446744073709551615"));
  EXPECT_THAT(refusal(with(zip64_end(ends, ~uint64_t{0}, bytes, 1))), HasSubstr("does not lie where"));
  EXPECT_THAT(refusal(with(zip64_end(ends, offset, ~uint64_t{0}, 1))), HasSubstr("announces a directory of"));
}

TEST_F(ZipTest, WritesAlignedFilesThatItReads) {
  const auto path = root_ / "written.zip";
  FileWriter writer(path);
  ZipWriter zip(writer);
  for (int i = 0; i < 100; ++i) zip.add(fmt::format("top/{}", i), std::string(static_cast<size_t>(i), 'x'));
  zip.finish();
  writer.close();
  const ZipFile read(path);
  ASSERT_EQ(read.entries().size(), 100u);
  for (int i = 0; i < 100; ++i) {
    const auto& entry = read.at(fmt::format("top/{}", i));
    EXPECT_EQ(entry.offset % 64, 0u);
    EXPECT_EQ(read.read(entry), std::string(static_cast<size_t>(i), 'x'));
    read.verify(entry);
  }
}

TEST_F(ZipTest, ManyFilesNeedZip64) {
  const auto path = root_ / "many.zip";
  FileWriter writer(path);
  ZipWriter zip(writer);
  for (int i = 0; i < 70'000; ++i) zip.add(std::to_string(i), "");
  zip.finish();
  writer.close();
  EXPECT_EQ(ZipFile(path).entries().size(), 70'000u);
  fs::remove(path);
}

TEST_F(ZipTest, EveryChangedByteIsAnsweredInOneLine) {
  const auto good = archive({{}, {.name = "b"}});
  for (size_t i = 0; i < good.size(); ++i)
    for (const int change : {1, 0x80, 0xff}) {
      auto changed = good;
      changed[i] = static_cast<char>(changed[i] ^ change);
      const auto read = [&](uint64_t offset, std::span<std::byte> into) {
        ASSERT_LE(offset + into.size(), changed.size());
        std::memcpy(into.data(), changed.data() + offset, into.size());
      };
      error_of([&] { detail::parse_zip(changed.size(), read, "changed"); });
    }
}

}  // namespace
}  // namespace levin::zip_tests
