// Folders of strangers: whatever is in them, open_model gives a model or one line, and allocates nothing for what is
// refused.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "levin/core/files.h"
#include "levin/models/folder.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"

namespace levin::hostile_tests {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kHonest = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

/// A line of /proc/self/status in megabytes.
double status_megabytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stod(line.substr(field.size())) / 1024;
  return 0;
}

class HostileFolder : public testing::FolderTest {
 protected:
  void SetUp() override {
    // The most that was resident is counted from here on.
    std::ofstream("/proc/self/clear_refs") << "5";
    before_ = status_megabytes("VmRSS:");
  }
  void TearDown() override { EXPECT_LT(status_megabytes("VmHWM:") - before_, 150) << "MB were taken"; }

  fs::path model() const { return folder_ / "model"; }
  fs::path index() const { return model() / "model.safetensors.index.json"; }
  void start(const std::string& name) {
    fs::remove_all(model());
    fs::copy(kHonest / name, model());
  }
  std::string error() const {
    const auto line = error_of([&] { models::open_model(model()); });
    EXPECT_EQ(line.find_first_of("\n\r\t\x1b"), line.npos) << line;
    EXPECT_LT(line.size(), 3000U) << line;
    return line;
  }
  /// The error of a folder whose index says this of `a` and whose shard has it.
  std::string error_of_place(const std::string& place) {
    write_file(index(), R"({"weight_map": {"a": )" + place + "}}");
    return error();
  }
  void write_header(const std::string& header, uint64_t data_bytes) {
    const uint64_t length = header.size();
    std::ofstream out(model() / "model.safetensors", std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << header;
    out.close();
    fs::resize_file(model() / "model.safetensors", 8 + length + data_bytes);  // a hole: it takes no space
  }

  double before_ = 0;
};

TEST_F(HostileFolder, IndexesNameFilesBesideThem) {
  start("gpt2_by_layer");
  for (const char* place :
       {R"("../x.safetensors")", R"("/etc/passwd")", R"("a/b.safetensors")", R"("..")", R"(".")", R"("")",
        R"("a\\b.safetensors")", R"("a\u0000b.safetensors")", "1", "null", "[]", "{}", R"(["x"])"})
    EXPECT_THAT(error_of_place(place), HasSubstr("only names of files beside the index")) << place;
  // Not what they should be: the index itself, a folder, a pipe, links that lead to each other or nowhere.
  fs::create_directory(model() / "folder");
  ASSERT_EQ(::mkfifo((model() / "pipe").c_str(), 0600), 0);
  fs::create_symlink("loop_b", model() / "loop_a");
  fs::create_symlink("loop_a", model() / "loop_b");
  fs::create_symlink("/nowhere/at/all", model() / "broken");
  fs::create_symlink("/dev/zero", model() / "device");
  for (const char* name :
       {"model.safetensors.index.json", "folder", "pipe", "loop_a", "broken", "device", "config.json"})
    EXPECT_THAT(error_of_place("\"" + std::string(name) + "\""), HasSubstr(name)) << name;
}

TEST_F(HostileFolder, IndexesAreTables) {
  start("gpt2_by_layer");
  const auto refused = [&](const std::string& text) {
    write_file(index(), text);
    return error();
  };
  for (const char* text : {"", "{", "[]", "3", "\"x\"", "{}", R"({"weight_map": {}})", R"({"weight_map": []})",
                           R"({"a": {"weight_map": {"a": "x"}}})", R"([{"weight_map": {"a": "x"}}])",
                           "{\"weight_map\": {\"\xff\": \"x\"}}"})
    EXPECT_THAT(refused(text), HasSubstr("is not an index")) << text;
  EXPECT_THAT(refused(R"({"weight_map": {"a": "x", "b": "x", "a": "y"}})"), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(refused(R"({"weight_map": {"a": "x"}, "weight_map": {"b": "x"}})"), HasSubstr("stands twice"));
  EXPECT_THAT(refused(R"({"metadata": )" + std::string(500'000, '[')), HasSubstr("is not an index"));
  EXPECT_THAT(refused(R"({"weight_map": {"a\n\u001b[31m": "x\n"}})"), HasSubstr("model"));
  fs::resize_file(index(), uint64_t{1} << 33);
  EXPECT_THAT(error(), HasSubstr("at most"));
}

TEST_F(HostileFolder, OneNameIsInOneFile) {
  start("gpt2_by_layer");
  std::vector<fs::path> shards;
  for (const auto& item : fs::directory_iterator(model()))
    if (item.path().extension() == ".safetensors") shards.push_back(item.path());
  ASSERT_GE(shards.size(), 2U);
  fs::copy_file(shards[0], shards[1], fs::copy_options::overwrite_existing);
  EXPECT_THAT(error(), HasSubstr("it is not"));
  // Links to files elsewhere are followed: caches of hubs are made of them.
  start("gpt2_by_layer");
  fs::rename(shards[0], folder_ / "blob");
  fs::create_symlink(folder_ / "blob", shards[0]);
  EXPECT_EQ(error(), "no error");
}

TEST_F(HostileFolder, NothingIsAllocatedForWhatAHeaderPromises) {
  start("llama");
  write_header(
      R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}})",
      uint64_t{1} << 42);
  EXPECT_THAT(error(), HasSubstr("does not fit the llama"));
  write_header(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,18446744073709551615]}})", 8);
  EXPECT_THAT(error(), HasSubstr("cannot be counted"));
  write_header(R"({"a\n\u001b[2J)" + std::string(5000, 'x') + R"(":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})",
               4);
  EXPECT_THAT(error(), HasSubstr("F31"));
  write_header(R"({"a\n":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  EXPECT_THAT(error(), HasSubstr("1 not expected: a?"));
}

TEST_F(HostileFolder, ConfigsAreNotBelieved) {
  const auto refused = [&](const std::string& key, const std::string& value) {
    start("llama");
    const auto text = models::ModelConfig::read(model() / "config.json").with({{key, value}});
    write_file(model() / "config.json", text);
    return error();
  };
  for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{{"num_hidden_layers", "1000000000"},
                                                                                   {"num_hidden_layers", "900"},
                                                                                   {"hidden_size", "1048576"},
                                                                                   {"intermediate_size", "1048576"},
                                                                                   {"vocab_size", "1099511627776"},
                                                                                   {"vocab_size", "100000000"},
                                                                                   {"max_position_embeddings", "-1"},
                                                                                   {"head_dim", "0"},
                                                                                   {"head_dim", "7"},
                                                                                   {"rms_norm_eps", "1e999"},
                                                                                   {"rope_theta", "\"x\""}})
    EXPECT_NE(refused(key, value), "no error") << key << " " << value;
  start("llama");
  fs::resize_file(model() / "config.json", uint64_t{1} << 33);
  EXPECT_THAT(error(), HasSubstr("at most"));
}

}  // namespace
}  // namespace levin::hostile_tests
