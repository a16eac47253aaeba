#include "levin/io/weights/weight_formats.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace fs = std::filesystem;
const std::vector<WeightFormat>& weight_formats() {
  static const std::vector<WeightFormat> table{
      safetensors_format(),
      torch_format(),
      libtorch_format(),
  };
  return table;
}

void OpenWeights::read_into(std::string_view name, Tensor& into) const {
  into.copy_(read(name));
}

void OpenWeights::read_rows(std::string_view name, int64_t first, Tensor& into) const {
  into.copy_(read(name).narrow(0, first, into.size(0)));
}

std::string WeightFormat::file_name(size_t shard, size_t shards) const {
  if (shards == 1) return fmt::format("{}{}", stem, folder_ending);
  return fmt::format("{}-{:05}-of-{:05}{}", stem, shard + 1, shards, folder_ending);
}

std::string WeightFormat::index_name() const {
  return file_name(0, 1) + ".index.json";
}

const WeightFormat& weight_format_of(const fs::path& file) {
  for (const auto& format : weight_formats())
    if (format.matches(file)) return format;
  return weight_formats().front();
}

const WeightFormat* weight_format_by_ending(const fs::path& path) {
  const auto ending = path.extension().string();
  for (const auto& format : weight_formats())
    if (std::find(format.endings.begin(), format.endings.end(), ending) != format.endings.end()) return &format;
  return nullptr;
}

const WeightFormat* find_weight_format(std::string_view word) {
  for (const auto& format : weight_formats())
    if (format.word == word) return &format;
  return nullptr;
}

std::vector<std::string> written_formats() {
  std::vector<std::string> words;
  for (const auto& format : weight_formats())
    if (format.write) words.emplace_back(format.word);
  return words;
}

std::vector<std::string> weight_endings(bool written) {
  std::vector<std::string> endings;
  for (const auto& format : weight_formats())
    if (format.write || !written) endings.insert(endings.end(), format.endings.begin(), format.endings.end());
  return endings;
}

fs::path weights_in(const fs::path& folder) {
  std::vector<std::string> usual;
  for (const auto& format : weight_formats()) {
    if (format.stem.empty()) continue;
    usual.push_back(format.file_name(0, 1));
    for (const auto& name : {usual.back(), format.index_name()}) {
      const auto file = folder / name;
      if (fs::exists(file)) return file;
      // A download that was cut short.
      LEVIN_CHECK(!fs::is_symlink(file), "[weights] \"", file.string(), "\" is a link to \"",
                  fs::read_symlink(file).string(), "\", which is not there");
    }
  }
  std::vector<fs::path> candidates;
  for (const auto& item : fs::directory_iterator(folder))
    if (item.is_regular_file() && weight_format_by_ending(item.path())) candidates.push_back(item.path());
  LEVIN_CHECK(!candidates.empty(), "[weights] \"", folder.string(), "\" has no weights: neither ", join(usual, " nor "),
              ", an index of them, or any ", join(weight_endings()));
  std::sort(candidates.begin(), candidates.end());
  LEVIN_CHECK(candidates.size() == 1, "[weights] \"", folder.string(), "\" has ", candidates.size(),
              " weight files; name one of them, such as \"", candidates[0].string(), "\"");
  return candidates[0];
}

}  // namespace levin::detail
