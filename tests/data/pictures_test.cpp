// From files to batches: what a training on a folder of pictures needs of the loader, all at once.
#include <filesystem>
#include <fstream>

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/data/cifar.h"
#include "levin/data/image_dataset.h"
#include "levin/data/loader.h"
#include "levin/data/transforms/transforms.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::error_of;

class Pictures : public testing::FolderTest {
 protected:
  void SetUp() override { write_image_folder(folder_, draw_color_shapes(60, 10).train, color_shape_classes()); }

  auto loader(int workers, const std::string& bad = "stop") const {
    const auto augment =
        transforms::compose({transforms::RandomCrop{.size = 32, .padding = 4}, transforms::RandomHorizontalFlip{},
                             transforms::ColorJitter{.brightness = 0.4, .hue = 0.1}});
    return make_loader(ImageDataset(folder_.string(), {.transform = augment}),
                       {.batch_size = 8, .shuffle = true, .seed = 3, .num_workers = workers, .bad_samples = bad})
        .transformed(transforms::BatchNormalize{.flip_p = 0.5, .crop = 32, .padding = 2})
        .transformed(transforms::MixUp{.alpha = 0.2, .num_classes = 10});
  }
  static std::vector<Batch> all(const DataLoader<Batch>& loader) {
    std::vector<Batch> batches;
    for (auto& batch : loader) batches.push_back(batch);
    return batches;
  }
  static std::string refusal(const DataLoader<Batch>& loader) {
    return error_of([&] { all(loader); });
  }
  void put(const std::string& name, std::string_view bytes) const { write_file(folder_ / "disc" / name, bytes); }
};

TEST_F(Pictures, AreTheSameForAnyNumberOfThreads) {
  const auto expected = all(loader(0));
  ASSERT_EQ(expected.size(), 8u);
  EXPECT_EQ(expected[0]["image"].sizes(), (std::vector<int64_t>{8, 3, 32, 32}));
  for (const int workers : {1, 4, 16}) {
    const auto batches = all(loader(workers));
    ASSERT_EQ(batches.size(), expected.size());
    for (size_t i = 0; i < batches.size(); ++i) {
      EXPECT_TRUE(torch::equal(batches[i]["image"], expected[i]["image"])) << workers << " threads, batch " << i;
      EXPECT_TRUE(torch::equal(batches[i]["label"], expected[i]["label"]));
    }
  }
}

TEST_F(Pictures, ResumeAfterAnyBatch) {
  const auto expected = all(loader(4));
  for (size_t stop = 1; stop < expected.size(); ++stop) {
    auto stopped = loader(2);
    auto it = stopped.begin();
    for (size_t i = 1; i < stop; ++i) ++it;
    auto resumed = loader(3);
    resumed.load_state_dict(stopped.state_dict());
    const auto rest = all(resumed);
    ASSERT_EQ(rest.size(), expected.size() - stop);
    for (size_t i = 0; i < rest.size(); ++i) EXPECT_TRUE(torch::equal(rest[i]["image"], expected[stop + i]["image"]));
  }
}

TEST_F(Pictures, OfEveryBadKindAreNamedOrLeftOut) {
  const std::string good = read_file(folder_ / "disc" / fs::directory_iterator(folder_ / "disc")->path().filename());
  const std::string huge = good.substr(0, 16) + std::string("\0\1\x86\xa0\0\1\x86\xa0", 8) + good.substr(24);
  const std::vector<std::pair<std::string, std::string>> kinds{
      {"empty.png", ""},
      {"short.png", good.substr(0, good.size() / 2)},
      {"head.png", good.substr(0, 20)},
      {"text.png", "this is no picture at all"},
      {"huge.png", huge},
      {"torn.png", good.substr(0, 60) + std::string(40, 'x') + good.substr(100)}};
  for (const auto& [name, bytes] : kinds) {
    put(name, bytes);
    for (const int workers : {0, 4}) {
      const auto line = refusal(loader(workers));
      EXPECT_NE(line.find("disc/" + name), std::string::npos) << name << ": " << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
    auto tolerant = loader(4, "skip");
    int64_t images = 0;
    for (auto& batch : tolerant) images += batch["image"].size(0);
    EXPECT_EQ(images, 60) << name;
    EXPECT_EQ(tolerant.stats().skipped, 1) << name;
    fs::remove(folder_ / "disc" / name);
  }
  // The name does not matter, the bytes do.
  put("really_a.jpg", good);
  EXPECT_EQ(refusal(loader(2)), "no error");
}

TEST_F(Pictures, LeaveNothingBehindWhenTheyAreClosed) {
  const auto count = [](const char* path) {
    int64_t entries = 0;
    auto* open = opendir(path);
    while (readdir(open)) ++entries;
    closedir(open);
    return entries;
  };
  const auto resident = [] {
    std::ifstream file("/proc/self/statm");
    int64_t size = 0, pages = 0;
    file >> size >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  const auto cycle = [&] {
    auto one = loader(4);
    for ([[maybe_unused]] auto& batch : one) break;
  };
  for (int i = 0; i < 20; ++i) cycle();
  const auto threads = count("/proc/self/task"), files = count("/proc/self/fd"), memory = resident();
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_EQ(count("/proc/self/task"), threads);
  EXPECT_EQ(count("/proc/self/fd"), files);
  EXPECT_LT(resident() - memory, 8 << 20);
}

}  // namespace
}  // namespace levin
