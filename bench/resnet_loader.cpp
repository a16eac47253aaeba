// Whether a GPU ever waits for its data: ResNet-50, batch 128, on a folder of 32x32 PNG files with augmentation, beside
// the same step on a batch that lies on the device already. Rounds of both take turns; the median of each counts.
//   resnet_loader [--folder DIR] [--images 12800] [--rounds 5] [--precision 32-true,bf16-mixed]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "levin/data/cifar.h"
#include "levin/data/image_dataset.h"
#include "levin/data/transforms/transforms.h"
#include "levin/levin.h"
#include "levin/models/resnet.h"

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const std::string& folder, const std::string& precision, int64_t rounds) {
  constexpr int64_t kBatch = 128;
  levin::Fabric fabric({.accelerator = "cuda", .devices = 1, .precision = precision});
  fabric.launch();
  torch::manual_seed(0);
  auto model = levin::models::resnet50({.num_classes = 10});
  auto [net, optimizer] = fabric.setup(model, levin::optim::SGD(model->parameters(), {.lr = 0.01, .momentum = 0.9}));
  net->train();
  for (auto& parameter : model->parameters())
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  auto loader = fabric.setup_dataloaders(
      levin::make_loader(levin::ImageDataset(folder), {.batch_size = kBatch, .shuffle = true, .drop_last = true})
          .transformed(levin::transforms::BatchNormalize{.mean = {0.4914, 0.4822, 0.4465},
                                                         .std = {0.2470, 0.2435, 0.2616},
                                                         .channels_last = true,
                                                         .flip_p = 0.5,
                                                         .crop = 32,
                                                         .padding = 4}));
  const auto options = at::TensorOptions().device(fabric.device());
  const auto images = torch::randn({kBatch, 3, 32, 32}, options).contiguous(at::MemoryFormat::ChannelsLast);
  const auto labels = torch::randint(0, 10, {kBatch}, options.dtype(at::kLong));
  auto step = [&, &net = net, &optimizer = optimizer](const at::Tensor& x, const at::Tensor& y) {
    fabric.backward(levin::cross_entropy(net(x), y));
    optimizer.step();
    optimizer.zero_grad();
  };
  const auto timed = [&](auto&& work) {
    fabric.accelerator().synchronize(fabric.device());
    const auto start = std::chrono::steady_clock::now();
    const int64_t steps = work();
    fabric.accelerator().synchronize(fabric.device());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
           static_cast<double>(steps) * 1e3;
  };
  for (int i = 0; i < 20; ++i) step(images, labels);
  const double waited = loader.loader().stats().waited;
  std::vector<double> loaded, resident;
  const int64_t steps = loader.size();
  for (int64_t round = 0; round < rounds; ++round) {
    resident.push_back(timed([&] {
      for (int64_t i = 0; i < steps; ++i) step(images, labels);
      return steps;
    }));
    loaded.push_back(timed([&] {
      for (auto& batch : loader) step(batch["image"], batch["label"]);
      return steps;
    }));
  }
  std::printf(
      "{\"case\": \"ResNet-50 %s batch 128, PNG folder, augmented; on the device already\", \"value\": %.3f, "
      "\"peer\": %.3f, \"unit\": \"ms\", \"limit\": 0.97}\n",
      precision.c_str(), median(loaded), median(resident));
  std::printf("%s: waited %.2f ms for data in %ld steps\n", precision.c_str(),
              (loader.loader().stats().waited - waited) * 1e3, static_cast<long>(steps * rounds));
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    if (levin::detail::cuda_accelerator().device_count() == 0) {
      std::printf("{\"skip\": \"no GPU\"}\n");
      return;
    }
    const auto folder = args.get("folder", std::string("build/bench_data/shapes"));
    const auto images = args.get("images", int64_t{12800});
    const auto rounds = args.get("rounds", int64_t{5});
    const auto list = args.get("precision", std::string("32-true,bf16-mixed"));
    args.check_all_used();
    if (!std::filesystem::exists(folder))
      levin::write_image_folder(folder, levin::draw_color_shapes(images, 10).train, levin::color_shape_classes());
    for (size_t begin = 0; begin < list.size();) {
      const auto comma = std::min(list.find(',', begin), list.size());
      measure(folder, list.substr(begin, comma - begin), rounds);
      begin = comma + 1;
    }
  });
}
