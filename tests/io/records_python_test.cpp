#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"
#include "tests/io/records_testing.h"

namespace levin {
namespace {

// webdataset, GNU tar, tfrecord, py-lmdb and h5py themselves read what Levin writes.
TEST(RecordPeersInPython, ReadWhatLevinWrites) {
  const auto python = testing::python_with("webdataset, tfrecord, lmdb, h5py");
  if (!python) GTEST_SKIP() << "no Python with webdataset, tfrecord, lmdb and h5py (LEVIN_PEER_PYTHON names one)";
  const testing::TemporaryFolder folder;
  nlohmann::json files = nlohmann::json::object();
  auto write = [&](const std::string& name, const std::vector<Record>& records, RecordWriterOptions options = {}) {
    if (name.ends_with("db") && !testing::has_format("lmdb")) return;
    if (name.ends_with(".h5") && !testing::has_format("hdf5")) return;
    options.classes = {"cat", "dog"};
    const auto writer = create_records((folder / name).string(), options);
    for (const auto& record : records) {
      writer->write(record);
      files[name].push_back(testing::to_json(record));
    }
    writer->close();
  };
  std::vector<Record> plain, raw, all;
  for (int64_t i = 0; i < 9; ++i) {
    plain.push_back(testing::plain_record(i));
    raw.push_back({.key = fmt::format("folder/{:04}", i), .fields = {}});
    raw.back().set("image", at::randint(0, 256, {3, 5, 3}, at::kByte));
    raw.back().set("label", std::vector<int64_t>{i});
  }
  auto kinds = plain[1];
  kinds.key = std::string(130, 'd') + "/" + std::string(120, 'n');
  kinds.set("scores", std::vector<float>{0.5, -2.0, 1e-7});
  kinds.set("count", std::vector<int64_t>{1, -2, int64_t{1} << 50});
  kinds.set("box", at::rand({2, 2}));
  for (const std::string end : {"tar", "tfrecord", "lmdb", "mdb", "h5"}) {
    write("plain." + end, plain);
    write("raw." + end, raw);
    write("kinds." + end, {kinds});
  }
  write("shards-%06d.tar", plain, {.shard_records = 4});
  write_file(folder / "files.json", files.dump());
  const auto script = std::filesystem::path(testing::source_dir()) / "tests/io/read_records.py";
  const auto ran = testing::run_program({*python, script.string(), folder.path().string()});
  EXPECT_EQ(ran.status, 0) << ran.text();
  EXPECT_NE(ran.text().find(": equal"), std::string::npos) << ran.text();
}

}  // namespace
}  // namespace levin
