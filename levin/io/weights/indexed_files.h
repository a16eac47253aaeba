#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/weight_formats.h"

namespace levin::detail {

/// Opens the files of an index and says which of them holds each tensor. Every tensor must be in the file that the
/// index names, and in no other.
template <class File>
std::unordered_map<std::string, size_t> open_indexed(std::string_view operation, const WeightIndex& index,
                                                     std::vector<File>& files) {
  const auto where = index.path.string();
  std::unordered_map<std::string, size_t> opened, places;
  for (const auto& [name, file] : index.places) {
    const auto [found, is_new] = opened.emplace(file, files.size());
    if (is_new) files.emplace_back(index.path.parent_path() / file);
    LEVIN_CHECK(files[found->second].find(name), "[", operation, "] \"", where, "\": \"", shown(name),
                "\" is said to be in \"", shown(file), "\", it is not");
    places.emplace(name, found->second);
  }
  const auto name_of = [&](size_t i) { return shown(files[i].path().filename().string()); };
  for (size_t i = 0; i < files.size(); ++i)
    for (const auto& entry : files[i].entries()) {
      const auto found = places.find(entry.name);
      LEVIN_CHECK(found != places.end(), "[", operation, "] \"", where, "\": \"", shown(entry.name), "\" of \"",
                  name_of(i), "\" is not in the index");
      LEVIN_CHECK(found->second == i, "[", operation, "] \"", where, "\": \"", shown(entry.name),
                  "\" is in two files, \"", name_of(found->second), "\" and \"", name_of(i), "\"");
    }
  return places;
}

}  // namespace levin::detail
