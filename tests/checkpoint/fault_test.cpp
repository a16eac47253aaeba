#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include <spawn.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "folder.h"
#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/format.h"
#include "levin/core/checksum.h"
#include "levin/core/files.h"
#include "levin/io/weights/safetensors.h"

extern char** environ;

namespace levin {
namespace {
namespace fs = std::filesystem;

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

using FaultTest = FolderTest;

TEST_F(FaultTest, TruncatedFilesAreNamedWithBothSizes) {
  save_checkpoint(root_ / "c", numbered(1));
  const auto path = root_ / "c/model.safetensors";
  const auto size = fs::file_size(path);
  fs::resize_file(path, size - 5);
  EXPECT_HAS(error_of([&] { load_checkpoint(root_ / "c"); }),
             fmt::format("\"model.safetensors\" has {} bytes, {} were written", size - 5, size));
  fs::resize_file(path, 0);
  EXPECT_HAS(error_of([&] { verify_checkpoint(root_ / "c"); }), "has 0 bytes");
  fs::remove(path);
  EXPECT_HAS(error_of([&] { verify_checkpoint(root_ / "c"); }), "incomplete: cannot read \"model.safetensors\"");
}

TEST_F(FaultTest, ZeroFilledFilesAreRefused) {
  save_checkpoint(root_ / "c", numbered(1));
  for (const char* name : {"model.safetensors", "state.json", "manifest.json"}) {
    const auto content = read_file(root_ / "c" / name);
    write_file(root_ / "c" / name, std::string(content.size(), '\0'));
    EXPECT_NE(error_of([&] { load_checkpoint(root_ / "c"); }), "no error") << name;
    write_file(root_ / "c" / name, content);
  }
  EXPECT_EQ(number_of(root_ / "c"), 1);
}

TEST_F(FaultTest, AFlippedBitIsFoundAndTheTensorNamed) {
  save_checkpoint(root_ / "c", numbered(1));
  const auto path = root_ / "c/model.safetensors";
  change_byte(path, fs::file_size(path) - 1);  // the last byte of b: types first, then names
  const auto line = error_of([&] { load_checkpoint(root_ / "c"); });
  EXPECT_HAS(line, "tensor \"model.b\" in \"model.safetensors\" has checksum");
  // Nothing was touched.
  auto module = std::make_shared<torch::nn::Module>();
  module->register_buffer("a", torch::zeros({64, 64}, at::kLong));
  module->register_buffer("b", torch::zeros({3}, at::kLong));
  State state{{"model", module}};
  EXPECT_HAS(error_of([&] { load_checkpoint(root_ / "c", state); }), "model.b");
  EXPECT_EQ(module->named_buffers()["a"].sum().item<int64_t>(), 0);
  load_checkpoint(root_ / "c", state, {.verify = false, .leftover = false});
  EXPECT_EQ(module->named_buffers()["a"].sum().item<int64_t>(), 64 * 64);
}

TEST_F(FaultTest, NoFlippedBitAnywhereGoesUnseen) {
  save_checkpoint(root_ / "c", StateDict{{"model", StateDict{{"w", torch::ones({4})}}}, {"lr", 0.5}});
  for (const char* name : {"model.safetensors", "state.json", "manifest.json"}) {
    const auto path = root_ / "c" / name;
    const auto good = read_file(path);
    for (uint64_t at = 0; at < good.size(); ++at) {
      // White space between the manifest's words means nothing.
      if (name == std::string("manifest.json") && (good[at] == ' ' || good[at] == '\n')) continue;
      change_byte(path, at);
      EXPECT_NE(error_of([&] { load_checkpoint(root_ / "c"); }), "no error") << name << " byte " << at;
      change_byte(path, at);
    }
  }
  EXPECT_EQ(error_of([&] { load_checkpoint(root_ / "c"); }), "no error");
}

TEST_F(FaultTest, IncompleteAndForeignFoldersAreTold) {
  EXPECT_HAS(error_of([&] { load_checkpoint(root_ / "none"); }), "does not exist");
  save_checkpoint(root_ / "c", numbered(1));
  fs::remove(root_ / "c/manifest.json");
  EXPECT_HAS(error_of([&] { load_checkpoint(root_ / "c"); }), "incomplete: it has no manifest.json");
  EXPECT_HAS(error_of([&] { load_checkpoint(root_ / "c/state.json"); }), "is a file");
}

TEST_F(FaultTest, ANewerFormatIsRefusedWithBothVersions) {
  save_checkpoint(root_ / "c", numbered(1));
  detail::Manifest newer;
  newer.version = 2;
  newer.levin = "9.8.7";
  write_file(root_ / "c/manifest.json", detail::manifest_text(newer));
  EXPECT_HAS(error_of([&] { load_checkpoint(root_ / "c"); }),
             "has format version 2 (written by Levin 9.8.7), this Levin reads up to 1");
  EXPECT_EQ(latest_good_checkpoint(root_), std::nullopt);
}

TEST_F(FaultTest, ManifestsCannotLeaveTheFolderOrLieAboutParts) {
  const auto refused = [](const std::function<void(detail::Manifest&)>& change) {
    detail::Manifest manifest;
    manifest.tensors = {{"t", "F32", {4, 2}, {{"a", "t", {0, 0}, {2, 2}, "0"}, {"b", "t", {2, 0}, {2, 2}, "0"}}}};
    change(manifest);
    return error_of([&] { detail::parse_manifest(detail::manifest_text(manifest), "c"); });
  };
  EXPECT_EQ(refused([](auto&) {}), "no error");
  for (const char* name : {"../x", "/etc/passwd", "..", ""})
    EXPECT_HAS(refused([&](auto& m) { m.files.push_back({name, 1, ""}); }), "only plain file names");
  EXPECT_HAS(refused([](auto& m) { m.tensors[0].parts.pop_back(); }), "do not cover it");
  EXPECT_HAS(refused([](auto& m) { m.tensors[0].parts[1].start = {1, 0}; }), "overlap");
  EXPECT_HAS(refused([](auto& m) { m.tensors[0].parts[1].start = {3, 0}; }), "outside");
  EXPECT_HAS(refused([](auto& m) { m.tensors[0].parts[1].start = {-1, 0}; }), "outside");
  EXPECT_HAS(refused([](auto& m) { m.tensors[0].parts[1].start = {2}; }), "another rank");
  EXPECT_HAS(refused([](auto& m) {
               m.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
               m.tensors[0].parts = {{"a", "t", {0, 0}, m.tensors[0].shape, "0"}};
             }),
             "too large");
}

TEST_F(FaultTest, TensorsInPartsArePutTogether) {
  // What ranks that each write their own shard leave: one tensor in two files, cut along its second dimension.
  const auto whole = torch::arange(12.0).reshape({3, 4});
  const auto folder = root_ / "c";
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
  EXPECT_EQ(latest_good_checkpoint(root_), std::nullopt);
  EXPECT_EQ(latest_good_checkpoint(root_ / "none"), std::nullopt);
  for (int64_t n = 1; n <= 4; ++n) save_checkpoint(root_ / fmt::format("step-{}", n * 5), numbered(n));
  fs::create_directories(root_ / ".step-25.tmp-x-1-0");
  EXPECT_EQ(latest_good_checkpoint(root_), root_ / "step-20");
  change_byte(root_ / "step-20/model.safetensors", fs::file_size(root_ / "step-20/model.safetensors") - 1);
  EXPECT_EQ(latest_good_checkpoint(root_), root_ / "step-15");
  fs::remove(root_ / "step-15/manifest.json");
  EXPECT_EQ(latest_good_checkpoint(root_), root_ / "step-10");
}

TEST_F(FaultTest, OnlyCheckpointsAreReplaced) {
  save_checkpoint(root_ / "c", numbered(1));
  save_checkpoint(root_ / "c", numbered(2));
  EXPECT_EQ(number_of(root_ / "c"), 2);
  EXPECT_EQ(entries(), 1U);
  write_file(root_ / "c/notes.txt", "precious");
  EXPECT_HAS(error_of([&] { save_checkpoint(root_ / "c", numbered(3)); }), "holds \"notes.txt\"");
  EXPECT_HAS(error_of([&] { save_checkpoint(root_, numbered(3)); }), "holds \"c\"");
  EXPECT_EQ(read_file(root_ / "c/notes.txt"), "precious");
  fs::remove(root_ / "c/notes.txt");
  write_file(root_ / "c/manifest.json", "damaged");
  save_checkpoint(root_ / "c", numbered(4));
  EXPECT_EQ(number_of(root_ / "c"), 4);
  write_file(root_ / "file", "x");
  EXPECT_HAS(error_of([&] { save_checkpoint(root_ / "file", numbered(3)); }), "is a file");
}

TEST_F(FaultTest, AFailedWriteLeavesTheOldOneAndNoRest) {
  save_checkpoint(root_ / "c", numbered(1));
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 1 << 12, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto line = error_of([&] { save_checkpoint(root_ / "c", numbered(2)); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_HAS(line, "model.safetensors\": File too large");
  EXPECT_EQ(number_of(root_ / "c"), 1);
  EXPECT_EQ(entries(), 1U);
}

TEST_F(FaultTest, AFullDiskSaysSo) {
  if (::mount("levin", root_.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "needs the right to mount";
  save_checkpoint(root_ / "c", StateDict{{"n", 1}});
  const auto line = error_of([&] { save_checkpoint(root_ / "c", StateDict{{"w", torch::zeros({100, 1000})}}); });
  const auto n = load_checkpoint(root_ / "c").at("n").to_int();
  const auto left = entries();
  ::umount(root_.c_str());
  EXPECT_HAS(line, "No space left on device");
  EXPECT_EQ(n, 1);
  EXPECT_EQ(left, 1U);
}

TEST_F(FaultTest, AReadOnlyFolderSaysSo) {
  if (::getuid() == 0) {
    // Permissions do not bind root: a folder where none can write will do.
    EXPECT_HAS(error_of([&] { save_checkpoint("/proc/levin/c", numbered(1)); }), "/proc/levin");
    return;
  }
  fs::permissions(root_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_HAS(error_of([&] { save_checkpoint(root_ / "c", numbered(1)); }), "Permission denied");
}

TEST_F(FaultTest, WhoReadsWhileAnotherReplacesSeesTheOneOrTheOther) {
  save_checkpoint(root_ / "c", numbered(1));
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int64_t n = 2; n <= 60; ++n) save_checkpoint(root_ / "c", numbered(n));
    done = true;
  });
  int64_t last = 1, reads = 0;
  std::string error = "no error";
  while (!done) {
    error = error_of([&] {
      const auto n = number_of(root_ / "c");
      EXPECT_GE(n, last);
      last = n;
    });
    if (error != "no error") break;
    ++reads;
  }
  writer.join();
  EXPECT_EQ(error, "no error");
  EXPECT_GT(reads, 0);
  EXPECT_EQ(number_of(root_ / "c"), 60);
}

/// Not a test by itself: the process that the next one kills.
TEST(KilledWriter, Writes) {
  const char* folder = std::getenv("LEVIN_KILLED_WRITER");
  if (!folder) GTEST_SKIP() << "runs only as a child of the next test";
  for (int64_t n = 1;; ++n) save_checkpoint(fs::path(folder) / "c", numbered(n));
}

TEST_F(FaultTest, AKilledWriterLeavesAWholeCheckpoint) {
  ASSERT_EQ(::setenv("LEVIN_KILLED_WRITER", root_.c_str(), 1), 0);
  int64_t last = 0;
  for (int round = 0; round < 4; ++round) {
    const char* arguments[] = {"checkpoint_test", "--gtest_filter=KilledWriter.Writes", "--gtest_brief=1", nullptr};
    pid_t child = 0;
    ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments), environ), 0);
    struct Killed {
      pid_t& child;
      ~Killed() {
        if (child > 0) ::kill(child, SIGKILL);
      }
    } const in_any_case{child};
    // It is killed in the middle of its work, a little later each time.
    const auto written = [&] { return fs::exists(root_ / "c") ? checkpoint_info(root_ / "c").saved_at : 0; };
    const double before = written();
    while (written() == before) ::usleep(1000);
    ::usleep(static_cast<unsigned>(7000 + 3700 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    const pid_t killed = std::exchange(child, 0);
    ASSERT_EQ(::waitpid(killed, &status, 0), killed);
    ASSERT_TRUE(WIFSIGNALED(status));
    last = number_of(root_ / "c");
    EXPECT_GE(last, 1);
  }
  ::unsetenv("LEVIN_KILLED_WRITER");
  // The next save clears away what the dead left.
  save_checkpoint(root_ / "c", numbered(0));
  EXPECT_EQ(entries(), 1U);
}

}  // namespace
}  // namespace levin
