// A tied tensor is one tensor of a state, and has all of its names wherever weights leave Levin.
#include <sys/stat.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/reader.h"
#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/ranks.h"
#include "sharded.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using testing::run_ranks;

std::shared_ptr<torch::nn::Module> tied_module() {
  auto both = std::make_shared<torch::nn::Module>();
  both->register_parameter("embedding", torch::randn({4, 3}));
  both->register_parameter("head", both->named_parameters(false)["embedding"]);
  both->register_parameter("bias", torch::randn({4}));
  return both;
}

std::vector<std::string> names_in(const fs::path& file) {
  std::vector<std::string> names;
  const SafetensorsFile opened(file);
  for (const auto& entry : opened.entries()) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  return names;
}

using TiedNames = testing::FolderTest;

TEST_F(TiedNames, AFullFileHasAllOfThem) {
  const auto net = tied_module();
  save_checkpoint(folder_ / "last", {{"model", net}});
  EXPECT_EQ(names_in(folder_ / "last/model.safetensors"), (std::vector<std::string>{"bias", "embedding", "head"}));
  const SafetensorsFile file(folder_ / "last/model.safetensors");
  EXPECT_TRUE(file.read("head").equal(file.read("embedding")));
  verify_checkpoint(folder_ / "last");
  // Read back it is one tensor.
  const auto all = load_checkpoint(folder_ / "last");
  const auto& model = all.at("model").to_dict();
  EXPECT_TRUE(model.at("head").to_tensor().is_same(model.at("embedding").to_tensor()));
  const detail::CheckpointReader reader(folder_ / "last");
  const auto listed = reader.list("model");
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_EQ(listed[0], (std::pair<std::string, std::string>("embedding", "model.embedding")));
  EXPECT_EQ(listed[1], (std::pair<std::string, std::string>("head", "model.embedding")));
  EXPECT_EQ(reader.list_all().size(), 3U);
  EXPECT_EQ(reader.list_all()[1].first, "model.head");
}

TEST_F(TiedNames, ADamagedCopyIsNoticed) {
  save_checkpoint(folder_ / "last", {{"model", tied_module()}});
  const auto path = folder_ / "last/model.safetensors";
  auto bytes = read_file(path);
  bytes.back() ^= 1;
  write_file(path, bytes);
  EXPECT_NE(error_of([&] { verify_checkpoint(folder_ / "last"); }), "no error");
}

TEST_F(TiedNames, ATensorOfAnotherFileIsNotCopied) {
  const auto net = tied_module();
  save_checkpoint(folder_ / "last", {{"model", net}, {"again", net}});
  EXPECT_TRUE(fs::exists(folder_ / "last/model.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "last/again.safetensors"));
  EXPECT_EQ(detail::CheckpointReader(folder_ / "last").list("again").size(), 3U);
}

TEST_F(TiedNames, ShardedStatesKeepThemUntilConsolidated) {
  run_ranks(2, [&](Collective& group) {
    ShardedModule here(&group);
    save_checkpoint(folder_ / "sharded", here.state(), {.world_size = 2, .shards = here.shards.get()});
    save_checkpoint(folder_ / "full", here.state(), {.world_size = 2, .shards = here.shards.get(), .full = true});
  });
  ShardedModule whole(nullptr);
  save_checkpoint(folder_ / "single", whole.state());
  const auto expected = names_in(folder_ / "single/model.safetensors");
  EXPECT_NE(std::find(expected.begin(), expected.end(), "tied"), expected.end());
  EXPECT_EQ(names_in(folder_ / "full/model.safetensors"), expected);
  consolidate_checkpoint(folder_ / "sharded", folder_ / "consolidated");
  EXPECT_EQ(names_in(folder_ / "consolidated/model.safetensors"), expected);
  const detail::CheckpointReader reader(folder_ / "sharded");
  EXPECT_TRUE(reader.sharded());
  EXPECT_EQ(reader.list("model").size(), expected.size());
}

TEST_F(TiedNames, AFifoInPlaceOfAFileIsRefused) {
  ::alarm(120);  // a read that waits would wait for ever
  for (const char* name : {"manifest.json", "state.json", "model.safetensors"}) {
    save_checkpoint(folder_ / "last", {{"model", tied_module()}});
    fs::remove(folder_ / "last" / name);
    ASSERT_EQ(::mkfifo((folder_ / "last" / name).c_str(), 0600), 0);
    EXPECT_NE(error_of([&] { detail::CheckpointReader reader(folder_ / "last"); }), "no error") << name;
    EXPECT_NE(error_of([&] { (void)load_checkpoint(folder_ / "last"); }), "no error") << name;
    EXPECT_NE(error_of([&] { (void)checkpoint_info(folder_ / "last"); }), "no error") << name;
    EXPECT_NE(error_of([&] { (void)latest_good_checkpoint(folder_); }), "no error") << name;
    fs::remove_all(folder_ / "last");
  }
  ::alarm(0);
}

}  // namespace
}  // namespace levin
