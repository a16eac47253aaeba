#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::detail {

/// An index of several files: (name of a tensor, file beside the index), sorted by name.
struct WeightIndex {
  std::filesystem::path path;
  std::vector<std::pair<std::string, std::string>> places;
};

/// Reads the text of an index and checks that it names files beside it alone, and each tensor once. `operation` and
/// `where` stand in the errors.
std::vector<std::pair<std::string, std::string>> parse_weight_index(std::string_view operation, std::string_view json,
                                                                    const std::string& where);
/// The same for a file.
WeightIndex read_weight_index(std::string_view operation, const std::filesystem::path& path);
/// Writes the index of files in a folder.
void write_weight_index(const std::filesystem::path& path, const std::map<std::string, std::string>& places,
                        uint64_t total_bytes);

}  // namespace levin::detail
