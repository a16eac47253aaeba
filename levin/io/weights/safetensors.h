#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "levin/core/files.h"
#include "levin/io/weights/safetensors_header.h"

namespace levin {

using at::Tensor;

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// A safetensors file, open for reading. The header is checked whole before anything is allocated: its length, the
/// types, the sizes, that the tensors lie side by side from the first byte to the last, that no name stands twice. Data
/// are read tensor by tensor, when asked for.
///
///     levin::SafetensorsFile file("model.safetensors");
///     Tensor weight = file.read("fc.weight");
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In the order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_.path(); }
  /// The CRC-32C of the header and its length.
  uint32_t header_checksum() const { return header_checksum_; }

  /// Null when there is none of that name.
  const SafetensorsEntry* find(std::string_view name) const;
  /// The entry of that name; an Error with the nearest name when there is none.
  const SafetensorsEntry& at(std::string_view name) const;

  /// A new CPU tensor.
  Tensor read(std::string_view name) const;
  /// Reads straight into a contiguous CPU tensor of the same dtype and number of elements.
  void read_into(const SafetensorsEntry& entry, Tensor& into) const;
  /// The same for consecutive rows of the first dimension, from `first` on: as many as `into` has.
  void read_rows(const SafetensorsEntry& entry, int64_t first, Tensor& into) const;
  /// The CRC-32C of the tensor's bytes; reads them, keeps none.
  uint32_t checksum(const SafetensorsEntry& entry) const;

 private:
  FileReader file_;
  uint64_t data_begin_ = 0;
  uint32_t header_checksum_ = 0;
  SafetensorsMetadata metadata_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string_view, size_t> index_;
};

/// What was written for one tensor.
struct SafetensorsRecord {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint32_t checksum = 0;
};

/// Writes a file in one go, whole or not at all. The bytes are those that the reference implementation writes (widest
/// types first, then by name). Tensors may be on any device and of any strides; one at a time is brought to the CPU.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const SafetensorsMetadata& metadata = {});
/// The same into a writer that the caller closes; tells what was written, in the order of the bytes.
std::vector<SafetensorsRecord> write_safetensors(FileWriter& writer, const NamedTensors& tensors,
                                                 const SafetensorsMetadata& metadata = {});
/// The same for tensors that need not be in memory together: `like` has their names, shapes and types (on any device,
/// meta too), `read` is asked for the values one by one, in the order of the bytes.
std::vector<SafetensorsRecord> write_safetensors(FileWriter& writer, const NamedTensors& like,
                                                 const std::function<Tensor(const std::string& name)>& read,
                                                 const SafetensorsMetadata& metadata = {});

namespace detail {
/// What a type is in a file: its name, bits of one element, and torch's type when there is one.
struct SafetensorsType {
  std::string_view name;
  uint64_t bits = 0;
  c10::ScalarType type = c10::ScalarType::Undefined;
};
/// Null when the name is not known. In the order of alignment, as the reference sorts them.
const SafetensorsType* find_safetensors_type(std::string_view name);
const SafetensorsType* find_safetensors_type(c10::ScalarType type);
}  // namespace detail

}  // namespace levin
