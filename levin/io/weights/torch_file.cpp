#include "levin/io/weights/torch_file.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/byte_order.h"
#include "levin/io/weights/pickle_nodes.h"
#include "levin/io/weights/torch_pickle.h"
#include "levin/io/weights/torch_storages.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostTorchTensors = 1'000'000;
constexpr size_t kLongestTorchName = 4096;
constexpr uint64_t kMostTorchNameBytes = uint64_t{256} << 20;

/// Says what a file is when it is none of ours, before a reader of archives would say that it is no archive.
detail::TorchContent open_torch_content(const fs::path& path) {
  const auto beginning = detail::torch_beginning(path);
  if (detail::is_torch_legacy(beginning)) return detail::open_torch_legacy(path);
  LEVIN_CHECK(!detail::is_torch_tar(beginning), "[torch_file] \"", path.string(),
              "\" is a tar of torch before 0.1.10; load it with torch.load and torch.save its state_dict again");
  LEVIN_CHECK(detail::is_torch_zip(beginning), "[torch_file] \"", path.string(),
              "\" is no file of torch.save: it begins neither as a zip archive nor as a file from before torch 1.6");
  return detail::open_torch_zip(path);
}

/// Lists the tensors of a tree. Shared parts count at each place, so names are limited beside the values themselves.
struct TensorWalk {
  const std::string& where;
  std::vector<TorchEntry>& entries;
  uint64_t name_bytes = 0;

  void walk(const pickle::Value& value, const std::string& name);
};

void TensorWalk::walk(const pickle::Value& value, const std::string& name) {
  LEVIN_CHECK(name.size() <= kLongestTorchName, "[torch_file] \"", where, "\": a name of ", name.size(), " bytes");
  if (const auto tensor = value.object<detail::TorchTensorObject>()) {
    name_bytes += name.size();
    LEVIN_CHECK(entries.size() < kMostTorchTensors && name_bytes < kMostTorchNameBytes, "[torch_file] \"", where,
                "\": more than ", entries.size(), " tensors");
    entries.push_back(tensor->entry);
    entries.back().name = name.empty() ? "tensor" : name;
    return;
  }
  const auto inside = [&](const std::string& key) { return name.empty() ? key : name + "." + key; };
  if (value.is(pickle::Kind::dict)) {
    for (const auto& [key, item] : value.pairs()) {
      using pickle::Kind;
      if (key.is(Kind::text) || key.is(Kind::bytes)) walk(item, inside(key.text()));
      if (key.is(Kind::integer)) walk(item, inside(std::to_string(key.integer())));
    }
  } else if (value.is(pickle::Kind::list) || value.is(pickle::Kind::tuple)) {
    size_t i = 0;
    for (const auto& item : value.items()) walk(item, inside(std::to_string(i++)));
  }
}

/// The value at the end of "a.b.c"; keys may have dots themselves.
const pickle::Value* descend(const pickle::Value& value, std::string_view way) {
  if (way.empty()) return &value;
  if (!value.is(pickle::Kind::dict)) return nullptr;
  if (const auto* found = value.find(way)) return found;
  for (auto dot = way.rfind('.'); dot != way.npos && dot > 0; dot = way.rfind('.', dot - 1))
    if (const auto* found = value.find(way.substr(0, dot)))
      if (const auto* end = descend(*found, way.substr(dot + 1))) return end;
  return nullptr;
}

bool has_tensor(const pickle::Value& dict, bool numbers = true) {
  for (const auto& [key, value] : dict.pairs())
    if (const auto tensor = value.object<detail::TorchTensorObject>();
        tensor && (numbers || !tensor->entry.shape.empty()))
      return true;
  return false;
}

/// An archive that a program filled by hand has other things beside the module: numbers, texts, optimizers. One of
/// torch::save(module) has none, and its parts are parts of the module whatever their names are.
std::string likely_archive_root(const pickle::Value& whole) {
  std::vector<std::string> parts;
  bool beside = false;
  for (const auto& [key, value] : whole.pairs()) {
    const bool optimizer = detail::is_libtorch_optimizer(&value);
    beside = beside || optimizer || !(value.object<detail::TorchTensorObject>() || !value.class_name().empty());
    if (!value.class_name().empty() && !optimizer && key.is(pickle::Kind::text)) parts.push_back(key.text());
  }
  if (!beside || has_tensor(whole, /*numbers=*/false)) return "";
  for (const std::string name : {"model", "module"})
    if (std::find(parts.begin(), parts.end(), name) != parts.end()) return name;
  return parts.size() == 1 ? parts[0] : "";
}

/// Classes that OutputArchive makes: "__torch__.Module", "__torch__.___torch_mangle_3.Module". Those of a program are
/// called as in Python.
bool is_container(std::string_view name) {
  constexpr std::string_view kModule = "__torch__.", kMangled = "___torch_mangle_", kClass = ".Module";
  if (name == "__torch__.Module") return true;
  if (!name.starts_with(kModule) || !name.ends_with(kClass)) return false;
  name.remove_prefix(kModule.size());
  name.remove_suffix(kClass.size());
  if (!name.starts_with(kMangled)) return false;
  name.remove_prefix(kMangled.size());
  return !name.empty() && name.find_first_not_of("0123456789") == name.npos;
}

/// Whether all objects of a tree are containers.
bool has_containers_only(const pickle::Value& value) {
  if (value.is(pickle::Kind::dict)) {
    if (!value.class_name().empty() && !is_container(value.class_name())) return false;
    for (const auto& item : value.pairs())
      if (!has_containers_only(item.second)) return false;
  } else if (value.is(pickle::Kind::list) || value.is(pickle::Kind::tuple)) {
    for (const auto& item : value.items())
      if (!has_containers_only(item)) return false;
  }
  return true;
}

std::string likely_root(const pickle::Value& whole) {
  if (!whole.is(pickle::Kind::dict)) return "";
  if (!whole.class_name().empty()) return has_containers_only(whole) ? likely_archive_root(whole) : "";
  // A number beside the weights (a best accuracy, a loss) is none of them.
  const bool bare = !has_tensor(whole, /*numbers=*/false);
  for (const std::string name : {"state_dict", "model_state_dict", "model", "module"}) {
    const auto* part = whole.find(name);
    // The first two mean one thing alone; a "model" may as well be a part of a model.
    const bool means_weights = bare || name.ends_with("state_dict");
    if (means_weights && part && part->is(pickle::Kind::dict) && has_tensor(*part)) return name;
  }
  return "";
}

std::map<std::string, std::string> plain_values(const pickle::Value& whole) {
  std::map<std::string, std::string> values;
  if (!whole.is(pickle::Kind::dict)) return values;
  for (const auto& [key, value] : whole.pairs()) {
    if (!key.is(pickle::Kind::text) && !key.is(pickle::Kind::bytes)) continue;
    const auto name = shown(key.text());
    if (const auto text = detail::plain_text(value); text && !value.is_none()) values[name] = *text;
    if (const auto attributes = value.object<detail::NamespaceObject>())
      for (const auto& [attribute, text] : attributes->values) values[name + "." + attribute] = text;
  }
  return values;
}

/// How far from its first element the last one lies, and one more.
int64_t extent(const TorchEntry& entry) {
  int64_t last = 0;
  for (size_t i = 0; i < entry.shape.size(); ++i) {
    if (entry.shape[i] == 0) return 0;
    last += (entry.shape[i] - 1) * entry.strides[i];
  }
  return last + 1;
}

}  // namespace

bool detail::is_optimizer_state(const pickle::Value* value) {
  return value && value->is(pickle::Kind::dict) && value->find("state") && value->find("param_groups") &&
         !is_libtorch_optimizer(value);
}

bool detail::is_libtorch_optimizer(const pickle::Value* value) {
  if (!value || value->class_name().empty() || !value->find("state")) return false;
  const auto* groups = value->find("param_groups");
  return groups && groups->is(pickle::Kind::dict) && groups->find("param_groups/size");
}

uint64_t TorchEntry::bytes() const {
  uint64_t count = c10::elementSize(dtype);
  for (const auto size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

bool TorchEntry::is_contiguous() const {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0; expected *= shape[i])
    if (shape[i] != 1 && strides[i] != expected) return false;
  return !shape.empty();
}

bool is_torch_file(const fs::path& path) {
  const auto beginning = detail::torch_beginning(path);
  return detail::is_torch_zip(beginning) || detail::is_torch_legacy(beginning) || detail::is_torch_tar(beginning);
}

TorchFile::TorchFile(const fs::path& path, const TorchFileOptions& options) : options_(options) {
  const auto where = path.string();
  auto content = open_torch_content(path);
  storages_ = content.storages;
  swapped_ = content.swapped;
  const auto& whole = content.whole;
  if (content.script) kind_ = has_containers_only(whole) ? TorchFileKind::libtorch : TorchFileKind::script;
  metadata_ = plain_values(whole);
  if (kind_ == TorchFileKind::script)
    metadata_["TorchScript"] = "a program: its tensors are read, its code is neither read nor run";
  if (options_.root == "auto") options_.root = likely_root(whole);
  const auto* root = descend(whole, options_.root);
  if (!root) {
    std::vector<std::string> known;
    if (whole.is(pickle::Kind::dict))
      for (const auto& [key, value] : whole.pairs())
        if (key.is(pickle::Kind::text) && value.is(pickle::Kind::dict) && known.size() < 20)
          known.push_back(shown(key.text()));
    fail_unknown("torch_file", "root", options_.root, known);
  }
  tree_ = *root;
  TensorWalk{where, entries_}.walk(tree_, "");
  for (size_t i = 0; i < entries_.size(); ++i)
    LEVIN_CHECK(index_.emplace(entries_[i].name, i).second, "[torch_file] \"", where, "\": two tensors are named \"",
                shown(entries_[i].name), "\"");
}

const TorchEntry* TorchFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const TorchEntry& TorchFile::at(std::string_view name) const {
  if (const auto* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.push_back(entry.name);
  const auto nearest = nearest_word(name, names);
  throw Error(fmt::format("[torch_file] \"{}\" has no tensor \"{}\"{}", path().string(), name,
                          nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest)));
}

const fs::path& TorchFile::path() const {
  return storages_->path();
}

void TorchFile::verify(const TorchEntry& entry) const {
  storages_->verify(entry.storage);
}

void TorchFile::read_bytes(const TorchEntry& entry, uint64_t begin, Tensor& into) const {
  const std::span bytes(static_cast<std::byte*>(into.data_ptr()), into.nbytes());
  if (bytes.empty()) return;
  storages_->read(entry.storage, begin, bytes);
  if (swapped_) detail::swap_bytes(bytes, c10::elementSize(c10::toRealValueType(entry.dtype)));
  if (entry.dtype == c10::ScalarType::Bool)
    for (const auto byte : bytes)
      LEVIN_CHECK(byte <= std::byte{1}, "[torch_file] \"", path().string(), "\": \"", entry.name,
                  "\" is of bools and has a byte ", std::to_integer<int>(byte));
}

void TorchFile::read_rows(const TorchEntry& entry, int64_t first, Tensor& into) const {
  const bool fits = entry.is_contiguous() && into.is_cpu() && into.is_contiguous() &&
                    into.scalar_type() == entry.dtype && into.dim() == static_cast<int64_t>(entry.shape.size()) &&
                    into.sizes().slice(1) == at::IntArrayRef(entry.shape).slice(1) && first >= 0 &&
                    into.size(0) <= entry.shape[0] && first <= entry.shape[0] - into.size(0);
  LEVIN_CHECK(fits, "[torch_file] rows from ", first, " on of \"", entry.name, "\" cannot be read into this tensor");
  if (into.numel() == 0) return;
  const auto row = into.numel() / into.size(0);
  read_bytes(entry, static_cast<uint64_t>(entry.offset + first * row) * c10::elementSize(entry.dtype), into);
}

Tensor TorchFile::read(std::string_view name) const {
  const auto& entry = at(name);
  auto flat = at::empty({extent(entry)}, at::TensorOptions().dtype(entry.dtype));
  read_bytes(entry, static_cast<uint64_t>(entry.offset) * c10::elementSize(entry.dtype), flat);
  return flat.as_strided(entry.shape, entry.strides);
}

std::vector<std::pair<std::string, Tensor>> TorchFile::read(const std::vector<std::string>& names) const {
  std::unordered_map<std::string, int> users;
  for (const auto& name : names) ++users[fmt::format("{} {}", c10::toString(at(name).dtype), at(name).storage)];
  std::unordered_map<std::string, Tensor> storages;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& name : names) {
    const auto& entry = at(name);
    const auto key = fmt::format("{} {}", c10::toString(entry.dtype), entry.storage);
    if (users[key] == 1) {
      tensors.emplace_back(name, read(name));
      continue;
    }
    auto& storage = storages[key];
    if (!storage.defined()) {
      const auto count = storages_->bytes(entry.storage) / c10::elementSize(entry.dtype);
      storage = at::empty({static_cast<int64_t>(count)}, at::TensorOptions().dtype(entry.dtype));
      read_bytes(entry, 0, storage);
    }
    tensors.emplace_back(name, storage.as_strided(entry.shape, entry.strides, entry.offset));
  }
  return tensors;
}

}  // namespace levin
