// levin pack and levin data bench, from outside.
#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "levin/core/files.h"
#include "levin/data/cifar.h"
#include "levin/io/images/image.h"
#include "levin/io/records/records.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DataCommands : public FolderTest {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> levin(std::vector<std::string> words) const {
    words.insert(words.begin(), levin_program());
    return words;
  }
  void expect_fails(const std::vector<std::string>& words, const ::testing::Matcher<const std::string&>& line) const {
    Process child(levin(words));
    EXPECT_EQ(child.wait(), 1) << child.out();
    EXPECT_THAT(child.err(), line);
    EXPECT_EQ(std::count(child.err().begin(), child.err().end(), '\n'), 1) << child.err();
  }
};

Tensor pixels_of(const Record& record) {
  if (const auto* bytes = std::get_if<std::string>(record.find("image")))
    return decode_image(std::as_bytes(std::span(*bytes)));
  return std::get<Tensor>(*record.find("image")).permute({2, 0, 1});
}

void expect_same(const RecordReader& a, const RecordReader& b) {
  ASSERT_EQ(a.size(), b.size());
  for (int64_t i = 0; i < a.size(); ++i) {
    const auto one = a.read(i), other = b.read(i);
    EXPECT_TRUE(at::equal(pixels_of(one), pixels_of(other))) << a.where(i) << " and " << b.where(i);
    EXPECT_EQ(std::get<std::vector<int64_t>>(*one.find("label")), std::get<std::vector<int64_t>>(*other.find("label")))
        << a.where(i) << " and " << b.where(i);
  }
}

TEST_F(DataCommands, PackGoesThroughAllFormatsAndBack) {
  // Classes by number: names would come in the order of the alphabet, and IDX files have none.
  write_image_folder(path("shapes"), draw_color_shapes(50, 1).train);
  std::string from = path("shapes");
  std::vector<std::string> chain{"a.tar", "b.tfrecord", "c.csv", "d", "e", "f"};
  const std::vector<std::string> formats{"tar", "tfrecord", "csv", "cifar10", "idx", "folder"};
  for (size_t i = 0; i < chain.size(); ++i) {
    Process child(levin({"pack", from, path(chain[i]), "--to", formats[i], "--workers", "3"}));
    ASSERT_EQ(child.wait(), 0) << child.err();
    EXPECT_THAT(child.out(), AllOf(HasSubstr(": 50 records, "), HasSubstr("to " + formats[i] + ")")));
    expect_same(*open_records(path("shapes")), *open_records(path(chain[i])));
    from = path(chain[i]);
  }
}

TEST_F(DataCommands, PackShardsResizesAndEncodes) {
  write_image_folder(path("shapes"), draw_color_shapes(10, 1).train, color_shape_classes());
  Process shards(levin({"pack", path("shapes"), path("s.tar"), "--shard-records", "4", "--resize", "16", "--reencode",
                        "jpeg", "--quality", "80"}));
  ASSERT_EQ(shards.wait(), 0) << shards.err();
  const auto reader = open_records(path("s-{000000..000002}.tar"));
  ASSERT_EQ(reader->size(), 10);
  const auto record = reader->read(9);
  const auto info = image_info(std::as_bytes(std::span(std::get<std::string>(*record.find("image")))));
  EXPECT_EQ(info.format, "jpeg");
  EXPECT_EQ(info.width, 16);
  EXPECT_EQ(reader->classes(), open_records(path("shapes"))->classes());
}

TEST_F(DataCommands, PackRefusesInOneLine) {
  std::ofstream(path("lines.txt")) << "one\ntwo\n";
  write_image_folder(path("shapes"), draw_color_shapes(40, 1).train);
  fs::create_directories(path("there"));
  std::ofstream(path("there/x")) << "x";
  expect_fails({"pack", path("lines.txt"), path("out")},
               HasSubstr("have text and no image; folder holds images alone"));
  expect_fails({"pack", path("shapes"), path("out.txt")}, HasSubstr("text holds text alone"));
  expect_fails({"pack", path("shapes"), path("there")}, HasSubstr("is there already"));
  expect_fails({"pack", path("shapes"), path("there"), "--overwrite"}, HasSubstr("holds more than images: \"x\""));
  expect_fails({"pack", path("shapes/0"), path("shapes"), "--overwrite"}, HasSubstr("which would be replaced"));
  expect_fails({"pack", path("shapes"), path("out"), "--rencode", "png"}, HasSubstr("did you mean \"--reencode\"?"));
  expect_fails({"pack", path("shapes"), path("out"), "--reencode", "gif"}, HasSubstr("known: png, jpeg, raw"));
  expect_fails({"pack", path("shapes"), path("out"), "--to", "tra"}, HasSubstr("did you mean \"tar\"?"));
  expect_fails({"pack", path("shapes")}, HasSubstr("levin pack SRC DST"));
  expect_fails({"pack", path("shapes"), path("a"), path("b")}, HasSubstr("one word too many"));
  expect_fails({"pack", path("nothing"), path("out")}, HasSubstr("is not there"));
  // A word that must stand there is said to be one.
  expect_fails({"data", "nofile"},
               HasSubstr("[levin data] \"nofile\" stands where \"bench\" must (levin data bench PATH [FLAGS])"));
  expect_fails({"new", "lib", "x"}, HasSubstr("[levin new] \"lib\" stands where \"app\" must (levin new app "));
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(DataCommands, CtrlCLeavesNothing) {
  // A file of holes: a hundred thousand black images that take no room.
  std::ofstream(path("data_batch_1.bin")).close();
  fs::resize_file(path("data_batch_1.bin"), 100'000 * 3073);
  Process child(levin({"pack", path("data_batch_1.bin"), path("out"), "--from", "cifar10", "--workers", "2"}),
                {"LEVIN_TERMINAL_WIDTH=80"});
  ASSERT_TRUE(child.wait_for("cifar10 to folder")) << child.err();
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 128 + SIGINT) << child.err();
  EXPECT_THAT(child.err(), HasSubstr("nothing was written"));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ::testing::ElementsAre("data_batch_1.bin"));
}

TEST_F(DataCommands, BenchTellsRateAndStages) {
  write_image_folder(path("shapes"), draw_color_shapes(40, 1).train, color_shape_classes());
  Process plain(levin({"data", "bench", path("shapes"), "--batch-size", "8", "--num-workers", "2", "--transform",
                       "cifar", "--epochs", "2", "--plot", path("bench.svg")}));
  ASSERT_EQ(plain.wait(), 0) << plain.err();
  EXPECT_THAT(plain.out(), AllOf(HasSubstr("80 images in"), HasSubstr("images/s; first batch after"),
                                 HasSubstr("; 2 workers"), HasSubstr("\n  decode "), HasSubstr("\n  wait ")));
  EXPECT_THAT(read_file(path("bench.svg")), AllOf(::testing::StartsWith("<svg"), HasSubstr(">transform</text>")));
  Process json(levin({"data", "bench", path("shapes"), "--batch-size", "7", "--num-workers", "0", "--json", "--plot",
                      path("bench.png")}));
  ASSERT_EQ(json.wait(), 0) << json.err();
  const auto result = nlohmann::json::parse(json.out());
  EXPECT_EQ(result["images"], 40);
  EXPECT_EQ(result["format"], "folder");
  EXPECT_GT(result["images_per_second"].get<double>(), 0);
  double shares = 0;
  for (const auto& stage : result["stages"]) shares += stage["share"].get<double>();
  EXPECT_NEAR(shares, 1, 1e-9);
  EXPECT_GT(read_image(path("bench.png")).size(2), 500);
  expect_fails({"data", "bench", path("shapes"), "--transform", "cifra"}, HasSubstr("did you mean \"cifar\"?"));
  expect_fails({"data", "bnech"}, HasSubstr("stands where \"bench\" must"));
  expect_fails({"data", "bench", path("shapes"), "--num-workers", "many"}, HasSubstr("neither a number nor auto"));
}

}  // namespace
}  // namespace levin::testing
