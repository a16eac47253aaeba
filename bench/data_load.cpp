// How many images a second the loader gives, beside torch's DataLoader with torchvision (peers/data_load.py): the same
// files, the same number of threads as the peer has processes, the same tensors out (float, normalized).
//   data_load [--folder DIR] [--images N] [--decode cpu,gpu] [--threads 16]
// With a GPU, also how many images per second arrive there when the CPU and when the GPU (nvJPEG) decodes, the latter
// with several fractions of the images left to the CPU, and the ratio of the best. With --decode that alone is
// measured. Writes the files on first use: small PNG pictures, like CIFAR-10's, and JPEG photographs of noise and
// gradients, like ImageNet's.
#include <chrono>
#include <cstdio>
#include <filesystem>

#include <torch/torch.h>

#include "levin/core/main.h"
#include "levin/data/image_dataset.h"
#include "levin/data/loader.h"
#include "levin/data/transforms/transforms.h"
#include "levin/devices/accelerator.h"
#include "levin/io/images/image.h"
#include "levin/io/records/records.h"

namespace {

namespace fs = std::filesystem;
namespace T = levin::transforms;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Smooth shapes with some noise: what a codec has to do for a photograph.
torch::Tensor picture(int64_t height, int64_t width, int64_t cells) {
  const auto coarse = torch::rand({1, 3, cells, cells}) * 255;
  const auto smooth = torch::nn::functional::interpolate(coarse, torch::nn::functional::InterpolateFuncOptions()
                                                                     .size(std::vector<int64_t>{height, width})
                                                                     .mode(torch::kBicubic)
                                                                     .align_corners(false));
  return (smooth[0] + torch::randn({3, height, width}) * 8).clamp(0, 255).to(torch::kByte);
}

void write_files(const fs::path& folder, int64_t images, int64_t height, int64_t width, int64_t cells,
                 const char* end) {
  if (fs::exists(folder / "complete")) return;
  torch::manual_seed(0);
  for (int64_t i = 0; i < images; ++i) {
    const auto cls = folder / "files" / std::to_string(i % 10);
    fs::create_directories(cls);
    levin::write_image(cls / (std::to_string(i) + end), picture(height, width, cells), {.quality = 90});
  }
  std::fclose(std::fopen((folder / "complete").c_str(), "w"));
}

void report(const std::string& name, double value, const char* unit, double limit) {
  std::printf("{\"case\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"better\": \"%s\", \"limit\": %g}\n",
              name.c_str(), value, unit, unit[0] == 'm' ? "lower" : "higher", limit);
  std::fflush(stdout);
}

/// Images a second over whole passes, after one to warm up; and how long the first batch took.
void measure(const std::string& name, const std::string& path, const levin::Transform& transform, int workers,
             int64_t batch, double limit) {
  const auto start = Clock::now();
  auto loader = levin::make_loader(levin::ImageDataset(path, {.transform = transform}),
                                   {.batch_size = batch, .shuffle = true, .num_workers = workers});
  auto it = loader.begin();
  const double first = since(start) * 1e3;
  for (; it != loader.end(); ++it) {
  }
  double best = 0;
  for (int pass = 0; pass < 3; ++pass) {
    int64_t images = 0;
    const auto begin = Clock::now();
    for (auto& one : loader) images += one["label"].size(0);
    best = std::max(best, static_cast<double>(images) / since(begin));
  }
  report(name, best, "images/s", limit);
  if (limit > 0) report(name + ": first batch", first, "ms", 0);
}

/// Images a second that arrive on the GPU, over whole passes, after one to warm up.
double rate_on_gpu(const std::string& path, const levin::Transform& transform, int workers, const char* decode,
                   double on_cpu = 0) {
  const c10::Device device(c10::kCUDA, 0);
  auto loader =
      levin::make_loader(
          levin::ImageDataset(path, {.transform = transform}),
          {.batch_size = 256, .shuffle = true, .num_workers = workers, .decode = decode, .decode_on_cpu = on_cpu})
          .placed({.device = device});
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {
    int64_t images = 0;
    const auto begin = Clock::now();
    for (auto& one : loader) images += one["label"].size(0);
    levin::accelerator_of(device).synchronize(device);
    if (pass > 0) best = std::max(best, static_cast<double>(images) / since(begin));
  }
  std::printf("decode = %s, decode_on_cpu = %g: %.0f images/s, %ld of 16000 decoded on the GPU, waited %.2f s\n",
              decode, on_cpu, best, static_cast<long>(loader.stats().decoded_on_gpu), loader.stats().waited);
  std::fflush(stdout);
  return best;
}

void measure_gpu(const fs::path& folder, const levin::Transform& transform, const std::string& decoders, int threads) {
  if (levin::detail::cuda_accelerator().device_count() == 0) {
    if (!decoders.empty()) std::printf("{\"skip\": \"no GPU\"}\n");
    return;
  }
  // 500 pictures, eight files of each: passes long enough to measure.
  write_files(folder / "jpeg_gpu", 500, 375, 500, 24, ".jpg");
  const auto files = folder / "jpeg_gpu/files";
  if (!fs::exists(files / "0/0_1.jpg"))
    for (int64_t i = 0; i < 500; ++i)
      for (int copy = 1; copy < 8; ++copy) {
        const auto cls = files / std::to_string(i % 10);
        fs::copy_file(cls / (std::to_string(i) + ".jpg"),
                      cls / (std::to_string(i) + "_" + std::to_string(copy) + ".jpg"));
      }
  const auto wanted = [&](const char* name) { return decoders.empty() || decoders.find(name) != std::string::npos; };
  const double cpu = wanted("cpu") ? rate_on_gpu(files.string(), transform, threads, "cpu") : 0;
  double gpu = 0;
  for (const double on_cpu : {0.0, 0.25, 0.5})
    if (wanted("gpu")) gpu = std::max(gpu, rate_on_gpu(files.string(), transform, threads, "gpu", on_cpu));
  if (cpu == 0 || gpu == 0) return;
  std::printf(
      "{\"case\": \"JPEG 500x375, random resized crop, %d workers, decode = gpu; decode = cpu\", \"value\": %.4g, "
      "\"peer\": %.4g, \"ratio\": %.3g, \"unit\": \"images/s\", \"better\": \"higher\", \"limit\": 2}\n",
      threads, gpu, cpu, gpu / cpu);
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const fs::path folder = args.get("folder", std::string("build/bench_data"));
    const auto images = args.get("images", int64_t{4000});
    const auto decoders = args.get("decode", std::string());
    const auto threads = args.get("threads", 16);
    args.check_all_used();
    const std::vector<double> mean{0.4914, 0.4822, 0.4465}, std{0.2470, 0.2435, 0.2616};
    const auto small = T::compose({T::Normalize{.mean = mean, .std = std}});
    const auto large = T::compose(
        {T::RandomResizedCrop{.size = 224}, T::RandomHorizontalFlip{}, T::Normalize{.mean = mean, .std = std}});
    if (!decoders.empty()) return measure_gpu(folder, large, decoders, threads);
    write_files(folder / "png", images, 32, 32, 8, ".png");
    write_files(folder / "jpeg", images / 10, 375, 500, 24, ".jpg");
    const auto png = (folder / "png/files").string(), jpeg = (folder / "jpeg/files").string();
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    measure("PNG 32x32, one core", png, small, 0, 128, 5);
    measure("PNG 32x32, all workers", png, small, cores, 128, 5);
    measure("JPEG 500x375, random resized crop, one core", jpeg, large, 0, 32, 1.5);
    measure("JPEG 500x375, random resized crop, all workers", jpeg, large, cores, 32, 1.5);
    measure_gpu(folder, large, decoders, threads);
    // The same small pictures, packed: each must be faster than the folder.
    for (const auto& end : {".tar", ".tfrecord", ".lmdb", ".h5"}) {
      const auto known = levin::record_formats();
      const std::string format = std::string(end) == ".h5" ? "hdf5" : end + 1;
      if (std::find(known.begin(), known.end(), format) == known.end()) continue;
      const auto packed = (folder / ("png" + std::string(end))).string();
      if (!fs::exists(packed)) {
        const auto from = levin::open_records(png);
        const auto to = levin::create_records(packed, {.classes = from->classes()});
        for (int64_t i = 0; i < from->size(); ++i) to->write(from->read(i));
        to->close();
      }
      measure(std::string("PNG 32x32 in ") + end + ", one core", packed, small, 0, 128, 0);
    }
  });
}
