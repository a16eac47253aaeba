#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/format.h"
#include "levin/core/checksum.h"
#include "levin/core/files.h"
#include "levin/io/weights/safetensors.h"
#include "levin/testing/error_of.h"
#include "levin/testing/eventually.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/probe.h"
#include "levin/testing/process.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

/// A checkpoint whose every number is `n`.
StateDict numbered(int64_t n) {
  return {{"model", StateDict{{"a", torch::full({64, 64}, n)}, {"b", torch::full({3}, n)}}},
          {"optimizer", StateDict{{"0", StateDict{{"exp_avg", torch::full({64}, n)}}}}},
          {"n", n}};
}

/// The number, when the checkpoint is whole and all of it says the same.
int64_t number_of(const fs::path& folder) {
  const auto state = load_checkpoint(folder);
  const auto n = state.at("n").to_int();
  for (const char* name : {"a", "b"})
    EXPECT_TRUE(state.at("model").to_dict().at(name).to_tensor().eq(n).all().item<bool>());
  return n;
}

void change_byte(const fs::path& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

using FaultTest = testing::FolderTest;

TEST_F(FaultTest, TruncatedFilesAreNamedWithBothSizes) {
  save_checkpoint(folder_ / "c", numbered(1));
  const auto path = folder_ / "c/model.safetensors";
  const auto size = fs::file_size(path);
  fs::resize_file(path, size - 5);
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "c"); }),
              HasSubstr(fmt::format("\"model.safetensors\" has {} bytes, {} were written", size - 5, size)));
  fs::resize_file(path, 0);
  EXPECT_THAT(error_of([&] { verify_checkpoint(folder_ / "c"); }), HasSubstr("has 0 bytes"));
  fs::remove(path);
  EXPECT_THAT(error_of([&] { verify_checkpoint(folder_ / "c"); }),
              HasSubstr("incomplete: cannot read \"model.safetensors\""));
}

TEST_F(FaultTest, ZeroFilledFilesAreRefused) {
  save_checkpoint(folder_ / "c", numbered(1));
  for (const char* name : {"model.safetensors", "state.json", "manifest.json"}) {
    const auto content = read_file(folder_ / "c" / name);
    write_file(folder_ / "c" / name, std::string(content.size(), '\0'));
    EXPECT_NE(error_of([&] { load_checkpoint(folder_ / "c"); }), "no error") << name;
    write_file(folder_ / "c" / name, content);
  }
  EXPECT_EQ(number_of(folder_ / "c"), 1);
}

TEST_F(FaultTest, AFlippedBitIsFoundAndTheTensorNamed) {
  save_checkpoint(folder_ / "c", numbered(1));
  const auto path = folder_ / "c/model.safetensors";
  change_byte(path, fs::file_size(path) - 1);  // the last byte of b: types first, then names
  const auto line = error_of([&] { load_checkpoint(folder_ / "c"); });
  EXPECT_THAT(line, HasSubstr("tensor \"model.b\" in \"model.safetensors\" has checksum"));
  // Nothing was touched.
  auto module = std::make_shared<torch::nn::Module>();
  module->register_buffer("a", torch::zeros({64, 64}, at::kLong));
  module->register_buffer("b", torch::zeros({3}, at::kLong));
  State state{{"model", module}};
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "c", state); }), HasSubstr("model.b"));
  EXPECT_EQ(module->named_buffers()["a"].sum().item<int64_t>(), 0);
  load_checkpoint(folder_ / "c", state, {.verify = false, .leftover = false});
  EXPECT_EQ(module->named_buffers()["a"].sum().item<int64_t>(), 64 * 64);
}

TEST_F(FaultTest, NoFlippedBitAnywhereGoesUnseen) {
  save_checkpoint(folder_ / "c", StateDict{{"model", StateDict{{"w", torch::ones({4})}}}, {"lr", 0.5}});
  for (const char* name : {"model.safetensors", "state.json", "manifest.json"}) {
    const auto path = folder_ / "c" / name;
    const auto good = read_file(path);
    for (uint64_t at = 0; at < good.size(); ++at) {
      // White space between the manifest's words means nothing.
      if (name == std::string("manifest.json") && (good[at] == ' ' || good[at] == '\n')) continue;
      change_byte(path, at);
      EXPECT_NE(error_of([&] { load_checkpoint(folder_ / "c"); }), "no error") << name << " byte " << at;
      change_byte(path, at);
    }
  }
  EXPECT_EQ(error_of([&] { load_checkpoint(folder_ / "c"); }), "no error");
}

TEST_F(FaultTest, IncompleteAndForeignFoldersAreTold) {
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "none"); }), HasSubstr("does not exist"));
  save_checkpoint(folder_ / "c", numbered(1));
  fs::remove(folder_ / "c/manifest.json");
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "c"); }), HasSubstr("incomplete: it has no manifest.json"));
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "c/state.json"); }), HasSubstr("is a file"));
}

TEST_F(FaultTest, ANewerFormatIsRefusedWithBothVersions) {
  save_checkpoint(folder_ / "c", numbered(1));
  detail::Manifest newer;
  newer.version = 2;
  newer.levin = "9.8.7";
  write_file(folder_ / "c/manifest.json", detail::manifest_text(newer));
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "c"); }),
              HasSubstr("has format version 2 (written by Levin 9.8.7), this Levin reads up to 1"));
  EXPECT_THAT(error_of([&] { latest_good_checkpoint(folder_); }), HasSubstr("none of the 1 checkpoints"));
}

TEST_F(FaultTest, ManifestsCannotLeaveTheFolderOrLieAboutShards) {
  const auto refused = [](const std::function<void(detail::Manifest&)>& change) {
    detail::Manifest manifest;
    manifest.tensors = {{"t", "F32", {4, 2}, {{"a", "t", {0, 0}, {2, 2}, "0"}, {"b", "t", {2, 0}, {2, 2}, "0"}}}};
    change(manifest);
    return error_of([&] { detail::parse_manifest(detail::manifest_text(manifest), "c"); });
  };
  EXPECT_EQ(refused([](auto&) {}), "no error");
  for (const char* name : {"../x", "/etc/passwd", "..", ""})
    EXPECT_THAT(refused([&](auto& m) { m.files.push_back({name, 1, ""}); }), HasSubstr("only plain file names"));
  EXPECT_THAT(refused([](auto& m) { m.tensors[0].parts.pop_back(); }), HasSubstr("do not cover it"));
  EXPECT_THAT(refused([](auto& m) { m.tensors[0].parts[1].start = {1, 0}; }), HasSubstr("overlap"));
  EXPECT_THAT(refused([](auto& m) { m.tensors[0].parts[1].start = {3, 0}; }), HasSubstr("outside"));
  EXPECT_THAT(refused([](auto& m) { m.tensors[0].parts[1].start = {-1, 0}; }), HasSubstr("outside"));
  EXPECT_THAT(refused([](auto& m) { m.tensors[0].parts[1].start = {2}; }), HasSubstr("another rank"));
  EXPECT_THAT(refused([](auto& m) {
                m.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
                m.tensors[0].parts = {{"a", "t", {0, 0}, m.tensors[0].shape, "0"}};
              }),
              HasSubstr("too large"));
}

TEST_F(FaultTest, ShardedTensorsAreConsolidated) {
  // What ranks that each write their own shard leave: one tensor in two files, cut along its second dimension.
  const auto whole = torch::arange(12.0).reshape({3, 4});
  const auto folder = folder_ / "c";
  fs::create_directories(folder);
  detail::Manifest manifest;
  manifest.tensors = {{"model.w", "F32", {3, 4}, {}}};
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto name = fmt::format("model-{}.safetensors", rank);
    FileWriter writer(folder / name);
    const auto records = write_safetensors(writer, {{"w", whole.narrow(1, rank * 2, 2)}});
    writer.close();
    manifest.files.push_back({name, writer.size(), checksum_text(SafetensorsFile(folder / name).header_checksum())});
    manifest.tensors[0].parts.push_back({name, "w", {0, rank * 2}, {3, 2}, checksum_text(records[0].checksum)});
  }
  const std::string tree = R"({"model": {"w": {"$tensor": "model.w"}}})";
  write_file(folder / "state.json", tree);
  manifest.files.push_back({"state.json", tree.size(), checksum_text(crc32c(tree))});
  write_file(folder / "manifest.json", detail::manifest_text(manifest));

  verify_checkpoint(folder);
  EXPECT_TRUE(torch::equal(load_checkpoint(folder).at("model").to_dict().at("w").to_tensor(), whole));
  auto module = std::make_shared<torch::nn::Module>();
  module->register_buffer("w", torch::zeros({3, 4}));
  load_raw(folder, module);
  EXPECT_TRUE(torch::equal(module->named_buffers()["w"], whole));
}

TEST_F(FaultTest, TheLatestGoodOneIsFound) {
  EXPECT_EQ(latest_good_checkpoint(folder_), std::nullopt);
  EXPECT_EQ(latest_good_checkpoint(folder_ / "none"), std::nullopt);
  for (int64_t n = 1; n <= 4; ++n) save_checkpoint(folder_ / fmt::format("step-{}", n * 5), numbered(n));
  fs::create_directories(folder_ / ".step-25.tmp-x-1-0");
  EXPECT_EQ(latest_good_checkpoint(folder_), folder_ / "step-20");
  change_byte(folder_ / "step-20/model.safetensors", fs::file_size(folder_ / "step-20/model.safetensors") - 1);
  EXPECT_EQ(latest_good_checkpoint(folder_), folder_ / "step-15");
  fs::remove(folder_ / "step-15/manifest.json");
  EXPECT_EQ(latest_good_checkpoint(folder_), folder_ / "step-10");
  fs::create_directories(folder_ / "logs");
  for (const char* name : {"step-10", "step-5"}) fs::resize_file(folder_ / name / "state.json", 3);
  EXPECT_THAT(error_of([&] { latest_good_checkpoint(folder_); }), HasSubstr("none of the 4 checkpoints"));
}

/// What a process saves is newer than what it has read, also after the clock was set back.
TEST_F(FaultTest, TheNewestIsNotThatOfAClockThatWasAhead) {
  save_checkpoint(folder_ / "before", numbered(1));
  auto manifest = detail::parse_manifest(read_file(folder_ / "before/manifest.json"), "");
  manifest.saved_at += 86400;
  write_file(folder_ / "before/manifest.json", detail::manifest_text(manifest));
  ASSERT_EQ(number_of(folder_ / "before"), 1);
  save_checkpoint(folder_ / "after", numbered(2));
  EXPECT_EQ(latest_good_checkpoint(folder_), folder_ / "after");
}

/// Buffers of a model that trains on, say. What of them is in the checkpoint nobody knows; it can be loaded.
TEST_F(FaultTest, WhatChangesWhileItIsSavedCanBeLoaded) {
  auto changing = torch::zeros({1 << 22});
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    for (int64_t n = 0; !ends; ++n) changing.fill_(static_cast<double>(n));
  });
  for (int i = 0; i < 6; ++i) {
    save_checkpoint(folder_ / "c", StateDict{{"model", StateDict{{"w", changing}}}});
    EXPECT_EQ(error_of([&] { verify_checkpoint(folder_ / "c"); }), "no error");
  }
  ends = true;
  writer.join();
}

TEST_F(FaultTest, OnlyCheckpointsAreReplaced) {
  save_checkpoint(folder_ / "c", numbered(1));
  save_checkpoint(folder_ / "c", numbered(2));
  EXPECT_EQ(number_of(folder_ / "c"), 2);
  EXPECT_EQ(temporary_.entries(), 1U);
  write_file(folder_ / "c/notes.txt", "precious");
  EXPECT_THAT(error_of([&] { save_checkpoint(folder_ / "c", numbered(3)); }), HasSubstr("holds \"notes.txt\""));
  EXPECT_THAT(error_of([&] { save_checkpoint(folder_, numbered(3)); }), HasSubstr("holds \"c\""));
  EXPECT_EQ(read_file(folder_ / "c/notes.txt"), "precious");
  fs::remove(folder_ / "c/notes.txt");
  write_file(folder_ / "c/manifest.json", "damaged");
  save_checkpoint(folder_ / "c", numbered(4));
  EXPECT_EQ(number_of(folder_ / "c"), 4);
  write_file(folder_ / "file", "x");
  EXPECT_THAT(error_of([&] { save_checkpoint(folder_ / "file", numbered(3)); }), HasSubstr("is a file"));
}

TEST_F(FaultTest, AFailedWriteLeavesTheOldOneAndNoRest) {
  save_checkpoint(folder_ / "c", numbered(1));
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 1 << 12, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto line = error_of([&] { save_checkpoint(folder_ / "c", numbered(2)); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(line, HasSubstr("model.safetensors\": File too large"));
  EXPECT_EQ(number_of(folder_ / "c"), 1);
  EXPECT_EQ(temporary_.entries(), 1U);
}

TEST_F(FaultTest, AFullDiskSaysSo) {
  if (::mount("levin", folder_.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "needs the right to mount";
  save_checkpoint(folder_ / "c", StateDict{{"n", 1}});
  const auto line = error_of([&] { save_checkpoint(folder_ / "c", StateDict{{"w", torch::zeros({100, 1000})}}); });
  const auto n = load_checkpoint(folder_ / "c").at("n").to_int();
  const auto left = temporary_.entries();
  ::umount(folder_.c_str());
  EXPECT_THAT(line, HasSubstr("No space left on device"));
  EXPECT_EQ(n, 1);
  EXPECT_EQ(left, 1U);
}

TEST_F(FaultTest, AReadOnlyFolderSaysSo) {
  if (::getuid() == 0) {
    // Permissions do not bind root: a folder where none can write will do.
    EXPECT_THAT(error_of([&] { save_checkpoint("/proc/levin/c", numbered(1)); }), HasSubstr("/proc/levin"));
    return;
  }
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(error_of([&] { save_checkpoint(folder_ / "c", numbered(1)); }), HasSubstr("Permission denied"));
}

TEST_F(FaultTest, WhoReadsWhileAnotherReplacesSeesTheOneOrTheOther) {
  save_checkpoint(folder_ / "c", numbered(1));
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int64_t n = 2; n <= 60; ++n) save_checkpoint(folder_ / "c", numbered(n));
    done = true;
  });
  int64_t last = 1, reads = 0;
  std::string error = "no error";
  while (!done) {
    error = error_of([&] {
      const auto n = number_of(folder_ / "c");
      EXPECT_GE(n, last);
      last = n;
    });
    if (error != "no error") break;
    ++reads;
  }
  writer.join();
  EXPECT_EQ(error, "no error");
  EXPECT_GT(reads, 0);
  EXPECT_EQ(number_of(folder_ / "c"), 60);
}

LEVIN_PROBE(writes_checkpoints) {
  for (int64_t n = 1;; ++n) save_checkpoint(arguments.at(0), numbered(n));
}

TEST_F(FaultTest, AKilledWriterLeavesAWholeCheckpoint) {
  const auto path = folder_ / "c";
  const auto saved_at = [&] { return fs::exists(path) ? checkpoint_info(path).saved_at : 0; };
  for (int round = 0; round < 4; ++round) {
    testing::Process writer(testing::probe_command("writes_checkpoints", {path.string()}));
    const double before = saved_at();
    ASSERT_TRUE(testing::eventually([&] { return saved_at() != before; }));
    // In the middle of its work, a little later each time.
    std::this_thread::sleep_for(std::chrono::microseconds(7000 + 3700 * round));
    writer.signal(SIGKILL);
    EXPECT_EQ(writer.wait(), 128 + SIGKILL);
    EXPECT_GE(number_of(path), 1);
  }
  // The next save clears away what the dead left.
  save_checkpoint(folder_ / "c", numbered(0));
  EXPECT_EQ(temporary_.entries(), 1U);
}

}  // namespace
}  // namespace levin
