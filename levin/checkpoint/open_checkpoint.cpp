#include "levin/checkpoint/open_checkpoint.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/checkpoint/checkpoint_format.h"
#include "levin/checkpoint/format.h"
#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::detail {

bool OpenCheckpoint::contains(std::string_view key) const {
  const auto all = keys();
  return std::find(all.begin(), all.end(), key) != all.end();
}

std::string OpenCheckpoint::choose_key(std::string_view operation, const std::string& asked,
                                       std::string_view how) const {
  const auto all = keys();
  if (!asked.empty()) {
    if (!contains(asked)) fail_unknown(operation, fmt::format("\"{}\": key", where()), asked, all);
    return asked;
  }
  if (contains("model")) return "model";
  LEVIN_CHECK(all.size() == 1, "[", operation, "] \"", where(), "\" holds ", printable(join(all)),
              "; say which one with ", how);
  return all[0];
}

std::unique_ptr<OpenCheckpoint> open_checkpoint(const std::filesystem::path& path, const CheckpointFormat* own) {
  if (const auto* format = find_checkpoint_format(path, own)) return format->open(path);
  // Its own words say what is wrong with the path.
  return (own ? own : checkpoint_formats().front())->open(path);
}

}  // namespace levin::detail
