#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "levin/core/files.h"

namespace levin::detail {

/// A file of lines, open for reading at any place. One that is compressed with gzip is unpacked into memory, whatever
/// its name. Threads may share one.
class PlainFile {
 public:
  explicit PlainFile(std::filesystem::path path);

  void read(uint64_t offset, std::span<std::byte> into) const;
  uint64_t size() const { return compressed_ ? content_.size() : file_.size(); }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  FileReader file_;
  bool compressed_ = false;
  std::string content_;
};

}  // namespace levin::detail
