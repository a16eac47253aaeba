#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace levin::compile {

/// Machine code of generated kernels on disk, so that a second run compiles nothing.
class CubinCache {
 public:
  /// Keeps at most `most_bytes` in `folder`; the oldest go. An empty folder: nothing is kept.
  explicit CubinCache(std::filesystem::path folder, int64_t most_bytes = int64_t{256} << 20);
  /// $XDG_CACHE_HOME/levin/kernels, else ~/.cache/levin/kernels.
  static std::filesystem::path default_folder();

  /// What is kept under the text's hash, or else what `make` returns. A file appears whole or not at all; where the
  /// folder cannot be written nothing is kept.
  std::string get(const std::string& text, const std::function<std::string()>& make) const;

 private:
  void keep(const std::filesystem::path& file, const std::string& code) const;
  std::filesystem::path folder_;
  int64_t most_bytes_;
};

}  // namespace levin::compile
