#include "levin/trainer/callbacks/checkpointing/newest_checkpoint.h"

#include <algorithm>
#include <string>
#include <vector>

#include "levin/checkpoint/checkpoint_format.h"
#include "levin/checkpoint/open_checkpoint.h"
#include "levin/core/error.h"
#include "levin/core/log.h"

namespace levin {
namespace {

namespace fs = std::filesystem;

struct FoundCheckpoint {
  bool is_named = false;  // as one that is made to be resumed from
  double saved_at = 0;
  fs::path path;
  const CheckpointFormat* format = nullptr;
};

bool is_resume_name(const std::string& name) {
  return name.ends_with(".ckpt") &&
         (name.starts_with("last") || name.starts_with("on_exception") || name.starts_with("interrupted"));
}

/// Names of checkpoints may hold slashes ("{val/loss}"), so those in folders of the folder count too.
void collect_checkpoints(const fs::path& folder, int depth, const CheckpointFormat* own,
                         std::vector<FoundCheckpoint>& found) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    std::error_code ignored;
    if (name.starts_with('.')) continue;
    const auto* format = find_checkpoint_format(it->path(), own);
    if (!format) {
      if (depth > 0 && it->is_directory(ignored)) collect_checkpoints(it->path(), depth - 1, own, found);
      continue;
    }
    try {
      found.push_back({is_resume_name(name), format->saved_at(it->path()), it->path(), format});
    } catch (const Error& reason) {
      log_warning(detail::concat("passed over: ", reason.what()));
    }
  }
}

}  // namespace

std::optional<fs::path> newest_checkpoint(const fs::path& dir, const CheckpointFormat* format) {
  std::vector<FoundCheckpoint> found;
  collect_checkpoints(dir, 2, format, found);
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    if (a.is_named != b.is_named) return a.is_named;
    if (a.saved_at != b.saved_at) return a.saved_at > b.saved_at;
    return a.path < b.path;
  });
  for (const auto& candidate : found) {
    try {
      candidate.format->open(candidate.path)->verify();
      return candidate.path;
    } catch (const Error& reason) {
      log_warning(detail::concat("passed over: ", reason.what()));
    }
  }
  return std::nullopt;
}

}  // namespace levin
