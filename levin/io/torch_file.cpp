#include "levin/io/torch_file.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/byte_order.h"
#include "levin/io/pickle_nodes.h"
#include "levin/io/torch_pickle.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kLongestTorchPickle = uint64_t{256} << 20;
constexpr size_t kMostTorchTensors = 1'000'000;
constexpr size_t kLongestTorchName = 4096;
constexpr uint64_t kMostTorchNameBytes = uint64_t{256} << 20;
constexpr std::string_view kTorchZipMagic = "PK\3\4";
/// A pickled number opens the files of torch before 1.6.
constexpr std::string_view kTorchLegacyMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

std::string file_beginning(const fs::path& path) {
  const FileReader file(path);
  std::string text(std::min<uint64_t>(file.size(), kTorchLegacyMagic.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// Says what a file is when it is none of ours, before the zip reader would say that it is no archive.
void check_torch_path(const fs::path& path) {
  const auto beginning = file_beginning(path);
  LEVIN_CHECK(!beginning.starts_with(kTorchLegacyMagic), "[torch_file] \"", path.string(),
              "\" is of the format that torch wrote before 1.6; load it with torch.load(path, weights_only=True) and "
              "torch.save it again, or convert it to safetensors");
  LEVIN_CHECK(beginning.starts_with(kTorchZipMagic), "[torch_file] \"", path.string(),
              "\" is no file of torch.save: it does not begin as a zip archive");
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

bool has_tensor(const pickle::Value& dict) {
  for (const auto& [key, value] : dict.pairs())
    if (value.object<detail::TorchTensorObject>()) return true;
  return false;
}

std::string likely_root(const pickle::Value& whole) {
  if (!whole.is(pickle::Kind::dict)) return "";
  const bool bare = !has_tensor(whole);
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
    using pickle::Kind;
    if (!key.is(Kind::text)) continue;
    const auto name = pickle::detail::shown(key.text());
    if (value.is(Kind::boolean)) values[name] = value.boolean() ? "true" : "false";
    if (value.is(Kind::integer)) values[name] = std::to_string(value.integer());
    if (value.is(Kind::real)) values[name] = fmt::format("{}", value.real());
    if (value.is(Kind::text)) values[name] = pickle::detail::shown(value.text());
  }
  return values;
}

/// A name without the folder that all names of an archive begin with.
std::string_view inner_name(std::string_view name) {
  const auto slash = name.find('/');
  return slash == name.npos ? std::string_view() : name.substr(slash + 1);
}

ZipFile open_torch_zip(const fs::path& path) {
  check_torch_path(path);
  return ZipFile(path, [&](std::string_view name) {
    const auto inner = inner_name(name);
    LEVIN_CHECK(inner != "constants.pkl" && !inner.starts_with("code/"), "[torch_file] \"", path.string(),
                "\" is a TorchScript archive, that is a program; save its state_dict with torch.save, and open that");
  });
}

std::string checked_prefix(const ZipFile& zip) {
  const auto where = zip.path().string();
  const ZipEntry* pickle = nullptr;
  for (const auto& entry : zip.entries()) {
    if (inner_name(entry.name) != "data.pkl") continue;
    LEVIN_CHECK(!pickle, "[torch_file] \"", where, "\" has two pickles, \"", pickle->name, "\" and \"", entry.name,
                "\"");
    pickle = &entry;
  }
  LEVIN_CHECK(pickle, "[torch_file] \"", where, "\" is a zip archive without a data.pkl, no file of torch.save");
  return pickle->name.substr(0, pickle->name.find('/') + 1);
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

uint64_t TorchEntry::bytes() const {
  uint64_t count = c10::elementSize(dtype);
  for (const auto size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

bool is_torch_file(const fs::path& path) {
  const auto beginning = file_beginning(path);
  return beginning.starts_with(kTorchZipMagic) || beginning.starts_with(kTorchLegacyMagic);
}

TorchFile::TorchFile(const fs::path& path, const TorchFileOptions& options)
    : zip_(open_torch_zip(path)), options_(options), prefix_(checked_prefix(zip_)) {
  const auto where = path.string();
  if (const auto* order = zip_.find(prefix_ + "byteorder")) {
    const auto text = zip_.read(*order, 16);
    LEVIN_CHECK(text == "little" || text == "big", "[torch_file] \"", where, "\" has the byte order \"",
                pickle::detail::shown(text), "\"; little and big are known");
    swapped_ = text == "big";
  }
  const auto& data = zip_.at(prefix_ + "data.pkl");
  const auto bytes = zip_.read(data, kLongestTorchPickle);
  LEVIN_CHECK(detail::crc32_zip(std::as_bytes(std::span(bytes))) == data.crc, "[torch_file] \"", where,
              "\" is damaged: the checksum of data.pkl differs");
  const auto record_bytes = [&](const std::string& key) {
    const auto* entry = zip_.find(prefix_ + "data/" + key);
    LEVIN_CHECK(entry, "[pickle] storage \"", pickle::detail::shown(key), "\" is not in the archive");
    return entry->bytes;
  };
  const auto whole = detail::load_torch_pickle(bytes, record_bytes, where);
  metadata_ = plain_values(whole);
  if (options_.root == "auto") options_.root = likely_root(whole);
  const auto* root = descend(whole, options_.root);
  if (!root) {
    std::vector<std::string> known;
    if (whole.is(pickle::Kind::dict))
      for (const auto& [key, value] : whole.pairs())
        if (key.is(pickle::Kind::text) && value.is(pickle::Kind::dict) && known.size() < 20)
          known.push_back(pickle::detail::shown(key.text()));
    fail_unknown("torch_file", "root", options_.root, known);
  }
  tree_ = *root;
  TensorWalk{where, entries_}.walk(tree_, "");
  for (size_t i = 0; i < entries_.size(); ++i)
    LEVIN_CHECK(index_.emplace(entries_[i].name, i).second, "[torch_file] \"", where, "\": two tensors are named \"",
                pickle::detail::shown(entries_[i].name), "\"");
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

const ZipEntry& TorchFile::record(const TorchEntry& entry) const {
  return zip_.at(prefix_ + "data/" + entry.storage);
}

void TorchFile::verify(const TorchEntry& entry) const {
  zip_.verify(record(entry));
}

void TorchFile::read_bytes(const TorchEntry& entry, uint64_t begin, Tensor& into) const {
  const std::span bytes(static_cast<std::byte*>(into.data_ptr()), into.nbytes());
  if (bytes.empty()) return;
  zip_.read(record(entry), begin, bytes);
  if (swapped_) detail::swap_bytes(bytes, c10::elementSize(c10::toRealValueType(entry.dtype)));
  if (entry.dtype == c10::ScalarType::Bool)
    for (const auto byte : bytes)
      LEVIN_CHECK(byte <= std::byte{1}, "[torch_file] \"", path().string(), "\": \"", entry.name,
                  "\" is of bools and has a byte ", std::to_integer<int>(byte));
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
      const auto count = record(entry).bytes / c10::elementSize(entry.dtype);
      storage = at::empty({static_cast<int64_t>(count)}, at::TensorOptions().dtype(entry.dtype));
      read_bytes(entry, 0, storage);
    }
    tensors.emplace_back(name, storage.as_strided(entry.shape, entry.strides, entry.offset));
  }
  return tensors;
}

}  // namespace levin
