// What records keep exactly, what they refuse by name, and files that were cut.
#include <cstring>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "levin/core/files.h"
#include "levin/data/table.h"
#include "levin/io/decompress.h"
#include "levin/io/records/idx.h"
#include "levin/io/records/tar/tar_format.h"
#include "levin/io/weights/npy.h"
#include "levin/io/weights/safetensors.h"
#include "levin/io/weights/zip_file.h"
#include "tests/io/records_testing.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;
using testing::plain_record;
using testing::record_fixtures;
using testing::TemporaryFolder;

void put(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;  // not write_file: hundreds of files need not reach the disk
}

/// What opening and reading all of a file says.
std::string refusal(const fs::path& path) {
  return error_of([&] {
    const auto reader = open_records(path.string());
    for (int64_t i = 0; i < reader->size(); ++i) reader->read(i);
  });
}

std::string odd(const char* name) {
  return (record_fixtures() / name).string();
}

double double_in(const Record& record, std::string_view name, size_t at = 0) {
  return std::get<std::vector<double>>(*record.find(name)).at(at);
}

TEST(Float64, OfTablesIsKept) {
  const TemporaryFolder folder;
  const auto path = folder / "t.csv";
  put(path, "value,id\n0.1,1\n1e300,2\n0.30000000000000004,3\n");
  const auto table = open_records(path.string());
  EXPECT_EQ(double_in(table->read(0), "value"), 0.1);
  EXPECT_EQ(double_in(table->read(1), "value"), 1e300);
  EXPECT_EQ(double_in(table->read(2), "value"), 0.30000000000000004);
  const auto data = load_table(path.string());
  EXPECT_EQ(data.tensors()["value"].scalar_type(), at::kDouble);
  EXPECT_EQ(data.tensors()["value"][2].item<double>(), 0.30000000000000004);
  // Through every format and back.
  for (const std::string end : {"tar", "tfrecord", "lmdb", "h5", "csv"}) {
    if ((end == "lmdb" || end == "h5") && !testing::has_format(end == "h5" ? "hdf5" : "lmdb")) continue;
    const auto copy = folder / ("copy." + end);
    const auto writer = create_records(copy.string());
    for (int64_t i = 0; i < table->size(); ++i) writer->write(table->read(i));
    writer->close();
    const auto back = open_records(copy.string());
    ASSERT_EQ(back->size(), 3) << end;
    EXPECT_EQ(double_in(back->read(0), "value"), 0.1) << end;
    EXPECT_EQ(double_in(back->read(1), "value"), 1e300) << end;
    EXPECT_EQ(double_in(back->read(2), "value"), 0.30000000000000004) << end;
    EXPECT_EQ(load_table(copy.string(), {.columns = {"value"}}).tensors()["value"].scalar_type(), at::kDouble) << end;
  }
}

TEST(Float64, NumbersBeyondInt64StayText) {
  const TemporaryFolder folder;
  put(folder / "t.csv", "id,x\n18446744073709551615,1\n5,2\n");
  const auto record = open_records((folder / "t.csv").string())->read(0);
  EXPECT_EQ(std::get<std::string>(*record.find("id")), "18446744073709551615");
}

class Hdf5Edges : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_format("hdf5")) GTEST_SKIP() << "this build has no HDF5";
  }
};

TEST_F(Hdf5Edges, NumbersKeepTheirType) {
  const auto reader = open_records(odd("odd-numbers.h5"));
  ASSERT_EQ(reader->size(), 4);
  const auto first = reader->read(0), second = reader->read(1);
  EXPECT_EQ(double_in(first, "f64"), 0.1);
  EXPECT_EQ(double_in(second, "f64"), 1e300);
  EXPECT_EQ(double_in(reader->read(2), "f64"), -5e-324);
  EXPECT_EQ(double_in(second, "f64_row", 1), 1.0 / 3);
  EXPECT_EQ(std::get<std::vector<float>>(*first.find("f32")).at(0), 0.1f);
  EXPECT_EQ(std::get<std::vector<int64_t>>(*second.find("u64")).at(0), std::numeric_limits<int64_t>::max());
  const auto grid = std::get<Tensor>(*first.find("u64_grid"));
  EXPECT_EQ(grid.scalar_type(), at::kUInt64);
  EXPECT_EQ(grid.const_data_ptr<uint64_t>()[3], ~uint64_t{0});
}

TEST_F(Hdf5Edges, ANumberThatInt64DoesNotHoldIsRefused) {
  const auto reader = open_records(odd("odd-large.h5"));
  EXPECT_EQ(std::get<std::vector<int64_t>>(*reader->read(0).find("ids")).at(0), 1);
  const auto line = error_of([&] { reader->read(1); });
  EXPECT_THAT(line, HasSubstr("row 1 of the dataset \"ids\""));
  EXPECT_THAT(line, HasSubstr("9223372036854775808"));
}

TEST_F(Hdf5Edges, WhatCannotBeOpenedDoesNotVanish) {
  EXPECT_THAT(refusal(odd("odd-broken.h5")), HasSubstr("\"weights\" cannot be opened"));
  EXPECT_THAT(refusal(odd("odd-dangling.h5")), HasSubstr("\"other\" cannot be opened"));
  EXPECT_THAT(refusal(odd("odd-external.h5")), HasSubstr("\"other\" lies in another file"));
  EXPECT_EQ(double_in(open_records(odd("odd-links.h5"))->read(2), "soft"), 2.0);
}

TEST(LmdbEdges, NamedDatabases) {
  if (!testing::has_format("lmdb")) GTEST_SKIP() << "this build has no LMDB";
  const auto path = odd("odd-named.mdb");
  EXPECT_THAT(refusal(path),
              HasSubstr("holds named databases (test, train); say which one is read: database = \"test\""));
  EXPECT_THAT(error_of([&] { open_records(path, {.database = "trian"}); }), HasSubstr("did you mean \"train\"?"));
  const auto reader = open_records(path, {.database = "train"});
  ASSERT_EQ(reader->size(), 3);
  EXPECT_EQ(std::get<std::string>(*reader->read(2).find("text")), "train 2");
  EXPECT_EQ(std::get<std::string>(*open_records(path, {.database = "test"})->read(0).find("text")), "test 0");
  EXPECT_THAT(error_of([&] { open_records(odd("plain.lmdb"), {.database = "x"}); }), HasSubstr("is not known"));
}

TEST(LineEnds, OfAnyKind) {
  const TemporaryFolder folder;
  const std::string lines[] = {"\n", "\r\n", "\r"};
  for (const auto& end : lines) {
    const auto path = folder / "t.csv";
    put(path, "a,b" + end + "1,x" + end + "2,\"y" + end + "z\"" + end + "3,w");
    const auto table = open_records(path.string());
    ASSERT_EQ(table->size(), 3);
    EXPECT_EQ(std::get<std::vector<int64_t>>(*table->read(2).find("a")).at(0), 3);
    EXPECT_EQ(std::get<std::string>(*table->read(1).find("b")), "y" + end + "z") << "an end of line in quotes";
    put(folder / "t.txt", "one" + end + "two" + end + end + "four" + end);
    const auto text = open_records((folder / "t.txt").string());
    ASSERT_EQ(text->size(), 4);
    EXPECT_EQ(std::get<std::string>(*text->read(1).find("text")), "two");
    EXPECT_EQ(std::get<std::string>(*text->read(2).find("text")), "");
  }
}

/// A file of each format with three records.
std::string whole_file(const fs::path& path, const RecordWriterOptions& options = {}) {
  const auto writer = create_records(path.string(), options);
  for (int64_t i = 0; i < 3; ++i) writer->write(plain_record(i));
  writer->close();
  return read_file(path);
}

TEST(Truncation, OfATarIsAnErrorBeforeTheEndMarker) {
  const TemporaryFolder folder;
  const auto cut = folder / "cut.tar";
  for (const std::string source : {"own", "wds.tar", "tarfile-pax.tar", "gnutar-gnu.tar"}) {
    const auto whole = source == "own" ? whole_file(folder / "a.tar") : read_file(record_fixtures() / source);
    // The marker begins with the block after the last byte that is not zero, or where its member ends.
    size_t end = 0;
    detail::scan_tar([&](uint64_t offset,
                         std::span<std::byte> into) { std::memcpy(into.data(), whole.data() + offset, into.size()); },
                     whole.size(), source, [&](detail::TarMember&& member) { end = member.offset + member.size; });
    end = (end + 511) / 512 * 512;
    while (whole.find_first_not_of('\0', end) != std::string::npos) end += 512;
    for (size_t block = 0; block < whole.size(); block += 512)
      for (const size_t size : {block, block + 1, block + 200, block + 511}) {
        put(cut, whole.substr(0, size));
        const auto line = refusal(cut);
        if (size >= end + 1024)
          ASSERT_EQ(line, "no error") << source << " cut at " << size;
        else
          ASSERT_THAT(line, HasSubstr("is truncated")) << source << " cut at " << size;
      }
  }
}

TEST(Truncation, OfCompressedArchivesIsAnError) {
  const TemporaryFolder folder;
  for (const std::string end : {".tar.gz", ".tar.zst"}) {
    if (end == ".tar.zst" && !detail::has_zstd()) continue;
    const auto whole = read_file(record_fixtures() / ("packed" + end));
    const auto path = folder / ("cut" + end);
    for (size_t size = 0; size < whole.size(); size += 7) {
      put(path, whole.substr(0, size));
      ASSERT_NE(refusal(path), "no error") << end << " cut at " << size;
    }
    put(path, whole);
    EXPECT_EQ(refusal(path), "no error");
    // Every wrong bit of the data is found by a checksum; the heads have bits that mean nothing.
    for (size_t at = 24; at + 4 < whole.size(); at += 11) {
      auto changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ 16);
      put(path, changed);
      EXPECT_NE(refusal(path), "no error") << end << " changed at " << at;
    }
    put(path, whole + "more");
    EXPECT_NE(refusal(path), "no error") << "what follows is none of it";
  }
}

std::string gzip(const std::string& content) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string out(compressBound(content.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(CompressedTar, IsReadInAnyOrderByAnyThread) {
  const TemporaryFolder folder;
  const auto first = whole_file(folder / "a.tar"), second = read_file(record_fixtures() / "wds.tar");
  put(folder / "s-0.tar.gz", gzip(first));
  put(folder / "s-1.tar", second);
  // Two members of gzip, as parallel tools write them.
  put(folder / "s-2.tgz", gzip(first.substr(0, 700)) + gzip(first.substr(700)));
  const auto before = testing::process_counts();
  {
    const auto reader = open_records((folder / "s-*").string(), {.format = "tar"});
    const auto plain = open_records((folder / "a.tar").string());
    const auto between = open_records((folder / "s-1.tar").string())->size();
    ASSERT_EQ(reader->size(), 2 * plain->size() + between);
    for (int64_t i = plain->size() - 1; i >= 0; --i) {
      EXPECT_EQ(testing::to_json(reader->read(i)), testing::to_json(plain->read(i)));
      EXPECT_EQ(testing::to_json(reader->read(plain->size() + between + i)), testing::to_json(plain->read(i)));
    }
    EXPECT_THAT(reader->where(0), HasSubstr("s-0.tar.gz"));
  }
  EXPECT_EQ(testing::process_counts().descriptors, before.descriptors);
}

TEST(CompressedTar, ABombIsBounded) {
  const TemporaryFolder folder;
  const FileReader file([&] {
    put(folder / "bomb.gz", gzip(std::string(64 << 20, 'x')));
    return folder / "bomb.gz";
  }());
  EXPECT_LT(file.size(), 100'000u);
  const auto before = testing::process_counts().resident_bytes;
  detail::UnpackedFiles unpacked;
  EXPECT_THAT(error_of([&] { unpacked.add(file, detail::Compression::kGzip, 16 << 20); }),
              HasSubstr("unpacks to more than 16.8 MB"));
  EXPECT_LT(testing::process_counts().resident_bytes, before + (8 << 20));
}

TEST(CompressedTar, IsNotWritten) {
  const TemporaryFolder folder;
  for (const char* name : {"a.tar.gz", "a.tgz", "a.tar.zst", "a.csv.gz", "a.tfrecord.gz"})
    EXPECT_THAT(error_of([&] { create_records((folder / name).string()); }), HasSubstr("are read, but not written"));
}

// Formats that know how long they are: every cut is an error.
TEST(Truncation, OfOtherFormatsIsAnError) {
  const TemporaryFolder folder;
  const auto every = [&](const std::string& whole, const std::string& name,
                         const std::function<void(const fs::path&)>& read) {
    const auto path = folder / name;
    put(path, whole);
    ASSERT_EQ(error_of([&] { read(path); }), "no error") << name;
    const size_t step = std::max<size_t>(whole.size() / 400, 1);
    for (size_t size = 0; size < whole.size(); size += step) {
      put(path, whole.substr(0, size));
      EXPECT_NE(error_of([&] { read(path); }), "no error") << name << " cut at " << size << " of " << whole.size();
    }
    put(path, whole.substr(0, whole.size() - 1));
    EXPECT_NE(error_of([&] { read(path); }), "no error") << name << " without its last byte";
  };
  const auto array = at::arange(40, at::kFloat).reshape({4, 10});
  every(detail::write_npy(array), "a.npy", [](const fs::path& path) { detail::read_npy(read_file(path), "a.npy"); });
  write_safetensors(folder / "w.safetensors", {{"x", array}});
  every(read_file(folder / "w.safetensors"), "a.safetensors",
        [](const fs::path& path) { SafetensorsFile(path).read("x"); });
  const auto idx = std::string("\0\0\x08\1\0\0\0\5", 8) + "hello";
  every(idx, "a.idx", [](const fs::path& path) { read_idx(path); });
  every(gzip(idx), "a.idx.gz", [](const fs::path& path) { read_idx(path); });
  {
    AtomicFile out(folder / "z.zip");
    ZipWriter zip(out.writer());
    zip.add("a.txt", "content");
    zip.finish();
    out.commit();
  }
  every(read_file(folder / "z.zip"), "a.zip", [](const fs::path& path) { ZipFile zip(path); });
  const auto reading = [](const fs::path& path) {
    const auto reader = open_records(path.string());
    for (int64_t i = 0; i < reader->size(); ++i) reader->read(i);
  };
  every(gzip("a,b\n1,2\n3,4\n"), "a.csv.gz", reading);
  if (testing::has_format("lmdb")) {
    const auto whole = read_file(record_fixtures() / "members.mdb");
    for (size_t size = 0; size < whole.size(); size += 509) {
      put(folder / "a.mdb", whole.substr(0, size));
      EXPECT_NE(refusal(folder / "a.mdb"), "no error") << "cut at " << size;
    }
  }
  if (testing::has_format("hdf5")) every(read_file(record_fixtures() / "contiguous.h5"), "a.h5", reading);
}

// A TFRecord file has neither a count nor an end: a cut between two records cannot be seen, every other one is an
// error.
TEST(Truncation, OfATfRecordIsAnErrorWithinARecord) {
  const TemporaryFolder folder;
  const auto whole = whole_file(folder / "a.tfrecord");
  std::vector<size_t> ends{0};
  while (ends.back() < whole.size()) {
    uint64_t size = 0;
    std::memcpy(&size, whole.data() + ends.back(), 8);
    ends.push_back(ends.back() + 16 + size);
  }
  ASSERT_EQ(ends.size(), 4u);
  for (size_t size = 0; size < whole.size(); ++size) {
    put(folder / "cut.tfrecord", whole.substr(0, size));
    const bool between = std::find(ends.begin(), ends.end(), size) != ends.end();
    ASSERT_EQ(refusal(folder / "cut.tfrecord") == "no error", between) << size;
  }
}

}  // namespace
}  // namespace levin
