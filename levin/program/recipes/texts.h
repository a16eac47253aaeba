#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/core/files.h"

namespace levin::cli {

/// Texts in a row: a file, the files of a folder by name, or a text in memory. A small handle.
class Texts {
 public:
  /// A file or a folder, whose files are all taken but hidden ones. An empty path: the King James Bible of Debian's
  /// package bible-kjv-text, else its first chapters.
  static Texts open(const std::filesystem::path& path);
  static Texts of(std::string text, std::string name);

  /// For people.
  const std::string& name() const { return name_; }
  /// What is there in place of what was wanted; empty: nothing is.
  const std::string& note() const { return note_; }
  size_t count() const { return files_.empty() ? 1 : files_.size(); }

  /// Gives all texts block by block. Where there are several, each ends with a line end.
  class Blocks;

 private:
  std::string name_, note_;
  std::vector<std::filesystem::path> files_;
  std::shared_ptr<const std::string> memory_;
};

/// A block has about a megabyte and ends behind a line where it can, never inside of a character.
class Texts::Blocks {
 public:
  explicit Blocks(const Texts& texts) : texts_(&texts) {}

  /// False at the end. An Error when the text is not UTF-8, with its place.
  bool next();
  std::string_view text() const { return block_; }
  /// The block is the last one of its text.
  bool ends_text() const { return ends_text_; }

 private:
  /// More bytes of the text under way; false when it has no more.
  bool fill(size_t wanted);
  void check_utf8() const;

  const Texts* texts_;
  size_t index_ = 0;  // of the text under way
  std::unique_ptr<FileReader> file_;
  uint64_t at_ = 0;     // read of it
  std::string buffer_;  // read, of which `used_` bytes were given
  size_t used_ = 0;
  std::string_view block_;
  bool ends_text_ = false;
};

/// What a look at all of a text tells.
struct TextScan {
  uint64_t bytes = 0;
  uint32_t checksum = 0;
  /// Those that occur, by code point.
  std::vector<char32_t> characters;
};
TextScan scan(const Texts& texts);

}  // namespace levin::cli
