#include "levin/io/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_set>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/lfs_pointer.h"
#include "levin/core/words.h"

namespace levin {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian, and so is this code");

constexpr uint64_t kLongestHeader = 100'000'000;
constexpr size_t kChunkBytes = size_t{256} << 10;  // of what is read for its checksum: it stays in the cache
constexpr size_t kWrittenBytes = size_t{1} << 20;  // what FileWriter writes without a copy of its own

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

void check_bools(const SafetensorsEntry& entry, const Tensor& tensor, const std::filesystem::path& path) {
  // A bool that is neither 0 nor 1 is undefined behaviour wherever it is looked at.
  if (tensor.scalar_type() != at::kBool) return;
  for (const auto byte : bytes_of(tensor))
    LEVIN_CHECK(byte <= std::byte{1}, "[safetensors] \"", path.string(), "\": \"", entry.name,
                "\" is BOOL and has a byte that is neither 0 nor 1");
}

void check_writable_tensor(const std::string& name, const Tensor& tensor) {
  LEVIN_CHECK(name != "__metadata__", "[safetensors] \"__metadata__\" is not a name a tensor can have");
  LEVIN_CHECK(tensor.defined(), "[safetensors] \"", name, "\" is an undefined tensor, it cannot be written");
  LEVIN_CHECK(tensor.layout() == c10::kStrided && !tensor.is_quantized(), "[safetensors] \"", name,
              "\" is sparse or quantized, only dense tensors can be written");
}

void check_has_data(const std::string& name, const Tensor& tensor) {
  LEVIN_CHECK(!tensor.is_meta(), "[safetensors] \"", name, "\" is on the meta device, it has no data to write");
}

/// The values on the CPU, one after the other, with nothing left to be computed.
Tensor plain(const Tensor& tensor) {
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

/// Writes bytes that another thread may be changing and returns their checksum. Each byte is read once, into memory of
/// its own: two readings might differ, and a file whose checksum is that of other bytes cannot be loaded.
uint32_t write_read_once(FileWriter& writer, std::span<const std::byte> bytes) {
  thread_local std::vector<std::byte> chunk(kWrittenBytes);
  uint32_t sum = 0;
  for (size_t at = 0; at < bytes.size(); at += kWrittenBytes) {
    const auto part = bytes.subspan(at, std::min(kWrittenBytes, bytes.size() - at));
    std::memcpy(chunk.data(), part.data(), part.size());
    const auto copy = std::span<const std::byte>(chunk).first(part.size());
    sum = crc32c(copy, sum);
    writer.write(copy);
  }
  return sum;
}

using c10::ScalarType;
using detail::SafetensorsType;

// In the order of the reference's enumeration: a file holds the last ones first.
constexpr SafetensorsType kTypes[] = {
    {"BOOL", 8, ScalarType::Bool},
    {"F4", 4},
    {"F6_E2M3", 6},
    {"F6_E3M2", 6},
    {"U8", 8, ScalarType::Byte},
    {"I8", 8, ScalarType::Char},
    {"F8_E5M2", 8, ScalarType::Float8_e5m2},
    {"F8_E4M3", 8, ScalarType::Float8_e4m3fn},
    {"F8_E8M0", 8, ScalarType::Float8_e8m0fnu},
    {"F8_E4M3FNUZ", 8, ScalarType::Float8_e4m3fnuz},
    {"F8_E5M2FNUZ", 8, ScalarType::Float8_e5m2fnuz},
    {"I16", 16, ScalarType::Short},
    {"U16", 16, ScalarType::UInt16},
    {"F16", 16, ScalarType::Half},
    {"BF16", 16, ScalarType::BFloat16},
    {"I32", 32, ScalarType::Int},
    {"U32", 32, ScalarType::UInt32},
    {"F32", 32, ScalarType::Float},
    {"C64", 64, ScalarType::ComplexFloat},
    {"F64", 64, ScalarType::Double},
    {"I64", 64, ScalarType::Long},
    {"U64", 64, ScalarType::UInt64},
};

/// The same without torch's types, for the parser.
const std::vector<detail::SafetensorsBits>& type_bits() {
  static const auto bits = [] {
    std::vector<detail::SafetensorsBits> all;
    for (const auto& type : kTypes) all.push_back({type.name, type.bits});
    return all;
  }();
  return bits;
}

/// Torch's type; an Error for those narrower than a byte (F4, F6_E2M3, F6_E3M2).
ScalarType type_of(const SafetensorsEntry& entry) {
  const auto* type = detail::find_safetensors_type(entry.dtype);
  LEVIN_CHECK(type && type->type != ScalarType::Undefined, "[safetensors] \"", shown(entry.name), "\" is ", entry.dtype,
              ", a type that cannot be read");
  return type->type;
}

}  // namespace

namespace detail {

const SafetensorsType* find_safetensors_type(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return t.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

const SafetensorsType* find_safetensors_type(ScalarType type) {
  if (type == ScalarType::Undefined) return nullptr;
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return t.type == type; });
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace detail

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const auto where = path.string();
  LEVIN_CHECK(file_.size() >= 8, "[safetensors] \"", where, "\" has ", file_.size(),
              " bytes, a header needs at least 8");
  uint64_t length = 0;
  file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kLongestHeader) {
    std::string begin(std::min<uint64_t>(file_.size(), 64), '\0');
    file_.read(0, std::as_writable_bytes(std::span(begin)));
    LEVIN_CHECK(!detail::is_lfs_pointer(begin), "[weights] \"", where, "\"", detail::kIsLfsPointer);
  }
  LEVIN_CHECK(length <= kLongestHeader, "[safetensors] \"", where, "\": the header would be ", length,
              " bytes long, at most ", kLongestHeader, " are allowed (is it a safetensors file?)");
  LEVIN_CHECK(length <= file_.size() - 8, "[safetensors] \"", where, "\" is truncated: the header needs ", length,
              " bytes, the file has ", file_.size() - 8);
  std::string json(length, '\0');
  file_.read(8, std::as_writable_bytes(std::span(json)));
  data_begin_ = 8 + length;
  header_checksum_ = crc32c(json, crc32c(std::as_bytes(std::span(&length, 1))));
  auto header = detail::parse_safetensors_header(json, file_.size() - data_begin_, where, type_bits());
  metadata_ = std::move(header.metadata);
  entries_ = std::move(header.entries);
  index_.reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  if (const auto* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.push_back(entry.name);
  const auto nearest = nearest_word(name, names);
  throw Error(detail::concat("[safetensors] \"", path().string(), "\" has no tensor \"", name, "\"",
                             nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?"));
}

Tensor SafetensorsFile::read(std::string_view name) const {
  const auto& entry = at(name);
  auto tensor = at::empty(entry.shape, at::TensorOptions().dtype(type_of(entry)));
  read_into(entry, tensor);
  return tensor;
}

void SafetensorsFile::read_into(const SafetensorsEntry& entry, Tensor& into) const {
  LEVIN_CHECK(
      into.is_cpu() && into.is_contiguous() && into.scalar_type() == type_of(entry) && into.nbytes() == entry.bytes(),
      "[safetensors] \"", entry.name, "\" can only be read into a contiguous CPU tensor of ", entry.dtype, " and ",
      entry.bytes(), " bytes");
  file_.read(data_begin_ + entry.begin, bytes_of(into));
  check_bools(entry, into, path());
}

void SafetensorsFile::read_rows(const SafetensorsEntry& entry, int64_t first, Tensor& into) const {
  const bool fits = into.is_cpu() && into.is_contiguous() && into.scalar_type() == type_of(entry) &&
                    into.dim() == static_cast<int64_t>(entry.shape.size()) && into.dim() > 0 &&
                    into.sizes().slice(1) == at::IntArrayRef(entry.shape).slice(1) && first >= 0 &&
                    into.size(0) <= entry.shape[0] && first <= entry.shape[0] - into.size(0);
  LEVIN_CHECK(fits, "[safetensors] rows from ", first, " on of \"", entry.name, "\", ", entry.dtype, " of shape ",
              fmt::format("{}", entry.shape), ", cannot be read into ", into.scalar_type(), " of shape ",
              fmt::format("{}", into.sizes()), " (a contiguous CPU tensor of the same type is needed)");
  if (into.numel() == 0) return;
  const auto row_bytes = into.nbytes() / static_cast<uint64_t>(into.size(0));
  file_.read(data_begin_ + entry.begin + static_cast<uint64_t>(first) * row_bytes, bytes_of(into));
  check_bools(entry, into, path());
}

uint32_t SafetensorsFile::checksum(const SafetensorsEntry& entry) const {
  thread_local std::vector<std::byte> chunk(kChunkBytes);
  uint32_t sum = 0;
  for (uint64_t at = entry.begin; at < entry.end;) {
    const auto part = std::span(chunk).first(std::min<uint64_t>(kChunkBytes, entry.end - at));
    file_.read(data_begin_ + at, part);
    sum = crc32c(part, sum);
    at += part.size();
  }
  return sum;
}

std::vector<SafetensorsRecord> write_safetensors(FileWriter& writer, const NamedTensors& like,
                                                 const std::function<Tensor(const std::string& name)>& read,
                                                 const SafetensorsMetadata& metadata) {
  struct Item {
    const std::string* name;
    const Tensor* tensor;
    const detail::SafetensorsType* type;
  };
  std::vector<Item> items;
  for (const auto& [name, tensor] : like) {
    check_writable_tensor(name, tensor);
    const auto* type = detail::find_safetensors_type(tensor.scalar_type());
    LEVIN_CHECK(type, "[safetensors] \"", name, "\" is ", tensor.scalar_type(),
                ", a type that safetensors files do not have");
    items.push_back({&name, &tensor, type});
  }
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.type != b.type ? a.type > b.type : *a.name < *b.name; });
  // Written by hand: a JSON object that keeps its order looks names up one by one, too slow for a hundred thousand
  // tensors.
  std::string json = "{";
  std::unordered_set<std::string_view> names;
  uint64_t offset = 0;
  try {
    if (!metadata.empty()) json += fmt::format("\"__metadata__\":{},", nlohmann::json(metadata).dump());
    for (const auto& item : items) {
      LEVIN_CHECK(names.insert(*item.name).second, "[safetensors] two tensors named \"", *item.name, "\"");
      const uint64_t end = offset + item.tensor->nbytes();
      json +=
          fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)", nlohmann::json(*item.name).dump(),
                      item.type->name, fmt::join(item.tensor->sizes(), ","), offset, end);
      offset = end;
    }
  } catch (const nlohmann::json::type_error&) {
    throw Error(detail::concat("[safetensors] a name or metadata for \"", writer.path().string(), "\" is not UTF-8"));
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  LEVIN_CHECK(json.size() <= kLongestHeader, "[safetensors] the header of \"", writer.path().string(), "\" would be ",
              json.size(), " bytes long, at most ", kLongestHeader, " are allowed");
  const uint64_t length = json.size();
  writer.write(std::as_bytes(std::span(&length, 1)));
  writer.write(json);

  std::vector<SafetensorsRecord> records;
  for (const auto& item : items) {
    const auto values = read(*item.name);
    check_has_data(*item.name, values);
    const auto tensor = plain(values);
    LEVIN_CHECK(tensor.sizes() == item.tensor->sizes() && tensor.scalar_type() == item.tensor->scalar_type(),
                "[safetensors] \"", *item.name, "\" was announced as ", item.tensor->scalar_type(), " of shape ",
                fmt::format("{}", item.tensor->sizes()), ", it is ", tensor.scalar_type(), " of ",
                fmt::format("{}", tensor.sizes()));
    records.push_back(
        {*item.name, std::string(item.type->name), tensor.sizes().vec(), write_read_once(writer, bytes_of(tensor))});
  }
  return records;
}

std::vector<SafetensorsRecord> write_safetensors(FileWriter& writer, const NamedTensors& tensors,
                                                 const SafetensorsMetadata& metadata) {
  std::unordered_map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined()) check_has_data(name, tensor);
    by_name.emplace(name, &tensor);
  }
  return write_safetensors(
      writer, tensors, [&](const std::string& name) { return *by_name.at(name); }, metadata);
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const SafetensorsMetadata& metadata) {
  AtomicFile file(path);
  write_safetensors(file.writer(), tensors, metadata);
  file.commit();
}

}  // namespace levin
