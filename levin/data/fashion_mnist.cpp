#include "levin/data/fashion_mnist.h"

#include <array>
#include <cmath>
#include <random>

#include <ATen/ops/empty.h>

#include "levin/core/error.h"
#include "levin/data/drawn_shapes.h"
#include "levin/io/records/idx.h"

namespace levin {
namespace {

constexpr const char* kDebianFolder = "/usr/share/datasets/fashion-mnist";

std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  for (const auto& candidate : {folder / (name + ".gz"), folder / name})
    if (std::filesystem::exists(candidate)) return candidate;
  return {};
}

std::filesystem::path folder_or_default(const std::filesystem::path& folder) {
  return folder.empty() ? std::filesystem::path(kDebianFolder) : folder;
}

TensorDataset load_part(const std::filesystem::path& folder, const std::string& part) {
  std::array<Tensor, 2> tensors;
  const std::array names{part + "-images-idx3-ubyte", part + "-labels-idx1-ubyte"};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto path = find_file(folder, names[i]);
    LEVIN_CHECK(!path.empty(), "[data] \"", names[i], "\" (or .gz) is not in ", folder.string(),
                "; Debian's package dataset-fashion-mnist has it, or name the folder that does");
    tensors[i] = read_idx(path);
  }
  LEVIN_CHECK(tensors[0].dim() == 3 && tensors[0].scalar_type() == at::kByte && tensors[1].dim() == 1,
              "[data] the files in ", folder.string(), " are not images and labels");
  return TensorDataset({{"image", tensors[0].unsqueeze(1)}, {"label", tensors[1].to(at::kLong)}});
}

TensorDataset draw(int64_t count, uint64_t seed) {
  auto images = at::empty({count, 1, 28, 28}, at::kByte);
  auto labels = at::empty({count}, at::kLong);
  std::mt19937_64 random(seed);
  // The generator's numbers are the same everywhere; the library's distributions are not.
  auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53;
  };
  auto* pixel = images.data_ptr<uint8_t>();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t kind = static_cast<int64_t>(random() % 10);
    labels.data_ptr<int64_t>()[i] = kind;
    const double size = uniform(6, 11), x0 = uniform(size, 28 - size), y0 = uniform(size, 28 - size);
    const double turn = uniform(-0.3, 0.3), light = uniform(90, 255), noise = uniform(10, 45);
    for (int y = 0; y < 28; ++y)
      for (int x = 0; x < 28; ++x) {
        const double dx = (x - x0) / size, dy = (y - y0) / size;
        const double u = dx * std::cos(turn) + dy * std::sin(turn), v = dy * std::cos(turn) - dx * std::sin(turn);
        const double value = light * std::clamp(0.5 + detail::inside_shape(kind, u, v) * size / 2, 0.0, 1.0) +
                             noise * (uniform(-1, 1) + uniform(-1, 1));
        *pixel++ = static_cast<uint8_t>(std::clamp(value, 0.0, 255.0));
      }
  }
  return TensorDataset({{"image", images}, {"label", labels}});
}

}  // namespace

bool has_fashion_mnist(const std::filesystem::path& folder) {
  const auto where = folder_or_default(folder);
  for (const char* name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"})
    if (find_file(where, name).empty()) return false;
  return true;
}

ImageData load_fashion_mnist(const std::filesystem::path& folder) {
  const auto where = folder_or_default(folder);
  return {"Fashion-MNIST", load_part(where, "train"), load_part(where, "t10k")};
}

ImageData draw_shapes(int64_t train, int64_t test, uint64_t seed) {
  return {"drawn shapes", draw(train, seed * 2 + 1), draw(test, seed * 2 + 2)};
}

ImageData load_fashion_mnist_or_drawn(const std::filesystem::path& folder) {
  return !folder.empty() || has_fashion_mnist() ? load_fashion_mnist(folder) : draw_shapes();
}

}  // namespace levin
