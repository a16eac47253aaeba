#include "levin/io/weights/weights.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/safetensors_model.h"
#include "levin/io/weights/torch_file.h"

namespace levin {
namespace fs = std::filesystem;

class WeightFile::Source {
 public:
  virtual ~Source() = default;
  virtual Tensor read(std::string_view name) const = 0;
  virtual NamedTensors read_all(const std::vector<std::string>& names) const = 0;
};

namespace {

constexpr uint64_t kLongestWeightIndex = uint64_t{256} << 20;
constexpr std::array kWeightNames{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                  "pytorch_model.bin.index.json"};
/// Before the names of a model inside DistributedDataParallel or DataParallel.
constexpr std::string_view kWrapper = "module.";
const std::set<std::string> kWeightEndings{".safetensors", ".pt", ".pth", ".bin", ".ckpt"};

class SafetensorsSource : public WeightFile::Source {
 public:
  explicit SafetensorsSource(const fs::path& path) : model(path) {}
  Tensor read(std::string_view name) const override { return model.read(kept(name)); }
  NamedTensors read_all(const std::vector<std::string>& names) const override {
    NamedTensors tensors;
    std::unordered_map<std::string_view, Tensor> shared;
    for (const auto& name : names) {
      auto& tensor = shared[kept(name)];
      if (!tensor.defined()) tensor = model.read(kept(name));
      tensors.emplace_back(name, tensor);
    }
    return tensors;
  }
  /// safetensors.torch.save_model keeps one name of a tied tensor, and says which in the metadata: {left out: kept}.
  void add_aliases(const SafetensorsFile& file, std::vector<WeightEntry>& entries) {
    for (const auto& [name, other] : file.metadata()) {
      if (name == "format" || model.contains(name) || !file.find(other) || !aliases.emplace(name, other).second)
        continue;
      auto entry = *std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.name == other; });
      entry.name = name;
      entries.push_back(std::move(entry));
    }
  }

  SafetensorsModel model;

 private:
  std::string_view kept(std::string_view name) const {
    const auto found = aliases.find(std::string(name));
    return found == aliases.end() ? name : std::string_view(found->second);
  }

  std::unordered_map<std::string, std::string> aliases;
};

class TorchSource : public WeightFile::Source {
 public:
  Tensor read(std::string_view name) const override {
    const auto full = stripped + std::string(name);
    return files[place.at(full)].read(full);
  }
  NamedTensors read_all(const std::vector<std::string>& names) const override {
    std::map<size_t, std::vector<std::string>> by_file;
    for (const auto& name : names) by_file[place.at(stripped + name)].push_back(stripped + name);
    std::unordered_map<std::string, Tensor> found;
    for (const auto& [file, its_names] : by_file)
      for (auto& [name, tensor] : files[file].read(its_names)) found.emplace(name, std::move(tensor));
    NamedTensors tensors;
    for (const auto& name : names) tensors.emplace_back(name, found.at(stripped + name));
    return tensors;
  }

  std::vector<TorchFile> files;
  std::unordered_map<std::string, size_t> place;
  /// Stands before the names in the files.
  std::string stripped;
};

/// What a folder holds: one of the usual names, or the only file that could be meant.
fs::path weights_in(const fs::path& folder) {
  for (const char* name : kWeightNames)
    if (fs::exists(folder / name)) return folder / name;
  std::vector<fs::path> candidates;
  for (const auto& item : fs::directory_iterator(folder))
    if (item.is_regular_file() && kWeightEndings.contains(item.path().extension().string()))
      candidates.push_back(item.path());
  LEVIN_CHECK(
      !candidates.empty(), "[weights] \"", folder.string(),
      "\" has no weights: neither model.safetensors nor pytorch_model.bin, an index of them, or any .safetensors, "
      ".pt, .pth, .bin or .ckpt");
  std::sort(candidates.begin(), candidates.end());
  LEVIN_CHECK(candidates.size() == 1, "[weights] \"", folder.string(), "\" has ", candidates.size(),
              " weight files; name one of them, such as \"", candidates[0].string(), "\"");
  return candidates[0];
}

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

nlohmann::json weight_map(const fs::path& path) {
  const auto index = nlohmann::json::parse(read_file(path, kLongestWeightIndex), nullptr, false);
  LEVIN_CHECK(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object() &&
                  !index["weight_map"].empty(),
              "[weights] \"", path.string(), "\" is not an index: a JSON object with a weight_map is needed");
  for (const auto& [name, file] : index["weight_map"].items())
    LEVIN_CHECK(file.is_string() && is_plain_file_name(file.get<std::string>()), "[weights] \"", path.string(),
                "\": \"", name, "\" is said to be in ",
                file.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
                "; only names of files beside the index are allowed");
  return index["weight_map"];
}

std::shared_ptr<TorchSource> open_torch_index(const fs::path& path, const nlohmann::json& map) {
  auto source = std::make_shared<TorchSource>();
  const auto where = path.string();
  std::map<std::string, size_t> opened;
  for (const auto& [name, value] : map.items()) {
    const auto file = value.get<std::string>();
    auto found = opened.find(file);
    if (found == opened.end()) {
      source->files.emplace_back(path.parent_path() / file);
      found = opened.emplace(file, source->files.size() - 1).first;
    }
    LEVIN_CHECK(source->files[found->second].find(name), "[weights] \"", where, "\": \"", name,
                "\" is said to be in \"", file, "\", it is not");
    source->place.emplace(name, found->second);
  }
  for (const auto& [file, i] : opened)
    for (const auto& entry : source->files[i].entries()) {
      const auto found = source->place.find(entry.name);
      LEVIN_CHECK(found != source->place.end(), "[weights] \"", where, "\": \"", entry.name, "\" of \"", file,
                  "\" is not in the index");
      LEVIN_CHECK(found->second == i, "[weights] \"", where, "\": \"", entry.name, "\" is in two files");
    }
  return source;
}

WeightEntry torch_weight(const TorchEntry& entry) {
  return {entry.name, dtype_name(entry.dtype), entry.dtype, entry.shape, entry.bytes()};
}

}  // namespace

int64_t WeightEntry::numel() const {
  int64_t count = 1;
  for (const auto size : shape) count *= size;
  return count;
}

WeightFile::WeightFile(const fs::path& path, const WeightOptions& options) : path_(path) {
  LEVIN_CHECK(fs::exists(path), "[weights] \"", path.string(), "\" does not exist");
  const auto file = fs::is_directory(path) ? weights_in(path) : path;
  const bool is_index = file.extension() == ".json";
  const auto map = is_index ? weight_map(file) : nlohmann::json();
  const auto first = is_index ? file.parent_path() / map.begin()->get<std::string>() : file;
  if (is_torch_file(first)) {
    format_ = "torch";
    std::shared_ptr<TorchSource> source;
    if (is_index) {
      source = open_torch_index(file, map);
    } else {
      source = std::make_shared<TorchSource>();
      source->files.emplace_back(file, TorchFileOptions{.root = options.root});
      for (const auto& entry : source->files[0].entries()) source->place.emplace(entry.name, 0);
      metadata_ = source->files[0].metadata();
      root_ = source->files[0].root();
    }
    for (const auto& part : source->files) {
      files_.push_back(part.path());
      for (const auto& entry : part.entries()) entries_.push_back(torch_weight(entry));
    }
    const bool wrapped = std::all_of(entries_.begin(), entries_.end(), [](const auto& entry) {
      return entry.name.size() > kWrapper.size() && entry.name.starts_with(kWrapper);
    });
    if (options.strip_module && !options.root.empty() && wrapped && !entries_.empty()) {
      stripped_ = source->stripped = kWrapper;
      for (auto& entry : entries_) entry.name.erase(0, kWrapper.size());
    }
    source_ = source;
  } else {
    format_ = "safetensors";
    const auto source = std::make_shared<SafetensorsSource>(file);
    for (const auto& part : source->model.files()) {
      files_.push_back(part.path());
      metadata_.insert(part.metadata().begin(), part.metadata().end());
      for (const auto& entry : part.entries()) {
        const auto* known = detail::find_safetensors_type(entry.dtype);
        const auto type = known ? known->type : c10::ScalarType::Undefined;
        const auto name = type == c10::ScalarType::Undefined ? entry.dtype : dtype_name(type);
        entries_.push_back({entry.name, name, type, entry.shape, entry.bytes()});
      }
    }
    for (const auto& part : source->model.files()) source->add_aliases(part, entries_);
    source_ = source;
  }
  if (files_.size() > 1)
    std::sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

const WeightEntry* WeightFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const WeightEntry& WeightFile::at(std::string_view name) const {
  if (const auto* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.push_back(entry.name);
  const auto nearest = nearest_word(name, names);
  throw Error(fmt::format("[weights] \"{}\" has no tensor \"{}\"{}", path_.string(), name,
                          nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest)));
}

Tensor WeightFile::read(std::string_view name) const {
  return source_->read(at(name).name);
}

NamedTensors WeightFile::read(const std::vector<std::string>& names) const {
  for (const auto& name : names) at(name);
  return source_->read_all(names);
}

uint64_t WeightFile::bytes() const {
  uint64_t sum = 0;
  for (const auto& entry : entries_) sum += entry.bytes;
  return sum;
}

std::string dtype_name(c10::ScalarType type) {
  for (const auto& known : detail::torch_types())
    if (known.type == type) return known.name;
  return c10::toString(type);
}

c10::ScalarType dtype_from_name(std::string_view operation, std::string_view name) {
  std::vector<std::string> names;
  for (const auto& known : detail::torch_types()) {
    if (name == known.name) return known.type;
    names.emplace_back(known.name);
  }
  fail_unknown(operation, "dtype", name, names);
}

}  // namespace levin
