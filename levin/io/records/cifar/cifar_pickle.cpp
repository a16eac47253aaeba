#include "levin/core/error.h"
#include "levin/io/records/cifar/cifar.h"
#include "levin/io/weights/numpy_pickle.h"

namespace levin::detail {
namespace {

std::vector<int64_t> labels_in(const pickle::Value& batch, std::string_view field, int64_t count,
                               const std::filesystem::path& path) {
  const auto* value = batch.find(field);
  if (value == nullptr) return {};
  std::vector<int64_t> labels;
  // Copies of the data set that went through numpy have an array in place of the list.
  if (const auto array = numpy_tensor(*value); array.defined()) {
    const auto numbers = array.reshape({-1}).to(at::kLong).contiguous();
    labels.assign(numbers.const_data_ptr<int64_t>(), numbers.const_data_ptr<int64_t>() + numbers.numel());
  } else {
    for (const auto& item : value->items()) labels.push_back(item.integer());
  }
  LEVIN_CHECK(static_cast<int64_t>(labels.size()) == count, "[cifar] \"", path.string(), "\" has ", count,
              " images and ", labels.size(), " ", field);
  return labels;
}

}  // namespace

CifarBatch read_cifar_pickle(const std::filesystem::path& path) {
  const auto batch = read_numpy_pickle(path);
  LEVIN_CHECK(batch.is(pickle::Kind::dict), "[cifar] \"", path.string(), "\" is ", pickle::kind_name(batch.kind()),
              ", a batch is a dict");
  const auto* data = batch.find("data");
  CifarBatch result;
  if (data != nullptr) result.pixels = numpy_tensor(*data);
  LEVIN_CHECK(result.pixels.defined() && result.pixels.scalar_type() == at::kByte && result.pixels.dim() >= 2 &&
                  result.pixels.numel() == result.pixels.size(0) * kCifarBytes,
              "[cifar] \"", path.string(), "\" has no \"data\" of uint8 [N, 3072]");
  const auto count = result.pixels.size(0);
  result.pixels = result.pixels.reshape({count, kCifarBytes}).contiguous();
  result.labels = labels_in(batch, "labels", count, path);
  if (result.labels.empty()) result.labels = labels_in(batch, "fine_labels", count, path);
  result.coarse_labels = labels_in(batch, "coarse_labels", count, path);
  LEVIN_CHECK(!result.labels.empty(), "[cifar] \"", path.string(), "\" has neither \"labels\" nor \"fine_labels\"");
  return result;
}

std::vector<std::string> read_cifar_names(const std::filesystem::path& path, const std::string& field) {
  const auto meta = read_numpy_pickle(path);
  LEVIN_CHECK(meta.is(pickle::Kind::dict) && meta.find(field) != nullptr, "[cifar] \"", path.string(),
              "\" has no list \"", field, "\"");
  std::vector<std::string> names;
  for (const auto& name : meta.find(field)->items()) names.push_back(name.text());
  return names;
}

}  // namespace levin::detail
