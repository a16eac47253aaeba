#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace levin::detail {

/// Where the records of a file lie, kept in "<file>.index" beside it so that a long file is walked only once. It is a
/// cache: one that is of another size or time of the file, of another kind, or damaged is as good as none, and one that
/// cannot be written is left out.
std::optional<std::string> load_record_index(const std::filesystem::path& file, std::string_view kind);
void save_record_index(const std::filesystem::path& file, std::string_view kind, std::string_view content);

/// A walk that took longer than this is worth an index.
constexpr double kIndexSeconds = 1.0;

}  // namespace levin::detail
