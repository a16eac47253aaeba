#include "levin/trainer/callbacks/checkpointing/newest_checkpoint.h"

#include <algorithm>

#include "levin/checkpoint/checkpoint_format.h"
#include "levin/checkpoint/open_checkpoint.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"

namespace levin {
namespace {

namespace fs = std::filesystem;

struct FoundCheckpoint {
  fs::path path;
  const CheckpointFormat* format = nullptr;
  detail::CheckpointProgress progress = {};
  /// Its name is that of one that is made to be resumed from.
  bool is_named = false;
  double saved_at = 0;
};

bool is_resume_name(const std::string& name) {
  return name.starts_with("last") || name.starts_with("on_exception") || name.starts_with("interrupted");
}

void pass_over(detail::CheckpointSearch& search, const fs::path& path, std::string_view why) {
  log_warning(detail::concat("passed over: ", why));
  search.refused.push_back(path);
}

/// Names of checkpoints may hold slashes ("{val/loss}"), so those in folders of the folder count too.
void collect_checkpoints(const fs::path& folder, int depth, std::string_view prefix, const CheckpointFormat* own,
                         std::vector<FoundCheckpoint>& found, detail::CheckpointSearch& search) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    if (name.starts_with('.') || !name.starts_with(prefix)) continue;
    const bool has_name = name.ends_with(".ckpt");
    if (const auto* format = find_checkpoint_format(it->path(), own)) {
      found.push_back({.path = it->path(), .format = format, .is_named = has_name && is_resume_name(name)});
      continue;
    }
    std::error_code ignored;
    if (has_name)
      pass_over(search, it->path(),
                detail::concat("\"", it->path().string(), "\" is not a checkpoint, or not all of one"));
    else if (depth > 0 && it->is_directory(ignored))
      collect_checkpoints(it->path(), depth - 1, prefix, own, found, search);
  }
}

detail::CheckpointProgress progress_of(const detail::OpenCheckpoint& checkpoint) {
  const auto number = [&](const char* name) -> int64_t {
    if (!checkpoint.contains(name)) return -1;
    try {
      return checkpoint.read(name).to_int();
    } catch (const Error&) {  // another thing of that name
      return -1;
    }
  };
  detail::CheckpointProgress progress{.epoch = number("epoch"), .global_step = number("global_step")};
  if (!checkpoint.contains("loops")) return progress;
  const auto loops = checkpoint.read("loops");
  const auto& fit = loops.to_dict().at("fit").to_dict();
  progress.closing_epoch = fit.at("closing_epoch").to_bool();
  progress.batch = fit.at("batch").to_int();
  progress.validated_at = fit.at("validated_at").to_int();
  return progress;
}

}  // namespace

std::string detail::CheckpointProgress::to_string() const {
  return concat("epoch ", epoch, ", step ", global_step);
}

detail::CheckpointSearch detail::search_checkpoints(const fs::path& dir, const CheckpointFormat* own, bool resumes,
                                                    std::string_view prefix) {
  CheckpointSearch search;
  std::vector<FoundCheckpoint> all, found;
  collect_checkpoints(dir, prefix.empty() ? 2 : 0, prefix, own, all, search);
  for (auto& each : all) {
    try {
      const auto checkpoint = each.format->open(each.path);
      LEVIN_CHECK(!resumes || checkpoint->contains("loops"), "\"", each.path.string(), "\" holds weights only");
      each.progress = progress_of(*checkpoint);
      each.saved_at = each.format->saved_at(each.path);
      found.push_back(std::move(each));
    } catch (const std::exception& reason) {
      pass_over(search, each.path, one_line(reason));
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    if (a.progress != b.progress) return a.progress > b.progress;
    if (a.is_named != b.is_named) return a.is_named;
    if (a.saved_at != b.saved_at) return a.saved_at > b.saved_at;
    return a.path < b.path;
  });
  for (const auto& each : found) {
    if (!search.furthest.empty()) {
      if (each.is_named && each.progress < search.progress) search.behind.emplace_back(each.path, each.progress);
      continue;
    }
    try {
      each.format->open(each.path)->verify();
      search.furthest = each.path;
      search.progress = each.progress;
    } catch (const std::exception& reason) {
      pass_over(search, each.path, one_line(reason));
    }
  }
  return search;
}

std::optional<fs::path> newest_checkpoint(const fs::path& dir, const CheckpointFormat* format) {
  const auto search = detail::search_checkpoints(dir, format, /*resumes=*/false);
  if (!search.furthest.empty()) return search.furthest;
  LEVIN_CHECK(search.refused.empty(), "[newest_checkpoint] none of the ", search.refused.size(), " checkpoints in \"",
              dir.string(), "\" can be loaded; the lines above say why; to start from the beginning, move them away");
  return std::nullopt;
}

}  // namespace levin
