#include "levin/io/records/tfrecord/tf_record.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <deque>
#include <optional>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/tfrecord/example.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTfKey = "__key__", kTfImage = "image/encoded", kTfFormat = "image/format",
                           kTfLabel = "image/class/label";

struct TfType {
  std::string_view name;
  c10::ScalarType type;
};
constexpr std::array<TfType, 10> kTfTypes{{{"uint8", at::kByte},
                                           {"int8", at::kChar},
                                           {"int16", at::kShort},
                                           {"int32", at::kInt},
                                           {"int64", at::kLong},
                                           {"bool", at::kBool},
                                           {"float16", at::kHalf},
                                           {"bfloat16", at::kBFloat16},
                                           {"float32", at::kFloat},
                                           {"float64", at::kDouble}}};

std::string_view field_name(std::string_view feature) {
  return feature == kTfImage ? "image" : feature == kTfLabel ? "label" : feature;
}

/// "PNG", "JPEG": how TensorFlow's own files call kinds of images.
std::string tf_format(std::string_view bytes, std::string_view kind) {
  const auto* codec = image_codec_of(bytes);
  std::string format(codec ? codec->name : kind);
  for (char& c : format)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return format;
}

const TfFeature* find_feature(const std::vector<TfFeature>& features, std::string_view name, std::string_view end) {
  for (const auto& feature : features)
    if (feature.name.size() == name.size() + end.size() && feature.name.starts_with(name) &&
        feature.name.ends_with(end))
      return &feature;
  return nullptr;
}

/// Floats of 64 bits, which Example has no list of: their bytes in `raw`, the type beside it, and no shape.
std::optional<std::vector<double>> doubles_of(const std::vector<TfFeature>& features, const TfFeature& raw,
                                              std::string_view name) {
  const auto* type = find_feature(features, name, "/dtype");
  if (!type || find_feature(features, name, "/shape")) return std::nullopt;
  const auto* bytes = std::get_if<std::vector<std::string_view>>(&raw.values);
  const auto* words = std::get_if<std::vector<std::string_view>>(&type->values);
  if (!bytes || !words || bytes->size() != 1 || words->size() != 1 || (*words)[0] != "float64") return std::nullopt;
  LEVIN_CHECK((*bytes)[0].size() % sizeof(double) == 0, "has numbers \"", shown(name), "\" of ", (*bytes)[0].size(),
              " bytes, which are no float64");
  std::vector<double> values((*bytes)[0].size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), (*bytes)[0].data(), (*bytes)[0].size());
  return values;
}

/// The array whose bytes are in `raw`; undefined when shape and type do not stand beside it.
Tensor array_of(const std::vector<TfFeature>& features, const TfFeature& raw, std::string_view name) {
  const auto* shape = find_feature(features, name, "/shape");
  const auto* type = find_feature(features, name, "/dtype");
  if (!shape || !type) return {};
  const auto* bytes = std::get_if<std::vector<std::string_view>>(&raw.values);
  const auto* sizes = std::get_if<std::vector<int64_t>>(&shape->values);
  const auto* words = std::get_if<std::vector<std::string_view>>(&type->values);
  if (!bytes || !sizes || !words || bytes->size() != 1 || words->size() != 1) return {};
  const auto* known = std::find_if(kTfTypes.begin(), kTfTypes.end(), [&](auto& t) { return t.name == (*words)[0]; });
  if (known == kTfTypes.end()) return {};
  uint64_t count = c10::elementSize(known->type);
  bool fits = sizes->size() <= 64;
  for (const int64_t size : *sizes)
    fits = fits && size >= 0 && !__builtin_mul_overflow(count, static_cast<uint64_t>(size), &count);
  LEVIN_CHECK(fits && count == (*bytes)[0].size(), "has an array \"", shown(name), "\" whose shape is not that of its ",
              (*bytes)[0].size(), " bytes");
  auto tensor = at::empty(*sizes, at::TensorOptions().dtype(known->type));
  if (count > 0) std::memcpy(tensor.data_ptr(), (*bytes)[0].data(), static_cast<size_t>(count));
  return tensor;
}

std::string_view array_name(std::string_view feature) {
  return feature.ends_with("/raw") ? feature.substr(0, feature.size() - 4) : std::string_view{};
}

/// Whether the feature only describes an array that is a field already.
bool describes_array(std::string_view feature, const std::vector<std::string_view>& arrays) {
  for (const auto name : arrays)
    if (feature.starts_with(name) &&
        (feature.substr(name.size()) == "/shape" || feature.substr(name.size()) == "/dtype"))
      return true;
  return false;
}

}  // namespace

Record record_of_example(std::string_view bytes) {
  auto features = parse_tf_example(bytes);
  Record record;
  record.fields.reserve(features.size());
  std::vector<std::string_view> arrays;
  for (const auto& feature : features) {
    const auto name = array_name(feature.name);
    if (name.empty()) continue;
    if (auto tensor = array_of(features, feature, name); tensor.defined())
      record.fields.emplace_back(name, std::move(tensor));
    else if (auto doubles = doubles_of(features, feature, name))
      record.fields.emplace_back(name, *std::move(doubles));
    else
      continue;
    arrays.push_back(name);
  }
  for (auto& feature : features) {
    const auto array = array_name(feature.name);
    if (!arrays.empty() &&
        (std::find(arrays.begin(), arrays.end(), array) != arrays.end() || describes_array(feature.name, arrays)))
      continue;
    std::string name(field_name(feature.name));
    // Both "image" and "image/encoded" stand in some files; the second then keeps its own name.
    if (record.find(name)) name = feature.name;
    if (auto* ints = std::get_if<std::vector<int64_t>>(&feature.values)) {
      record.fields.emplace_back(std::move(name), std::move(*ints));
    } else if (auto* floats = std::get_if<std::vector<float>>(&feature.values)) {
      record.fields.emplace_back(std::move(name), std::move(*floats));
    } else {
      const auto& list = std::get<std::vector<std::string_view>>(feature.values);
      if (list.size() == 1 && feature.name == kTfKey)
        record.key = list[0];
      else if (list.size() == 1)
        record.fields.emplace_back(std::move(name), std::string(list[0]));
      else
        for (size_t i = 0; i < list.size(); ++i)
          record.fields.emplace_back(fmt::format("{}/{}", name, i), std::string(list[i]));
    }
  }
  return record;
}

std::string example_of_record(const Record& record) {
  std::vector<TfFeature> features;
  std::deque<std::string> owned;  // what the views point at
  auto text = [&](std::string value) -> std::string_view { return owned.emplace_back(std::move(value)); };
  auto add_bytes = [&](std::string_view name, std::string_view value) {
    features.push_back({name, std::vector<std::string_view>{value}});
  };
  if (!record.key.empty()) add_bytes(kTfKey, record.key);
  for (const auto& [name, value] : record.fields) {
    LEVIN_CHECK(!name.empty() && name != kTfKey, "[records] \"", shown(record.key), "\" has a field \"", shown(name),
                "\", which cannot be written");
    if (const auto* bytes = std::get_if<std::string>(&value)) {
      add_bytes(name == "image" ? kTfImage : std::string_view(name), *bytes);
      const auto kind = name == "image" && !record.find(kTfFormat) ? image_extension(*bytes) : "";
      if (!kind.empty()) add_bytes(kTfFormat, text(tf_format(*bytes, kind)));
    } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
      features.push_back({name == "label" ? kTfLabel : std::string_view(name), *ints});
    } else if (const auto* floats = std::get_if<std::vector<float>>(&value)) {
      features.push_back({name, *floats});
    } else if (const auto* doubles = std::get_if<std::vector<double>>(&value)) {
      add_bytes(text(name + "/raw"),
                text({reinterpret_cast<const char*>(doubles->data()), doubles->size() * sizeof(double)}));
      add_bytes(text(name + "/dtype"), "float64");
    } else {
      const auto tensor = std::get<Tensor>(value).detach().cpu().contiguous();
      const auto* known =
          std::find_if(kTfTypes.begin(), kTfTypes.end(), [&](auto& t) { return t.type == tensor.scalar_type(); });
      LEVIN_CHECK(known != kTfTypes.end(), "[records] \"", name, "\" of ", c10::toString(tensor.scalar_type()),
                  " cannot be written to a TFRecord");
      add_bytes(text(name + "/raw"), text({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}));
      features.push_back({text(name + "/shape"), tensor.sizes().vec()});
      add_bytes(text(name + "/dtype"), known->name);
    }
  }
  std::sort(features.begin(), features.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < features.size(); ++i)
    LEVIN_CHECK(features[i].name != features[i - 1].name, "[records] \"", shown(record.key),
                "\" has two fields that would be the feature \"", shown(features[i].name), "\"");
  return write_tf_example(features);
}

std::vector<std::string> read_tf_classes(const fs::path& first) {
  auto own = first;
  own.replace_extension(kTfLabels);
  std::error_code error;
  for (const auto& path : {own, first.parent_path() / "labels.txt"}) {
    if (!fs::is_regular_file(path, error)) continue;
    std::vector<std::string> classes;
    for (const auto& line : split_classes(read_file(path, 64 << 20))) {
      size_t number = 0;
      const auto [end, bad] = std::from_chars(line.data(), line.data() + line.size(), number);
      const bool numbered = bad == std::errc() && end != line.data() + line.size() && *end == ':';
      // Another file of that name is none of ours.
      if (!numbered || number > 1'000'000) return {};
      if (number >= classes.size()) classes.resize(number + 1);
      classes[number] = std::string(end + 1, line.data() + line.size());
    }
    return classes;
  }
  return {};
}

std::string write_tf_classes(const std::vector<std::string>& classes) {
  join_classes(classes);  // refuses what is no line
  std::string lines;
  for (size_t i = 0; i < classes.size(); ++i) lines += fmt::format("{}:{}\n", i, classes[i]);
  return lines;
}

}  // namespace levin::detail
