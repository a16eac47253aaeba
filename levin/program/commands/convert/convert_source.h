#pragma once

#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/checkpoint/reader.h"
#include "levin/core/progress_bar.h"
#include "levin/io/weights/weights.h"

namespace levin::cli {

/// Weights that are read one by one: of a weight file, or of a checkpoint, whether ranks have written it in parts or
/// not.
class WeightSource {
 public:
  /// `root` is the part of a torch file to take, or a name of a checkpoint's state ("model" by default); empty for all.
  /// `strip_module` as in WeightOptions.
  WeightSource(const std::filesystem::path& path, const std::string& root, bool strip_module = true);

  const std::vector<WeightEntry>& entries() const { return file_ ? file_->entries() : entries_; }
  const WeightEntry& at(const std::string& name) const;
  Tensor read(const std::string& name) const;
  /// Several at once: tensors that are one in the file or checkpoint (tied weights) share memory here.
  NamedTensors read(const std::vector<std::string>& names) const;
  /// Compares the checksums of a checkpoint with its data, with a progress bar; nothing to do for a weight file.
  void verify() const;
  const std::filesystem::path& path() const { return path_; }
  /// What was taken from the beginning of all names.
  std::string stripped() const { return file_ ? file_->stripped() : std::string(); }

 private:
  std::filesystem::path path_;
  std::optional<WeightFile> file_;
  std::optional<levin::detail::CheckpointReader> checkpoint_;
  std::vector<WeightEntry> entries_;
  std::map<std::string, std::pair<size_t, std::string>> places_;  // index and id by name
};

/// Takes a bar away when an exception passes: what is told then is one line, and not how far it came.
class DropBar {
 public:
  explicit DropBar(ProgressBar& bar) : bar_(bar) {}
  ~DropBar() {
    if (std::uncaught_exceptions() > before_) bar_.discard();
  }
  DropBar(const DropBar&) = delete;
  DropBar& operator=(const DropBar&) = delete;

 private:
  ProgressBar& bar_;
  int before_ = std::uncaught_exceptions();
};

/// A tensor of a checkpoint as a weight file would list it.
WeightEntry checkpoint_entry(const levin::detail::CheckpointReader& reader, const std::string& name,
                             const std::string& id);
/// Compares all checksums of a checkpoint, with a progress bar.
void verify_with_progress(const levin::detail::CheckpointReader& reader);

}  // namespace levin::cli
