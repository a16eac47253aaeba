#pragma once

#include <filesystem>

namespace levin::testing {

/// An empty folder, removed with everything in it by the destructor. Its name has a space and a letter outside ASCII,
/// as users' paths do.
///
///     const TemporaryFolder folder;
///     write_file(folder / "a.txt", "text");
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }
  /// Number of files and folders directly in it.
  size_t entries() const;

 private:
  std::filesystem::path path_;
};

}  // namespace levin::testing
