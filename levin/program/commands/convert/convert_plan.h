#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levin/core/progress_bar.h"
#include "levin/io/weights/weight_formats.h"
#include "levin/models/naming.h"
#include "levin/program/commands/convert/convert_source.h"
#include "levin/program/flags.h"

namespace levin::cli {

/// The values of the flags of `levin convert`.
struct ConvertFlags {
  std::string source, target, to, dtype, naming, from_naming, add_prefix, like, root = "auto";
  std::optional<std::string> strip_prefix;
  std::vector<std::string> select;
  ByteCount shard_bytes;
  bool overwrite = false;
};

/// One tensor of the result: what it is made of, and its size.
struct ConvertItem {
  models::RenamedWeight weight;  // sources are names of the source file
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape = {};
  uint64_t bytes = 0;
};

/// The tensors of the result, in order: selected, renamed and with their new dtype.
std::vector<ConvertItem> plan_conversion(const WeightSource& file, const ConvertFlags& flags);

/// An Error unless `target` can be written: nothing is there, or --overwrite replaces weights.
void check_convert_target(const std::filesystem::path& target, bool is_folder, bool overwrite);
/// Writes one file for LibTorch's torch::load, with room for modules that have no tensors.
void write_for_libtorch(const std::filesystem::path& path, const WeightSource& file, std::span<const ConvertItem> items,
                        const std::vector<std::string>& modules, ProgressBar& bar);
/// Writes one file. One tensor at a time is in memory, unless the format needs them all.
void write_items(const std::filesystem::path& path, const WeightSource& file, std::span<const ConvertItem> items,
                 const levin::detail::WeightFormat& format, ProgressBar& bar);
/// Writes a folder of files of at most `shard_bytes` each, with an index; returns how many.
size_t write_shards(const WeightSource& file, const std::vector<ConvertItem>& items,
                    const std::filesystem::path& target, const levin::detail::WeightFormat& format,
                    uint64_t shard_bytes, ProgressBar& bar);

}  // namespace levin::cli
