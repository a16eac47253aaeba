#include "levin/io/records/records.h"

#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/decompress.h"
#include "levin/io/records/record_paths.h"
#include "levin/testing/paths.h"
#include "tests/io/records_testing.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;
using testing::hex;
using testing::plain_record;
using testing::record_fixtures;
using testing::TemporaryFolder;
using testing::to_json;

TEST(Record, FindsAndSetsFields) {
  Record record{.key = "a", .fields = {}};
  EXPECT_EQ(record.find("label"), nullptr);
  record.set("label", std::vector<int64_t>{3});
  record.set("text", "x");
  record.set("label", std::vector<int64_t>{4});
  ASSERT_EQ(record.fields.size(), 2);
  EXPECT_EQ(std::get<std::vector<int64_t>>(*record.find("label")), std::vector<int64_t>{4});
  EXPECT_EQ(std::get<std::string>(*record.find("text")), "x");
}

// What the tools of others wrote, and what they read in it: every key, name, number and byte.
class RecordPeers : public ::testing::TestWithParam<std::string> {};

TEST_P(RecordPeers, AreReadAsTheyReadThemselves) {
  const auto name = GetParam();
  if ((name.ends_with(".lmdb") || name.ends_with(".mdb")) && !testing::has_format("lmdb")) GTEST_SKIP() << "no LMDB";
  if ((name.ends_with(".h5") || name.ends_with(".hdf5")) && !testing::has_format("hdf5")) GTEST_SKIP() << "no HDF5";
  if (name.ends_with(".zst") && !detail::has_zstd()) GTEST_SKIP() << "no zstd";
  const auto expected = nlohmann::json::parse(read_file(record_fixtures() / "expected.json"))[name];
  const auto reader = open_records((record_fixtures() / name).string());
  ASSERT_EQ(reader->size(), static_cast<int64_t>(expected.size()));
  for (int64_t i = reader->size() - 1; i >= 0; --i) {
    EXPECT_EQ(to_json(reader->read(i)), expected[static_cast<size_t>(i)]) << name << " " << reader->where(i);
  }
  EXPECT_THAT(error_of([&] { reader->read(reader->size()); }), HasSubstr("was asked for, there are"));
  EXPECT_THAT(error_of([&] { reader->read(-1); }), HasSubstr("was asked for, there are"));
}

INSTANTIATE_TEST_SUITE_P(Files, RecordPeers, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           const auto expected = nlohmann::json::parse(read_file(record_fixtures() / "expected.json"));
                           for (const auto& [name, records] : expected.items()) names.push_back(name);
                           return names;
                         }()),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(Records, KnowFormatsByNameAndByFirstBytes) {
  EXPECT_EQ(open_records((record_fixtures() / "train-00000-of-00001").string())->format(), "tfrecord");
  const TemporaryFolder folder;
  fs::copy_file(record_fixtures() / "wds.tar", folder / "no_extension");
  EXPECT_EQ(open_records((folder / "no_extension").string())->format(), "tar");
  fs::copy_file(record_fixtures() / "contiguous.h5", folder / "hdf");
  fs::copy_file(record_fixtures() / "members.mdb", folder / "db");
  if (testing::has_format("hdf5")) {
    EXPECT_EQ(open_records((folder / "hdf").string())->format(), "hdf5");
  }
  if (testing::has_format("lmdb")) {
    EXPECT_EQ(open_records((folder / "db").string())->format(), "lmdb");
    EXPECT_EQ(open_records((record_fixtures() / "members.lmdb").string())->format(), "lmdb");
  }
  write_file(folder / "unknown.bin", "something");
  EXPECT_THAT(error_of([&] { open_records((folder / "unknown.bin").string()); }),
              HasSubstr("is of no format that is known by its name or its first bytes"));
}

TEST(Records, FolderOfShardsIsAllOfThem) {
  const TemporaryFolder folder;
  for (const char* name : {"shard-000001.tar", "shard-000000.tar", "shard-000002.tar"})
    fs::copy_file(record_fixtures() / name, folder / name);
  write_file(folder / "shard-000000.tar.index", "stale");
  const auto reader = open_records(folder.path().string());
  ASSERT_EQ(reader->size(), 5);
  EXPECT_EQ(reader->read(0).key, "s/0");
  EXPECT_EQ(reader->read(4).key, "s/4");
}

TEST(Records, RefuseInOneLineWithTheNearestWord) {
  const auto path = (record_fixtures() / "wds.tar").string();
  EXPECT_EQ(error_of([&] { open_records(path, {.format = "tfrecrod"}); }),
            "[records] format \"tfrecrod\" is not known; did you mean \"tfrecord\"? (known: auto, tar, tfrecord, lmdb, "
            "hdf5, folder, cifar10, cifar100, idx, csv, text)");
  EXPECT_EQ(
      error_of([&] { open_records((record_fixtures() / "wsd.tar").string()); }),
      "[records] \"" + (record_fixtures() / "wsd.tar").string() + "\" is not there; did you mean \"" + path + "\"?");
  EXPECT_THAT(error_of([&] { open_records((record_fixtures() / "nowhere/x.tar").string()); }),
              HasSubstr("is not there: there is no folder \""));
  EXPECT_THAT(error_of([&] { open_records((record_fixtures() / "shard-{000000..000003}.tar").string()); }),
              HasSubstr("shard-000003.tar\" is not there (asked for: \""));
  EXPECT_THAT(error_of([&] { open_records((record_fixtures() / "none-*.tar").string()); }),
              HasSubstr("there is no such file"));
  EXPECT_THAT(error_of([&] { create_records("x.zip"); }), HasSubstr("no format is known by the end \".zip\""));
  EXPECT_THAT(error_of([&] { create_records("x-{0..3}.tar"); }), HasSubstr("is a pattern"));
  EXPECT_THAT(error_of([&] { create_records(""); }), HasSubstr("the path is empty"));
}

TEST(Records, PatternsAreWrittenOut) {
  using detail::expand_braces;
  EXPECT_EQ(expand_braces("a"), std::vector<std::string>{"a"});
  EXPECT_EQ(expand_braces("a-{08..11}.tar"),
            (std::vector<std::string>{"a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"}));
  EXPECT_EQ(expand_braces("{8..10}"), (std::vector<std::string>{"8", "9", "10"}));
  EXPECT_EQ(expand_braces("{a,b}{0..1}"), (std::vector<std::string>{"a0", "a1", "b0", "b1"}));
  for (const char* bad :
       {"{3..1}", "{a..b}", "{1..2", "{{1..2}}", "{-1..2}", "{0..99999999999}", "{0..999}{0..9999}", "{..}"})
    EXPECT_THAT(error_of([&] { expand_braces(bad); }), HasSubstr("[records] \"")) << bad;
}

// Every format takes the same records and gives them back.
class RecordFormats : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!testing::has_format(GetParam().substr(1))) GTEST_SKIP() << "not in this build";
  }
  std::string path(const std::string& stem) const {
    const auto format = GetParam().substr(1);
    return (folder_ / (stem + "." + (format == "hdf5" ? "h5" : format))).string();
  }
  TemporaryFolder folder_;
};

TEST_P(RecordFormats, GiveBackWhatWasWritten) {
  std::vector<Record> records;
  for (int64_t i = 0; i < 7; ++i) records.push_back(plain_record(i));
  {
    const auto writer = create_records(path("a"), {.classes = {"cat", "dog"}});
    for (const auto& record : records) writer->write(record);
    EXPECT_FALSE(fs::exists(path("a"))) << "nothing is there before close()";
    writer->close();
    writer->close();
  }
  const auto reader = open_records(path("a"));
  EXPECT_EQ(reader->format(), GetParam().substr(1));
  EXPECT_EQ(reader->classes(), (std::vector<std::string>{"cat", "dog"}));
  ASSERT_EQ(reader->size(), 7);
  for (int64_t i = 6; i >= 0; --i) {
    auto& expected = records[static_cast<size_t>(i)];
    if (reader->format() == "tfrecord") expected.set("image/format", "PNG");  // stands beside what is encoded
    EXPECT_EQ(to_json(reader->read(i)), to_json(expected)) << reader->where(i);
  }
}

TEST_P(RecordFormats, LeaveNothingWithoutClose) {
  {
    const auto writer = create_records(path("a"));
    writer->write(plain_record(0));
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_P(RecordFormats, ReplaceOnlyWhenAsked) {
  for (const int64_t count : {1, 2}) {
    const auto writer = create_records(path("a"), {.overwrite = count == 2});
    for (int64_t i = 0; i < count; ++i) writer->write(plain_record(i));
    writer->close();
  }
  EXPECT_EQ(open_records(path("a"))->size(), 2);
  EXPECT_THAT(error_of([&] { create_records(path("a")); }),
              HasSubstr("is there already; overwrite = true replaces it"));
  const auto writer = create_records(path("a"), {.overwrite = true});
  EXPECT_EQ(open_records(path("a"))->size(), 2) << "the old one stands until close()";
}

TEST_P(RecordFormats, RefuseWritingAfterClose) {
  const auto writer = create_records(path("a"));
  writer->write(plain_record(0));
  writer->close();
  EXPECT_THAT(error_of([&] { writer->write(plain_record(1)); }), HasSubstr("was closed"));
}

TEST_P(RecordFormats, NumberRecordsWithoutKeys) {
  const auto writer = create_records(path("a"));
  for (int64_t i = 0; i < 3; ++i) {
    auto record = plain_record(i);
    record.key.clear();
    writer->write(record);
  }
  writer->close();
  EXPECT_EQ(open_records(path("a"))->read(2).key, "00000002");
}

// Reads from many threads at once give what one thread gives.
TEST_P(RecordFormats, AreReadByManyThreads) {
  const auto writer = create_records(path("a"));
  for (int64_t i = 0; i < 64; ++i) writer->write(plain_record(i));
  writer->close();
  const auto reader = open_records(path("a"));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int64_t k = 0; k < 200; ++k) {
        const int64_t i = (k * 17 + t * 5) % 64;
        const auto record = reader->read(i);
        if (std::get<std::vector<int64_t>>(*record.find("label")) != std::vector<int64_t>{i % 2}) ++wrong;
        if (std::get<std::string>(*record.find("image")) != std::get<std::string>(*plain_record(i).find("image")))
          ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(RecordFormats, LeakNothing) {
  const auto writer = create_records(path("a"));
  for (int64_t i = 0; i < 8; ++i) writer->write(plain_record(i));
  writer->close();
  auto cycle = [&] { open_records(path("a"))->read(3); };
  for (int i = 0; i < 3; ++i) cycle();
  const auto before = testing::process_counts();
  for (int i = 0; i < 100; ++i) {
    cycle();
    create_records(path("b"))->write(plain_record(0));
  }
  const auto after = testing::process_counts();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_LT(after.resident_bytes, before.resident_bytes + (16 << 20));
}

TEST_P(RecordFormats, KeepNothing) {
  create_records(path("a"))->close();
  EXPECT_EQ(open_records(path("a"))->size(), 0);
}

TEST(Hdf5Records, GroupsWithoutDatasetsBesideThemAreNamed) {
  if (!testing::has_format("hdf5")) GTEST_SKIP() << "no HDF5";
  EXPECT_THAT(error_of([] { open_records((record_fixtures() / "groups.h5").string(), {.split = "valid"}); }),
              HasSubstr("; it has none and the groups test, train, of which the split names one"));
}

INSTANTIATE_TEST_SUITE_P(All, RecordFormats, ::testing::Values(".tar", ".tfrecord", ".lmdb", ".hdf5"),
                         [](const auto& test) { return test.param.substr(1); });

// Fields of every kind, where a format keeps every kind.
class RecordKinds : public RecordFormats {};

TEST_P(RecordKinds, AreKept) {
  Record record{.key = "a/b", .fields = {}};
  record.set("image", at::arange(24, at::kByte).reshape({2, 4, 3}));
  record.set("label", std::vector<int64_t>{1, 0, 1});
  record.set("weights", std::vector<float>{0.5, 1.0, -1e-20});
  record.set("box", at::rand({2, 3}));
  record.set("count", std::vector<int64_t>{-5});
  record.set("raw", std::string("\0\1\2", 3));
  const auto writer = create_records(path("a"));
  writer->write(record);
  writer->close();
  EXPECT_EQ(to_json(open_records(path("a"))->read(0)), to_json(record));
}

INSTANTIATE_TEST_SUITE_P(All, RecordKinds, ::testing::Values(".tar", ".tfrecord", ".lmdb", ".hdf5"),
                         [](const auto& test) { return test.param.substr(1); });

}  // namespace
}  // namespace levin
