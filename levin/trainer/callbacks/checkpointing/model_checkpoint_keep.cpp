// Which states a ModelCheckpoint keeps, under which names, and what it deletes for them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "levin/checkpoint/checkpoint_format.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/context.h"

namespace levin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".ckpt";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

bool is_link(const fs::path& path) {
  std::error_code error;
  return fs::is_symlink(fs::symlink_status(path, error));
}

/// A file of its own: damage to one must not be damage to both. In the words of every other write, which name the file
/// and the reason: the library's copy of a file says of a full disk that there was an input/output error.
void copy_to_disk(const fs::path& from, const fs::path& to) {
  constexpr size_t kBlock = 1 << 22;
  const FileReader reader(from);
  FileWriter writer(to);
  std::vector<std::byte> block(std::min<uint64_t>(kBlock, reader.size()));
  for (uint64_t at = 0; at < reader.size(); at += block.size()) {
    block.resize(std::min<uint64_t>(block.size(), reader.size() - at));
    reader.read(at, block);
    writer.write(block);
  }
  writer.close();
}

/// Every rank must call. Of a folder that all ranks see each copies a part of the files.
void copy_checkpoint(Fabric& fabric, const fs::path& from, const fs::path& to) {
  const bool several = fabric.world_size() > 1, first = fabric.is_global_zero();
  const bool shared = several && fabric.strategy().shards() && fs::is_directory(from);
  const auto together = [&](const std::function<void()>& step) {
    several ? detail::together(fabric.strategy().group(), step) : step();
  };
  std::optional<AtomicFolder> target;
  std::string folder;
  together([&] {
    if (!first) return;
    if (fs::is_directory(from)) {
      target.emplace(to);
      folder = fs::absolute(target->path()).string();
      return;
    }
    const auto fresh = detail::temporary_beside(to);
    copy_to_disk(from, fresh);
    fs::rename(fresh, to);
  });
  if (several) folder = fabric.broadcast(folder);
  if (folder.empty()) return;
  together([&] {
    if (!first && !shared) return;
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(from)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    const auto sharers = static_cast<size_t>(shared ? fabric.world_size() : 1);
    for (auto i = static_cast<size_t>(shared ? fabric.global_rank() : 0); i < files.size(); i += sharers)
      copy_to_disk(files[i], fs::path(folder) / files[i].filename());
  });
  together([&] {
    if (target) target->commit();
  });
}

void link_checkpoint(const fs::path& from, const fs::path& link) {
  const auto fresh = detail::temporary_beside(link);
  fs::create_directory_symlink(from.lexically_relative(link.parent_path()), fresh);
  // A folder cannot be replaced by a link at once; what the link names is there whole, so nothing is lost meanwhile.
  if (is_there(link) && !is_link(link)) remove_whole(link);
  fs::rename(fresh, link);
}

}  // namespace

void ModelCheckpoint::keep(TrainerContext& run, bool among_best, std::optional<double> score) {
  const int64_t step = run.global_step();
  if (step == 0 || !run.weights_are_finite()) return;
  auto& fabric = run.fabric();
  if (among_best && options_.save_top_k != 0 && book_.ranked_at != step) {
    // Values that were not reduced differ by rank: rank 0 decides, and the others do as it did.
    const double value = fabric.broadcast(score.value_or(0));
    if (fabric.broadcast(!ranks() || is_admitted(value))) return keep_best(run, value);
    if (options_.verbose)
      run.print(fmt::format("Epoch {}, global step {}: {} {:.5f} is not among the best {}", run.current_epoch(), step,
                            options_.monitor, value, options_.save_top_k));
  }
  if (options_.save_last.is_on() && book_.last_at != step && book_.ranked_at != step) keep_last_alone(run);
}

void ModelCheckpoint::keep_best(TrainerContext& run, double score) {
  const bool full = options_.save_top_k > 0 && std::ssize(book_.best_k) == options_.save_top_k;
  const bool replaces = !ranks() && options_.save_top_k == 1;
  const auto name = choose_name(run, replaces ? book_.best : full ? book_.best_k[worst()].name : std::string());
  // The book goes into the checkpoint, so it must be complete before.
  if (ranks()) {
    if (std::isnan(score)) score = lower_is_better_ ? INFINITY : -INFINITY;
    if (full) {
      const auto at = book_.best_k.begin() + static_cast<int64_t>(worst());
      book_.gone.push_back(at->name);
      book_.best_k.erase(at);
    }
    // Without the version counter a name may come again.
    std::erase_if(book_.best_k, [&](const Kept& kept) { return kept.name == name; });
    book_.best_k.push_back({name, score});
    book_.current_score = score;
    update_best();
  } else {
    if (replaces) book_.gone.push_back(book_.best);
    book_.best = name;
  }
  if (options_.save_last.is_on()) {
    book_.gone.push_back(book_.last);
    book_.last = choose_last_name(run);
  }
  book_.ranked_at = book_.last_at = run.global_step();
  if (options_.verbose)
    run.print(ranks()
                  ? fmt::format("Epoch {}, global step {}: {} {:.5f} (best {:.5f}), kept as {}", run.current_epoch(),
                                run.global_step(), options_.monitor, score, *book_.best_score, path_of(name).string())
                  : fmt::format("Epoch {}, global step {}: kept as {}", run.current_epoch(), run.global_step(),
                                path_of(name).string()));
  const auto then = [this, &run, name] {
    if (options_.save_last.is_on()) point_last_at(run, name);
    remove_gone(run);
  };
  if (ranks())
    run.save_validated_checkpoint(path_of(name), options_.save_weights_only, then);
  else
    run.save_checkpoint(path_of(name), options_.save_weights_only, then);
}

void ModelCheckpoint::keep_last_alone(TrainerContext& run) {
  book_.gone.push_back(book_.last);
  book_.last = choose_last_name(run);
  book_.last_at = run.global_step();
  // Writing to a link would replace what it names.
  if (run.fabric().is_global_zero() && is_link(path_of(book_.last))) fs::remove(path_of(book_.last));
  run.save_checkpoint(path_of(book_.last), options_.save_weights_only, [this, &run] { remove_gone(run); });
}

bool ModelCheckpoint::is_admitted(double score) const {
  if (options_.save_top_k == -1 || std::ssize(book_.best_k) < options_.save_top_k) return true;
  const double limit = book_.best_k[worst()].score;
  return lower_is_better_ ? score < limit : score > limit;
}

size_t ModelCheckpoint::worst() const {
  // Of equal ones the oldest.
  size_t found = 0;
  for (size_t i = 1; i < book_.best_k.size(); ++i) {
    const double score = book_.best_k[i].score;
    if (lower_is_better_ ? score > book_.best_k[found].score : score < book_.best_k[found].score) found = i;
  }
  return found;
}

void ModelCheckpoint::update_best() {
  const Kept* best = &book_.best_k.front();
  for (const auto& kept : book_.best_k)
    if (lower_is_better_ ? kept.score < best->score : kept.score > best->score) best = &kept;
  book_.best = best->name;
  book_.best_score = best->score;
}

std::string ModelCheckpoint::choose_name(TrainerContext& run, std::string_view reusable) const {
  // Every rank asks for the metrics: some are reduced over the ranks when they are asked for.
  const auto stem =
      name_.format(run.current_epoch(), run.global_step(), [&](std::string_view metric) { return run.metric(metric); });
  return free_name(run, stem, reusable);
}

std::string ModelCheckpoint::choose_last_name(TrainerContext& run) const {
  return free_name(run, "last", book_.last);
}

std::string ModelCheckpoint::free_name(TrainerContext& run, const std::string& stem, std::string_view reusable) const {
  auto name = stem + kSuffix;
  if (run.fabric().is_global_zero() && options_.enable_version_counter)
    for (int n = 1; name != reusable && is_taken(run, name); ++n) name = fmt::format("{}-v{}{}", stem, n, kSuffix);
  return run.fabric().broadcast(name);
}

bool ModelCheckpoint::is_taken(TrainerContext& run, const std::string& name) const {
  const auto path = path_of(name);
  if (is_there(path)) return true;
  // Another one may have chosen the name in this very batch, and it is not written yet.
  for (const auto& callback : run.callbacks())
    if (const auto* other = dynamic_cast<const ModelCheckpoint*>(callback.get().get()))
      if (other != this && other->owns(path)) return true;
  return false;
}

bool ModelCheckpoint::owns(const fs::path& path) const {
  const auto is = [&](const std::string& name) { return !name.empty() && path_of(name) == path; };
  return is(book_.best) || is(book_.last) ||
         std::any_of(book_.best_k.begin(), book_.best_k.end(), [&](const Kept& kept) { return is(kept.name); });
}

void ModelCheckpoint::point_last_at(TrainerContext& run, const std::string& name) const {
  const auto last = path_of(book_.last);
  auto& fabric = run.fabric();
  if (!options_.save_last.is_link()) {
    if (fabric.is_global_zero() && is_link(last)) fs::remove(last);
    return copy_checkpoint(fabric, path_of(name), last);
  }
  if (fabric.is_global_zero()) link_checkpoint(path_of(name), last);
}

void ModelCheckpoint::remove_gone(TrainerContext& run) {
  std::vector<std::string> later;
  for (const auto& name : std::exchange(book_.gone, {})) {
    if (name.empty() || owns(path_of(name))) continue;
    // A run that has resumed has nothing else yet.
    std::error_code error;
    const bool resumed = run.resumes_last() && book_.ranked_at <= resumed_step_ && book_.last_at <= resumed_step_ &&
                         fs::equivalent(path_of(name), run.ckpt_path(), error) && !error;
    if (resumed)
      later.push_back(name);
    else if (run.fabric().is_global_zero())
      remove(run, name);
  }
  book_.gone = std::move(later);
}

void ModelCheckpoint::remove(TrainerContext& run, const std::string& name) const {
  // Only checkpoints in our own folder, and never one that the user has named to resume from.
  const auto path = path_of(name);
  if (name.empty() || fs::path(name).is_absolute() || fs::path(name).lexically_normal().string().starts_with(".."))
    return;
  std::error_code error;
  if (!run.resumes_last() && !run.ckpt_path().empty() && fs::equivalent(path, run.ckpt_path(), error) && !error) return;
  if (is_link(path)) {
    fs::remove(path, error);
    return;
  }
  const auto* format = find_checkpoint_format(path, run.fabric().checkpoint_format());
  if (!format) return;
  try {
    format->remove(path);
  } catch (const std::exception& reason) {
    log_warning(detail::concat("cannot remove ", path.string(), ": ", reason.what()));
  }
  // "{val/loss}" makes a folder for each; it goes with the last thing in it.
  for (auto parent = path.parent_path(); parent != dirpath_ && parent.has_parent_path(); parent = parent.parent_path())
    if (!fs::is_empty(parent, error) || error || !fs::remove(parent, error)) break;
}

}  // namespace levin
