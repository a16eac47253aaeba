#include "levin/loggers/tensorboard.h"

#include <array>
#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "event_reader.h"
#include "folder.h"
#include "hparams_tree.h"
#include "levin/core/error.h"
#include "levin/io/images/image.h"
#include "levin/loggers/events.h"
#include "levin/loggers/histogram.h"
#include "levin/loggers/pixels.h"
#include "levin/loggers/records.h"
#include "levin/loggers/yaml.h"
#include "levin/testing/capture.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"

namespace levin {
namespace {

using testing::event_file;
using testing::LogFolder;
using testing::read_fields;
using testing::read_records;

std::vector<std::string> fixture_records(const std::string& name) {
  auto records = read_records(testing::log_fixture(name));
  records.erase(records.begin());  // the version, which names its writer
  return records;
}

// The calls of make_fixtures.py; their events are, byte for byte, those of torch.utils.tensorboard and Lightning.
TEST(TensorBoardLogger, WritesTheBytesOfTorch) {
  const LogFolder folder;
  double now = 1700000000.25;
  TensorBoardLogger logger(folder.path, {}, {.clock = [&] { return now; }});
  int64_t step = 0;
  for (const double value : {0.5, 0.1, -3.25, 0.0, static_cast<double>(INFINITY), 1e-30}) {
    logger.log_metrics({{"loss", value}}, step++);
    now += 1;
  }
  now = 1700000010;
  logger.log_metrics({{"epoch", 3}}, 7);
  now = 1700000011;
  logger.log_histogram("weights", torch::arange(-300, 301).to(torch::kDouble) / 8, 1);
  now = 1700000012;
  logger.log_histogram("one", torch::tensor({2.0F}), 2);
  now = 1700000013;
  logger.log_histogram("integers", torch::tensor({{0, 0, 1}, {-4, 5, 5}}), 3);
  now = 1700000014;
  const auto extremes = torch::tensor({0.0, 0x1p66, -0x1p66, 0x1p-41, 0x1p70}, torch::kDouble);
  logger.log_histogram("extremes", extremes, 4);
  now = 1700000015;
  logger.log_text("note", "# Überschrift\nText", 5);
  now = 1700000016;
  logger.log_text("empty", "", 6);
  auto records = read_records(read_file(event_file(logger.log_dir())));
  const auto version = read_fields(records.front());
  EXPECT_EQ(version.find(3)->second, "brain.Event:2");
  records.erase(records.begin());
  EXPECT_EQ(records, fixture_records("events.torch"));
}

TEST(TensorBoardLogger, WritesTheHyperparametersOfLightning) {
  const LogFolder folder;
  TensorBoardLogger logger(folder.path, {}, {.clock = [] { return 1700000017.0; }});
  logger.log_hyperparams({{"lr", 0.5}});
  logger.log_hyperparams({{"lr", 0.5}});  // known already
  auto records = read_records(read_file(event_file(logger.log_dir())));
  records.erase(records.begin());
  EXPECT_EQ(records, fixture_records("events.lightning"));
  EXPECT_EQ(read_file(logger.log_dir() / "hparams.yaml"), "lr: 0.5\n");
}

TEST(TensorBoardLogger, CanDoWithoutAMetric) {
  const LogFolder folder;
  TensorBoardLogger logger(folder.path, {}, {.default_hp_metric = false});
  logger.log_hyperparams({{"lr", 0.5}});
  EXPECT_TRUE(event_file(logger.log_dir()).empty());
  logger.log_hyperparams({{"lr", 0.5}}, {{"val_loss", torch::tensor(0.25)}}, 9);
  const auto records = read_records(read_file(event_file(logger.log_dir())));
  ASSERT_EQ(records.size(), 5);
  for (size_t i = 1; i < records.size(); ++i)
    EXPECT_EQ(testing::as<int64_t>(read_fields(records[i]).find(2)->second), 9);
}

TEST(TensorBoardLogger, NamesItsFileAsTensorBoardExpects) {
  const LogFolder folder;
  const TensorBoardOptions board{.clock = [] { return 1700000000.9; }};
  TensorBoardLogger first(folder.path, {.version = 0}, board), second(folder.path, {.version = 0}, board);
  first.log_text("a", "b");
  second.log_text("a", "b");
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const auto start = "events.out.tfevents.1700000000." + std::string(host) + "." + std::to_string(getpid()) + ".";
  EXPECT_TRUE(std::filesystem::exists(first.log_dir() / (start + "0")));
  EXPECT_TRUE(std::filesystem::exists(first.log_dir() / (start + "1")));
}

TEST(TensorBoardLogger, SkipsAHistogramOfNothing) {
  const LogFolder folder;
  TensorBoardLogger logger(folder.path);
  const auto line = testing::captured_stderr([&] { logger.log_histogram("gradients", torch::full({4}, NAN), 0); });
  EXPECT_NE(line.find("no finite value"), std::string::npos) << line;
  EXPECT_FALSE(std::filesystem::exists(folder.path));
  EXPECT_THROW(logger.log_histogram("nothing", torch::empty({0})), Error);
  EXPECT_THROW(logger.log_image("long", torch::zeros({3, 2, 2}, torch::kLong)), Error);
  EXPECT_THROW(logger.log_image("two", torch::zeros({2, 2, 2})), Error);
  EXPECT_THROW(logger.log_image("batch", torch::zeros({1, 3, 2, 2})), Error);
}

TEST(Histogram, IsTheSameInChunks) {
  const auto part = torch::arange(-64, 64).to(torch::kFloat) / 16;
  const auto once = detail::make_histogram(part), often = detail::make_histogram(part.repeat({40000}));  // 5 million
  EXPECT_EQ(often.count, 40000 * once.count);
  EXPECT_EQ(often.sum, 40000 * once.sum);
  EXPECT_EQ(often.sum_squares, 40000 * once.sum_squares);
  EXPECT_EQ(often.min, -4);
  EXPECT_EQ(often.max, 63.0 / 16);
  EXPECT_EQ(often.limits, once.limits);
  for (size_t i = 0; i < once.counts.size(); ++i) EXPECT_EQ(often.counts[i], 40000 * once.counts[i]);
}

TEST(Pixels, StandInTheEventAsPng) {
  for (const int64_t channels : {1, 3, 4}) {
    const auto pixels = torch::randint(0, 256, {5, 7, channels}, torch::kByte);
    const auto event = detail::image_summary("x", pixels).bytes();
    const auto at = event.find("\x89PNG");
    ASSERT_NE(at, std::string::npos);
    const auto file = std::as_bytes(std::span(event).subspan(at));
    EXPECT_TRUE(torch::equal(decode_image(file, {.mode = ImageMode::kUnchanged}), pixels.permute({2, 0, 1})));
  }
}

TEST(Pixels, AreTakenAsTorchDoes) {
  const auto image = torch::tensor({{0.0, 0.5, 1.0}, {-1.0, 2.0, static_cast<double>(NAN)}}, torch::kFloat);
  const auto expected = torch::tensor({{0, 127, 255}, {0, 255, 0}}, torch::kByte).unsqueeze(2);
  EXPECT_TRUE(torch::equal(detail::to_pixels("x", image), expected));
  const auto color = torch::randint(0, 256, {3, 4, 5}, torch::kByte);
  EXPECT_TRUE(torch::equal(detail::to_pixels("x", color), color.permute({1, 2, 0})));
}

TEST(Records, EndAtTheFirstTornOne) {
  std::string file;
  detail::append_record(file, "one");
  const auto whole = file.size();
  detail::append_record(file, std::string(300, 'x'));
  EXPECT_EQ(detail::whole_records(file).count, 2);
  for (const size_t size : {whole, whole + 3, whole + 12, whole + 100, file.size() - 1}) {
    const auto found = detail::whole_records(std::string_view(file).substr(0, size));
    EXPECT_EQ(found.bytes, whole) << size;
    EXPECT_EQ(found.count, 1) << size;
  }
  file[whole + 40] ^= 1;
  EXPECT_EQ(detail::whole_records(file).bytes, whole);
  EXPECT_THROW(read_records(file), std::runtime_error);
  EXPECT_EQ(detail::whole_records("").count, 0);
}

// Makes calls on a logger and notes them for read_events.py.
class Calls {
 public:
  explicit Calls(const std::filesystem::path& root)
      : logger_(root, {.flush_every_n_rows = 5}, {.clock = [this] { return time_ += 0.5; }}) {}

  void scalar(const std::string& tag, double value, int64_t step) {
    logger_.log_metrics({{tag, value}}, step);
    calls_.push_back({{"kind", "scalar"}, {"tag", tag}, {"value", nlohmann::json(value).dump()}, {"step", step}});
  }
  void histogram(const std::string& tag, const Tensor& values, int64_t step) {
    logger_.log_histogram(tag, values, step);
    const auto list = values.to(torch::kDouble).reshape({-1});
    calls_.push_back({{"kind", "histogram"}, {"tag", tag}, {"values", vector_of(list)}, {"step", step}});
  }
  void image(const std::string& tag, const Tensor& image, const std::string& dtype, int64_t step) {
    logger_.log_image(tag, image, step);
    calls_.push_back({{"kind", "image"},
                      {"tag", tag},
                      {"values", vector_of(image.to(torch::kDouble).reshape({-1}))},
                      {"dtype", dtype},
                      {"shape", image.sizes().vec()},
                      {"step", step}});
  }
  void text(const std::string& tag, const std::string& text, int64_t step) {
    logger_.log_text(tag, text, step);
    calls_.push_back({{"kind", "text"}, {"tag", tag}, {"text", text}, {"step", step}});
  }
  void hparams() {
    logger_.log_hyperparams({{"lr", 0.0},
                             {"epochs", 3},
                             {"amp", true},
                             {"name", "vit"},
                             {"none", StateValue()},
                             {"model", StateDict{{"betas", StateList{0.9, 1}},
                                                 {"acts", StateList{"a", "b"}},
                                                 {"heads", StateList{StateDict{{"dim", 4}}, StateDict{{"dim", 5}}}}}}});
    calls_.push_back({{"kind", "scalar"}, {"tag", "hp_metric"}, {"value", "-1"}, {"step", 0}});
    calls_.push_back({{"kind", "hparams"},
                      {"step", 0},
                      {"metrics", {"hp_metric"}},
                      {"values",
                       {{"lr", 0.0},
                        {"epochs", 3},
                        {"amp", true},
                        {"name", "vit"},
                        {"none", "None"},
                        {"model/betas", "[0.9, 1]"},
                        {"model/acts", "['a', 'b']"},
                        {"model/heads/0/dim", 4},
                        {"model/heads/1/dim", 5}}}});
  }

  std::filesystem::path events() {
    logger_.save();
    return event_file(logger_.log_dir());
  }
  std::string json() const { return calls_.dump(); }

 private:
  static std::vector<double> vector_of(const Tensor& list) {
    const auto* data = list.const_data_ptr<double>();
    return {data, data + list.numel()};
  }

  double time_ = 1700000000;
  TensorBoardLogger logger_;
  nlohmann::json calls_ = nlohmann::json::array();
};

// What does not depend on the machine: no sums that round, no compressed pixels.
void exact_calls(Calls& calls) {
  calls.hparams();
  for (int step = 0; step < 12; ++step) calls.scalar(step % 3 ? "train/loss" : "epoch", step * 0.37, step);
  calls.histogram("weights", torch::arange(-64, 65).to(torch::kFloat) / 16, 4);
  calls.text("sample", "Once upon a time, **ü** 😀", 5);
  calls.scalar("negative step", 1, -3);
}

// make_fixtures.py keeps these bytes once TensorBoard has read them and found the calls.
TEST(TensorBoardLogger, WritesTheBytesThatTensorBoardRead) {
  const LogFolder folder;
  Calls calls(folder.path);
  exact_calls(calls);
  const auto events = read_file(calls.events());
  if (const char* keep = std::getenv("LEVIN_LOGGERS_KEEP")) {
    std::filesystem::create_directories(keep);
    write_file(std::filesystem::path(keep) / "events.levin", events);
    write_file(std::filesystem::path(keep) / "calls.json", calls.json());
    write_file(std::filesystem::path(keep) / "hparams.yaml", detail::to_yaml(testing::all_hparams()));
    GTEST_SKIP() << "kept for make_fixtures.py";
  }
  EXPECT_EQ(events, testing::log_fixture("events.levin"));
}

// TensorBoard itself reads the file: every number is the one that torch.utils.tensorboard would have written.
TEST(TensorBoardLogger, IsReadByTensorBoard) {
  const auto python = testing::python_with("tensorboard, torch.utils.tensorboard, PIL");
  if (!python) GTEST_SKIP() << "no Python with tensorboard, torch and PIL (LEVIN_PEER_PYTHON names one)";
  const LogFolder folder;
  Calls calls(folder.path);
  exact_calls(calls);
  torch::manual_seed(3);
  calls.histogram("normal", torch::randn({4000}), 1);
  calls.histogram("wide", torch::randn({1000}, torch::kDouble).mul(20).exp(), 2);
  calls.histogram("half", torch::randn({7, 9}).to(torch::kHalf), 3);
  calls.histogram("same", torch::zeros({3}), 4);
  for (const int64_t channels : {1, 3, 4}) {
    calls.image("float", torch::rand({channels, 9, 6}) * 1.2 - 0.1, "float32", 1);
    calls.image("bytes", torch::randint(0, 256, {channels, 4, 11}, torch::kByte), "uint8", 2);
  }
  calls.image("gray", torch::rand({8, 3}), "float32", 3);
  const auto list = folder.path / "calls.json";
  const auto events = calls.events();
  write_file(list, calls.json());
  const auto script = std::filesystem::path(testing::source_dir()) / "tests/loggers/read_events.py";
  const auto ran = testing::run_program({*python, script.string(), events.string(), list.string()});
  EXPECT_EQ(ran.status, 0) << ran.text();
  EXPECT_NE(ran.text().find(": equal"), std::string::npos) << ran.text();
}

}  // namespace
}  // namespace levin
