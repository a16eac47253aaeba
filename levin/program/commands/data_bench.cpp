#include <chrono>
#include <numeric>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/core/progress_bar.h"
#include "levin/core/words.h"
#include "levin/data/image_dataset.h"
#include "levin/data/loader.h"
#include "levin/data/transforms/crops.h"
#include "levin/data/transforms/flips.h"
#include "levin/devices/accelerator.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/records.h"
#include "levin/plots/bar_plot.h"
#include "levin/program/command.h"
#include "levin/trainer/signals.h"

namespace levin::cli {
namespace {

struct BenchFlags {
  std::string path, format = "auto", split = "train", transform = "none", plot, num_workers = "auto", decode = "cpu";
  int64_t batch_size = 64, epochs = 1, samples = 256;
  bool shuffle = false, json = false;
};

/// Seconds that one image takes, on one thread.
struct StageSeconds {
  double read = 0, decode = 0, transform = 0, collate = 0;
  double all() const { return read + decode + transform + collate; }
};

struct BenchResult {
  int64_t images = 0;
  double seconds = 0;
  double first_batch = 0;
  int workers = 0;
  StageSeconds stages;
  /// Of the time of the workers: nothing to do, and handing over.
  double wait = 0;
};

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Transform transform_named(const std::string& name) {
  using namespace transforms;
  if (name == "cifar") return compose({RandomCrop{.size = 32, .padding = 4}, RandomHorizontalFlip{}});
  if (name == "imagenet") return compose({RandomResizedCrop{.size = 224}, RandomHorizontalFlip{}});
  return {};
}

NumWorkers workers_of(const std::string& text) {
  if (text == "auto") return "auto";
  LEVIN_CHECK(!text.empty() && text.size() <= 4 && std::all_of(text.begin(), text.end(), ::isdigit),
              "[levin data bench] --num-workers \"", text, "\" is neither a number nor auto");
  return std::stoi(text);
}

/// One image through read, decode and transform.
Tensor measure_image(const ImageDataset& data, int64_t index, StageSeconds& total) {
  const auto& options = data.options();
  auto start = Clock::now();
  const Record record = data.records().read(index);
  total.read += since(start);
  const FieldValue* value = record.find("image");
  LEVIN_CHECK(value != nullptr, "the record has no image");
  Random random(0, 0, static_cast<uint64_t>(index)), again = random;
  if (const auto* bytes = std::get_if<std::string>(value)) {
    const auto file = std::as_bytes(std::span(*bytes));
    const Tensor whole = decode_image(file, {.mode = options.mode});
    start = Clock::now();
    options.transform(whole, random);
    const double transform = since(start);
    start = Clock::now();
    Tensor image = options.transform.decode(file, again, {.mode = options.mode});
    const double both = since(start);
    total.transform += std::min(transform, both);
    total.decode += std::max(both - transform, 0.0);
    return image;
  }
  const auto* array = std::get_if<Tensor>(value);
  LEVIN_CHECK(array != nullptr, "the field \"image\" is neither encoded bytes nor pixels");
  const Tensor pixels = levin::detail::to_mode(levin::detail::channels_first(*array, "data"), options.mode);
  start = Clock::now();
  Tensor image = options.transform(pixels, random);
  total.transform += since(start);
  return image;
}

/// Every stage separately, over images from all parts of the data. A transform that begins with a crop decodes less
/// than the whole: what the two take together, less the transform of decoded pixels, is what decoding takes.
StageSeconds measure_stages(const ImageDataset& data, int64_t count, int64_t batch_size) {
  StageSeconds total;
  std::vector<Tensor> batch;
  std::vector<int64_t> indices;
  int64_t collated = 0;
  const auto place = [&](int64_t index) { return fmt::format("sample {}, {}", index, data.records().where(index)); };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = i * data.size() / count;
    try {
      batch.push_back(measure_image(data, index, total));
    } catch (const std::exception& error) {
      levin::detail::fail(fmt::format("[levin data bench] {}: {}", place(index), one_line(error)));
    }
    indices.push_back(index);
    if (static_cast<int64_t>(batch.size()) < std::min(batch_size, count)) continue;
    for (size_t row = 0; row < batch.size(); ++row)
      LEVIN_CHECK(batch[row].sizes() == batch[0].sizes(), "[levin data bench] the images differ in size, and a batch ",
                  "needs one: ", batch[0].sizes(), " (", place(indices[0]), ") and ", batch[row].sizes(), " (",
                  place(indices[row]), "); --transform imagenet gives one size, or use --batch-size 1");
    auto start = Clock::now();
    at::stack(batch);
    total.collate += since(start);
    collated += static_cast<int64_t>(batch.size());
    batch.clear();
    indices.clear();
  }
  for (auto* stage : {&total.read, &total.decode, &total.transform}) *stage /= static_cast<double>(count);
  if (collated > 0) total.collate /= static_cast<double>(collated);
  return total;
}

BenchResult measure(const ImageDataset& data, const BenchFlags& flags) {
  BenchResult result;
  measure_stages(data, std::min(flags.batch_size, data.size()), flags.batch_size);  // the first time is never the usual
  result.stages = measure_stages(data, std::min(flags.samples, data.size()), flags.batch_size);
  const levin::detail::SignalFlags signals(false);
  auto loader = make_loader(data, {.batch_size = flags.batch_size,
                                   .shuffle = flags.shuffle,
                                   .num_workers = workers_of(flags.num_workers),
                                   .decode = flags.decode});
  const bool to_gpu = flags.decode != "cpu" && levin::detail::cuda_accelerator().device_count() > 0;
  const c10::Device device = to_gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  if (to_gpu) loader = loader.placed({.device = device});
  const auto start = Clock::now();
  ProgressBar bar("levin data bench", loader.size() * flags.epochs,
                  {.unit = "img", .per_step = static_cast<double>(flags.batch_size)});
  for (int64_t epoch = 0; epoch < flags.epochs; ++epoch)
    for (auto& batch : loader) {
      if (result.images == 0) result.first_batch = since(start);
      result.images += batch["image"].size(0);
      bar.advance();
      if (const int signal = levin::detail::SignalFlags::pending(); signal != 0)
        throw Interrupted("[levin data bench] stopped", signal);
    }
  accelerator_of(device).synchronize(device);
  result.seconds = since(start);
  bar.discard();
  result.workers = loader.stats().workers;
  const double threads = std::max(1, result.workers);
  result.wait = std::max(0.0, threads * result.seconds / static_cast<double>(result.images) - result.stages.all());
  return result;
}

std::vector<std::pair<const char*, double>> stages_of(const BenchResult& result) {
  const auto& s = result.stages;
  return {{"read", s.read},
          {"decode", s.decode},
          {"transform", s.transform},
          {"collate", s.collate},
          {"wait", result.wait}};
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

void print_json(const ImageDataset& data, const BenchFlags& flags, const BenchResult& result) {
  nlohmann::ordered_json json{{"path", flags.path},
                              {"format", data.records().format()},
                              {"transform", flags.transform},
                              {"batch_size", flags.batch_size},
                              {"num_workers", result.workers},
                              {"decode", flags.decode},
                              {"images", result.images},
                              {"seconds", result.seconds},
                              {"images_per_second", static_cast<double>(result.images) / result.seconds},
                              {"first_batch_seconds", result.first_batch}};
  const double all = result.stages.all() + result.wait;
  for (const auto& [name, seconds] : stages_of(result))
    json["stages"][name] = {{"seconds_per_image", seconds}, {"share", all > 0 ? seconds / all : 0}};
  std::puts(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void print_table(const BenchFlags& flags, const BenchResult& result, const std::string& rate, const BarPlot& stages) {
  fmt::print("{}: {} in {:.2f} s, {}; first batch after {}; {}\n", flags.path, counted(result.images, "image"),
             result.seconds, rate, time_text(result.first_batch), counted(result.workers, "worker"));
  for (const auto& bar : stages.bars) fmt::print("  {:<10}{}\n", bar.label, bar.text);
}

struct DataBench : BenchFlags {
  std::string action;

  void describe(Flags& flags) {
    auto formats = record_formats();
    formats.insert(formats.begin(), "auto");
    flags.argument("bench", action, "the measurement", {"bench"});
    flags.argument("PATH", path, "dataset: file, glob of files or folder, in any format of levin pack");
    flags.flag("batch-size", batch_size, "images per batch", "N");
    auto& workers = flags.flag("num-workers", num_workers, "threads of the data loader", "N|auto", {"auto"});
    workers.words_are_hints = true;
    flags.flag("decode", decode, "who decodes JPEG images; for gpu and auto, batches go to the GPU", "WHERE",
               {"cpu", "gpu", "auto"});
    flags.flag("epochs", epochs, "passes over the data", "N");
    flags.flag("transform", transform,
               "cifar: RandomCrop(32, padding=4) and RandomHorizontalFlip; imagenet: RandomResizedCrop(224) and "
               "RandomHorizontalFlip",
               "NAME", {"none", "cifar", "imagenet"});
    flags.flag("format", format, "format of PATH; auto detects it", "FORMAT", formats);
    flags.flag("split", split, "split to read, of a dataset that has several", "SPLIT", {"train", "test"});
    flags.flag("samples", samples, "images that the stages are measured on", "N");
    flags.flag("plot", plot, "write a bar plot of the stages (.svg or .png)", "FILE");
    flags.flag("shuffle", shuffle, "read in random order");
    flags.flag("json", json, "print JSON");
  }

  int run() {
    check();
    at::set_num_threads(1);  // the loader's threads are the parallelism
    const ImageDataset data(path, {.transform = transform_named(transform), .split = split, .format = format});
    LEVIN_CHECK(data.size() > 0, "[levin data bench] \"", path, "\" has no records");
    const auto result = measure(data, *this);
    const double all = result.stages.all() + result.wait;
    const auto rate = fmt::format("{:.0f} images/s", static_cast<double>(result.images) / result.seconds);
    const auto source = path.size() > 44 ? "..." + path.substr(path.size() - 41) : path;
    BarPlot stages{.title = fmt::format("{} ({}): {}", source, data.records().format(), rate),
                   .subtitle = fmt::format("transform {}, batches of {}, {}: time of a worker for one image", transform,
                                           batch_size, counted(result.workers, "worker"))};
    for (const auto& [name, seconds] : stages_of(result))
      stages.bars.push_back(
          {name, seconds, fmt::format("{:.0f}%  {}", all > 0 ? 100 * seconds / all : 0, time_text(seconds))});
    if (json)
      print_json(data, *this, result);
    else
      print_table(*this, result, rate, stages);
    if (!plot.empty()) write_drawing(plot, picture_of(stages));
    return 0;
  }

 private:
  void check() const {
    const std::vector<std::pair<const char*, int64_t>> counts{
        {"--batch-size", batch_size}, {"--epochs", epochs}, {"--samples", samples}};
    for (const auto& [name, value] : counts)
      LEVIN_CHECK(value >= 1, "[levin data bench] ", name, " ", value, " is not allowed (1 or more)");
    LEVIN_CHECK(plot.empty() || plot.ends_with(".svg") || plot.ends_with(".png"), "[levin data bench] --plot \"", plot,
                "\" must end with .svg or .png");
  }
};

}  // namespace

Command data_command() {
  return make_command<DataBench>("data", "measure the throughput of data loading: levin data bench PATH");
}

}  // namespace levin::cli
