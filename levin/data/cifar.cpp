#include "levin/data/cifar.h"

#include <cmath>
#include <cstdlib>

#include <ATen/ops/empty.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/core/random.h"
#include "levin/core/words.h"
#include "levin/data/drawn_shapes.h"
#include "levin/io/records/cifar/cifar.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/records.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kSide = 32;

/// The places to look, in order.
std::vector<fs::path> cifar_places(const fs::path& folder) {
  if (!folder.empty()) return {folder};
  std::vector<fs::path> places;
  if (const char* data = std::getenv("LEVIN_DATA"); data != nullptr && *data != '\0')
    places.push_back(fs::path(data) / "cifar10");
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    places.push_back(fs::path(home) / ".cache/levin/cifar10");
  places.push_back("data/cifar10");
  return places;
}

bool has_folders(const fs::path& place) {
  std::error_code error;
  return fs::is_directory(place / "train", error) && fs::is_directory(place / "test", error);
}

fs::path find_cifar(const fs::path& folder) {
  for (const auto& place : cifar_places(folder))
    if (detail::cifar_in(place) == "cifar10" || has_folders(place)) return place;
  return {};
}

TensorDataset load_cifar_part(const fs::path& folder, const std::string& split) {
  const bool folders = detail::cifar_in(folder) != "cifar10";
  const auto records = open_records(folder.string(), {.format = folders ? "folder" : "cifar10", .split = split});
  const auto count = records->size();
  auto images = at::empty({count, 3, kSide, kSide}, at::kByte);
  auto labels = at::empty({count}, at::kLong);
  parallel_for(0, count, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Record record = records->read(i);
      const Tensor pixels = detail::pixels_of(record, "cifar10", ImageMode::kRgb);
      LEVIN_CHECK(pixels.size(0) == kSide && pixels.size(1) == kSide && pixels.size(2) == 3, "[load_cifar10] ",
                  records->where(i), " is ", pixels.size(1), "x", pixels.size(0), " pixels, those of CIFAR are 32x32");
      images[i].copy_(pixels.permute({2, 0, 1}));
      labels.mutable_data_ptr<int64_t>()[i] = detail::label_of(record, "cifar10").value_or(-1);
    }
  });
  LEVIN_CHECK(labels.ge(0).logical_and(labels.lt(10)).all().item<bool>(), "[load_cifar10] \"", folder.string(),
              "\" has labels other than 0 to 9");
  return TensorDataset({{"image", images}, {"label", labels}});
}

struct Color {
  double red, green, blue;
};

/// Of a hue (0 to 1), as bright and as pale as asked.
Color color_of(double hue, double brightness, double paleness) {
  const auto channel = [&](double shift) {
    const double wave = std::abs(std::fmod(hue + shift, 1.0) * 6 - 3) - 1;
    return 255 * brightness * (paleness + (1 - paleness) * std::clamp(wave, 0.0, 1.0));
  };
  return {channel(0), channel(2.0 / 3), channel(1.0 / 3)};
}

void draw_color_shape(int64_t kind, Random& random, uint8_t* pixels) {
  constexpr int64_t kPlane = kSide * kSide;
  const double size = random.uniform(7, 13), x0 = random.uniform(size, kSide - size),
               y0 = random.uniform(size, kSide - size), turn = random.uniform(-0.3, 0.3), noise = random.uniform(5, 25);
  const double hue = random.uniform();
  const Color front = color_of(hue, random.uniform(0.6, 1), random.uniform(0, 0.4));
  const Color back = color_of(hue + random.uniform(0.25, 0.75), random.uniform(0.1, 0.5), random.uniform(0, 0.6));
  for (int64_t y = 0; y < kSide; ++y)
    for (int64_t x = 0; x < kSide; ++x) {
      const double dx = (static_cast<double>(x) - x0) / size, dy = (static_cast<double>(y) - y0) / size;
      const double u = dx * std::cos(turn) + dy * std::sin(turn), v = dy * std::cos(turn) - dx * std::sin(turn);
      const double share = std::clamp(0.5 + detail::inside_shape(kind, u, v) * size / 2, 0.0, 1.0);
      const double grain = noise * random.uniform(-1, 1);
      const auto put = [&](int64_t channel, double inside, double outside) {
        pixels[channel * kPlane + y * kSide + x] =
            static_cast<uint8_t>(std::clamp(share * inside + (1 - share) * outside + grain, 0.0, 255.0));
      };
      put(0, front.red, back.red);
      put(1, front.green, back.green);
      put(2, front.blue, back.blue);
    }
}

TensorDataset draw_color_part(int64_t count, uint64_t seed, uint64_t part) {
  auto images = at::empty({count, 3, kSide, kSide}, at::kByte);
  auto labels = at::empty({count}, at::kLong);
  auto* pixels = images.mutable_data_ptr<uint8_t>();
  auto* label = labels.mutable_data_ptr<int64_t>();
  parallel_for(0, count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Random random(seed, part, static_cast<uint64_t>(i));
      label[i] = static_cast<int64_t>(random.below(detail::kShapeNames.size()));
      draw_color_shape(label[i], random, pixels + i * 3 * kSide * kSide);
    }
  });
  return TensorDataset({{"image", images}, {"label", labels}});
}

}  // namespace

const std::vector<std::string>& cifar10_classes() {
  static const std::vector<std::string> names{"airplane", "automobile", "bird",  "cat",  "deer",
                                              "dog",      "frog",       "horse", "ship", "truck"};
  return names;
}

const std::vector<std::string>& color_shape_classes() {
  static const std::vector<std::string> names(detail::kShapeNames.begin(), detail::kShapeNames.end());
  return names;
}

bool has_cifar10(const fs::path& folder) {
  return !find_cifar(folder).empty();
}

ImageData load_cifar10(const fs::path& folder) {
  const auto found = find_cifar(folder);
  std::vector<std::string> places;
  for (const auto& place : cifar_places(folder)) places.push_back(place.string());
  LEVIN_CHECK(
      !found.empty(), "[load_cifar10] CIFAR-10 is not in ", join(places, " or "),
      "; unpack cifar-10-binary.tar.gz or cifar-10-python.tar.gz there, or put train/ and test/ with a folder of "
      "PNG files for each class there");
  return {"CIFAR-10", load_cifar_part(found, "train"), load_cifar_part(found, "test")};
}

ImageData draw_color_shapes(int64_t train, int64_t test, uint64_t seed) {
  return {"drawn colour shapes", draw_color_part(train, seed, 0), draw_color_part(test, seed, 1)};
}

ImageData load_cifar10_or_drawn(const fs::path& folder) {
  return !folder.empty() || has_cifar10() ? load_cifar10(folder) : draw_color_shapes();
}

void write_image_folder(const fs::path& folder, const TensorDataset& data, const std::vector<std::string>& classes) {
  const auto writer = create_records(folder.string(), {.format = "folder", .classes = classes});
  for (int64_t i = 0; i < data.size(); ++i) {
    const Batch sample = data.get(i);
    Record record;
    record.key = detail::numbered_key(i);
    record.set("image", sample["image"].permute({1, 2, 0}));
    record.set("label", std::vector<int64_t>{sample["label"].item<int64_t>()});
    writer->write(record);
  }
  writer->close();
}

}  // namespace levin
