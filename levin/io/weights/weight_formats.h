#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/io/weights/weight_index.h"
#include "levin/io/weights/weights.h"

/// Formats of weight files. Each describes itself in a file of its own (format_safetensors.cpp) and has a row in the
/// table of weight_formats.cpp. WeightFile, save_weights and `levin convert` ask the table.
namespace levin::detail {

/// Weights that are open for reading: what WeightFile tells of them, and their data.
class OpenWeights {
 public:
  virtual ~OpenWeights() = default;
  virtual Tensor read(std::string_view name) const = 0;
  /// Tensors that share memory in the file share it here.
  virtual NamedTensors read_all(const std::vector<std::string>& names) const = 0;
  /// Into a contiguous CPU tensor of that shape and dtype. By default reads all and copies.
  virtual void read_into(std::string_view name, Tensor& into) const;
  /// The same for rows from `first` on, as many as `into` has.
  virtual void read_rows(std::string_view name, int64_t first, Tensor& into) const;

  std::vector<WeightEntry> entries;
  std::vector<std::filesystem::path> files;
  std::map<std::string, std::string> metadata;
  /// The part of a file that was taken; empty for all of it.
  std::string root;
  /// What was taken from the beginning of all names.
  std::string stripped;
};

struct WeightFormat {
  /// WeightFile::format(): "safetensors".
  std::string_view name;
  /// `levin convert --to`: "safetensors", "pth".
  std::string_view word;
  /// Ends of file names, with the dot.
  std::vector<std::string_view> endings;
  /// Names in a folder: "model" and ".safetensors" make model.safetensors, model-00001-of-00002.safetensors and
  /// model.safetensors.index.json. Empty for a format that keeps a model in one file only.
  std::string_view stem, folder_ending;
  /// By the first bytes.
  bool (*matches)(const std::filesystem::path& file);
  /// `index` is null for a single file.
  std::shared_ptr<const OpenWeights> (*open)(const std::filesystem::path& file, const WeightIndex* index,
                                             const WeightOptions& options);
  /// Writes a file, whole or not at all; null for a format that is only read.
  void (*write)(const std::filesystem::path& path, const NamedTensors& tensors) = nullptr;
  /// The same for tensors that need not be in memory together: `like` has their names, shapes and dtypes, `read` is
  /// asked for the values one by one. Null where a file is put together whole.
  void (*write_each)(const std::filesystem::path& path, const NamedTensors& like,
                     const std::function<Tensor(const std::string& name)>& read) = nullptr;

  /// "model.safetensors", "model-00002-of-00003.safetensors": a file of a folder, counted from 0.
  std::string file_name(size_t shard, size_t shards) const;
  /// "model.safetensors.index.json"
  std::string index_name() const;
};

WeightFormat safetensors_format();
WeightFormat torch_format();
/// Files of LibTorch's torch::save; they have the endings of Python's.
WeightFormat libtorch_format();

const std::vector<WeightFormat>& weight_formats();
/// By its content; the first of the table, whose reader says what is wrong, when it is of none.
const WeightFormat& weight_format_of(const std::filesystem::path& file);
/// By the end of its name; null when that tells nothing.
const WeightFormat* weight_format_by_ending(const std::filesystem::path& path);
/// By the word of `--to`; null when there is none.
const WeightFormat* find_weight_format(std::string_view word);
/// The words of the formats that are written: "safetensors", "pth".
std::vector<std::string> written_formats();
/// All endings, or those of formats that are written: ".safetensors", ".pth", ...
std::vector<std::string> weight_endings(bool written = false);
/// The file or index that a folder holds: one of the usual names, or the only one that could be meant.
std::filesystem::path weights_in(const std::filesystem::path& folder);

}  // namespace levin::detail
